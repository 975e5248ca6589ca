"""What the engine asks of whoever moves code together with the state of a run.

A step begins on the code that the state goes with, and its code moves in the same push
as the state, or neither does. Where a run is not shared through git nothing is moved, and
the work tree is nobody's business but the agents'.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.patience import Patience
from sequencer.errors import (
    RemoteUnreachable,
    SequencerError,
    WorkTreeBusy,
    WorkTreeRefused,
    typed_command,
)
from sequencer.executors.cancellation import Cancellation
from sequencer.model.head import Claim, Head, Work
from sequencer.model.outcome import OutcomeStatus


class Carrier(Protocol):
    """Moves the code of a run between the work tree and the remote."""

    @property
    def refs(self) -> dict[str, str]:
        """Return the refs of the remote that are to be fetched with the state, and to where."""

    def ready(self, head: Head) -> None:
        """Look whether a step may begin in this work tree; before it is claimed.

        Raises:
            WorkTreeRefused: there is something that the step would overwrite, mix up with
                its own, or build on though nobody else has it.
            WorkTreeBusy: agents of another process work there; it is free in a while.
        """

    def arrive(self, head: Head) -> None:
        """Bring the work tree to the code that *head* goes with; after the claim.

        From now on it is kept for this process, until `leave`.

        Raises:
            WorkTreeRefused: it can't be brought there without losing something.
            RemoteUnreachable: the code had to be fetched, and there was no answer.
        """

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """Commit what is declared, and return what the head is to name; after a successful *step*.

        It moves with the state whose head names it. None: there is nothing that the remote does
        not have, and the run knows its branch.

        Raises:
            WorkTreeRefused: the agent has left another branch or another history.
        """

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        """Put the work of a *step* that was not accepted on a branch of its own.

        Returns its name, or None if there was no work. Index, HEAD and work tree stay as
        they are.
        """

    def merged(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """Return *work* of an attempt merged with what *head* has accepted since it began.

        A text: they conflict, as it says. Only where attempts push to refs of their own.

        Raises:
            WorkTreeRefused: it can't be done here.
        """

    def obstacle(self, head: Head) -> SequencerError | None:
        """Return why the next step of *head* will not start here, as far as the files show."""

    def publish(self, head: Head) -> None:
        """Let people see the code of *head* where it does not move with the state; never fails."""

    def leave(self, head: Head | None) -> None:
        """Note that no agent of this process works in the work tree any more.

        *head* is the run as it is now; None: that is not known.
        """


class NothingCarried:
    """The carrier of a run whose code is not moved."""

    @property
    def refs(self) -> dict[str, str]:
        """See `Carrier.refs`: none."""
        return {}

    def ready(self, head: Head) -> None:
        """See `Carrier.ready`: always."""

    def arrive(self, head: Head) -> None:
        """See `Carrier.arrive`: the work tree is right as it is."""

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """See `Carrier.collect`: nothing moves."""

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        """See `Carrier.keep`: what the step did is where the step did it."""

    def merged(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """See `Carrier.merged`: nothing moves."""
        del claim, head
        return work

    def obstacle(self, head: Head) -> SequencerError | None:
        """See `Carrier.obstacle`: nothing moves, so nothing is in the way."""

    def publish(self, head: Head) -> None:
        """See `Carrier.publish`: it is where it was made."""

    def leave(self, head: Head | None) -> None:
        """See `Carrier.leave`: it was kept for nobody."""


class BranchGuard(NothingCarried):
    """The carrier of a run whose code is not moved, and belongs to one branch all the same."""

    def __init__(self, branch: str, checked_out: Callable[[], str | None]) -> None:
        """Let steps begin while *checked_out* returns *branch*."""
        self._branch = branch
        self._checked_out = checked_out

    def ready(self, head: Head) -> None:  # noqa: ARG002 - whatever the run has come to
        """See `Carrier.ready`.

        Raises:
            WorkTreeRefused: another branch is checked out, or none.
        """
        if (problem := self.problem()) is not None:
            raise WorkTreeRefused(problem[0], where="store.work.branch", hint=problem[1])

    def problem(self) -> tuple[str, str] | None:
        """Return why no step may begin, and what to do about it."""
        there = self._checked_out()
        if there == self._branch:
            return None
        told = "there is no git repository" if there is None else f"{there} is checked out"
        hint = f"{typed_command('git', 'switch', self._branch)}, or set store.work.branch"
        return f"{told}, but steps run only on branch {self._branch}", hint


NOTHING_CARRIED = NothingCarried()


TURN_S = 0.5
_turns: dict[Path, threading.Lock] = {}
"""Held by the attempts of this process that are alone in the work tree of the folder."""


class CodeMover:
    """Moves the code that the attempts of one process leave, and keeps it where that fails."""

    def __init__(self, carrier: Carrier, patience: Patience, folder: Path = Path()) -> None:
        """Move with *carrier*; *patience* waits for a remote that is out of reach.

        *folder* is where agents work; other runs of this process may as well.
        """
        self._carrier = carrier
        self._patience = patience
        self._turn = _turns.setdefault(folder, threading.Lock())
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

    def collect(self, worked: Sequence[Attempt], head: Head) -> Work | None:
        """Return the code that moves with the end of *worked*; see `Carrier.collect`.

        Where it can't move, they have failed.
        """
        if not worked:
            return None
        claim = worked[0].claim
        try:
            work = self._patience.after_agent(
                lambda: self._carrier.collect(claim, claim.step, head), worked[0].cancellation
            )
        except WorkTreeRefused as refusal:
            self.refuse(worked, head, refusal)
            return None
        if work is not None:
            self._here.add(work.commit)
        return work

    def refuse(self, worked: Sequence[Attempt], head: Head, refusal: WorkTreeRefused) -> None:
        """Make failures of *worked*, whose code was not taken; a branch keeps it."""
        for one in worked:
            error, kept = refusal.message, None
            with contextlib.suppress(SequencerError):
                kept = self._carrier.keep(one.claim, one.claim.step, head)
            if kept is not None:
                error = f"{error}; what the step did is on branch {kept}"
            if one.ended is not None:
                outcome = one.ended.outcome.replace(status=OutcomeStatus.FAILED, error=error)
                made = replace(one.ended, outcome=outcome, decision=None, verdict=None)
                one.ended = made

    def keep(self, ended: Sequence[Attempt], head: Head | None) -> None:
        """Put the work of *ended*, whose word does not count, on branches of their own."""
        for one in ended:
            if head is None:
                return
            # That it does not count is the news, whatever git says.
            with contextlib.suppress(SequencerError):
                self._carrier.keep(one.claim, one.claim.step, head)

    @contextlib.contextmanager
    def alone(self, head: Head, stop: Cancellation) -> Iterator[None]:
        """Keep the work tree for one attempt of this process that begins at *head*.

        Others wait until it has ended, or *stop* is set.

        Raises: see `Carrier.ready`.
        """
        while self.moves and not self._turn.acquire(timeout=TURN_S):
            if stop.is_set():
                raise WorkTreeBusy(
                    "other attempts of this process are still working in the work tree"
                )
        try:
            self._patience.reach(lambda: self._carrier.ready(head))
            yield
        except RemoteUnreachable as away:
            # The server of the run is another one, and it was reached.
            raise WorkTreeRefused(away.message, where=away.where, hint=away.hint) from away
        finally:
            # Who comes next finds out whether it was accepted.
            self._carrier.leave(None)
            if self.moves:
                self._turn.release()

    def merged(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """See `Carrier.merged`."""
        return self._carrier.merged(claim, head, work)

    def publish(self, head: Head, *, wait: bool = False) -> None:
        """See `Carrier.publish`; an attempt that works here does it itself.

        With *wait*, wait for a thread that is publishing: this process is about to end.
        """
        if self._turn.acquire(blocking=wait):
            try:
                self._carrier.publish(head)
            finally:
                self._turn.release()

    def leave(self, head: Head | None, running: Collection[int]) -> None:
        """Let other processes have the work tree if none of the tokens *running* is left here."""
        if not running:
            self._carrier.leave(head)


def accepted(ended: Sequence[Attempt]) -> list[Attempt]:
    """Return those of *ended* whose agents did what they were asked."""
    return [
        one
        for one in ended
        if one.ended is not None and one.error is None and one.ended.outcome.is_accepted
    ]
