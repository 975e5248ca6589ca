"""The worktree of a whole run: made and set up before its first step, merged when it is complete.

It is checked before each attempt: git's two files must lead from it to this repository and back,
and commits that an agent made and then left are kept on a branch. It is committed, merged and
removed in the same way as a task's worktree (`task_folders`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

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
from sequencer.plugins.git.code.checkout import LONG_TIMEOUT_S, Checkout
from sequencer.plugins.git.code.gathering import TaskTrees
from sequencer.plugins.git.code.set_aside import (
    AttemptFiles,
    NotSaved,
    WorktreeFiles,
    attempt_ref_prefix,
    complete_restoration,
)
from sequencer.plugins.git.code.task_folders import OwnTaskFolder, TaskFolders
from sequencer.plugins.git.code.tree import TreeStatus
from sequencer.plugins.git.code.unmerged import count_commits
from sequencer.plugins.git.code.worktrees import (
    RUN_BRANCHES,
    Phase,
    Worktree,
    branch_name,
    find_git_dirs,
    remove_folder,
)
from sequencer.plugins.git.process import GitFailed
from sequencer.project.worktrees import run_worktree_name
from sequencer.store.identity import this_process

RUN_LOCK = "run.lock"
"""Lock file next to the notes of worktrees; its holder makes or merges the run's worktree."""
RUN_LOCK_WAIT_S = 3600.0
"""Setup commands may take a long time."""
_SHOWN_LINES = 5
_WORK = "the run's work"


