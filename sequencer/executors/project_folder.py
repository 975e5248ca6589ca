"""Which files of a project an agent's file tools may touch.

A path counts as inside only after its links are resolved. Never touched: version control,
the run's own state, files that look like secrets.

Not promised: a wall against somebody who changes links between the check and the use; a
tool that runs commands can do that, and can read what it likes anyway.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

SECRETS = (".env", ".env.*", "*.pem", "*.key", ".netrc", ".pgpass", "id_rsa*", "id_ed25519*")
"""Names of files that hold keys, as shell patterns."""
VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})
MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_WRITE_BYTES = 1024 * 1024
_FRESH_MODE = 0o644


class PathRefused(Exception):
    """The path is outside what the agent may touch; reported as a refused tool call."""


class FileFailed(Exception):
    """The file can't be read or written; the agent is told why and may go on."""


class ProjectFolder:
    """The files below *root*, but for the *forbidden* folders and the *secrets*."""

    def __init__(
        self, root: Path, forbidden: Sequence[Path] = (), secrets: Sequence[str] = SECRETS
    ) -> None:
        self.root = root.resolve()
        self._forbidden = tuple(path.resolve() for path in forbidden)
        self._secrets = tuple(pattern.casefold() for pattern in secrets)

    def path(self, name: str) -> Path:
        """Return the real path of *name*, which is relative to the project's folder.

        Raises:
            PathRefused: it leads outside, or to something that is never touched. An absolute
                path is judged by where it leads, because models like to write them.
        """
        if not name or "\x00" in name:
            message = "a path has to be given, without NUL"
            raise PathRefused(message)
        try:
            real = (self.root / name).resolve()
        except (OSError, RuntimeError) as error:
            message = f"{name!r} can't be resolved: {error}"
            raise PathRefused(message) from error
        reason = self._refusal(real)
        if reason:
            message = f"{name!r} {reason}"
            raise PathRefused(message)
        return real

    def allows(self, path: Path) -> bool:
        """Return whether *path* may be shown to the agent."""
        try:
            return self._refusal(path.resolve()) is None
        except (OSError, RuntimeError):
            return False

    def shown(self, path: Path) -> str:
        """Return *path* as the agent names it."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else "?"

    def read(self, name: str) -> bytes:
        """Return the content of a regular file.

        Raises:
            PathRefused: see `path`.
            FileFailed: it is missing, no regular file, or too large.
        """
        return _read(self.path(name), name)

    def write(self, name: str, content: str) -> bool:
        """Replace or create the file in one go; return whether it is new.

        Raises:
            PathRefused: see `path`.
            FileFailed: the content is too large, or the file system refused; what stood
                there before is untouched.
        """
        path = self.path(name)
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_WRITE_BYTES:
            message = f"{name!r}: {len(data)} bytes are more than the {MAX_WRITE_BYTES} allowed"
            raise FileFailed(message)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = _mode_of(path)
            _replace(path, data, _FRESH_MODE if mode is None else mode)
        except OSError as error:
            message = f"{name!r} can't be written: {error.strerror or error}"
            raise FileFailed(message) from error
        return mode is None

    def _refusal(self, real: Path) -> str | None:
        if not real.is_relative_to(self.root):
            return "is outside the project's folder"
        # Folded, because some file systems take .GIT for .git.
        parts = [part.casefold() for part in real.relative_to(self.root).parts]
        if VERSION_CONTROL.intersection(parts):
            return "belongs to version control"
        if any(real.is_relative_to(folder) for folder in self._forbidden):
            return "belongs to the run's own state"
        if any(fnmatchcase(part, pattern) for part in parts for pattern in self._secrets):
            return "looks like a secret"
        return None


def _mode_of(path: Path) -> int | None:
    """Return the permissions of a regular file, None if there is no file."""
    try:
        mode = path.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        message = "it is no regular file"
        raise OSError(message)
    return stat.S_IMODE(mode)


def _replace(path: Path, data: bytes, mode: int) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path, name: str) -> bytes:
    try:
        # Without blocking: opening a fifo would wait for a writer for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        message = f"{name!r} can't be read: {error.strerror or error}"
        raise FileFailed(message) from error
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            message = f"{name!r} is no regular file"
            raise FileFailed(message)
        if facts.st_size > MAX_FILE_BYTES:
            message = f"{name!r} has {facts.st_size} bytes, more than the {MAX_FILE_BYTES} allowed"
            raise FileFailed(message)
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES)
    finally:
        os.close(handle)
