"""Files that a command writes because it was asked to: all of one or nothing, and no other's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sequencer.errors import StorageFailed, UsageRefused

LOOKED_AT_BYTES = 512


class NewFile(click.Path):
    """The type of an option that names the file to write; what it writes is never printed."""

    def __init__(self) -> None:
        """Take any path; `save` looks at what is there."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; ``-`` elsewhere is standard output, so nobody means a file by it."""
        if os.fspath(value) == "-":
            self.fail("'-' is no file; './-' would be one of that name", param, ctx)
        return super().convert(value, param, ctx)


def save(
    path: Path, data: bytes, *, is_ours: Callable[[bytes], bool], what: str, mode: int | None = None
) -> None:
    """Write *data* to *path*, all of it or nothing, in place of an earlier file of the kind.

    *is_ours* is asked about the beginning of what is there; *what* names the kind. The
    file's *mode* is as new files have it, unless one is given.

    Raises:
        UsageRefused: *path* is something else, which a slip of the keyboard must not
            destroy.
        StorageFailed: it can't be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not (target.is_file() and is_ours(_beginning(target))):
            raise UsageRefused(
                f"there is something else than {what}; it is left as it is",
                where=str(path),
                hint="name another file",
            )
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                # What mkstemp makes is for the owner only.
                os.fchmod(stream.fileno(), _usual_mode() if mode is None else mode)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageFailed(f"can't be written: {error.strerror}", where=str(path)) from error


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(LOOKED_AT_BYTES)


def _usual_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