class RunWorktree(InnerWorkspace):
    """The workspace of a run that works in a worktree.

    The worktree is made before the first step and merged when the run is complete.
    """

    def __init__(
        self,
        outer: Workspace,
        folders: TaskFolders,
        setup: Sequence[Sequence[str]],
        setup_timeout_s: float,
        *,
        vet: Callable[[Path], None],
        notify: Callable[[str], None],
    ) -> None:
        """Put the worktree where *folders* puts worktrees of tasks, and merge it into *outer*.

        The commands of *setup* run in a new worktree, each for at most *setup_timeout_s*. *vet*
        raises if the files of setup are not the trusted ones; *notify* gets notices for people.
        """
        super().__init__(outer)
        self._folders, self._trees = folders, folders.trees
        self._setup, self._setup_timeout_s = setup, setup_timeout_s
        self._vet, self._notify = vet, notify
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
        """Return the worktree as a checkout; None before `begin`."""
        return None if self._worktree is None else RunCheckout(self._trees, self._worktree)

    def begin(self, head: Head, stop: Cancellation) -> None:
        with self._hold_run_lock():
            # Recreate it before `_find`, which clears a worktree whose folder is missing.
            new_worktree = self._recreate(head)
            if new_worktree is not None:
                try:
                    self._worktree = self._prepare(new_worktree, stop)
                except BaseException:
                    # The next start recreates a WORKING worktree from its branch, which has work.
                    self._trees.notes.write(new_worktree.replace(phase=Phase.WORKING))
                    raise
                return
            worktree = self._find(head)
            if worktree is None:
                # Check before a worktree is made: the run's branch may not be checked out.
                self.outer.ensure_ready(head)
                worktree = self._prepare(self._create_worktree(head), stop)
            self._worktree = worktree

    def ensure_ready(self, head: Head) -> None:
        self.outer.ensure_ready(head)
        if self._worktree is not None:
            # Another process of the run may have changed the note since.
            note = self._trees.notes.read(self._worktree.name) or self._worktree
            linked_worktree = self._complete_restoration(self._ensure_linked(note))
            self._worktree, notices = self._trees.keep_stranded_commits(linked_worktree)
            for text in notices:
                self._notify(text)

    def open(self, attempt: Attempt) -> AttemptFolder:
        """Save the files as they are before *attempt*, and return the folder for it."""
        if (worktree := self._worktree) is None:
            return self.outer.open(attempt)
        with self._guard:
            # Another attempt of this run may have overwritten the files by which git finds it.
            worktree = self._ensure_linked(self._trees.notes.read(worktree.name) or worktree)
        return RunFolder(self.folder, self._save_files(attempt, worktree))

    def _save_files(self, attempt: Attempt, worktree: Worktree) -> AttemptFiles | None:
        """Save the files of *worktree* before *attempt*; None: they can't be kept."""
        name = worktree.name

        def write_note(restoring: dict[str, str]) -> None:
            if (note := self._trees.notes.read(name)) is not None:
                self._trees.notes.write(note.replace(restoring=restoring))

        try:
            files = WorktreeFiles.from_worktree(self._trees, worktree, attempt.run_name)
        except SequencerError as error:
            attempt.write_notice(f"the files before this attempt can't be kept: {error}")
            return None
        attempt_files = AttemptFiles(
            files, attempt, attempt.prior.is_shared, attempt.write_notice, write_note
        )
        attempt_files.begin()
        return attempt_files

    def _complete_restoration(self, worktree: Worktree) -> Worktree:
        """Complete the restoration of *worktree* if a kill interrupted it; return its note.

        Raises:
            WorkTreeRefused: it can't be completed.
        """
        if not worktree.restoring:
            return worktree
        try:
            complete_restoration(
                WorktreeFiles.from_worktree(self._trees, worktree, None), self._notify
            )
        except NotSaved as error:
            hint = "what the failed attempt left is in commit " + worktree.restoring.get(
                "failed", ""
            )
            message = f"a failed attempt's changes can't be set aside: {error}"
            folder = str(self._trees.notes.folder(worktree))
            raise WorkTreeRefused(message, where=folder, hint=hint) from error
        return self._trees.notes.write(worktree.replace(restoring={}))

    def _ensure_linked(self, worktree: Worktree) -> Worktree:
        """Return *worktree*, linked to this repository, or raise; see `TaskTrees.ensure_linked`."""
        linked_worktree = self._trees.ensure_linked(worktree)
        if linked_worktree is not worktree:
            self._notify(
                f"worktree {worktree.name} was moved or copied: it is this repository's now"
            )
        return linked_worktree

    def end(self, head: Head) -> None:
        notes = self._trees.notes
        if not notes.list_names():
            return
        with self._hold_run_lock():
            worktree = self._find(head)
            if worktree is None:
                self._ensure_merged(head)
                return
            folder = OwnTaskFolder(self._trees, worktree)
            result = folder.end(is_accepted=True, wait_for_turn=lambda: None)
            note = None if result.error is None else notes.read(worktree.name)
            if note is not None and note.phase is Phase.LEFT:
                notes.write(note.replace(why=result.error, hint=result.hint or ""))
        for text in result.notices:
            self._notify(text)
        if result.error is not None:
            raise WorkTreeRefused(result.error, where=_WORK, hint=result.hint)
        if result.commit is not None:
            self._notify(f"the run's work is merged: commit {result.commit[:12]}")

    def _ensure_merged(self, head: Head) -> None:
        """Check that the work of the run of *head* is merged by now.

        Raises:
            WorkTreeRefused: it is not; with the reason that was given the first time.
        """
        for note in self._unmerged_notes():
            if note.run_id == head.run_id and note.why:
                raise WorkTreeRefused(note.why, where=_WORK, hint=note.hint or None)

    def _unmerged_notes(self) -> Iterator[Worktree]:
        """Yield the notes of runs of which only an unmerged branch is left.

        Notes whose branch is merged by now are removed.
        """
        notes = self._trees.notes
        for note in filter(None, map(notes.read, notes.list_names())):
            if note.task or note.phase is not Phase.LEFT:
                continue
            with contextlib.suppress(GitFailed):
                if count_commits(self._trees.checkout.git, note):
                    yield note
                else:
                    notes.remove_note(note)

    def _create_worktree(self, head: Head) -> Worktree:
        """Return a new worktree for the run of *head*; it still has to be set up."""
        notes, status = self._trees.notes, self._folders.inspect_checkout()
        for note in self._unmerged_notes():
            # Its branch is still listed, but to start another run is a decision against the merge.
            notes.write(note.replace(why=""))
        if isinstance(status, str):
            hint = "commit the project to a repository, or leave worktree out"
            raise WorkTreeRefused(f"the run has no worktree: {status}", hint=hint)
        subject = head.workflow_name
        worktree = self._trees.add("", 0, head.run_id, status, subject, Phase.ADDING)
        self._notify(f"the run works in {notes.folder(worktree)} on branch {worktree.branch}")
        for text in self._folders.describe_uncommitted(status):
            self._notify(text)
        return worktree

    def _prepare(self, worktree: Worktree, stop: Cancellation) -> Worktree:
        """Set up the new *worktree*, and report what it lacks."""
        notes = self._trees.notes
        self._set_up(worktree, stop)
        for _, message, hint in self._folders.find_missing_files(notes.folder(worktree)).messages():
            self._notify(f"{message}; {hint}")
        return notes.write(worktree.replace(phase=Phase.WORKING))

    def _recreate(self, head: Head) -> Worktree | None:
        """Make the worktree of the run of *head* again from its branch, if the folder is missing.

        None: the folder exists, or the branch has no unmerged commits.
        """
        trees, notes, status = self._trees, self._trees.notes, self._folders.inspect_checkout()
        if isinstance(status, str):
            return None
        matching = [
            note
            for note in filter(None, map(notes.read, notes.list_names()))
            if not note.task and note.run_id == head.run_id and note.phase is not Phase.LEFT
        ]
        note = matching[0] if matching else self._rebuild_note(head, status)
        if note is None or not count_commits(trees.checkout.git, note):
            return None
        folder = notes.folder(note)
        if note.phase is Phase.ADDING:
            # It has commits, so it was made again before, and a kill interrupted its setup.
            remove_folder(folder)
        if os.path.lexists(folder):
            return None
        for git_dir in find_git_dirs(trees.checkout.common_dir, folder):
            remove_folder(git_dir)
        new_note = note.replace(owner=this_process(), looked_at=0, restoring={})
        worktree = trees.add_from_note(new_note, Phase.ADDING, start=note.branch)
        self._notify(
            f"the worktree of the run was gone, and is made again from branch {worktree.branch}; "
            "what was not committed there is gone, but the files before each attempt are kept in "
            f"{attempt_ref_prefix(head.run_name)}"
        )
        return worktree

    def _rebuild_note(self, head: Head, status: TreeStatus) -> Worktree | None:
        """Return a new note for the run's worktree if its branch exists but no note does."""
        trees, git = self._trees, self._trees.checkout.git
        name = run_worktree_name(ref_part(slug(head.run_id)))
        branch = branch_name(head.run_name, name, RUN_BRANCHES)
        base = git.read_output("merge-base", "HEAD", f"refs/heads/{branch}", accepts=(0, 1, 128))
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
    def _hold_run_lock(self) -> Iterator[None]:
        notes = self._trees.notes
        notes.prepare()
        hint = "another process makes or merges the run's worktree; start again when it has ended"
        with self._trees.checkout.hold_lock(notes.path / RUN_LOCK, RUN_LOCK_WAIT_S, hint):
            yield

    def _find(self, head: Head) -> Worktree | None:
        """Return the worktree of the run of *head*; clear those of other run ids."""
        notes, current_worktree = self._trees.notes, None
        for note in filter(None, map(notes.read, notes.list_names())):
            if note.task or note.phase is Phase.LEFT:
                continue
            has_folder = note.phase is not Phase.ADDING and notes.folder(note).is_dir()
            is_half_restored = has_folder and bool(note.restoring)
            worktree = (
                self._complete_restoration(self._ensure_linked(note)) if is_half_restored else note
            )
            if worktree.run_id != head.run_id or not has_folder:
                for text in self._trees.remove_unused(worktree):
                    self._notify(f"worktree {worktree.name}: {text}")
                continue
            current_worktree = self._ensure_linked(worktree)
            if current_worktree.phase is not Phase.WORKING:
                # A merge was interrupted, or a person has looked at uncommitted files.
                self._trees.leave_to_person(current_worktree)
                current_worktree = notes.write(current_worktree.replace(phase=Phase.WORKING))
        return current_worktree

    def _set_up(self, worktree: Worktree, stop: Cancellation) -> None:
        cwd = self._trees.notes.folder(worktree) / self._trees.checkout.prefix
        try:
            self._vet(cwd)
            with ProcessCore() as core:
                for argv in self._setup:
                    self._notify(f"setup: {shlex.join(argv)}")
                    self._run_setup(core, argv, cwd, stop)
        except BaseException:
            self._trees.remove_unused(worktree)
            raise

    def _run_setup(
        self, core: ProcessCore, argv: Sequence[str], cwd: Path, stop: Cancellation
    ) -> None:
        """Run one command of setup.

        Raises:
            WorkTreeRefused: the command failed or took too long.
            Interrupted: *stop* came first.
        """
        output, limit_s = _Tail(), self._setup_timeout_s
        # No wall: these are the user's own commands, not an agent's, and may need what it blocks.
        launch = Launch(
            identity=None,
            argv=argv,
            environment=agent_environment(),
            cwd=cwd,
            prompt=b"",
            timeout_s=limit_s,
            wall=Wall.NONE,
        )
        end = core.run(launch, output, stop)
        is_timeout = end.ended_by == "timeout"
        if end.ended_by is not None and not is_timeout:
            raise Interrupted(
                "interrupted during the setup of the run's worktree", hint="start again"
            )
        if end.exit_code == 0 and not is_timeout:
            return
        lines = output.tail.decode("utf-8", "replace").strip().splitlines()[-_SHOWN_LINES:]
        if is_timeout:
            exit_text = f"it was ended after {limit_s:g} s"
            hint = "raise setup_timeout_s to give it longer"
        else:
            exit_text = describe_exit(end).splitlines()[0]
            hint = "correct the command or the project"
        reason = end.spawn_error or "; ".join([exit_text, *lines])
        raise WorkTreeRefused(
            f"{shlex.join(argv)!r} failed in the run's new worktree: {reason}",
            where="setup",
            hint=f"{hint}; no step was started",
        )


