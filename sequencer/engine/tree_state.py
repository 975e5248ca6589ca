"""Reads the state of the files in a work tree, to find out whether an attempt changed them.

In a folder without git, the sizes and times of the files are compared. In a repository, a plug-in
compares more (`extensions.TREES`). Anything that can't be read in time is unknown, and unknown
never counts as "no change".

Not promised: that changes in ignored files are noticed, or that the attempt made the change.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from sequencer import extensions

CONTENT_BYTES = 1024 * 1024
"""Up to this size, files are compared by content; larger ones by size and time."""
DIGEST_BYTES = 12
_HIDDEN_ROOTS = frozenset({".git", ".hg", ".jj", ".svn"})


class TreeUnknown(Exception):
    """The state of the files can't be read, or not in time."""


class Deadline(Struct, frozen=True):
    """The time at which reading the files has to stop."""

    at: float
    """On the monotonic clock, in seconds."""

    @classmethod
    def from_now(cls, seconds: float) -> Deadline:
        """Return the deadline in *seconds* from now."""
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        """Return how many seconds are left.

        Raises:
            TreeUnknown: no time is left.
        """
        rest_s = self.at - time.monotonic()
        if rest_s <= 0:
            raise TreeUnknown("it took too long")
        return rest_s


class TreeState(Struct, frozen=True):
    """The files at one moment."""

    entries: Mapping[str, str]
    """Path -> mark of the file. In a repository, only of files that differ from the commit."""
    commit: str = ""
    """The commit that is checked out; empty without git."""
    moves: int = 0
    """Size in bytes of git's log of the moves of HEAD."""
    newest: float = 0.0
    """When the newest file was changed, in seconds since 1970; 0: unknown."""

    @property
    def digest(self) -> str:
        """Return a digest that changes when a file changes."""
        digest = blake2b(self.commit.encode(), digest_size=DIGEST_BYTES)
        for path, mark in sorted(self.entries.items()):
            digest.update(f"\0{path}\0{mark}".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


class TreeChanges(Struct, frozen=True):
    """How much changed between two states."""

    files: int
    commits: int = 0

    @property
    def are_any(self) -> bool:
        """Return whether there is any change."""
        return bool(self.files or self.commits)


class WatchedTree(Protocol):
    """A folder whose state can be read and compared."""

    def read_state(self, deadline: Deadline) -> TreeState:
        """Return the current state of its files.

        Raises:
            TreeUnknown: the state can't be read before *deadline*.
        """

    def compare_states(
        self, before: TreeState, after: TreeState, deadline: Deadline
    ) -> TreeChanges:
        """Return the changes from *before* to *after*.

        Raises: see `read_state`.
        """


MakeTree = Callable[[Path, Sequence[Path]], WatchedTree | None]
"""Makes the `WatchedTree` of a folder, without the files in the other folders.

None: it does not know this kind of folder.
"""


def watch_tree(folder: Path, ignored: Sequence[Path]) -> WatchedTree:
    """Return *folder* as a `WatchedTree`; files in the folders *ignored* do not count."""
    factory: MakeTree | None = extensions.find(extensions.TREES, "git")
    tree = None if factory is None else factory(folder, ignored)
    return tree or FolderTree(folder, frozenset(map(str, ignored)))


def file_mark(path: str, status: os.stat_result) -> str:
    """Return a mark of the file at *path*, so that equal files have equal marks.

    The mark depends on the content, unless the file is large or not a regular file. Links are
    not followed, and reading never blocks.
    """
    mode = stat.S_IFMT(status.st_mode) | (status.st_mode & stat.S_IXUSR)
    if stat.S_ISLNK(status.st_mode):
        return f"{mode:o} {Path(path).readlink()}"
    if not stat.S_ISREG(status.st_mode) or status.st_size > CONTENT_BYTES:
        return f"{mode:o} {status.st_size} {status.st_mtime_ns}"
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(fd, CONTENT_BYTES + 1)
    finally:
        os.close(fd)
    return f"{mode:o} {blake2b(content, digest_size=DIGEST_BYTES).hexdigest()}"


def last_change(status: os.stat_result) -> float:
    """Return when a file was last changed, in seconds since 1970."""
    # A program can set the mtime to any date, but not the ctime.
    return max(status.st_mtime, status.st_ctime)


class FolderTree(Struct, frozen=True):
    """A folder without git."""

    folder: Path
    ignored: frozenset[str] = frozenset()
    """Folders that do not count."""

    def read_state(self, deadline: Deadline) -> TreeState:
        entries, newest_change = dict[str, str](), 0.0
        for path, status in self._files(deadline):
            newest_change = max(newest_change, last_change(status))
            if not stat.S_ISDIR(status.st_mode):
                times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
                entries[path] = f"{status.st_mode:o} {status.st_size} {times}"
        return TreeState(entries, newest=newest_change)

    def compare_states(
        self, before: TreeState, after: TreeState, deadline: Deadline
    ) -> TreeChanges:
        del deadline
        return TreeChanges(len(find_changed_paths(before, after)))

    def _files(self, deadline: Deadline) -> Iterator[tuple[str, os.stat_result]]:
        """Yield (path inside the folder, status) for each file and folder."""
        stack = [str(self.folder)]
        root = len(stack[0]) + 1
        try:
            while stack:
                with os.scandir(stack.pop()) as entries:
                    for entry in entries:
                        deadline.left_s()
                        if entry.path in self.ignored or entry.name in _HIDDEN_ROOTS:
                            continue
                        yield entry.path[root:], entry.stat(follow_symlinks=False)
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(entry.path)
        except OSError as error:
            raise TreeUnknown(f"{error.filename}: {error.strerror}") from error


def find_changed_paths(before: TreeState, after: TreeState) -> set[str]:
    """Return the paths whose entries differ."""
    paths = before.entries.keys() | after.entries.keys()
    return {path for path in paths if before.entries.get(path) != after.entries.get(path)}


class UnmergedWork(Struct, frozen=True):
    """Work of a run in a worktree that is neither merged nor dropped."""

    run: str | None
    """None: the default run."""
    branch: str
    words: str
    """Describes the work, and says where it is."""
    commands: tuple[str, ...]
    """The two commands for a shell: one merges the work, the other drops it."""
    run_id: str = ""
    """The id of a run that has ended or was started over. Empty: the work consists of commits that
    were set aside, or the run is unknown."""

    @property
    def hint(self) -> str:
        """Return a sentence with the two commands."""
        merge_command, drop_command = (
            text if "'" in text else f"'{text}'" for text in self.commands
        )
        return f"{merge_command} brings it in, {drop_command} drops it"

    def as_json(self) -> dict[str, Any]:
        """Return it as commands print it with ``--json``."""
        facts = {"run": self.run, "branch": self.branch, "unmerged": self.words}
        return {**facts, "commands": list(self.commands)}
