"""Where one attempt at a task works, and what becomes of its work.

A worktree of its own, whose changes are committed, merged or kept on a branch; or the
shared checkout, which is only looked at. Closing never loses work and leaves the checkout
with all of an accepted attempt, or with nothing of it.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from sequencer.checkout.clearing import Cleared, Clearing, in_others, listed, reasons, told
from sequencer.checkout.gathering import Gathered, Refused
from sequencer.checkout.merging import Merged, Verdict, merge
from sequencer.checkout.readonly import Look, Watch
from sequencer.checkout.shared import Checkout
from sequencer.checkout.worktree import Phase, Worktree, Worktrees
from sequencer.errors import SequencerError
from sequencer.store.git.command import GitFailed


class Result(StrEnum):
    """What became of an attempt's changes."""

    SHARED = "shared"
    """It has worked in the shared checkout."""
    UNCHANGED = "unchanged"
    MERGED = "merged"
    KEPT = "kept"
    """The attempt was not accepted, or adds a key: its work is on a branch."""
    CONFLICT = "conflict"
    IN_THE_WAY = "in-the-way"
    """The checkout can't be moved: it would overwrite changes that no commit holds."""
    REFUSED = "refused"
    """Something in the worktree can't be committed; it stays."""


@dataclass(frozen=True, slots=True)
class Left:
    """What an attempt has left."""

    result: Result
    error: str | None = None
    """Not None: the attempt has failed, even if its agent was content."""
    hint: str | None = None
    branch: str | None = None
    """Where work is that the checkout has not."""
    folder: Path | None = None
    """The worktree, where that stays."""
    commit: str | None = None
    """The merge."""
    files: tuple[str, ...] = ()
    """In conflict, in the way, or refused."""
    written: tuple[str, ...] = ()
    """What was changed in the shared checkout during an attempt that only reads, each with how."""
    writers: tuple[str, ...] = ()
    """Tasks of this process that may have written it, because they work there too."""
    notices: tuple[str, ...] = ()

    @property
    def is_failure(self) -> bool:
        """Return whether the attempt has failed by this."""
        return self.error is not None


