"""The changes of an attempt, as git sees them.

They come from the commit that is checked out, from every modified or untracked file, and from
git's log of HEAD in this work tree, which also shows commits on other branches. Ignored files are
left out.

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
    file_mark,
    find_changed_paths,
    last_change,
)
from sequencer.errors import SequencerError
from sequencer.plugins.git.code.tree import STATUS, parse_status
from sequencer.plugins.git.process import Git, GitFailed

_COMMITTED = re.compile(
    rb"\t(?:commit|cherry-pick|revert|am|merge|pull|rebase[^\t:\n]*\((?:pick|squash|fixup|reword))"
    rb"[^:\n]*:(?! Fast-forward)"
)
"""Matches the entries in git's log of HEAD that made a commit."""
_MAX_MOVES = 1024 * 1024
_PATH_CHARS = 4096
"""Longest path that Linux accepts."""
IGNORED_S = 0.5
"""How long it may take to find out whether git ignores a folder."""


def tree_in_git(folder: Path, own: Sequence[Path]) -> GitTree | None:
    """Return the work tree around *folder*; None: there is none, or git ignores *folder*.

    Files in the folders *own* are left out.
    """
    parents = (folder, *folder.parents)
    top = next((parent for parent in parents if os.path.lexists(parent / ".git")), None)
    if top is None:
        return None
    git = Git(folder)
    if folder != top and _is_ignored(git):
        return None
    inner_paths = tuple(os.path.relpath(path, folder) for path in own if _is_inside(path, folder))
    return GitTree(git, top, inner_paths)


def _is_ignored(git: Git) -> bool:
    """Return whether git ignores the whole folder and so sees no changes there."""
    try:
        result = git.run("check-ignore", "-q", ".", accepts=(0, 1), timeout_s=IGNORED_S)
    except (GitFailed, SequencerError):
        return True
    return result.code == 0


def _is_inside(path: Path, folder: Path) -> bool:
    return path != folder and path.is_relative_to(folder)


class GitTree(Struct, frozen=True):
    """A work tree; see `engine.tree_state.WatchedTree`."""

    git: Git
    top: Path
    own: tuple[str, ...]
    """Folders to leave out, relative to the folder that git runs in."""

    def read_state(self, deadline: Deadline) -> TreeState:
        status = parse_status(self._run_git(deadline, *STATUS, *self._pathspecs))
        entries, log = dict[str, str](), self._stat_head_log()
        newest_change = 0.0 if log is None else last_change(log)
        for entry in status.entries:
            deadline.left_s()
            mark, change_time = self._fingerprint_file(entry.path)
            facts = (entry.change, entry.is_staged, entry.is_unmerged, entry.mode, mark)
            entries[entry.path] = " ".join(map(str, facts))
            newest_change = max(newest_change, change_time)
        moves = 0 if log is None else log.st_size
        return TreeState(entries, status.commit or "", moves, newest_change)

    @property
    def _pathspecs(self) -> list[str]:
        """Return the git arguments that select the watched paths."""
        return ["--", ":(top)", *(f":(exclude,literal){name}" for name in self.own)]

    def compare_states(
        self, before: TreeState, after: TreeState, deadline: Deadline
    ) -> TreeChanges:
        paths = find_changed_paths(before, after)
        commits = self._count_commits(before, after, deadline)
        old_commit, new_commit = before.commit, after.commit
        if old_commit and new_commit and old_commit != new_commit:
            names = self._run_git(
                deadline, "diff", "--name-only", "-z", old_commit, new_commit, *self._pathspecs
            )
            paths |= {os.fsdecode(name) for name in names.split(b"\0") if name}
            # A commit with only the run's own files is not a change.
            commits = commits if paths else 0
        elif old_commit != new_commit:
            # The first commit of the repository; its files were in the status before.
            commits = max(commits, 1)
        return TreeChanges(len(paths), commits)

    def _count_commits(self, before: TreeState, after: TreeState, deadline: Deadline) -> int:
        """Return how many commits were made in this work tree."""
        if before.moves < after.moves:
            with suppress(OSError), (self._git_folder() / "logs" / "HEAD").open("rb") as file:
                file.seek(before.moves)
                return len(_COMMITTED.findall(file.read(_MAX_MOVES)))
        if not before.commit or before.commit == after.commit:
            return 0
        span = f"{before.commit}..{after.commit}"
        return int(self._run_git(deadline, "rev-list", "--count", span))

    def _run_git(self, deadline: Deadline, *argv: str) -> bytes:
        try:
            return self.git.run(*argv, timeout_s=deadline.left_s()).stdout
        except (GitFailed, SequencerError) as error:
            raise TreeUnknown(str(error)) from error

    def _fingerprint_file(self, path: str) -> tuple[str, float]:
        """Return a fingerprint of the file at *path*, and when it or its folder was changed."""
        full_path = self.top / path
        try:
            info = full_path.lstat()
            return file_mark(str(full_path), info), last_change(info)
        except OSError:
            return "-", _folder_change_time(full_path)

    def _git_folder(self) -> Path:
        """Return the folder with git's HEAD of this work tree, which may not exist.

        In a worktree or a submodule, ``.git`` is a file with the path of that folder.
        """
        path = self.top / ".git"
        if path.is_dir():
            return path
        with suppress(OSError), path.open(encoding="utf-8", errors="surrogateescape") as file:
            return self.top / file.read(_PATH_CHARS).removeprefix("gitdir:").strip()
        return path

    def _stat_head_log(self) -> os.stat_result | None:
        """Return the size and times of git's log of HEAD, if it keeps one."""
        with suppress(OSError):
            return (self._git_folder() / "logs" / "HEAD").lstat()
        return None


def _folder_change_time(path: Path) -> float:
    """Return when the nearest existing folder above *path* was changed."""
    for parent in path.parents:
        with suppress(OSError):
            return last_change(parent.lstat())
    return 0.0
