"""The folders in which attempts at a team's tasks work, and what becomes of their work.

A task that writes gets its own worktree; its changes are committed, then merged or kept on a
branch. A task that only reads gets the shared checkout, which is watched for changes. Closing a
folder never loses work, and the checkout gets all of an accepted attempt or none of it. Many
threads and processes may open, close and clean at the same time.

Without a repository, or before its first commit, all tasks work in the shared checkout, and one
notice says so. Not promised: that tasks which write there do not disturb each other.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from msgspec.structs import replace

from sequencer.engine.attempt import Leftovers
from sequencer.engine.workspace import AttemptFolder
from sequencer.errors import (
    ConfigurationError,
    SequencerError,
    WorkTreeRefused,
    format_other_command,
)
from sequencer.executors.redaction import Redaction
from sequencer.model.graph.graph import Node
from sequencer.model.graph.task import TaskTraits
from sequencer.model.outcome import OutcomeStatus
from sequencer.plugins.git.code.checkout import (
    Checkout,
    CheckoutState,
    CheckoutWatch,
    ClosedFolder,
    FolderResult,
    Merge,
)
from sequencer.plugins.git.code.gathering import (
    Cleared,
    Gathered,
    TaskTrees,
    format_nested,
    format_refusals,
)
from sequencer.plugins.git.code.merged_branches import remove_merged_branches
from sequencer.plugins.git.code.missing_files import MissingFiles, find_missing_files
from sequencer.plugins.git.code.selection import format_reasons
from sequencer.plugins.git.code.tree import TreeStatus, format_paths
from sequencer.plugins.git.code.worktrees import Phase, Worktree, parse_merge_token
from sequencer.plugins.git.process import GitFailed

_FAILURES = (GitFailed, SequencerError, OSError)
"""Errors by which git or the file system refuse something."""


class SharedTaskFolder(AttemptFolder):
    """The shared folder of the outer workspace, for one attempt at a task."""

    def __init__(
        self,
        outer: AttemptFolder,
        watch: CheckoutWatch | None = None,
        *,
        fails_on_write: bool = False,
        notices: tuple[str, ...] = (),
        ended: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """Use *outer*; with *watch* the task only reads, and the folder is compared at the end.

        *fails_on_write*: an attempt that changed something anyway has failed. *ended* is called
        at the end and returns the tasks that wrote there in the meantime.
        """
        super().__init__(outer.cwd)
        self._outer = outer
        self._watch = watch
        self._fails_on_write = fails_on_write
        self._ended = ended
        self._before: CheckoutState | None = None
        if watch is not None:
            self._before = watch.read_state()
            notices += self._before.notices
        self.notices = (*notices, *outer.notices)
        self.notes = outer.notes

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        """Close this folder, then the outer one.

        The outer folder is closed as for a failed attempt if this one reports an error, or if a
        task that only reads has written.
        """
        result = self.end(is_accepted=status is OutcomeStatus.OK, wait_for_turn=wait_for_turn)
        leftovers = result.to_leftovers(fails_on_write=self._fails_on_write)
        if leftovers.error is not None or result.written:
            status = OutcomeStatus.FAILED
        after = self._outer.close(status, wait_for_turn)
        notices = (*leftovers.notices, *after.notices)
        return replace(
            leftovers,
            notices=notices,
            journal_fields=(*leftovers.journal_fields, *after.journal_fields),
        )

    def end(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> ClosedFolder:
        """Return the changes of a task that only reads; there is nothing to merge."""
        del is_accepted, wait_for_turn
        writers = self._ended()
        if self._watch is None or self._before is None:
            return ClosedFolder(FolderResult.SHARED)
        changes = self._watch.describe_changes(self._before, self._watch.read_state())
        return ClosedFolder(
            FolderResult.SHARED, written=changes, writers=writers if changes else ()
        )


class OwnTaskFolder(AttemptFolder):
    """A worktree, for one attempt at a task."""

    is_own = True

    def __init__(self, trees: TaskTrees, worktree: Worktree, notices: tuple[str, ...] = ()) -> None:
        """Use *worktree*, one of *trees*."""
        self._trees = trees
        self._worktree = worktree
        self._closed: ClosedFolder | None = None
        """The result of the first close, which later ones return again."""
        self.folder = trees.notes.folder(worktree)
        super().__init__(self.folder / trees.checkout.prefix)
        self.branch: str | None = worktree.branch
        self.notices = notices

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        result = self.end(is_accepted=status is OutcomeStatus.OK, wait_for_turn=wait_for_turn)
        return result.to_leftovers(fails_on_write=False)

    def end(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> ClosedFolder:
        """Commit the work; merge it if the attempt *is_accepted*, else keep it on a branch.

        *wait_for_turn* returns when the attempt may be merged; it is called only if there is
        something to merge. If it raises, the work is put on its branch first. Another call
        returns the same result.
        """
        if self._closed is None:
            self._closed = self._close(wait_for_turn, is_accepted=is_accepted)
        return self._closed

    def _close(self, wait_for_turn: Callable[[], None], *, is_accepted: bool) -> ClosedFolder:
        try:
            self._trees.checkout.ensure_in_place()
            gathering = self._trees.gather(self._worktree)
        except _FAILURES as error:
            return self._leave_uncommitted(error)
        if gathering.refused:
            files = tuple(exclusion.path for exclusion in gathering.refused)
            return replace(self._leave(format_refusals(gathering)), files=files)
        try:
            refusal = self._refuse_merge(gathering, is_accepted=is_accepted)
        except _FAILURES as error:
            return self._leave(f"can't be merged: {_format_reason(error)}")
        if refusal is not None:
            return self._remove(gathering, refusal)
        try:
            wait_for_turn()
        except BaseException:
            self._closed = self._remove(gathering, ClosedFolder(FolderResult.KEPT))
            raise
        try:
            return self._merge(gathering)
        except _FAILURES as error:
            return self._check_merge(gathering, f"can't be merged: {_format_reason(error)}")

    def _merge(self, gathering: Gathered) -> ClosedFolder:
        with self._trees.checkout.merge_lock():
            worktree = self._trees.notes.write(self._worktree.replace(phase=Phase.MERGING))
            self._worktree = worktree
            git, message = self._trees.open_git(worktree), self._trees.notes.merge_message(worktree)
            merge = Merge(self._trees.checkout, git, worktree, message, self._trees.run)
            result = merge.perform(gathering.tip)
        return self._remove(gathering, result)

    def _check_merge(self, gathering: Gathered, message: str) -> ClosedFolder:
        """After an error, return MERGED if the checkout has the merge; else leave the worktree."""
        tip, contains = gathering.tip, self._trees.checkout.contains
        with contextlib.suppress(*_FAILURES):
            merge = self._trees.open_git(self._worktree).read_output("rev-parse", "HEAD")
            head = self._trees.checkout.checked_out_commit()
            if merge != tip and head and contains(merge, tip) and contains(head, merge):
                return self._remove(gathering, ClosedFolder(FolderResult.MERGED, commit=merge))
        return self._leave(message)

    def _refuse_merge(self, gathering: Gathered, *, is_accepted: bool) -> ClosedFolder | None:
        """Return the result for work that must not be merged, or None if it may be merged."""
        if gathering.tip == self._worktree.base:
            return ClosedFolder(FolderResult.UNCHANGED)
        if not is_accepted:
            return ClosedFolder(FolderResult.KEPT)
        refused_files = self._trees.find_new_secrets(self._worktree, gathering)
        if not refused_files:
            return None
        return ClosedFolder(
            FolderResult.KEPT,
            "is not merged, because one of its commits adds a key: "
            f"{format_reasons(refused_files)}; "
            + self._trees.checkout.describe_kept_work(self._worktree),
            f"take the key out of these commits, then {self._merge_command}; "
            "revoke a key that has left this machine",
            files=tuple(exclusion.path for exclusion in refused_files),
        )

    def _remove(self, gathering: Gathered, result: ClosedFolder) -> ClosedFolder:
        """Remove the worktree unless something in it would be lost; return *result*, completed."""
        branch = None if result.result is FolderResult.MERGED else self._worktree.branch
        if nested_paths := self._trees.find_nested_repositories(self._worktree, gathering):
            notices = (
                format_nested(nested_paths),
                *gathering.notices,
                *self._trees.leave_to_person(self._worktree),
            )
            return replace(result, branch=branch, folder=self.folder, notices=notices)
        # Only then may the branch be removed too.
        has_all = result.result in (FolderResult.MERGED, FolderResult.UNCHANGED)
        try:
            removal = self._trees.remove(self._worktree, gathering.tip if has_all else None)
        except _FAILURES as error:
            # The result stands; the next cleanup tries again to remove the folder.
            removal = Cleared(branch, (f"{self.folder} can't be removed: {_format_reason(error)}",))
        notices = (*gathering.notices, *removal.notices)
        return replace(result, branch=removal.branch, notices=notices)

    def _leave_uncommitted(self, error: Exception) -> ClosedFolder:
        """Leave files that could not be committed to a person, if the folder still exists."""
        if self.folder.is_dir():
            return self._leave(f"can't be committed: {_format_reason(error)}")
        branch = self._worktree.branch
        return ClosedFolder(
            FolderResult.REFUSED,
            f"its worktree, {self.folder}, was removed while it worked; "
            f"what it had committed is on branch {branch}",
            "have the task done again" if self._worktree.task else self._merge_command,
            branch=branch,
        )

    @property
    def _merge_command(self) -> str:
        return self._trees.checkout.merge_command(self._worktree)

    def _leave(self, message: str) -> ClosedFolder:
        """Leave the worktree to a person, for the reason in *message*."""
        status_command = format_other_command("git", "-C", str(self.folder), "status")
        return ClosedFolder(
            FolderResult.REFUSED,
            f"{message}; its work is in {self.folder}, "
            f"and none of it is in {self._trees.checkout.label}",
            f"look there ({status_command}) and fix the problem, or copy what you need by hand",
            branch=self._worktree.branch,
            folder=self.folder,
            notices=self._trees.leave_to_person(self._worktree),
        )


def _format_reason(error: Exception) -> str:
    if isinstance(error, GitFailed):
        return error.reason
    if not isinstance(error, SequencerError):
        return str(error)
    return f"{error.where}: {error.message}" if error.where else error.message


NEEDED = (2, 30)
"""The oldest version of git that works."""
LOOKED_BACK = 2000
"""How many commits are searched for merges of earlier attempts."""


class TaskFolders:
    """The folders in which the tasks of one run work."""

    def __init__(
        self,
        checkout: Checkout,
        run: str | None,
        redaction: Redaction,
        *,
        fails_on_write: bool = False,
    ) -> None:
        """Open folders for tasks of *run* (None: the default run): worktrees, or *checkout*.

        *redaction* decides what is never committed; *fails_on_write*: see `SharedTaskFolder`. No
        process is started and nothing is written before the first folder is opened.
        """
        self._hide, self._run = redaction.hide_text, run
        self._checkout, self.trees = checkout, TaskTrees(checkout, run, redaction)
        self._watch = CheckoutWatch(self._checkout)
        self._fails_on_write = fails_on_write
        self._guard = threading.Lock()
        self._has_reported = self._has_looked = False
        self._writers: dict[int, str] = {}
        """Token -> task, for tasks that write in the shared checkout now."""
        self._meanwhile: dict[int, dict[int, str]] = {}
        """Token of a task that only reads -> the tasks that wrote there while it was open."""

    # --- opening -------------------------------------------------------------------

    def open(
        self,
        node: Node,
        token: int,
        run_id: str,
        shared: Callable[[], AttemptFolder],
        *,
        is_first: bool,
    ) -> OwnTaskFolder | SharedTaskFolder:
        """Open the folder for the attempt with *token* at the task of *node*.

        *shared* opens the shared folder, for an attempt that gets no worktree. If it is not the
        first attempt, its notices say whether an earlier attempt's work is merged already.

        Raises:
            SequencerError: no folder can be opened.
        """
        traits, task = node.task or TaskTraits(), node.id
        if not traits.writes:
            return self._open_for_reading(token, shared())
        if not traits.worktree:
            return self._open_for_writing(task, token, shared())
        folder: OwnTaskFolder | SharedTaskFolder
        if isinstance(status := self.inspect_checkout(), TreeStatus):
            folder = self._open_isolated(task, token, run_id, node.label, status)
        else:
            folder = self._open_for_writing(task, token, shared(), self._explain_sharing(status))
        if not is_first and self.find_merged_tokens(task, run_id):
            # The earlier process ended after the merge and before it was recorded.
            folder.notices += (
                f"the work of an earlier attempt at {task} is already in {self._checkout.label}",
            )
        return folder

    def _open_isolated(
        self, task: str, token: int, run_id: str, subject: str, status: TreeStatus
    ) -> OwnTaskFolder:
        worktree = self.trees.add(task, token, run_id, status, subject)
        missing_notices = self._missing_notices(self.trees.notes.folder(worktree))
        return OwnTaskFolder(
            self.trees, worktree, (*self.describe_uncommitted(status), *missing_notices)
        )

    def _explain_sharing(self, obstacle: str) -> tuple[str, ...]:
        """Return a notice that there are no worktrees; only the first attempt gets it."""
        with self._guard:
            is_first, self._has_reported = not self._has_reported, True
        notice = f"no worktrees: {obstacle}; all tasks work in the project's folder"
        return (notice,) if is_first else ()

    def _open_for_reading(self, token: int, shared_folder: AttemptFolder) -> SharedTaskFolder:
        with self._guard:
            self._meanwhile[token] = dict(self._writers)

        def ended() -> tuple[str, ...]:
            with self._guard:
                return tuple(sorted(set(self._meanwhile.pop(token, {}).values())))

        return SharedTaskFolder(
            shared_folder, self._watch, fails_on_write=self._fails_on_write, ended=ended
        )

    def _open_for_writing(
        self, task: str, token: int, shared_folder: AttemptFolder, notices: tuple[str, ...] = ()
    ) -> SharedTaskFolder:
        with self._guard:
            self._writers[token] = task
            for writers in self._meanwhile.values():
                writers[token] = task

        def ended() -> tuple[str, ...]:
            with self._guard:
                self._writers.pop(token, None)
            return ()

        return SharedTaskFolder(shared_folder, notices=notices, ended=ended)

    def inspect_checkout(self) -> TreeStatus | str:
        """Return the status of the checkout's tracked files, or why there can be no worktrees."""
        checkout = self._checkout
        try:
            prefix = checkout.prefix
            status = checkout.tracked_changes()
            if status.commit is None:
                return "the repository has no commit yet"
            folder = f"HEAD:{prefix}"
            if prefix and checkout.git.run("cat-file", "-e", folder, accepts=(0, 1, 128)).code:
                return "no commit has the project's folder"
        except SequencerError as error:
            # Git's own text after the colon helps no one here.
            reason = error.message.partition(": ")[0]
            return f"{error.where} {reason}" if error.where else reason
        except GitFailed as failed:
            return failed.reason
        return status

    def describe_uncommitted(self, status: TreeStatus) -> tuple[str, ...]:
        """Return a notice about uncommitted changes in *status*: no worktree has them."""
        dirty_paths = [
            entry.path for entry in status.entries if not self._checkout.is_own(entry.path)
        ]
        if not dirty_paths:
            return ()
        changes = "uncommitted changes"
        if self._checkout.elsewhere:
            changes += f" of {self._checkout.label}"
        return (f"{changes} are not in the worktree: {self._hide(format_paths(dirty_paths))}",)

    def find_missing_files(self, fresh: Path | None = None) -> MissingFiles:
        """Return what the checkout has and the worktree in *fresh* does not have.

        *fresh* is its top folder; None: any new worktree.
        """
        try:
            top, folders = Path(os.path.realpath(self._checkout.top)), self._checkout.folders
        except SequencerError:
            return MissingFiles()
        run_paths = (folders.state_file, folders.logs, *folders.others)
        resolved = [os.path.realpath(path) for path in run_paths]

        def is_own(path: str) -> bool:
            # Git may name a whole folder, of which the run's files are only a part.
            is_above = any(Path(run_path).is_relative_to(top / path) for run_path in resolved)
            return is_above or self._checkout.is_own(path)

        return find_missing_files(self._checkout.project_git, top, is_own, fresh)

    def _missing_notices(self, fresh_folder: Path) -> tuple[str, ...]:
        """Return notices about what *fresh_folder* lacks, for the first worktree: all are alike."""
        with self._guard:
            is_first, self._has_looked = not self._has_looked, True
        missing_files = self.find_missing_files(fresh_folder) if is_first else MissingFiles()
        messages = missing_files.messages(in_team=True)
        return tuple(self._hide(f"{message}; {hint}") for _, message, hint in messages)

    # --- afterwards ----------------------------------------------------------------

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove worktrees of dead processes, for attempts whose tokens are not in *live*.

        Their work is kept on branches; branches that the checkout contains by now are removed.
        Returns notices for people. Several processes may clean at the same time; nothing of a
        process that may be alive is touched.
        """
        if not self.trees.notes.path.is_dir():
            return ()
        notices = self.trees.clean(live)
        remove_merged_branches(self._checkout, self._run, self.trees.notes)
        return tuple(map(self._hide, notices))

    def find_merged_tokens(self, task: str, run_id: str) -> frozenset[int]:
        """Return the tokens of attempts at *task* whose work is in the checkout already.

        The merge commits show that, even if a kill came before the attempt was recorded.
        """
        try:
            log = self._checkout.first_parent_log("HEAD", LOOKED_BACK)
        except (GitFailed, SequencerError):
            return frozenset()
        trailers = self.trees.notes.trailers(run_id, task)
        tokens = (
            parse_merge_token(message, trailers) for parents, message in log if len(parents) > 1
        )
        return frozenset(token for token in tokens if token is not None)

    def find_foreign_worktrees(self) -> Iterator[tuple[SequencerError, bool]]:
        """Yield an error for each worktree of the run that does not lead to this repository.

        With it: whether the next start fixes that by itself. For ``sequencer check``.
        """
        notes = self.trees.notes
        for worktree in filter(None, map(notes.read, notes.list_names())):
            if worktree.phase is not Phase.ADDING and notes.folder(worktree).is_dir():
                with contextlib.suppress(GitFailed, SequencerError):
                    if (refusal := self.trees.link_refusal(worktree)) is not None:
                        yield refusal

    def find_problems(self) -> tuple[SequencerError, ...]:
        """Return why tasks would get no worktrees or could not be merged.

        For ``sequencer check``.
        """
        checkout = self._checkout
        project = checkout.folders.project
        if (version_error := self._checkout.project_git.check_version(NEEDED)) is not None:
            if version_error.message.startswith("git is not installed"):
                hint = "install git; without it, tasks share the project's folder"
                version_error = ConfigurationError("git is not installed", hint=hint)
            return (version_error,)
        obstacle = self.inspect_checkout()
        if isinstance(obstacle, str):
            hint = "tasks share the project's folder; a repository with a commit keeps them apart"
            return (WorkTreeRefused(f"no worktrees: {obstacle}", where=str(project), hint=hint),)
        if operation := checkout.find_operation():
            hint = "finish it or abort it; until then no task's work can be merged"
            return (checkout.make_refusal(f"{operation} is under way", hint),)
        return ()
