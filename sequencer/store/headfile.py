"""state.json: reading it with suspicion and replacing it at once.

The file is never written in place. Replacing it needs no fsync, because the journal can
rebuild it; a reader sees the old content or the new, never a part of one.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sequencer.errors import CorruptState, EditRefused, NewerSchema
from sequencer.model.head import SCHEMA_VERSION, Head
from sequencer.store import folder as folders
from sequencer.store.journal_file import read_regular, sync_folder
from sequencer.store.strictjson import MAX_BYTES, parse_object

_WRITTEN_FIRST = (
    r"\.idle\.json|remote\.json|definition\.json|flow\.json"
    r"|journal(?:-\d{6,})?\.jsonl|marking-[0-9a-f]{1,64}\.json"
)
"""Beside state.json: what gets its name when it is whole."""


@dataclass(frozen=True, slots=True)
class RawHead:
    """What stands in state.json: an object, or nothing with a reason."""

    content: dict[str, Any] | None
    problem: str | None = None
    """Why it can't be read; None if it is simply missing."""


def read_head(path: Path) -> RawHead:
    """Return what *path* holds.

    Raises:
        CorruptState: it is no plain file, so that it can't be replaced either.
    """
    try:
        data = read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return RawHead(None)
    try:
        return RawHead(parse_object(data))
    except ValueError as error:
        return RawHead(None, str(error))


def signature(path: Path) -> tuple[int, int, int] | None:
    """Return (inode, mtime in ns, size) of *path*, or None if it is missing."""
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 (on every step's path)
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def content_of(head: Head) -> bytes:
    """Return what state.json holds for *head*."""
    return head.model_dump_json(indent=2).encode() + b"\n"


def in_one_line(content: bytes) -> bytes:
    """Return the content of a state.json as one line of JSON, for the journal.

    A line end inside of a string is written as an escape.
    """
    return content.translate(None, b"\n")


def write_head(path: Path, head: Head, content: bytes | None = None) -> tuple[int, int, int]:
    """Replace *path* by *head* and return the signature of what was written.

    *content* is what `content_of` returned, where that is at hand.

    Raises:
        OSError: the old file is untouched; a temporary file may be left for `sweep`.
    """
    folder, name = os.path.split(path)
    within, temporary = folders.opened(folder), f".{name}.{os.getpid()}.tmp"
    data = content_of(head) if content is None else content
    fd = within.create(temporary)
    try:
        _reserve(fd, len(data))
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        written = os.fstat(fd)
    finally:
        os.close(fd)
    within.replace(temporary, name)
    # Not a look at the path: somebody may have edited what stands there since.
    return (written.st_ino, written.st_mtime_ns, written.st_size)


def _reserve(fd: int, size: int) -> None:
    """Give a new file its blocks before it is written.

    ext4 flushes a file without blocks when it replaces another one, which costs more than
    all the rest of a transition. Nothing is lost by it: after a power loss the file may
    hold zeros, and the journal restores it.
    """
    try:
        os.posix_fallocate(fd, 0, size)
    except (OSError, AttributeError):
        return  # not every system has it


def left_over(state_name: str) -> Callable[[str], bool]:
    """Return what tells the temporary files that a killed process of this program leaves.

    >>> is_left = left_over("state.json")
    >>> is_left(".state.json.77.tmp"), is_left("journal.jsonl.77.tmp"), is_left("notes.tmp")
    (True, True, False)
    """
    own = re.compile(rf"(?:\.?{re.escape(state_name)}|{_WRITTEN_FIRST})\.\d{{1,10}}\.tmp")
    return lambda name: own.fullmatch(name) is not None


def keep_copy(path: Path, suffix: str) -> Path:
    """Keep what stands in *path* beside it, durably, under a free name with *suffix*."""
    copy = _copied(path, suffix)
    # The original is replaced next; who made the copy may have been killed before this.
    fd = folders.open_file(copy, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(copy.parent)
    return copy


def _copied(path: Path, suffix: str) -> Path:
    for number in range(1, 10_000):
        copy = path.with_name(f"{path.name}.{suffix}" + (f"-{number}" if number > 1 else ""))
        if is_same(path, copy):
            return copy
        with contextlib.suppress(FileExistsError):
            fd = folders.open_file(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "wb") as file:
                file.write(read_regular(path))
            return copy
    raise CorruptState(f"too many copies *.{suffix} are kept", where=str(path.parent))


def is_same(path: Path, copy: Path) -> bool:
    """Return whether *copy* is a plain file with the bytes of *path*."""
    try:
        return read_regular(copy) == read_regular(path)
    except (OSError, CorruptState):
        return False


def parse_head(content: dict[str, Any], where: str) -> Head:
    """Return *content* as a head.

    Raises:
        NewerSchema: a newer version of the program wrote it.
        EditRefused: a field has a value that it can't have; the message names each.
    """
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchema(
            f"schema_version {version} is newer than {SCHEMA_VERSION}",
            where=where,
            hint="update sequencer on this machine",
        )
    try:
        return Head.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in issue['loc'])}: {issue['msg']}"
            for issue in error.errors(include_url=False)
        )
        raise EditRefused(
            f"not a valid head: {problems}",
            where=where,
            hint="mend it, or 'sequencer repair' restores the last accepted state",
        ) from None