class RunCheckout(Checkout):
    """The worktree of a run as the checkout into which its tasks are merged."""

    label = "the run's worktree"

    def __init__(self, trees: TaskTrees, worktree: Worktree) -> None:
        """Use *worktree*, one of *trees*.

        Git gets its own folder by name, so it works even if an agent has changed ``.git`` there.
        """
        outer, top, git_dir = trees.checkout, trees.notes.folder(worktree), worktree.admin_dir
        git = outer.git.with_folder(top, timeout_s=LONG_TIMEOUT_S, git_dir=git_dir)
        super().__init__(replace(outer.folders, project=top / outer.prefix), git)
        self._trees, self._worktree = trees, worktree
        self.top, self.git_dir, self.common_dir = top, git_dir, outer.common_dir
        self.git = self.slow_git = git
        home = os.path.realpath(outer.folders.project)
        self.elsewhere = os.path.relpath(top, home) if top.is_relative_to(home) else str(top)

    def ensure_in_place(self) -> None:
        """Check that the worktree belongs to this repository, and that no link leads elsewhere.

        Raises:
            WorkTreeRefused: see `TaskTrees.ensure_linked`.
        """
        self._trees.ensure_linked(self._worktree)


class RunFolder(AttemptFolder):
    """The run's worktree for one attempt; if the attempt fails, its files are restored."""

    def __init__(self, cwd: Path, files: AttemptFiles | None) -> None:
        """Use *cwd*; *files* are its files before the attempt, None if they could not be kept."""
        super().__init__(cwd)
        self._files = files
        self.notes = () if files is None else files.notes

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        del wait_for_turn
        if status is not OutcomeStatus.FAILED or self._files is None:
            return Leftovers()
        if not self._files.set_aside():
            return Leftovers()
        return Leftovers(journal_fields=(("set_aside", self._files.ref),))


class _Tail:
    """Keeps the last bytes of a command's output."""

    tail = b""

    def feed_stdout(self, data: bytes) -> bool:
        self.tail = (self.tail + data)[-TAIL:]
        return True

    def feed_stderr(self, data: bytes) -> bool:
        return self.feed_stdout(data)
