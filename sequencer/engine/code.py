"""The code that an attempt has left: collected before its end is recorded, kept if that fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from sequencer.engine.attempts import Running
from sequencer.engine.carrier import Carrier, NothingCarried
from sequencer.engine.patience import Patience
from sequencer.errors import SequencerError, WorkTreeBusy, WorkTreeRefused
from sequencer.model.head import Claim, Head, Work
from sequencer.model.line.line import Ended, Ending, EndingKind
from sequencer.model.outcome import Outcome, OutcomeStatus


def collected(carrier: Carrier, claim: Claim, head: Head, ended: Ended) -> Ended:
    """Return how the attempt ended, with the code that is to move with it.

    Where the code can't move, the attempt has failed and its work is on a branch of its own.
    """
    if not ended.has_worked:
        return ended
    try:
        work = carrier.collect(claim, claim.step, head)
    except WorkTreeRefused as refusal:
        return without_code(carrier, claim, head, ended, refusal)
    if work is None:
        return ended
    record = {**ended.record, "work": work.model_dump()}
    return replace(ended, record=record, work=work)


def left(carrier: Carrier, claim: Claim, head: Head) -> None:
    """Have *carrier* leave the work tree if who held *claim* holds none in *head*."""
    if all(one.owner.nonce != claim.owner.nonce for one in head.claims):
        carrier.leave(head)


def without_code(
    carrier: Carrier, claim: Claim, head: Head, ended: Ended, refusal: WorkTreeRefused
) -> Ended:
    """Return *ended* as the failure that it is because its code was not taken."""
    outcome = failed(carrier, claim, head, ended.outcome, refusal)
    performed = replace(ended.performed, outcome=outcome, decision=None, verdict=None)
    record = {name: value for name, value in ended.record.items() if name != "work"}
    record |= {"status": str(outcome.status), "error": outcome.error}
    return Ended(performed, Ending(EndingKind.FAIL), record)


def failed(
    carrier: Carrier, claim: Claim, head: Head, outcome: Outcome, refusal: WorkTreeRefused
) -> Outcome:
    """Return *outcome* as a failure that names the branch on which the work is kept."""
    error, kept = refusal.message, None
    with contextlib.suppress(SequencerError):
        kept = carrier.keep(claim, claim.step, head)
    if kept is not None:
        error = f"{error}; what the step did is on branch {kept}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error)


class FlowCode:
    """Moves code for one process's nodes."""

    def __init__(self, carrier: Carrier, patience: Patience) -> None:
        """Move with *carrier*; *patience* waits for a remote that is out of reach."""
        self._carrier = carrier
        self._patience = patience
        self.is_ready = True
        """Whether a node may begin in this work tree, as it was seen last."""
        self.moves = not isinstance(carrier, NothingCarried)
        self._here: set[str] = set()
        """The code of states that is in the work tree: brought here, or left by nodes here."""

    def may_begin(self, head: Head, running: Collection[int], others: Collection[int]) -> bool:
        """Return whether one more node may begin here, beside those with the tokens *running*.

        *others* are the tokens of claims of other processes that may be alive.
        """
        if not self.moves:
            return True
        if others or not self.is_ready:
            return False
        # One that has lost its claim still works in this tree, and others may have elsewhere.
        is_alone = all(head.claim_with(token) for token in running)
        is_here = not running or head.work is None or head.work.commit in self._here
        return is_alone and is_here

    def ensure_ready(self, head: Head, is_held: Callable[[], bool]) -> None:
        """Look whether a node may begin while none is running.

        None may where agents of another process are in the way and *is_held* says, when they
        were waited for, that somebody has claims to be waited for.

        Raises:
            WorkTreeRefused: none may.
            WorkTreeBusy: nobody has claims, and agents of somebody work all the same.
        """
        self.is_ready = False
        try:
            self._patience.reach(lambda: self._carrier.ready(head))
        except WorkTreeBusy:
            if is_held():
                return
            raise
        self.is_ready = True

    def look(self, head: Head) -> None:
        """Look whether a node may begin; if not, the next claim says why."""
        try:
            self._carrier.ready(head)
            self.is_ready = True
        except SequencerError:
            self.is_ready = False

    def arrive(self, head: Head) -> None:
        """See `Carrier.arrive`."""
        self._patience.reach(lambda: self._carrier.arrive(head))
        self._here = set() if head.work is None else {head.work.commit}

    def collect(self, ended: Sequence[Running], head: Head) -> Work | None:
        """Return the code that moves with the end of *ended*; see `Carrier.collect`.

        Where it can't move, those that were accepted have failed.
        """
        worked = accepted(ended)
        if not worked:
            return None
        claim = worked[0].claim
        try:
            work = self._carrier.collect(claim, claim.step, head)
        except WorkTreeRefused as refusal:
            self.refuse(ended, head, refusal)
            return None
        if work is not None:
            self._here.add(work.commit)
        return work

    def refuse(self, ended: Sequence[Running], head: Head, refusal: WorkTreeRefused) -> None:
        """Make failures of those of *ended* whose code was not taken, and keep their work."""
        for one in accepted(ended):
            if one.performed is not None:
                outcome = failed(self._carrier, one.claim, head, one.performed.outcome, refusal)
                one.performed = replace(one.performed, outcome=outcome)

    def keep(self, ended: Sequence[Running], head: Head | None) -> None:
        """Put the work of *ended*, whose word does not count, on branches of their own."""
        for one in ended:
            if head is None:
                return
            # That it does not count is the news, whatever git says.
            with contextlib.suppress(SequencerError):
                self._carrier.keep(one.claim, one.claim.step, head)

    def leave(self, head: Head | None, running: Collection[int]) -> None:
        """Let other processes have the work tree if none of the tokens *running* is left here."""
        if not running:
            self._carrier.leave(head)


def accepted(ended: Sequence[Running]) -> list[Running]:
    """Return those of *ended* whose agents did what they were asked."""
    return [
        one
        for one in ended
        if one.performed is not None and one.error is None and one.performed.outcome.is_accepted
    ]
