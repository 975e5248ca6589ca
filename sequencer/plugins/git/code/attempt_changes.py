"""What an attempt has changed, as git sees it.

The commit that is checked out, every file that differs from it or that git does not know, and
git's own record of the moves of HEAD in this work tree: it tells commits that were made on
another branch, too. What git ignores does not count.

Not promised: commits that were made without moving HEAD (`git commit-tree`, another clone).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from sequencer.engine.tree_state import (
    Deadline,
    TreeChanges,
    TreeState,
    TreeUnknown,
    differing,
    file_mark,
    last_change,
)
from sequencer.errors import SequencerError
from sequencer.plugins.git.code.tree import STATUS, parse_status
from sequencer.plugins.git.process import Git, GitFailed

_COMMITTED = re.compile(
    rb"\t(?:commit|cherry-pick|revert|am|merge|pull|rebase[^\t:\n]*\((?:pick|squash|fixup|reword))"
    rb"[^:\n]*:(?! Fast-forward)"
)
"""In git's record of HEAD: what has made a commit."""
_MOST_MOVES = 1024 * 1024
IGNORED_S = 0.5
"""How long it may take to find out whether git ignores a folder."""


def tree_in_git(folder: Path, own: Sequence[Path]) -> GitTree | None:
    """Return the work tree of *folder*; None: it is in none, or git ignores it as a whole."""
    top = next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), None)
    if top is None:
        return None
    git = Git(folder)
    if folder != top and _is_ignored(git):
        return None
    inside = tuple(os.path.relpath(one, folder) for one in own if _is_inside(one, folder))
    return GitTree(git, top, inside)


def _is_ignored(git: Git) -> bool:
    """Return whether git leaves the whole folder out, so that it sees no change there."""
    try:
        told = git.run("check-ignore", "-q", ".", accepts=(0, 1), timeout_s=IGNORED_S)
    except (GitFailed, SequencerError):
        return True
    return told.code == 0


def _is_inside(path: Path, folder: Path) -> bool:
    return path != folder and path.is_relative_to(folder)


class GitTree(Struct, frozen=True):
    """A work tree; see `engine.tree_state.WatchedTree`."""

    git: Git
    top: Path
    own: tuple[str, ...]
    """Folders that do not count, relative to the folder in which git runs."""

    def state(self, deadline: Deadline) -> TreeState:
        found = parse_status(self._told(deadline, *STATUS, *self._counted))
        entries, log = dict[str, str](), self._moves()
        newest = 0.0 if log is None else last_change(log)
        for one in found.entries:
            deadline.left_s()
            mark, changed = self._file(one.path)
            facts = (one.change, one.is_staged, one.is_unmerged, one.mode, mark)
            entries[one.path] = " ".join(map(str, facts))
            newest = max(newest, changed)
        moves = 0 if log is None else log.st_size
        return TreeState(entries, found.commit or "", moves, newest)

    @property
    def _counted(self) -> list[str]:
        """Return what tells git which paths count."""
        return ["--", ":(top)", *(f":(exclude,literal){name}" for name in self.own)]

    def changes(self, before: TreeState, after: TreeState, deadline: Deadline) -> TreeChanges:
        paths = differing(before, after)
        commits = self._commits(before, after, deadline)
        old, new = before.commit, after.commit
        if old and new and old != new:
            told = self._told(deadline, "diff", "--name-only", "-z", old, new, *self._counted)
            paths |= {os.fsdecode(name) for name in told.split(b"\0") if name}
            # A commit of nothing but the run's own files is no change.
            commits = commits if paths else 0
        elif old != new:
            # The first commit of all; its files were in the status before.
            commits = max(commits, 1)
        return TreeChanges(len(paths), commits)

    def _commits(self, before: TreeState, after: TreeState, deadline: Deadline) -> int:
        """Return how many commits were made here."""
        if before.moves < after.moves:
            with suppress(OSError), (self._git_folder() / "logs" / "HEAD").open("rb") as file:
                file.seek(before.moves)
                return len(_COMMITTED.findall(file.read(_MOST_MOVES)))
        if not before.commit or before.commit == after.commit:
            return 0
        told = self._told(deadline, "rev-list", "--count", f"{before.commit}..{after.commit}")
        return int(told)

    def _told(self, deadline: Deadline, *argv: str) -> bytes:
        try:
            return self.git.run(*argv, timeout_s=deadline.left_s()).stdout
        except (GitFailed, SequencerError) as error:
            raise TreeUnknown(str(error)) from error

    def _file(self, path: str) -> tuple[str, float]:
        """Return what the file at *path* is, and when it or its place was changed."""
        whole = self.top / path
        try:
            found = whole.lstat()
            return file_mark(str(whole), found), last_change(found)
        except OSError:
            return "-", _change_of_place(whole)

    def _git_folder(self) -> Path:
        found = self.top / ".git"
        if found.is_dir():
            return found
        with suppress(OSError), found.open(encoding="utf-8", errors="surrogateescape") as file:
            return self.top / file.read(4096).removeprefix("gitdir:").strip()
        return found

    def _moves(self) -> os.stat_result | None:
        """Return the facts of git's record of the moves of HEAD, where it keeps one."""
        with suppress(OSError):
            return (self._git_folder() / "logs" / "HEAD").lstat()
        return None


def _change_of_place(path: Path) -> float:
    """Return when the nearest folder above *path* that exists was changed."""
    for above in path.parents:
        with suppress(OSError):
            return last_change(above.lstat())
    return 0.0
