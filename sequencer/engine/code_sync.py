"""Moves code together with the state of a run, for the attempts of one process.

A step starts with the code that belongs to the state. The code that it leaves and the new state
move in the same push, or neither does. If a run is not shared through git, no code moves, and
only the agents touch the work tree.
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
"""How often an attempt that waits for the work tree checks whether it has to stop."""
_turns: dict[Path, threading.Lock] = {}
"""Folder -> the lock of this process's attempt that has the work tree to itself."""


class CodeSync:
    """Moves the code that the attempts of one process leave, or keeps it on a branch."""

    def __init__(self, workspace: Workspace, retry_policy: RetryPolicy) -> None:
        """Work in *workspace*, which other runs of this process may also use.

        *retry_policy* waits for a remote that can't be reached.
        """
        self._workspace = workspace
        self._retry_policy = retry_policy
        self._turn = _turns.setdefault(workspace.folder, threading.Lock())
        self.is_ready = True
        """Whether a node could start in this workspace at the last check."""
        self.moves = workspace.moves
        self._commits_here: set[str] = set()
        """Commits of states that the work tree contains: checked out, or made by nodes here."""

    def may_begin(self, head: Head, running: Collection[int], others: Collection[int]) -> bool:
        """Return whether one more node may start here while *running* attempts are at work.

        *running* are their tokens; *others* are tokens of other processes that may be alive.
        """
        if not self.moves:
            return self.is_ready
        if others or not self.is_ready:
            return False
        # An attempt that lost its claim still works in this tree, and its node may run elsewhere.
        is_alone = all(head.find_claim(token) for token in running)
        is_here = not running or head.work is None or head.work.commit in self._commits_here
        return is_alone and is_here

    def ensure_ready(self, head: Head, is_held: Callable[[], bool]) -> None:
        """Check whether a node may start while none is running, and set `is_ready`.

        It is not ready if agents of another process still work here after a wait, and *is_held*
        says that there are claims to wait for.

        Raises:
            WorkTreeRefused: no node may start here.
            WorkTreeBusy: agents of another process work here although there are no claims.
        """
        self.is_ready = False
        try:
            self._retry_policy.retry(lambda: self._workspace.ensure_ready(head))
        except WorkTreeBusy:
            if is_held():
                return
            raise
        self.is_ready = True

    def check_ready(self, head: Head) -> None:
        """Check whether a node may start, and set `is_ready`; if not, the next claim says why."""
        try:
            self._workspace.ensure_ready(head)
            self.is_ready = True
        except SequencerError:
            self.is_ready = False

    def enter(self, head: Head) -> None:
        """Check out the code that belongs to *head*; wait for a remote that can't be reached.

        Raises: see `Workspace.enter`.
        """
        self._retry_policy.retry(lambda: self._workspace.enter(head))
        self._commits_here = set() if head.work is None else {head.work.commit}

    def collect(self, worked: Sequence[Attempt], head: Head) -> Work | None:
        """Return the code that moves with the end of *worked*; see `Workspace.collect`.

        If it can't move, these attempts fail.
        """
        if not worked:
            return None
        claim = worked[0].claim
        try:
            work = self._retry_policy.retry_after_agent(
                lambda: self._workspace.collect(claim, claim.step, head), worked[0].cancellation
            )
        except WorkTreeRefused as refusal:
            self.refuse(worked, head, refusal)
            return None
        if work is not None:
            self._commits_here.add(work.commit)
        return work

    def refuse(self, worked: Sequence[Attempt], head: Head, refusal: WorkTreeRefused) -> None:
        """Make *worked*, whose code was refused, fail; put their work on branches."""
        for attempt in worked:
            error, branch = refusal.message, None
            with contextlib.suppress(SequencerError):
                branch = self._workspace.keep(attempt.claim, attempt.claim.step, head)
            if branch is not None:
                error = f"{error}; what the step did is on branch {branch}"
            if (result := attempt.ended) is not None:
                outcome = result.outcome.replace(status=OutcomeStatus.FAILED, error=error)
                attempt.ended = replace(result, outcome=outcome, decision=None, verdict=None)

    def keep(self, ended: Sequence[Attempt], head: Head | None) -> None:
        """Put the work of *ended*, whose results do not count, on branches."""
        for attempt in ended:
            if head is None:
                return
            # The caller reports that it does not count, which matters more than an error of git.
            with contextlib.suppress(SequencerError):
                self._workspace.keep(attempt.claim, attempt.claim.step, head)

    @contextlib.contextmanager
    def reserve(self, head: Head, stop: Cancellation) -> Iterator[None]:
        """Reserve the work tree for one attempt of this process that starts at *head*.

        The other attempts of this process wait until it has ended, or *stop* is set.

        Raises: see `Workspace.ensure_ready`.
        """
        while self.moves and not self._turn.acquire(timeout=TURN_S):
            if stop.is_set():
                raise WorkTreeBusy(
                    "other attempts of this process are still working in the work tree"
                )
        try:
            self._retry_policy.retry(lambda: self._workspace.ensure_ready(head))
            yield
        except RemoteUnreachable as error:
            # Not the server that has the run's state: that one was reached.
            raise WorkTreeRefused(error.message, where=error.where, hint=error.hint) from error
        finally:
            # The next attempt finds out whether this one was accepted.
            self._workspace.leave(None)
            if self.moves:
                self._turn.release()

    def merge_work(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """Return *work* of an attempt merged with what *head* has accepted since it started.

        A string says why they conflict. Raises: see `Workspace.merge_work`.
        """
        return self._workspace.merge_work(claim, head, work)

    def publish(self, head: Head, *, wait: bool = False) -> None:
        """Publish the code of *head*, unless an attempt works here: it publishes the code itself.

        With *wait*, wait for a thread that is publishing: this process is about to end.
        """
        if self._turn.acquire(blocking=wait):
            try:
                self._workspace.publish(head)
            finally:
                self._turn.release()

    def leave(self, head: Head | None, running: Collection[int]) -> None:
        """Release the work tree for other processes, unless attempts are still *running* here."""
        if not running:
            self._workspace.leave(head)


def select_accepted(ended: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts in *ended* with an accepted outcome."""
    return [
        attempt
        for attempt in ended
        if attempt.ended is not None and attempt.error is None and attempt.ended.outcome.is_accepted
    ]
