"""The state of the files in a work tree, to see whether an attempt changed them.

A folder without git is judged by the sizes and times of its files. For a repository the plug-in
that knows it says more (`extensions.TREES`). Whatever can't be seen in time is unknown, which is
never "no change".

Not promised: that changes in ignored files are seen, or that the attempt made the change.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from sequencer import extensions

CONTENT_BYTES = 1024 * 1024
"""A file is compared by its content up to this size, a larger one by its size and time."""
DIGEST_BYTES = 12
_HIDDEN_ROOTS = frozenset({".git", ".hg", ".jj", ".svn"})


class TreeUnknown(Exception):
    """The state of the files can't be read, or not in time."""


class Deadline(Struct, frozen=True):
    """When a look at the files has to end."""

    at: float
    """On the monotonic clock."""

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline in *seconds* from now."""
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        """Return how many seconds are left.

        Raises:
            TreeUnknown: none are.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise TreeUnknown("it took too long")
        return left


class TreeState(Struct, frozen=True):
    """The files at one moment."""

    entries: Mapping[str, str]
    """Path -> what the file is. In a repository only files that differ from the commit."""
    commit: str = ""
    """That is checked out; empty without git."""
    moves: int = 0
    """Bytes of git's record of the moves of HEAD."""
    newest: float = 0.0
    """When a file was last changed, in seconds since 1970; 0: not known of any."""

    @property
    def digest(self) -> str:
        """Return a digest that changes if a file changes."""
        made = blake2b(self.commit.encode(), digest_size=DIGEST_BYTES)
        for path, mark in sorted(self.entries.items()):
            made.update(f"\0{path}\0{mark}".encode("utf-8", "surrogateescape"))
        return made.hexdigest()


class TreeChanges(Struct, frozen=True):
    """What has changed between two states."""

    files: int
    commits: int = 0

    @property
    def are_any(self) -> bool:
        """Return whether anything has."""
        return bool(self.files or self.commits)


class WatchedTree(Protocol):
    """A folder that can be looked at."""

    def state(self, deadline: Deadline) -> TreeState:
        """Return what its files are now.

        Raises:
            TreeUnknown: that can't be seen until *deadline*.
        """

    def changes(self, before: TreeState, after: TreeState, deadline: Deadline) -> TreeChanges:
        """Return what has changed from *before* to *after*.

        Raises: see `state`.
        """


MakeTree = Callable[[Path, Sequence[Path]], WatchedTree | None]
"""Makes a `WatchedTree` of a folder, without the files below some other folders; None: it can't."""


def tree_of(folder: Path, own: Sequence[Path]) -> WatchedTree:
    """Return *folder* as something to look at; files below the folders *own* do not count."""
    make: MakeTree | None = extensions.find(extensions.TREES, "git")
    found = None if make is None else make(folder, own)
    return found or FolderTree(folder, frozenset(map(str, own)))


def file_mark(path: str, found: os.stat_result) -> str:
    """Return what the file at *path* is, so that equal files have equal marks.

    By its content, unless it is large or no regular file; nothing is waited for or followed.
    """
    mode = stat.S_IFMT(found.st_mode) | (found.st_mode & stat.S_IXUSR)
    if stat.S_ISLNK(found.st_mode):
        return f"{mode:o} {Path(path).readlink()}"
    if not stat.S_ISREG(found.st_mode) or found.st_size > CONTENT_BYTES:
        return f"{mode:o} {found.st_size} {found.st_mtime_ns}"
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(fd, CONTENT_BYTES + 1)
    finally:
        os.close(fd)
    return f"{mode:o} {blake2b(content, digest_size=DIGEST_BYTES).hexdigest()}"


def last_change(found: os.stat_result) -> float:
    """Return when a file was last changed; what a program may set, its date, is not enough."""
    return max(found.st_mtime, found.st_ctime)


class FolderTree(Struct, frozen=True):
    """A folder without git."""

    folder: Path
    own: frozenset[str] = frozenset()
    """Folders that do not count."""

    def state(self, deadline: Deadline) -> TreeState:
        entries, newest = dict[str, str](), 0.0
        for path, found in self._files(deadline):
            newest = max(newest, last_change(found))
            if not stat.S_ISDIR(found.st_mode):
                times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
                entries[path] = f"{found.st_mode:o} {found.st_size} {times}"
        return TreeState(entries, newest=newest)

    def changes(self, before: TreeState, after: TreeState, deadline: Deadline) -> TreeChanges:
        del deadline
        return TreeChanges(len(differing(before, after)))

    def _files(self, deadline: Deadline) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path below the folder and the facts of each file and folder."""
        todo = [str(self.folder)]
        root = len(todo[0]) + 1
        try:
            while todo:
                with os.scandir(todo.pop()) as found:
                    for entry in found:
                        deadline.left_s()
                        if entry.path in self.own or entry.name in _HIDDEN_ROOTS:
                            continue
                        yield entry.path[root:], entry.stat(follow_symlinks=False)
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
        except OSError as error:
            raise TreeUnknown(f"{error.filename}: {error.strerror}") from error


def differing(before: TreeState, after: TreeState) -> set[str]:
    """Return the paths whose entries differ."""
    paths = before.entries.keys() | after.entries.keys()
    return {path for path in paths if before.entries.get(path) != after.entries.get(path)}


class UnmergedWork(NamedTuple):
    """What a run has done in a worktree and nobody has merged yet, or dropped."""

    run: str | None
    """None: the default run."""
    branch: str
    words: str
    """What it is, and where."""
    commands: tuple[str, ...]
    """Those that merge it, and drop it, to be typed in a shell."""
    run_id: str = ""
    """Of a run that has ended, or was started over; empty: these are commits left aside, or nobody
    knows which run it was."""

    @property
    def hint(self) -> str:
        """Return what to do about it."""
        merge, drop = (text if "'" in text else f"'{text}'" for text in self.commands)
        return f"{merge} brings it in, {drop} drops it"

    def as_json(self) -> dict[str, Any]:
        """Return it as commands print it with ``--json``."""
        told = {"run": self.run, "branch": self.branch, "unmerged": self.words}
        return {**told, "commands": list(self.commands)}
