"""Small files of a run that are written once and read often, such as its definition.

Each exists completely or not at all, even after a power loss. A writer must hold the run's lock;
readers need no lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from sequencer.errors import CorruptState, UsageRefused
from sequencer.model.head import Head
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular

MAX_BYTES = 8 * 1024 * 1024


def read(folder: Path, name: str) -> bytes | None:
    """Return the document *name* in a run's *folder*, or None if there is none.

    Raises:
        CorruptState: it is not a regular file, or larger than a document can be.
    """
    try:
        data = read_regular(folder / name, 0, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(data) > MAX_BYTES:
        raise CorruptState(f"has more than {MAX_BYTES} bytes", where=str(folder / name))
    return data


def keep(folder: Path, name: str, data: bytes) -> None:
    """Store *data* as the document *name*; an older one is replaced.

    Raises:
        UsageRefused: it is larger than a reader accepts.
    """
    if len(data) > MAX_BYTES:
        raise UsageRefused(
            f"{name} would have {len(data)} bytes; the limit is {MAX_BYTES}",
            hint="put the rest into a file of the project, and name the file",
        )
    folders.make_folder(folder)
    # The temporary file of a killed process is swept with the others.
    folders.write_atomically(folder / name, data)


def forget(folder: Path, prefix: str, keep: Collection[str]) -> None:
    """Remove the documents in *folder* whose names start with *prefix*, except those in *keep*.

    A document that can't be removed stays: it is not needed, but does no harm.
    """
    pattern = re.compile(re.escape(prefix) + r"[0-9a-f]{1,64}\.json")
    with contextlib.suppress(OSError):
        folders.sweep(folder, lambda name: name not in keep and bool(pattern.fullmatch(name)))


DIGITS = 20
"""How many digits of the digest are in a name."""


def is_intact(name: str, data: bytes) -> bool:
    """Return whether *data* is the original content of the document *name*."""
    return hashlib.sha256(data).hexdigest()[:DIGITS] == name.rpartition("-")[2].partition(".")[0]


def find_problems(folder: Path, head: Head | None) -> tuple[tuple[Path, str], ...]:
    """Return (path, reason) for the first document of *head*'s marking that can't be used."""
    name = None if head is None else head.base
    return tuple(_iter_problems(folder, name)) if name is not None else ()


def _iter_problems(folder: Path, name: str | None) -> Iterator[tuple[Path, str]]:
    while name is not None:
        path = folder / name
        if Path(name).name != name:
            yield folder, f"{name!r} is not a document of a marking"
            return
        try:
            data = read(folder, name)
        except CorruptState as error:
            yield path, error.message
            return
        if data is None:
            yield path, "is missing, but the run continues from it"
            return
        if not is_intact(name, data):
            yield path, "was changed after it was written, but the run continues from it"
            return
        # A name is a digest of content that includes the next name, so there is no cycle.
        try:
            name = json.loads(data).get("base")
        except (ValueError, AttributeError, RecursionError):
            yield path, "is not a document of a marking"
            return
