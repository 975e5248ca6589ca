"""Moves code together with the state of a run, for the attempts of one process.

A step begins on the code that the state goes with, and its code moves in the same push as the
state, or neither does. Where a run is not shared through git nothing is moved, and the work tree
is nobody's business but the agents'.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.changes import RetryPolicy
from sequencer.engine.workspace import Workspace
from sequencer.errors import (
    RemoteUnreachable,
    SequencerError,
    WorkTreeBusy,
    WorkTreeRefused,
)
from sequencer.executors.cancellation import Cancellation
from sequencer.model.head import Claim, Head, Work
from sequencer.model.outcome import OutcomeStatus

TURN_S = 0.5
_turns: dict[Path, threading.Lock] = {}
"""Held by the attempts of this process that are alone in the work tree of the folder."""


class CodeSync:
    """Moves the code that the attempts of one process leave, and keeps it where that fails."""

    def __init__(self, workspace: Workspace, retry_policy: RetryPolicy) -> None:
        """Work in *workspace*, where other runs of this process may work as well.

        *retry_policy* waits for a remote that is out of reach.
        """
        self._workspace = workspace
        self._retry_policy = retry_policy
        self._turn = _turns.setdefault(workspace.folder, threading.Lock())
        self.is_ready = True
        """Whether a node may begin in this workspace, as it was seen last."""
        self.moves = workspace.moves
        self._here: set[str] = set()
        """The code of states that is in the work tree: brought here, or left by nodes here."""

    def may_begin(self, head: Head, running: Collection[int], others: Collection[int]) -> bool:
        """Return whether one more node may begin here, beside those with the tokens *running*.

        *others* are the tokens of claims of other processes that may be alive.
        """
        if not self.moves:
            return self.is_ready
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
            self._retry_policy.reach(lambda: self._workspace.ready(head))
        except WorkTreeBusy:
            if is_held():
                return
            raise
        self.is_ready = True

    def look(self, head: Head) -> None:
        """Look whether a node may begin; if not, the next claim says why."""
        try:
            self._workspace.ready(head)
            self.is_ready = True
        except SequencerError:
            self.is_ready = False

    def enter(self, head: Head) -> None:
        """Check out the code that belongs to *head*, once the store is reachable.

        Raises: see `Workspace.enter`.
        """
        self._retry_policy.reach(lambda: self._workspace.enter(head))
        self._here = set() if head.work is None else {head.work.commit}

    def collect(self, worked: Sequence[Attempt], head: Head) -> Work | None:
        """Return the code that moves with the end of *worked*; see `Workspace.collect`.

        Where it can't move, they have failed.
        """
        if not worked:
            return None
        claim = worked[0].claim
        try:
            work = self._retry_policy.after_agent(
                lambda: self._workspace.collect(claim, claim.step, head), worked[0].cancellation
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
                kept = self._workspace.keep(one.claim, one.claim.step, head)
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
                self._workspace.keep(one.claim, one.claim.step, head)

    @contextlib.contextmanager
    def alone(self, head: Head, stop: Cancellation) -> Iterator[None]:
        """Keep the work tree for one attempt of this process that begins at *head*.

        Others wait until it has ended, or *stop* is set.

        Raises: see `Workspace.ready`.
        """
        while self.moves and not self._turn.acquire(timeout=TURN_S):
            if stop.is_set():
                raise WorkTreeBusy(
                    "other attempts of this process are still working in the work tree"
                )
        try:
            self._retry_policy.reach(lambda: self._workspace.ready(head))
            yield
        except RemoteUnreachable as away:
            # The server of the run is another one, and it was reached.
            raise WorkTreeRefused(away.message, where=away.where, hint=away.hint) from away
        finally:
            # Who comes next finds out whether it was accepted.
            self._workspace.leave(None)
            if self.moves:
                self._turn.release()

    def merged(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """Return *work* of an attempt merged with what *head* has accepted since it started.

        A text says why they conflict. Raises: see `Workspace.merged`.
        """
        return self._workspace.merged(claim, head, work)

    def publish(self, head: Head, *, wait: bool = False) -> None:
        """Let people see the code of *head*, unless an attempt works here: it does that itself.

        With *wait*, wait for a thread that is publishing: this process is about to end.
        """
        if self._turn.acquire(blocking=wait):
            try:
                self._workspace.publish(head)
            finally:
                self._turn.release()

    def leave(self, head: Head | None, running: Collection[int]) -> None:
        """Let other processes have the work tree if none of the tokens *running* is left here."""
        if not running:
            self._workspace.leave(head)


def accepted(ended: Sequence[Attempt]) -> list[Attempt]:
    """Return those of *ended* whose agents did what they were asked."""
    return [
        one
        for one in ended
        if one.ended is not None and one.error is None and one.ended.outcome.is_accepted
    ]