class SharedPlace:
    """The shared checkout as a workplace."""

    branch: str | None = None

    def __init__(
        self,
        cwd: Path,
        watch: Watch | None = None,
        *,
        notices: tuple[str, ...] = (),
        ended: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """Work in *cwd*; with *watch* it is only read, and looked at before and after.

        *ended* is called at the end and returns the tasks that have worked there meanwhile.
        """
        self.cwd = cwd
        self._watch = watch
        self._ended = ended
        self._before: Look | None = None
        if watch is not None:
            self._before = watch.look()
            notices += self._before.notices
        self.notices = notices

    def close(self, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:  # noqa: ARG002
        """Return what has changed, if nothing should have; there is nothing to merge."""
        writers = self._ended()
        if self._watch is None or self._before is None:
            return Left(Result.SHARED)
        written = self._watch.changes_between(self._before, self._watch.look())
        return Left(Result.SHARED, written=written, writers=writers if written else ())


class OwnPlace:
    """A worktree as a workplace."""

    def __init__(
        self,
        checkout: Checkout,
        worktrees: Worktrees,
        worktree: Worktree,
        clearing: Clearing,
        message: Callable[[Worktree], str],
        *,
        notices: tuple[str, ...] = (),
    ) -> None:
        """Work in *worktree*; *message* is that of its merge."""
        self._checkout = checkout
        self._worktrees = worktrees
        self._worktree = worktree
        self._clearing = clearing
        self._message = message
        self._left: Left | None = None
        """What it has come to; it is closed once."""
        self.folder = worktrees.folder(worktree)
        self.cwd = self.folder / checkout.tree.prefix
        self.branch: str | None = worktree.branch
        self.notices = notices

    def close(self, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:
        """Commit what was done; merge it if the attempt *is_accepted*, else keep it.

        *wait_for_turn* returns when the attempt may be merged, and is called only if there is
        something to merge. What it raises is raised, after the work was put on its branch.
        Closed again, it says the same again.
        """
        if self._left is None:
            self._left = self._closed(is_accepted, wait_for_turn)
        return self._left

    def _closed(self, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:
        try:
            gathered = self._clearing.gather(self._worktree)
        except (GitFailed, SequencerError, OSError) as error:
            return self._not_gathered(error)
        if gathered.refused:
            files = tuple(one.path for one in gathered.refused)
            return replace(self._stays(told(gathered)), files=files)
        try:
            left = self._not_merged(gathered, is_accepted=is_accepted)
        except (GitFailed, SequencerError, OSError) as error:
            return self._stays(f"can't be merged: {_reason(error)}")
        if left is not None:
            return self._ended(gathered, left)
        try:
            wait_for_turn()
        except BaseException:
            self._left = self._ended(gathered, Left(Result.KEPT))
            raise
        try:
            return self._merged(gathered)
        except (GitFailed, SequencerError, OSError) as error:
            return self._merged_after_all(gathered, f"can't be merged: {_reason(error)}")

    def _merged(self, gathered: Gathered) -> Left:
        with self._checkout.merge_lock():
            worktree = self._worktrees.write(self._worktree.replace(phase=Phase.MERGING))
            self._worktree = worktree
            git = self._clearing.git_of(worktree)
            merged = merge(self._checkout, git, gathered.tip, worktree, self._message(worktree))
        return self._ended(gathered, self._after(merged))

    def _merged_after_all(self, gathered: Gathered, message: str) -> Left:
        """Look what the checkout has, where something has failed on the way."""
        tip, contains = gathered.tip, self._checkout.contains
        with contextlib.suppress(GitFailed, SequencerError, OSError):
            made = self._clearing.git_of(self._worktree).text("rev-parse", "HEAD")
            head = self._checkout.commit()
            if made != tip and head and contains(made, tip) and contains(head, made):
                return self._ended(gathered, Left(Result.MERGED, commit=made))
        return self._stays(message)

    def _after(self, merged: Merged) -> Left:
        """Return in words for people what *merged* means for the attempt."""
        if merged.verdict is Verdict.MERGED:
            return Left(Result.MERGED, commit=merged.commit)
        if merged.verdict is Verdict.NOTHING:
            return Left(Result.UNCHANGED)
        branch = self._worktree.branch
        by_hand = f"'git merge {shlex.quote(branch)}'"
        kept = f"its work is on branch {branch}, and nothing of it in the checkout"
        if merged.verdict is Verdict.CONFLICT:
            return Left(
                Result.CONFLICT,
                f"can't be merged: conflicts in {listed(merged.files)}; {kept}",
                f"bring it in by hand with {by_hand}, or let the task be done anew",
                files=merged.files,
            )
        about = f": {listed(merged.files)}" if merged.files else ""
        first = merged.hint or "commit these changes or put them away"
        return Left(
            Result.IN_THE_WAY,
            f"can't be merged, the checkout is in the way{about} ({merged.reason}); {kept}",
            f"{first}, then {by_hand}, or let the task be done anew",
            files=merged.files,
        )

    def _not_merged(self, gathered: Gathered, *, is_accepted: bool) -> Left | None:
        """Return what becomes of work that is not to be merged; None: it is."""
        if gathered.tip == self._worktree.base:
            return Left(Result.UNCHANGED)
        if not is_accepted:
            return Left(Result.KEPT)
        refused = self._clearing.with_keys(self._worktree, gathered)
        return self._with_keys(refused) if refused else None

    def _with_keys(self, refused: tuple[Refused, ...]) -> Left:
        """Return that the agent's own commits hold keys, and where."""
        branch = self._worktree.branch
        return Left(
            Result.KEPT,
            f"is not merged, because a commit of its own adds a key: {reasons(refused)}; "
            f"its work is on branch {branch}, and nothing of it in the checkout",
            f"take the key out of these commits, then 'git merge {shlex.quote(branch)}'; "
            "a key that left this machine has to be revoked",
            files=tuple(one.path for one in refused),
        )

    def _ended(self, gathered: Gathered, left: Left) -> Left:
        """Remove the worktree, unless it holds what would be lost, and complete *left*."""
        others = self._clearing.others_in(self._worktree, gathered)
        if others:
            notices = (in_others(others), *gathered.notices, *self._clearing.keep(self._worktree))
            branch = None if left.result is Result.MERGED else self._worktree.branch
            return replace(left, branch=branch, folder=self.folder, notices=notices)
        # What is kept has a branch; of the rest the checkout has everything.
        done = {Result.MERGED: gathered.tip, Result.UNCHANGED: gathered.tip}.get(left.result)
        try:
            cleared = self._clearing.remove(self._worktree, done)
        except (GitFailed, SequencerError, OSError) as error:
            # What has become of the work stands all the same; who cleans up tries once more.
            branch = None if left.result is Result.MERGED else self._worktree.branch
            cleared = Cleared(branch, (f"{self.folder} can't be removed: {_reason(error)}",))
        notices = (*gathered.notices, *cleared.notices)
        return replace(left, branch=cleared.branch, notices=notices)

    def _not_gathered(self, error: Exception) -> Left:
        """Leave what could not be committed to a person, if there is anything to look at."""
        if self.folder.is_dir():
            return self._stays(f"can't be committed: {_reason(error)}")
        branch = self._worktree.branch
        return Left(
            Result.REFUSED,
            f"its worktree, {self.folder}, was removed while it worked; "
            f"of its work there is what it has committed on branch {branch}",
            "let the task be done anew",
            branch=branch,
        )

    def _stays(self, message: str) -> Left:
        """Leave the worktree to a person."""
        folder = shlex.quote(str(self.folder))
        return Left(
            Result.REFUSED,
            f"{message}; its work is in {self.folder}, and nothing of it in the checkout",
            f"look there; 'git worktree remove --force {folder}' removes it",
            branch=self._worktree.branch,
            folder=self.folder,
            notices=self._clearing.keep(self._worktree),
        )


def _reason(error: Exception) -> str:
    if isinstance(error, GitFailed):
        return error.reason
    return error.message if isinstance(error, SequencerError) else str(error)
