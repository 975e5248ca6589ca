"""One file of the work tree as it may be committed: read once, looked at, and not trusted after.

A file is read whole and within a cap, never through a link, and remembered by its inode
and times, so that what is hashed later is what was looked at here or is left out.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sequencer.executors.redaction import Redaction

IsSecret = Callable[[bytes], bool]
"""Whether some bytes hold a key."""

LINK, PLAIN, EXECUTABLE = 0o120000, 0o100644, 0o100755
"""Modes, as git writes them."""
_SECRET_NAMES = frozenset({".netrc", ".pgpass", ".git-credentials", ".pypirc"})


@dataclass(frozen=True, slots=True)
class Content:
    """What stands behind a path."""

    mode: int
    """As git writes it."""
    size: int
    stamp: tuple[int, ...]
    """Differs when anybody has written the file or put another in its place."""
    target: bytes | None = None
    """Of a link."""


class Unfit(Exception):
    """Why a file is not committed, in words for people; inside this package only."""


def secrets_by(redaction: Redaction) -> IsSecret:
    """Return what finds the secrets that *redaction* would hide."""
    return lambda data: redaction.hide(data) != data


def ensure_fit_name(path: str, is_secret: IsSecret) -> None:
    """Refuse names under which nothing is committed, whatever stands there.

    Raises:
        Unfit: with the reason.
    """
    for part in path.split("/"):
        if part.lower() == ".git":
            raise Unfit("is below .git")
        if part.lower().startswith(".env") or part.lower() in _SECRET_NAMES:
            raise Unfit("has a name under which secrets are kept")
    if is_secret(os.fsencode(path)):
        raise Unfit("has a name that looks like a key")


def read(top: Path, path: str, max_bytes: int, is_secret: IsSecret) -> Content:
    """Return what stands at *path* below *top*, if it may be committed.

    Raises:
        Unfit: with the reason.
    """
    whole = top / path
    # git lists nothing behind a link; one that was put there since leads somewhere else.
    if os.path.realpath(whole.parent) != os.path.normpath(
        os.path.realpath(top) / Path(path).parent
    ):
        raise Unfit("is behind a link")
    try:
        found = os.lstat(whole)
    except OSError as error:
        raise Unfit(f"can't be read: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        return _link(top, whole, found)
    if not stat.S_ISREG(found.st_mode):
        raise Unfit("is no plain file")
    if found.st_size > max_bytes:
        raise Unfit(f"has {found.st_size} bytes, more than {max_bytes}")
    try:
        data, read_stat = _read(whole, max_bytes)
    except OSError as error:
        raise Unfit(f"can't be read: {error.strerror}") from error
    if stamp(read_stat) != stamp(found) or len(data) != found.st_size:
        raise Unfit("is being written")
    if is_secret(data):
        raise Unfit("holds what looks like a key")
    mode = EXECUTABLE if found.st_mode & stat.S_IXUSR else PLAIN
    return Content(mode, found.st_size, stamp(found))


def _read(path: Path, max_bytes: int) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: a fifo that took the file's place would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        data = file.read(max_bytes + 1)
        return data, os.fstat(file.fileno())


def _link(top: Path, whole: Path, found: os.stat_result) -> Content:
    try:
        # Not a Path's: that would tidy up what stands in the link.
        target = os.readlink(os.fsencode(whole))  # noqa: PTH115
    except OSError as error:
        raise Unfit(f"can't be read: {error.strerror}") from error
    root = os.path.realpath(top)
    end = os.path.realpath(whole)
    is_inside = end == root or end.startswith(f"{root}{os.sep}")
    if target.startswith(b"/") or not is_inside:
        raise Unfit("is a link that leads out of the repository")
    if ".git" in (part.lower() for part in Path(end).relative_to(root).parts):
        raise Unfit("is a link into .git")
    return Content(LINK, len(target), stamp(found), target)


def stamp(found: os.stat_result) -> tuple[int, ...]:
    """Return by what a file is known again."""
    return (
        *(found.st_dev, found.st_ino, found.st_mode, found.st_size),
        *(found.st_mtime_ns, found.st_ctime_ns),
    )


def is_unchanged(top: Path, path: str, content: Content) -> bool:
    """Return whether *path* is still the file that *content* was read from."""
    with contextlib.suppress(OSError):
        return stamp(os.lstat(top / path)) == content.stamp
    return False
