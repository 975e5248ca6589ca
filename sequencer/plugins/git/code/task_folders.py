"""Where the attempts at a team's tasks work, or a whole run, and what becomes of their work.

A worktree for each task that writes, or for the run, whose changes are committed, merged or kept
on a branch; or the shared checkout, which is only looked at. Closing never loses work and leaves
the checkout with all of an accepted attempt, or with nothing of it. Many threads and processes may
open, close and clean at once. Where there is no repository, or no commit yet, tasks work in the
shared checkout, and that is said once. Not promised: that tasks which write there keep out of each
other's way.
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
    typed_command,
)
from sequencer.executors.redaction import Redaction
from sequencer.model.graph.graph import Node
from sequencer.model.graph.task import TaskTraits
from sequencer.model.outcome import OutcomeStatus
from sequencer.plugins.git.code.checkout import (
    Checkout,
    CheckoutLook,
    CheckoutWatch,
    ClosedFolder,
    FolderResult,
    Merge,
)
from sequencer.plugins.git.code.gathering import (
    Cleared,
    Gathered,
    TaskTrees,
    in_others,
    told,
)
from sequencer.plugins.git.code.lacking import Lacking, lacking
from sequencer.plugins.git.code.merged_branches import remove_merged_branches
from sequencer.plugins.git.code.selection import reasons
from sequencer.plugins.git.code.tree import TreeStatus, listed
from sequencer.plugins.git.code.worktrees import Phase, Worktree, token_in
from sequencer.plugins.git.process import GitFailed

_FAILURES = (GitFailed, SequencerError, OSError)
"""What git and the file system may have against something."""


class SharedTaskFolder(AttemptFolder):
    """The folder of the workspace around the tasks, for one attempt at a task."""

    def __init__(
        self,
        outer: AttemptFolder,
        watch: CheckoutWatch | None = None,
        *,
        fails_on_write: bool = False,
        notices: tuple[str, ...] = (),
        ended: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """Work in *outer*; with *watch* it is only read, and looked at before and after.

        *fails_on_write*: an attempt that has changed something all the same has failed. *ended* is
        called at the end and returns the tasks that have worked there meanwhile.
        """
        super().__init__(outer.cwd)
        self._outer = outer
        self._watch = watch
        self._fails_on_write = fails_on_write
        self._ended = ended
        self._before: CheckoutLook | None = None
        if watch is not None:
            self._before = watch.look()
            notices += self._before.notices
        self.notices = (*notices, *outer.notices)
        self.notes = outer.notes

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        """Close the place, then the outer folder.

        The outer folder sees a failed attempt if the place reports an error, or if a task that only
        reads has written.
        """
        found = self.end(is_accepted=status is OutcomeStatus.OK, wait_for_turn=wait_for_turn)
        left = found.told(fails_on_write=self._fails_on_write)
        if left.error is not None or found.written:
            status = OutcomeStatus.FAILED
        after = self._outer.close(status, wait_for_turn)
        notices = (*left.notices, *after.notices)
        return replace(left, notices=notices, told=(*left.told, *after.told))

    def end(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> ClosedFolder:
        """Return what has changed, if nothing should have; there is nothing to merge."""
        del is_accepted, wait_for_turn
        writers = self._ended()
        if self._watch is None or self._before is None:
            return ClosedFolder(FolderResult.SHARED)
        written = self._watch.changes_between(self._before, self._watch.look())
        return ClosedFolder(
            FolderResult.SHARED, written=written, writers=writers if written else ()
        )


class OwnTaskFolder(AttemptFolder):
    """A worktree, for one attempt at a task."""

    is_own = True

    def __init__(self, trees: TaskTrees, worktree: Worktree, notices: tuple[str, ...] = ()) -> None:
        """Work in *worktree*, one of *trees*."""
        self._trees = trees
        self._worktree = worktree
        self._left: ClosedFolder | None = None
        """What it has come to; it is closed once."""
        self.folder = trees.notes.folder(worktree)
        super().__init__(self.folder / trees.checkout.prefix)
        self.branch: str | None = worktree.branch
        self.notices = notices

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        left = self.end(is_accepted=status is OutcomeStatus.OK, wait_for_turn=wait_for_turn)
        return left.told(fails_on_write=False)

    def end(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> ClosedFolder:
        """Commit what was done; merge it if the attempt *is_accepted*, else keep it.

        *wait_for_turn* returns when the attempt may be merged, and is called only if there is
        something to merge. What it raises is raised, after the work was put on its branch.
        Closed again, it says the same again.
        """
        if self._left is None:
            self._left = self._closed(wait_for_turn, is_accepted=is_accepted)
        return self._left

    def _closed(self, wait_for_turn: Callable[[], None], *, is_accepted: bool) -> ClosedFolder:
        try:
            self._trees.checkout.ensure_in_place()
            gathered = self._trees.gather(self._worktree)
        except _FAILURES as error:
            return self._not_gathered(error)
        if gathered.refused:
            files = tuple(one.path for one in gathered.refused)
            return replace(self._stays(told(gathered)), files=files)
        try:
            left = self._not_merged(gathered, is_accepted=is_accepted)
        except _FAILURES as error:
            return self._stays(f"can't be merged: {_reason(error)}")
        if left is not None:
            return self._ended(gathered, left)
        try:
            wait_for_turn()
        except BaseException:
            self._left = self._ended(gathered, ClosedFolder(FolderResult.KEPT))
            raise
        try:
            return self._merged(gathered)
        except _FAILURES as error:
            return self._merged_after_all(gathered, f"can't be merged: {_reason(error)}")

    def _merged(self, gathered: Gathered) -> ClosedFolder:
        with self._trees.checkout.merge_lock():
            worktree = self._trees.notes.write(self._worktree.replace(phase=Phase.MERGING))
            self._worktree = worktree
            git, message = self._trees.git_of(worktree), self._trees.notes.merge_message(worktree)
            made = Merge(self._trees.checkout, git, worktree, message, self._trees.run)
            merged = made.make(gathered.tip)
        return self._ended(gathered, merged)

    def _merged_after_all(self, gathered: Gathered, message: str) -> ClosedFolder:
        """Look what the checkout has, where something has failed on the way."""
        tip, contains = gathered.tip, self._trees.checkout.contains
        with contextlib.suppress(*_FAILURES):
            made = self._trees.git_of(self._worktree).text("rev-parse", "HEAD")
            head = self._trees.checkout.commit()
            if made != tip and head and contains(made, tip) and contains(head, made):
                return self._ended(gathered, ClosedFolder(FolderResult.MERGED, commit=made))
        return self._stays(message)

    def _not_merged(self, gathered: Gathered, *, is_accepted: bool) -> ClosedFolder | None:
        """Return what becomes of work that is not to be merged; None: it is."""
        if gathered.tip == self._worktree.base:
            return ClosedFolder(FolderResult.UNCHANGED)
        if not is_accepted:
            return ClosedFolder(FolderResult.KEPT)
        refused = self._trees.with_keys(self._worktree, gathered)
        if not refused:
            return None
        return ClosedFolder(
            FolderResult.KEPT,
            f"is not merged, because one of its commits adds a key: {reasons(refused)}; "
            + self._trees.checkout.kept_on(self._worktree),
            f"take the key out of these commits, then {self._by_hand}; "
            "revoke a key that has left this machine",
            files=tuple(one.path for one in refused),
        )

    def _ended(self, gathered: Gathered, left: ClosedFolder) -> ClosedFolder:
        """Remove the worktree, unless it holds what would be lost, and complete *left*."""
        branch = None if left.result is FolderResult.MERGED else self._worktree.branch
        if others := self._trees.others_in(self._worktree, gathered):
            notices = (in_others(others), *gathered.notices, *self._trees.keep(self._worktree))
            return replace(left, branch=branch, folder=self.folder, notices=notices)
        # What is kept has a branch; of the rest the checkout has everything.
        has_all = left.result in (FolderResult.MERGED, FolderResult.UNCHANGED)
        try:
            cleared = self._trees.remove(self._worktree, gathered.tip if has_all else None)
        except _FAILURES as error:
            # What has become of the work stands all the same; who cleans up tries once more.
            cleared = Cleared(branch, (f"{self.folder} can't be removed: {_reason(error)}",))
        notices = (*gathered.notices, *cleared.notices)
        return replace(left, branch=cleared.branch, notices=notices)

    def _not_gathered(self, error: Exception) -> ClosedFolder:
        """Leave what could not be committed to a person, if there is anything to look at."""
        if self.folder.is_dir():
            return self._stays(f"can't be committed: {_reason(error)}")
        branch = self._worktree.branch
        return ClosedFolder(
            FolderResult.REFUSED,
            f"its worktree, {self.folder}, was removed while it worked; "
            f"what it had committed is on branch {branch}",
            "have the task done again" if self._worktree.task else self._by_hand,
            branch=branch,
        )

    @property
    def _by_hand(self) -> str:
        return self._trees.checkout.by_hand(self._worktree)

    def _stays(self, message: str) -> ClosedFolder:
        """Leave the worktree to a person."""
        look = typed_command("git", "-C", str(self.folder), "status")
        return ClosedFolder(
            FolderResult.REFUSED,
            f"{message}; its work is in {self.folder}, "
            f"and none of it is in {self._trees.checkout.called}",
            f"look there ({look}), and fix what is said, or take over by hand what you need",
            branch=self._worktree.branch,
            folder=self.folder,
            notices=self._trees.keep(self._worktree),
        )


def _reason(error: Exception) -> str:
    if isinstance(error, GitFailed):
        return error.reason
    if not isinstance(error, SequencerError):
        return str(error)
    return f"{error.where}: {error.message}" if error.where else error.message


NEEDED = (2, 30)
"""Of git."""
LOOKED_BACK = 2000
"""Commits that are looked through for merges of earlier attempts."""


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
        """Give the tasks of *run* (None: the default run) worktrees next to its state, or *checkout*.

        *redaction* decides what is never committed; *fails_on_write*: see `SharedTaskFolder`. No
        process is started and nothing is written before the first folder is opened.
        """
        self._hide, self._run = redaction.hide_text, run
        self._checkout, self.trees = checkout, TaskTrees(checkout, run, redaction)
        self._watch = CheckoutWatch(self._checkout)
        self._fails_on_write = fails_on_write
        self._guard = threading.Lock()
        self._has_told = self._has_looked = False
        self._writers: dict[int, str] = {}
        """Tasks that write in the shared checkout at present, by their tokens."""
        self._meanwhile: dict[int, dict[int, str]] = {}
        """Those that have, while the task with the token was there to read."""

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
        """Return where the attempt with *token* at the task *node* works.

        *shared* opens the folder for one that gets no worktree. Where the attempt is not the
        first, its notices say whether an earlier one's work is there.

        Raises:
            SequencerError: there is no such place.
        """
        traits, task = node.task or TaskTraits(), node.id
        if not traits.writes:
            return self._reading(token, shared())
        if not traits.worktree:
            # One that only reads has nothing to isolate.
            return self._writing(task, token, shared())
        made: OwnTaskFolder | SharedTaskFolder
        if isinstance(status := self.look(), TreeStatus):
            made = self._isolated(task, token, run_id, node.label, status)
        else:
            made = self._writing(task, token, shared(), self._why_shared(status))
        if not is_first and self.merged(task, run_id):
            # Its process ended between the merge and the record of it.
            made.notices += (
                f"the work of an earlier attempt at {task} is already in {self._checkout.called}",
            )
        return made

    def _isolated(
        self, task: str, token: int, run_id: str, subject: str, status: TreeStatus
    ) -> OwnTaskFolder:
        worktree = self.trees.add(task, token, run_id, status, subject)
        lacks = self._told_once(self.trees.notes.folder(worktree))
        return OwnTaskFolder(self.trees, worktree, (*self.uncommitted(status), *lacks))

    def _why_shared(self, obstacle: str) -> tuple[str, ...]:
        """Return that there are no worktrees, for the first attempt that would have one."""
        with self._guard:
            is_first, self._has_told = not self._has_told, True
        notice = f"no worktrees: {obstacle}; all tasks work in the project's folder"
        return (notice,) if is_first else ()

    def _reading(self, token: int, shared: AttemptFolder) -> SharedTaskFolder:
        with self._guard:
            self._meanwhile[token] = dict(self._writers)

        def ended() -> tuple[str, ...]:
            with self._guard:
                return tuple(sorted(set(self._meanwhile.pop(token, {}).values())))

        return SharedTaskFolder(
            shared, self._watch, fails_on_write=self._fails_on_write, ended=ended
        )

    def _writing(
        self, task: str, token: int, shared: AttemptFolder, notices: tuple[str, ...] = ()
    ) -> SharedTaskFolder:
        with self._guard:
            self._writers[token] = task
            for seen in self._meanwhile.values():
                seen[token] = task

        def ended() -> tuple[str, ...]:
            with self._guard:
                self._writers.pop(token, None)
            return ()

        return SharedTaskFolder(shared, notices=notices, ended=ended)

    def look(self) -> TreeStatus | str:
        """Return what the checkout has, or why there can be no worktrees."""
        checkout = self._checkout
        try:
            prefix = checkout.prefix
            status = checkout.tracked_changes()
            if status.commit is None:
                return "the repository has no commit yet"
            named = f"HEAD:{prefix}"
            if prefix and checkout.git.run("cat-file", "-e", named, accepts=(0, 1, 128)).code:
                return "no commit has the project's folder"
        except SequencerError as error:
            # What git itself says about it helps nobody here.
            reason = error.message.partition(": ")[0]
            return f"{error.where} {reason}" if error.where else reason
        except GitFailed as failed:
            return failed.reason
        return status

    def uncommitted(self, status: TreeStatus) -> tuple[str, ...]:
        """Return what of *status* is in no worktree, for a person."""
        dirty = [entry.path for entry in status.entries if not self._checkout.is_own(entry.path)]
        if not dirty:
            return ()
        which = "uncommitted changes"
        if self._checkout.elsewhere:
            which += f" of {self._checkout.called}"
        return (f"{which} are not in the worktree: {self._hide(listed(dirty))}",)

    def lacking(self, fresh: Path | None = None) -> Lacking:
        """Return what the worktree with the top *fresh* lacks of what the checkout has.

        None: what any new one would.
        """
        try:
            top, own = Path(os.path.realpath(self._checkout.top)), self._checkout.folders
        except SequencerError:
            return Lacking()
        written = [os.path.realpath(path) for path in (own.state_file, own.logs, *own.others)]

        def is_own(path: str) -> bool:
            # Named by git is the whole folder, of which the run's may be a part.
            is_above = any(Path(one).is_relative_to(top / path) for one in written)
            return is_above or self._checkout.is_own(path)

        return lacking(self._checkout.project_git, top, is_own, fresh)

    def _told_once(self, fresh: Path) -> tuple[str, ...]:
        """Return what *fresh*, the first worktree of a task, lacks; the others are like it."""
        with self._guard:
            is_first, self._has_looked = not self._has_looked, True
        found = self.lacking(fresh) if is_first else Lacking()
        told = found.told(in_team=True)
        return tuple(self._hide(f"{message}; {hint}") for _, message, hint in told)

    # --- afterwards ----------------------------------------------------------------

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove what dead processes have left, of attempts whose tokens are not in *live*.

        Their work is kept on branches; returned is what a person should know. Several
        processes may clean at once; nothing of a process that may be alive is touched.
        Branches go that are in the checkout by now, whoever has merged them.
        """
        if not self.trees.notes.path.is_dir():
            return ()
        notices = self.trees.clean(live)
        remove_merged_branches(self._checkout, self._run, self.trees.notes)
        return tuple(map(self._hide, notices))

    def merged(self, task: str, run_id: str) -> frozenset[int]:
        """Return the tokens of attempts at *task* whose work is in the checkout already.

        After a kill between the merge and the record of an attempt the next one can know.
        """
        try:
            line = self._checkout.line_of("HEAD", LOOKED_BACK)
        except (GitFailed, SequencerError):
            return frozenset()
        wanted = self.trees.notes.trailers(run_id, task)
        tokens = (token_in(message, wanted) for parents, message in line if len(parents) > 1)
        return frozenset(token for token in tokens if token is not None)

    def foreign(self) -> Iterator[tuple[SequencerError, bool]]:
        """Yield which worktrees of the run are not this repository's, for a check.

        And whether the next start mends that by itself.
        """
        notes = self.trees.notes
        for worktree in filter(None, map(notes.read, notes.names())):
            if worktree.phase is not Phase.ADDING and notes.folder(worktree).is_dir():
                with contextlib.suppress(GitFailed, SequencerError):
                    if (found := self.trees.link_refusal(worktree)) is not None:
                        yield found

    def problems(self) -> tuple[SequencerError, ...]:
        """Return why tasks would not get worktrees, or could not be merged, for a check."""
        checkout = self._checkout
        project = checkout.folders.project
        if (unusable := self._checkout.project_git.unusable(NEEDED)) is not None:
            if unusable.message.startswith("git is not installed"):
                hint = "install git; without it, tasks share the project's folder"
                unusable = ConfigurationError("git is not installed", hint=hint)
            return (unusable,)
        obstacle = self.look()
        if isinstance(obstacle, str):
            hint = "tasks share the project's folder; a repository with a commit keeps them apart"
            return (WorkTreeRefused(f"no worktrees: {obstacle}", where=str(project), hint=hint),)
        if begun := checkout.under_way():
            hint = "finish it or abort it; until then no task's work can be merged"
            return (checkout.refused(f"{begun} is under way", hint),)
        return ()
