"""Where the agents of a run work, and what becomes of what they leave there.

A workspace is the project's folder, a worktree of the run, a worktree for each task, or a checkout
that several clones share. The engine asks each of them the same questions, in this order: `begin`
once, `ready` before a claim, `enter` after it, `open` and the folder's `close` for each attempt,
`collect` or `keep` when its end is recorded, `leave` after that, and `end` when the run is
complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from sequencer.engine.attempt import Attempt, Leftovers
from sequencer.errors import SequencerError, WorkTreeRefused, typed_command
from sequencer.executors.cancellation import Cancellation
from sequencer.model.head import Claim, Head, Work
from sequencer.model.outcome import OutcomeStatus


class AttemptFolder:
    """The folder in which the agent of one attempt works. This one keeps what the agent leaves."""

    cwd: Path
    is_own = False
    """Whether nobody else works there."""
    notices: tuple[str, ...] = ()
    """What the agent and a person should know of it before the agent begins."""
    notes: tuple[str, ...] = ()
    """What the prompt says of earlier attempts."""

    def __init__(self, cwd: Path) -> None:
        """Let the agent work in *cwd*."""
        self.cwd = cwd

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        """Merge, keep or drop what the agent has left; a second call returns the same result.

        *status* is OK for an attempt that is accepted, FAILED for one that has failed, and
        INTERRUPTED for any other. *wait_for_turn* is called before something is merged; it may
        raise to give that up.
        """
        del status, wait_for_turn
        return Leftovers()


class Workspace:
    """Where the agents of one run work. This one is the project's folder, and moves no code."""

    opens = False
    """Whether attempts get other folders than the project's."""

    def __init__(self, folder: Path) -> None:
        """Let agents work in *folder*."""
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Return where agents work that get no other folder."""
        return self._folder

    @property
    def moves(self) -> bool:
        """Return whether the run's code moves between machines, together with its state."""
        return False

    # --- the run -----------------------------------------------------------------------

    def begin(self, head: Head, stop: Cancellation) -> None:
        """Make the workspace, before a step of the run of *head* is claimed.

        Raises:
            WorkTreeRefused: it can't be made, or a command that sets it up has failed.
            Interrupted: *stop* came first.
        """

    def end(self, head: Head) -> None:
        """Bring what was done to the project's folder: the run of *head* is complete.

        Raises:
            WorkTreeRefused: it is kept instead, as the message says.
        """

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove what attempts of dead processes have left; return what a person should know.

        *live* are the tokens of claims that somebody may hold. Work is never lost by it.
        """
        del live
        return ()

    # --- a claim -----------------------------------------------------------------------

    def ready(self, head: Head) -> None:
        """Check, before a claim, that a step may start here.

        Raises:
            WorkTreeRefused: there is something that the step would overwrite, mix up with
                its own, or build on though nobody else has it; or the folder is another project's.
            WorkTreeBusy: agents of another process work there; it is free in a while.
        """

    def obstacle(self, head: Head) -> SequencerError | None:
        """Return why the next step of *head* will not start here, as far as the files show."""
        del head
        return None

    def enter(self, head: Head) -> None:
        """After the claim, check out the code that belongs to *head*.

        From now on they are kept for this process, until `leave`.

        Raises:
            WorkTreeRefused: they can't be brought there without losing something.
            RemoteUnreachable: the code had to be fetched, and there was no answer.
        """

    def leave(self, head: Head | None) -> None:
        """Release the folder: no agent of this process works here any more.

        *head* is the run as it is now; None: that is not known.
        """

    # --- an attempt --------------------------------------------------------------------

    def open(self, attempt: Attempt) -> AttemptFolder:
        """Return the folder in which the agent of *attempt* works.

        Raises:
            SequencerError: there is no such folder.
        """
        del attempt
        return AttemptFolder(self.folder)

    # --- code that moves ---------------------------------------------------------------

    @property
    def refs(self) -> dict[str, str]:
        """Return the refs of the remote that are to be fetched with the state, and to where."""
        return {}

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """Commit what is declared, and return what the head is to name; after a successful *step*.

        It moves with the state whose head names it. None: there is nothing that the remote does
        not have, and the run knows its branch.

        Raises:
            WorkTreeRefused: the agent has left another branch or another history.
        """
        del claim, step, head
        return None

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        """Put the work of a *step* that was not accepted on a branch of its own.

        Returns its name, or None if there was no work. Index, HEAD and work tree stay as
        they are.
        """
        del claim, step, head
        return None

    def merged(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """Return *work* of an attempt merged with what *head* has accepted since it began.

        A text: they conflict, as it says. Only where attempts push to refs of their own.

        Raises:
            WorkTreeRefused: it can't be done here.
        """
        del claim, head
        return work

    def publish(self, head: Head) -> None:
        """Let people see the code of *head* where it does not move with the state; never fails."""


class BranchGuard(Workspace):
    """The project's folder, while one branch is checked out there."""

    def __init__(self, folder: Path, branch: str, checked_out: Callable[[], str | None]) -> None:
        """Allow steps to start while *checked_out* returns *branch*."""
        super().__init__(folder)
        self._branch = branch
        self._checked_out = checked_out

    def ready(self, head: Head) -> None:  # noqa: ARG002 - whatever the run has come to
        """Check, before a claim, that the branch for the steps is checked out.

        Raises:
            WorkTreeRefused: another branch is checked out, or none.
        """
        if (problem := self.problem()) is not None:
            raise WorkTreeRefused(problem[0], where="store.work.branch", hint=problem[1])

    def problem(self) -> tuple[str, str] | None:
        """Return why no step may start, and what to do about it; None if one may."""
        there = self._checked_out()
        if there == self._branch:
            return None
        told = "there is no git repository" if there is None else f"{there} is checked out"
        hint = f"{typed_command('git', 'switch', self._branch)}, or set store.work.branch"
        return f"{told}, but steps run only on branch {self._branch}", hint


class InnerWorkspace(Workspace):
    """A workspace inside another one. Whatever it does not override, the outer one does."""

    opens = True

    def __init__(self, outer: Workspace) -> None:
        """Let agents work in *outer* until something else is opened."""
        super().__init__(outer.folder)
        self.outer = outer

    @property
    def folder(self) -> Path:
        return self.outer.folder

    @property
    def moves(self) -> bool:
        return self.outer.moves

    @property
    def refs(self) -> dict[str, str]:
        return self.outer.refs

    def begin(self, head: Head, stop: Cancellation) -> None:
        self.outer.begin(head, stop)

    def end(self, head: Head) -> None:
        self.outer.end(head)

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        return self.outer.clean(live)

    def ready(self, head: Head) -> None:
        self.outer.ready(head)

    def obstacle(self, head: Head) -> SequencerError | None:
        return self.outer.obstacle(head)

    def enter(self, head: Head) -> None:
        self.outer.enter(head)

    def leave(self, head: Head | None) -> None:
        self.outer.leave(head)

    def open(self, attempt: Attempt) -> AttemptFolder:
        """Return the folder for *attempt*: this workspace's own if it has one, else the outer's."""
        if self.folder != self.outer.folder:
            return AttemptFolder(self.folder)
        return self.outer.open(attempt)

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        return self.outer.collect(claim, step, head)

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        return self.outer.keep(claim, step, head)

    def merged(self, claim: Claim, head: Head, work: Work) -> Work | str:
        return self.outer.merged(claim, head, work)

    def publish(self, head: Head) -> None:
        self.outer.publish(head)
