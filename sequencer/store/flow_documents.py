"""Whether the documents that a graph's head goes on from are there, and are as written.

Each is named by its content, so damage shows without the graph that it is about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from sequencer.errors import CorruptState
from sequencer.model.head import Head
from sequencer.store import documents

DIGITS = 20
"""Of the digest in a name."""


def is_whole(name: str, data: bytes) -> bool:
    """Return whether *data* is what was written as the document *name*."""
    return hashlib.sha256(data).hexdigest()[:DIGITS] == name.rpartition("-")[2].partition(".")[0]


def problems(folder: Path, head: Head | None) -> tuple[tuple[Path, str], ...]:
    """Return the first document of *head*'s marking in *folder* that can't be used, and why."""
    name = head.flow.base if head is not None and head.flow is not None else None
    return tuple(_problems(folder, name)) if name is not None else ()


def _problems(folder: Path, name: str | None) -> Iterator[tuple[Path, str]]:
    while name is not None:
        path = folder / name
        if Path(name).name != name:
            yield folder, f"{name!r} is no document of a marking"
            return
        try:
            data = documents.read(folder, name)
        except CorruptState as error:
            yield path, error.message
            return
        if data is None:
            yield path, "is missing, and the run goes on from it"
            return
        if not is_whole(name, data):
            yield path, "is not as it was written, and the run goes on from it"
            return
        # Each name is the digest of what names the next, so there is no circle.
        try:
            name = json.loads(data).get("base")
        except (ValueError, AttributeError, RecursionError):
            yield path, "is no document of a marking"
            return
