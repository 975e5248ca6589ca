"""The worktree of a whole run: made and set up before its first step, merged when it is complete.

Looked at before each attempt: git's two files have to lead from it to this repository and back,
and what an agent has committed and went away from is kept on a branch. What becomes of its work is
what becomes of a task's (`task_folders`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sequencer.engine.attempt import Attempt, Leftovers
from sequencer.engine.workspace import AttemptFolder, InnerWorkspace, Workspace
from sequencer.errors import Interrupted, SequencerError, WorkTreeRefused
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.launch import Launch, agent_environment
from sequencer.executors.process import ProcessCore, describe_exit
from sequencer.executors.pump import TAIL
from sequencer.executors.wall import Wall
from sequencer.files.textfile import ref_part, slug
from sequencer.model.head import Head
from sequencer.model.outcome import OutcomeStatus
from sequencer.plugins.git.code.checkout import PATIENCE_S, Checkout
from sequencer.plugins.git.code.gathering import TaskTrees
from sequencer.plugins.git.code.set_aside import (
    AttemptFiles,
    Unkept,
    WorktreeFiles,
    attempts_of,
    complete,
)
from sequencer.plugins.git.code.task_folders import OwnTaskFolder, TaskFolders
from sequencer.plugins.git.code.tree import TreeStatus
from sequencer.plugins.git.code.unmerged import commits_of
from sequencer.plugins.git.code.worktrees import (
    RUN_BRANCHES,
    Phase,
    Worktree,
    branch_of,
    git_dirs,
    remove,
)
from sequencer.plugins.git.process import GitFailed
from sequencer.project.worktrees import run_worktree_name
from sequencer.store.identity import this_process

RUN_LOCK = "run.lock"
"""Beside the notes of worktrees; who holds it makes or merges that of the run."""
RUN_LOCK_WAIT_S = 3600.0
"""Setup commands may take long."""
_SHOWN_LINES = 5
_WORK = "the run's work"


class RunWorktree(InnerWorkspace):
    """The worktree of a whole run.

    It is made before the first step and merged when the run is complete. What becomes of its work
    is what becomes of a task's.
    """

    def __init__(
        self,
        outer: Workspace,
        places: TaskFolders,
        setup: Sequence[Sequence[str]],
        setup_timeout_s: float,
        *,
        vet: Callable[[Path], None],
        tell: Callable[[str], None],
    ) -> None:
        """Keep it where *places* keeps those of tasks, and run *setup* in a new one.

        It is merged into the project's folder, which is *outer*.
        None of its commands may take longer than *setup_timeout_s*.

        *vet* raises if the files of setup are not those that were trusted; *tell* hears what a
        person should know.
        """
        super().__init__(outer)
        self._places, self._trees = places, places.trees
        self._setup, self._setup_timeout_s = setup, setup_timeout_s
        self._vet, self._tell = vet, tell
        self._worktree: Worktree | None = None
        self._guard = threading.Lock()

    @property
    def folder(self) -> Path:
        """Return the project's folder in the run's worktree, or the outer folder before `begin`."""
        if self._worktree is None:
            return self.outer.folder
        return self._trees.notes.folder(self._worktree) / self._trees.checkout.prefix

    @property
    def checkout(self) -> Checkout | None:
        """Return what git sees of it; None: it is not there before `begin`."""
        return None if self._worktree is None else RunCheckout(self._trees, self._worktree)

    def begin(self, head: Head, stop: Cancellation) -> None:
        with self._alone():
            # Before `_present`, which puts away a worktree whose folder is gone.
            again = self._again(head)
            if again is not None:
                try:
                    self._worktree = self._prepared(again, stop)
                except BaseException:
                    # The next start makes it once more; its branch has work of the run.
                    self._trees.notes.write(again.replace(phase=Phase.WORKING))
                    raise
                return
            present = self._present(head)
            if present is None:
                # Nothing is made while the branch on which steps run is not checked out.
                self.outer.ready(head)
                present = self._prepared(self._made(head), stop)
            self._worktree = present

    def ready(self, head: Head) -> None:
        self.outer.ready(head)
        if self._worktree is not None:
            # Another process of the run may have written it since.
            noted = self._trees.notes.read(self._worktree.name) or self._worktree
            linked = self._restored(self._linked(noted))
            self._worktree, told = self._trees.look_for_left(linked)
            for text in told:
                self._tell(text)

    def open(self, attempt: Attempt) -> AttemptFolder:
        """Keep the files as they are before *attempt*, and return the folder in which it works."""
        if (worktree := self._worktree) is None:
            return self.outer.open(attempt)
        with self._guard:
            # Another attempt of this run may have written over what git needs to find it.
            worktree = self._linked(self._trees.notes.read(worktree.name) or worktree)
        return RunFolder(self.folder, self._kept(attempt, worktree))

    def _kept(self, attempt: Attempt, worktree: Worktree) -> AttemptFiles | None:
        """Return the files of *worktree* as they are before *attempt*; None: they can't be kept."""
        name = worktree.name

        def note(restoring: dict[str, str]) -> None:
            if (noted := self._trees.notes.read(name)) is not None:
                self._trees.notes.write(noted.replace(restoring=restoring))

        try:
            files = WorktreeFiles.of(self._trees, worktree, attempt.run_name)
        except SequencerError as error:
            attempt.notice(f"the files before this attempt can't be kept: {error}")
            return None
        kept = AttemptFiles(files, attempt, attempt.known.is_shared, attempt.notice, note)
        kept.begin()
        return kept

    def _restored(self, worktree: Worktree) -> Worktree:
        """Make up for what a kill has cut off in *worktree* while an attempt was set aside.

        Raises:
            WorkTreeRefused: it can't be made up for.
        """
        if not worktree.restoring:
            return worktree
        try:
            complete(WorktreeFiles.of(self._trees, worktree, None), self._tell)
        except Unkept as error:
            hint = "what the failed attempt left is in commit " + worktree.restoring.get(
                "failed", ""
            )
            message = f"a failed attempt's changes can't be set aside: {error}"
            where = str(self._trees.notes.folder(worktree))
            raise WorkTreeRefused(message, where=where, hint=hint) from error
        return self._trees.notes.write(worktree.replace(restoring={}))

    def _linked(self, worktree: Worktree) -> Worktree:
        """Return *worktree*, which is this repository's, or raise; see `TaskTrees.linked`."""
        linked = self._trees.linked(worktree)
        if linked is not worktree:
            self._tell(f"worktree {worktree.name} was moved or copied: it is this repository's now")
        return linked

    def end(self, head: Head) -> None:
        notes = self._trees.notes
        if not notes.names():
            return
        with self._alone():
            worktree = self._present(head)
            if worktree is None:
                self._refuse_again(head)
                return
            place = OwnTaskFolder(self._trees, worktree)
            left = place.end(is_accepted=True, wait_for_turn=lambda: None)
            noted = None if left.error is None else notes.read(worktree.name)
            if noted is not None and noted.phase is Phase.LEFT:
                notes.write(noted.replace(why=left.error, hint=left.hint or ""))
        for text in left.notices:
            self._tell(text)
        if left.error is not None:
            raise WorkTreeRefused(left.error, where=_WORK, hint=left.hint)
        if left.commit is not None:
            self._tell(f"the run's work is merged: commit {left.commit[:12]}")

    def _refuse_again(self, head: Head) -> None:
        """Say once more why the work of the run of *head* is not merged, if it is not yet.

        Raises:
            WorkTreeRefused: it is not.
        """
        for note in self._left():
            if note.run_id == head.run_id and note.why:
                raise WorkTreeRefused(note.why, where=_WORK, hint=note.hint or None)

    def _left(self) -> Iterator[Worktree]:
        """Yield the worktrees of which only a branch is left; notes of merged ones are removed."""
        notes = self._trees.notes
        for note in filter(None, map(notes.read, notes.names())):
            if note.task or note.phase is not Phase.LEFT:
                continue
            with contextlib.suppress(GitFailed):
                if commits_of(self._trees.checkout.git, note):
                    yield note
                else:
                    notes.forget(note)

    def _made(self, head: Head) -> Worktree:
        """Return a new worktree for the run of *head*, which is to be set up."""
        notes, found = self._trees.notes, self._places.look()
        for note in self._left():
            # It is named still, but whoever goes on without it has decided.
            notes.write(note.replace(why=""))
        if isinstance(found, str):
            hint = "commit the project to a repository, or leave worktree out"
            raise WorkTreeRefused(f"the run has no worktree: {found}", hint=hint)
        subject = head.workflow_name
        worktree = self._trees.add("", 0, head.run_id, found, subject, Phase.ADDING)
        self._tell(f"the run works in {notes.folder(worktree)} on branch {worktree.branch}")
        for text in self._places.uncommitted(found):
            self._tell(text)
        return worktree

    def _prepared(self, worktree: Worktree, stop: Cancellation) -> Worktree:
        """Set up *worktree*, which is new, and say what it lacks."""
        notes = self._trees.notes
        self._set_up(worktree, stop)
        for _, message, hint in self._places.lacking(notes.folder(worktree)).told():
            self._tell(f"{message}; {hint}")
        return notes.write(worktree.replace(phase=Phase.WORKING))

    def _again(self, head: Head) -> Worktree | None:
        """Make the worktree of the run of *head* again from its branch, if the folder is gone.

        None: it is not, or the branch has nothing that the checkout has not.
        """
        trees, notes, found = self._trees, self._trees.notes, self._places.look()
        if isinstance(found, str):
            return None
        of_run = [one for one in filter(None, map(notes.read, notes.names())) if not one.task]
        mine = [one for one in of_run if one.run_id == head.run_id and one.phase is not Phase.LEFT]
        note = mine[0] if mine else self._unnoted(head, found)
        if note is None or not commits_of(trees.checkout.git, note):
            return None
        folder = notes.folder(note)
        if note.phase is Phase.ADDING:
            # A new worktree has no commits. This one was made again, and a kill cut off its setup.
            remove(folder)
        if os.path.lexists(folder):
            return None
        for stale in git_dirs(trees.checkout.common_dir, folder):
            remove(stale)
        fresh = note.replace(owner=this_process(), looked_at=0, restoring={})
        made = trees.make(fresh, Phase.ADDING, start=note.branch)
        self._tell(
            f"the worktree of the run was gone, and is made again from branch {made.branch}; what "
            "was not committed there is gone, but the files before each attempt are kept in "
            f"{attempts_of(head.run_name)}"
        )
        return made

    def _unnoted(self, head: Head, status: TreeStatus) -> Worktree | None:
        """Return what the note of the run's worktree said, if only its branch is left."""
        trees, git = self._trees, self._trees.checkout.git
        name = run_worktree_name(ref_part(slug(head.run_id)))
        branch = branch_of(head.run_name, name, RUN_BRANCHES)
        base = git.text("merge-base", "HEAD", f"refs/heads/{branch}", accepts=(0, 1, 128))
        if not base or trees.notes.read(name) is not None:
            return None
        return Worktree(
            name=name,
            task="",
            subject=head.workflow_name,
            token=0,
            run_id=head.run_id,
            branch=branch,
            base=base,
            checked_out=status.branch or "",
            owner=this_process(),
            phase=Phase.WORKING,
        )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        notes = self._trees.notes
        notes.prepare()
        hint = "another process makes or merges the run's worktree; start again when it has ended"
        with self._trees.checkout.locked(notes.path / RUN_LOCK, RUN_LOCK_WAIT_S, hint):
            yield

    def _present(self, head: Head) -> Worktree | None:
        """Return the worktree of the run of *head*; others of its name are put away."""
        notes, found = self._trees.notes, None
        for noted in filter(None, map(notes.read, notes.names())):
            if noted.task or noted.phase is Phase.LEFT:
                continue
            is_there = noted.phase is not Phase.ADDING and notes.folder(noted).is_dir()
            is_half = is_there and bool(noted.restoring)
            worktree = self._restored(self._linked(noted)) if is_half else noted
            if worktree.run_id != head.run_id or not is_there:
                for text in self._trees.put_away(worktree):
                    self._tell(f"worktree {worktree.name}: {text}")
                continue
            found = self._linked(worktree)
            if found.phase is not Phase.WORKING:
                # A merge was cut off, or a person has looked at what could not be committed.
                self._trees.keep(found)
                found = notes.write(found.replace(phase=Phase.WORKING))
        return found

    def _set_up(self, worktree: Worktree, stop: Cancellation) -> None:
        cwd = self._trees.notes.folder(worktree) / self._trees.checkout.prefix
        try:
            self._vet(cwd)
            with ProcessCore() as core:
                for argv in self._setup:
                    self._tell(f"setup: {shlex.join(argv)}")
                    self._perform(core, argv, cwd, stop)
        except BaseException:
            self._trees.put_away(worktree)
            raise

    def _perform(
        self, core: ProcessCore, argv: Sequence[str], cwd: Path, stop: Cancellation
    ) -> None:
        """Run one command of setup.

        Raises:
            WorkTreeRefused: it has failed, or takes too long.
            Interrupted: *stop* came first.
        """
        output, limit = _Tail(), self._setup_timeout_s
        # Your own commands, and no agent: they may need what the wall ends.
        launch = Launch(
            identity=None,
            argv=argv,
            environment=agent_environment(),
            cwd=cwd,
            prompt=b"",
            timeout_s=limit,
            wall=Wall.NONE,
        )
        end = core.run(launch, output, stop)
        is_late = end.ended_by == "timeout"
        if end.ended_by is not None and not is_late:
            raise Interrupted(
                "interrupted during the setup of the run's worktree", hint="start again"
            )
        if end.exit_code == 0 and not is_late:
            return
        lines = output.kept.decode("utf-8", "replace").strip().splitlines()[-_SHOWN_LINES:]
        said = f"it was ended after {limit:g} s" if is_late else describe_exit(end).splitlines()[0]
        why = end.spawn_error or "; ".join([said, *lines])
        hint = (
            "raise setup_timeout_s to give it longer"
            if is_late
            else "correct the command or the project"
        )
        raise WorkTreeRefused(
            f"{shlex.join(argv)!r} failed in the run's new worktree: {why}",
            where="setup",
            hint=f"{hint}; no step was started",
        )


