"""Git's lock files: which one is in the way, how old it is, and which process may hold it.

A git process that is killed leaves its lock file, and the file does not say who made it. So this
module never removes a lock: it shows a person what is known, and the command that removes it. Only
the locks on the program's own refs, which `find_own_lock` names, are removed without a person.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

STALE_S = 60.0
"""Git never holds one of the locks listed here for longer."""
_NAMED = re.compile(r"Unable to create '([^']+\.lock)': File exists")
_OWN = re.compile(
    r"Unable to create '(?:[^']*/)?(refs/worktree/sequencer(?:-work)?)/([^']+\.lock)': File exists"
)
_SINGLE = ("index", "HEAD", "config", "packed-refs", "shallow", "ORIG_HEAD", "FETCH_HEAD")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


class Lock(Struct, frozen=True):
    """A lock file that exists."""

    path: Path
    age_s: float
    workers: tuple[int, ...]
    """Git processes that work in the repository, as far as this user may see them."""

    @property
    def description(self) -> str:
        """Return its path, its age and its possible holders, to end a sentence with."""
        return f"{self.path} has been there for {_format_duration(self.age_s)}, and {self._who}"

    @property
    def hint(self) -> str:
        """Return what a person should do about it."""
        if self.workers:
            return f"wait until {self._who.removesuffix(' is working there')} has finished"
        return f"if no other user's git works there, 'rm {shlex.quote(str(self.path))}'"

    @property
    def _who(self) -> str:
        if not self.workers:
            return "no git is working there"
        process_ids = ", ".join(map(str, self.workers[:5]))
        return f"git (process {process_ids}) is working there"


def find_named_lock(message: str, repository: Path) -> Lock | None:
    """Return the lock of *repository* that git names in its error *message*.

    None: the message names no lock of this repository, or that lock no longer exists.
    """
    match = _NAMED.search(message)
    if match is None:
        return None
    path = repository / match[1]
    is_inside = _is_inside(path, repository.resolve())
    return read_lock(path, repository) if is_inside else None


def find_own_lock(message: str, git_dir: Path) -> Path | None:
    """Return the path of the lock on one of the program's own refs that *message* names.

    Only the end of the path is read from the message, and it has to lead to a place below these
    refs in *git_dir*: a remote may have written the message, to have another file removed.
    """
    match = _OWN.search(message)
    if match is None:
        return None
    refs = git_dir.resolve() / match[1]
    path = refs / match[2]
    is_plain = ".." not in match[2].split("/")
    return path if is_plain and _is_inside(path, refs) else None


def _is_inside(path: Path, real_folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(real_folder)
    except (OSError, RuntimeError, ValueError):
        return False


def read_lock(path: Path, *folders: Path) -> Lock | None:
    """Return the lock at *path*, or None. A git process that holds it works in *folders*."""
    try:
        age_s = time.time() - path.lstat().st_mtime
    except OSError:
        return None
    return Lock(path, max(age_s, 0.0), tuple(_find_git_processes(folders)))


def find_stale_locks(*folders: Path) -> Iterator[Lock]:
    """Yield the locks in the git *folders* that are older than any that git still needs."""
    for path in sorted(set(_candidates(folders))):
        lock = read_lock(path, *folders)
        if lock is not None and lock.age_s > STALE_S:
            yield lock


def _candidates(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from (folder / f"{name}.lock" for name in _SINGLE)
        for parent, _, names in os.walk(folder / "refs"):
            yield from (Path(parent, name) for name in names if name.endswith(".lock"))


def _find_git_processes(folders: tuple[Path, ...]) -> Iterator[int]:
    import psutil  # noqa: PLC0415 (only when there is a lock)

    tops = [top for folder in folders for top in _working_folders(folder)]
    for process in psutil.process_iter(["name", "cwd"]):
        cwd = process.info["cwd"]
        if cwd and (process.info["name"] or "").startswith("git"):
            folder = Path(cwd).resolve()
            if any(folder.is_relative_to(top) for top in tops):
                yield process.pid


def _working_folders(folder: Path) -> Iterator[Path]:
    """Yield the git *folder*, and its work tree if it has one around it."""
    git_dir = folder.resolve()
    yield git_dir
    if git_dir.name == ".git":
        yield git_dir.parent


def _format_duration(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
