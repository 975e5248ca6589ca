"""Locks that git takes on its files: which one is in the way, how old it is, who may hold it.

A git that is killed leaves its lock, with nothing in it that says whose it was. So nobody
removes one here: a person is told all that can be known, and the command that does it.
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
"""For less git holds one of those that are looked for."""
_NAMED = re.compile(r"Unable to create '([^']+\.lock)': File exists")
_SINGLE = ("index", "HEAD", "config", "packed-refs", "shallow", "ORIG_HEAD", "FETCH_HEAD")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


class Lock(Struct, frozen=True):
    """A lock that is there."""

    path: Path
    age_s: float
    workers: tuple[int, ...]
    """Processes of git that work in the repository, as far as this user may see them."""

    @property
    def words(self) -> str:
        """Return what is known of it, as the rest of a sentence."""
        return f"{self.path} has been there for {_duration(self.age_s)}, and {self._who}"

    @property
    def hint(self) -> str:
        """Return what a person does about it."""
        if self.workers:
            return f"wait until {self._who.removesuffix(' is working there')} has finished"
        return f"if no other user's git works there, 'rm {shlex.quote(str(self.path))}'"

    @property
    def _who(self) -> str:
        if not self.workers:
            return "no git is working there"
        shown = ", ".join(map(str, self.workers[:5]))
        return f"git (process {shown}) is working there"


def in_the_way(said: str, repository: Path) -> Lock | None:
    """Return the lock of *repository* that git names in what it has *said*.

    None: it names none, or none of there, or that is gone by now.
    """
    found = _NAMED.search(said)
    if found is None:
        return None
    path = repository / found[1]
    is_inside = path.resolve().is_relative_to(repository.resolve())
    return look(path, repository) if is_inside else None


def look(path: Path, *folders: Path) -> Lock | None:
    """Return the lock *path*; *folders* are where a git that holds it works."""
    try:
        age_s = time.time() - path.lstat().st_mtime
    except OSError:
        return None
    return Lock(path, max(age_s, 0.0), tuple(_workers(folders)))


def stale(*folders: Path) -> Iterator[Lock]:
    """Yield the locks in the git *folders* that are older than git needs them."""
    for path in sorted(set(_candidates(folders))):
        lock = look(path, *folders)
        if lock is not None and lock.age_s > STALE_S:
            yield lock


def _candidates(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from (folder / f"{name}.lock" for name in _SINGLE)
        for at, _, names in os.walk(folder / "refs"):
            yield from (Path(at, name) for name in names if name.endswith(".lock"))


def _workers(folders: tuple[Path, ...]) -> Iterator[int]:
    import psutil  # noqa: PLC0415 (only where something is in the way)

    tops = [top for folder in folders for top in _places(folder)]
    for process in psutil.process_iter(["name", "cwd"]):
        at = process.info["cwd"]
        if at and (process.info["name"] or "").startswith("git"):
            where = Path(at).resolve()
            if any(where.is_relative_to(top) for top in tops):
                yield process.pid


def _places(folder: Path) -> Iterator[Path]:
    """Yield the git folder, and the work tree that it belongs to."""
    where = folder.resolve()
    yield where
    if where.name == ".git":
        yield where.parent


def _duration(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
