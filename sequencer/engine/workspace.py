"""The folders in which the agents of a run work, and what happens to the files they leave.

A workspace is the project's folder, a worktree of the run, a worktree for each task, or a checkout
that several clones share. The engine calls the same methods for each of them, in this order:
`begin` once, `ensure_ready` before a claim, `enter` after it, `open` and the folder's `close` for
each attempt, `collect` or `keep` when its end is recorded, `leave` after that, and `end` when the
run is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from sequencer.engine.attempt import Attempt, Leftovers
from sequencer.errors import SequencerError, WorkTreeRefused, format_other_command
from sequencer.executors.cancellation import Cancellation
from sequencer.model.head import Claim, Head, Work
from sequencer.model.outcome import OutcomeStatus


class AttemptFolder:
    """The folder in which the agent of one attempt works. This class leaves all files there."""

    cwd: Path
    is_own = False
    """Whether no other attempt works there."""
    notices: tuple[str, ...] = ()
    """Facts about the folder for the agent and for a person, before the agent starts."""
    notes: tuple[str, ...] = ()
    """Blocks of the prompt about earlier attempts."""

    def __init__(self, cwd: Path) -> None:
        """Let the agent work in *cwd*."""
        self.cwd = cwd

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        """Merge, keep or drop the agent's files; a second call returns the same result.

        *status* is OK for an accepted attempt, FAILED for a failed one, and INTERRUPTED for any
        other. *wait_for_turn* is called before a merge; it may raise to prevent the merge.
        """
        del status, wait_for_turn
        return Leftovers()


class Workspace:
    """Where the agents of one run work: here, the project's folder. It moves no code."""

    opens = False
    """Whether attempts get folders other than the project's."""

    def __init__(self, folder: Path) -> None:
        """Let agents work in *folder*."""
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Return the folder of agents that get no folder of their own."""
        return self._folder

    @property
    def moves(self) -> bool:
        """Return whether the run's code moves between machines, together with its state."""
        return False

    # --- the run -----------------------------------------------------------------------

    def begin(self, head: Head, stop: Cancellation) -> None:
        """Create the workspace, before a step of the run of *head* is claimed.

        Raises:
            WorkTreeRefused: it can't be created, or a command that sets it up has failed.
            Interrupted: *stop* was set first.
        """

    def end(self, head: Head) -> None:
        """Bring the work of the run of *head*, which is complete, into the project's folder.

        Raises:
            WorkTreeRefused: that is not possible; the work is kept, and the message says where.
        """

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove the folders of attempts of dead processes; return messages for a person.

        *live* are the tokens of claims whose holders may be alive. No work is lost.
        """
        del live
        return ()

    # --- a claim -----------------------------------------------------------------------

    def ensure_ready(self, head: Head) -> None:
        """Check, before a claim, that a step may start here.

        Raises:
            WorkTreeRefused: the folder has changes that the step would overwrite, mix with its
                own, or build on although no other clone has them; or the folder belongs to
                another project.
            WorkTreeBusy: agents of another process work there; it will be free after a while.
        """

    def find_obstacle(self, head: Head) -> SequencerError | None:
        """Return why the next step of *head* can't start here, judging from the files."""
        del head
        return None

    def enter(self, head: Head) -> None:
        """After the claim, check out the code that belongs to *head*.

        The folder is reserved for this process until `leave`.

        Raises:
            WorkTreeRefused: the checkout would lose something.
            RemoteUnreachable: the code had to be fetched, and the remote did not answer.
        """

    def leave(self, head: Head | None) -> None:
        """Release the folder, because no agent of this process works here any longer.

        *head* is the run's current head; None: it is not known.
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
        """Return the refs to fetch with the state: ref of the remote -> local ref."""
        return {}

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """Commit the declared files after a successful *step*; return the work for the head.

        The commit moves together with the state whose head names it. None: the remote already
        has everything, and the run knows its branch.

        Raises:
            WorkTreeRefused: the agent has left another branch or another history.
        """
        del claim, step, head
        return None

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        """Put the work of a *step* that was not accepted on a new branch.

        Returns the name of the branch, or None if there was no work. The index, HEAD and the work
        tree do not change.
        """
        del claim, step, head
        return None

    def merge_work(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """Return *work* of an attempt, merged with the work that *head* has accepted since.

        A string says why they conflict. This is used only where attempts push to their own refs.

        Raises:
            WorkTreeRefused: it can't be merged here.
        """
        del claim, head
        return work

    def publish(self, head: Head) -> None:
        """Publish the code of *head* if it does not move with the state; never fails."""


class BranchGuard(Workspace):
    """The project's folder, in which steps start only while one branch is checked out."""

    def __init__(self, folder: Path, branch: str, checked_out: Callable[[], str | None]) -> None:
        """Allow steps to start while *checked_out* returns *branch*."""
        super().__init__(folder)
        self._branch = branch
        self._checked_out = checked_out

    def ensure_ready(self, head: Head) -> None:  # noqa: ARG002 - the same for every head
        """Check, before a claim, that the branch for the steps is checked out.

        Raises:
            WorkTreeRefused: another branch is checked out, or none.
        """
        if (problem := self.problem()) is not None:
            raise WorkTreeRefused(problem[0], where="store.work.branch", hint=problem[1])

    def problem(self) -> tuple[str, str] | None:
        """Return why no step may start, and a hint; None: a step may start."""
        branch = self._checked_out()
        if branch == self._branch:
            return None
        fact = "there is no git repository" if branch is None else f"{branch} is checked out"
        hint = f"{format_other_command('git', 'switch', self._branch)}, or set store.work.branch"
        return f"{fact}, but steps run only on branch {self._branch}", hint


class InnerWorkspace(Workspace):
    """A workspace inside another one; it delegates everything that it does not override."""

    opens = True

    def __init__(self, outer: Workspace) -> None:
        """Let agents work in the folder of *outer* unless a subclass opens another one."""
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

    def ensure_ready(self, head: Head) -> None:
        self.outer.ensure_ready(head)

    def find_obstacle(self, head: Head) -> SequencerError | None:
        return self.outer.find_obstacle(head)

    def enter(self, head: Head) -> None:
        self.outer.enter(head)

    def leave(self, head: Head | None) -> None:
        self.outer.leave(head)

    def open(self, attempt: Attempt) -> AttemptFolder:
        """Return the folder for *attempt*: this workspace's own, or the outer one's."""
        if self.folder != self.outer.folder:
            return AttemptFolder(self.folder)
        return self.outer.open(attempt)

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        return self.outer.collect(claim, step, head)

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        return self.outer.keep(claim, step, head)

    def merge_work(self, claim: Claim, head: Head, work: Work) -> Work | str:
        return self.outer.merge_work(claim, head, work)

    def publish(self, head: Head) -> None:
        self.outer.publish(head)