class RunCheckout(Checkout):
    """The worktree of a run as the checkout into which its tasks are merged."""

    called = "the run's worktree"

    def __init__(self, trees: TaskTrees, worktree: Worktree) -> None:
        """Look at *worktree*, one of *trees*.

        Whatever an agent has done to the file ``.git`` there, git uses its own files.
        """
        outer, top, place = trees.checkout, trees.notes.folder(worktree), worktree.place
        git = outer.git.at(top, timeout_s=PATIENCE_S, git_dir=place)
        super().__init__(outer.folders._replace(project=top / outer.prefix), git)
        self._trees, self._worktree = trees, worktree
        self.top, self.git_dir, self.common_dir = top, place, outer.common_dir
        self.git = self.patient_git = git
        home = os.path.realpath(outer.folders.project)
        self.elsewhere = os.path.relpath(top, home) if top.is_relative_to(home) else str(top)

    def ensure_in_place(self) -> None:
        """Check that the worktree is this repository's, and that no link leads elsewhere.

        Raises:
            WorkTreeRefused: see `TaskTrees.linked`.
        """
        self._trees.linked(self._worktree)


class RunFolder(AttemptFolder):
    """The run's worktree, for one attempt: if it fails, the files are as they were before it."""

    def __init__(self, cwd: Path, files: AttemptFiles | None) -> None:
        """Let the agent work in *cwd*, which had the *files*; None: that is not known."""
        super().__init__(cwd)
        self._files = files
        self.notes = () if files is None else files.notes

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        del wait_for_turn
        if status is not OutcomeStatus.FAILED or self._files is None:
            return Leftovers()
        if not self._files.set_aside():
            return Leftovers()
        return Leftovers(told=(("set_aside", self._files.ref),))


class _Tail:
    """Keeps the end of what a command prints."""

    kept = b""

    def stdout(self, data: bytes) -> bool:
        self.kept = (self.kept + data)[-TAIL:]
        return True

    def stderr(self, data: bytes) -> bool:
        return self.stdout(data)
