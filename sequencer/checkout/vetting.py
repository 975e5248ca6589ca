"""Looks for keys in what an agent has committed itself, before that is merged.

In every commit and not only in the last one: what a later commit takes away again stays in
the history that a merge brings. A key is told by its shape, or by its value where that is
known; what the checkout has already is not looked at. Not promised: to find a key that looks
like none, or one in a file above the cap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sequencer.checkout.content import IsSecret
from sequencer.store.git.command import Git

BATCH_BYTES = 16 * 1024 * 1024
"""Of contents that are read at once."""
IN_FILE = "holds what looks like a key"
IN_NAME = "has a name that looks like a key"
IN_MESSAGE = "has what looks like a key in its message"


@dataclass(frozen=True, slots=True)
class _Object:
    """Something that is new."""

    oid: str
    kind: str
    size: int
    path: str


def with_keys(
    git: Git,
    tip: str,
    known: list[str],
    *,
    is_secret: IsSecret,
    is_new: Callable[[str, bytes], bool],
    max_bytes: int,
) -> Iterator[tuple[str, str]]:
    """Yield what holds a key in *tip* and the commits before it that none of *known* has.

    Each is a path, or ``commit …``, and a reason. *is_new* says of a path and a content that
    holds a key whether the key is one that was not there. Files above *max_bytes* are not read.

    Raises:
        GitFailed: git can't.
    """
    found = [one for one in _new(git, tip, known) if one.kind in ("blob", "commit")]
    for one in found:
        # A name that is cut at a line end is looked at as far as it goes.
        if one.path and is_secret(os.fsencode(one.path)):
            yield _without_keys(one.path, is_secret), IN_NAME
    for one, data in _read(git, [one for one in found if one.size <= max_bytes]):
        if one.kind == "commit":
            if is_secret(data.partition(b"\n\n")[2]):
                yield f"commit {one.oid[:12]}", IN_MESSAGE
        elif is_secret(data) and is_new(one.path, data):
            yield one.path, IN_FILE


def _without_keys(path: str, is_secret: IsSecret) -> str:
    """Return *path* with nothing in it that looks like a key."""
    parts = ["…" if is_secret(os.fsencode(part)) else part for part in path.split("/")]
    shown = "/".join(parts)
    return "…" if is_secret(os.fsencode(shown)) else shown


def _new(git: Git, tip: str, known: list[str]) -> Iterator[_Object]:
    """Yield the objects that *tip* has and none of *known*, each once."""
    told = git.run("rev-list", "--objects", tip, "--not", *known).stdout
    named = [line.partition(b" ") for line in told.splitlines()]
    asked = b"".join(oid + b"\n" for oid, _, _ in named)
    form = "--batch-check=%(objecttype) %(objectsize)"
    answers = git.run("cat-file", form, stdin=asked).stdout.splitlines()
    for (oid, _, path), answer in zip(named, answers, strict=True):
        kind, _, size = answer.decode().partition(" ")
        yield _Object(oid.decode(), kind, int(size), os.fsdecode(path))


def _read(git: Git, objects: list[_Object]) -> Iterator[tuple[_Object, bytes]]:
    """Yield the contents of *objects*, a few at a time."""
    batch: list[_Object] = []
    for place, one in enumerate(objects, 1):
        batch.append(one)
        if place == len(objects) or sum(other.size for other in batch) >= BATCH_BYTES:
            yield from _batch(git, batch)
            batch = []


def _batch(git: Git, objects: list[_Object]) -> Iterator[tuple[_Object, bytes]]:
    asked = "".join(f"{one.oid}\n" for one in objects).encode()
    data = git.run("cat-file", "--batch", stdin=asked).stdout
    place = 0
    for one in objects:
        place = data.index(b"\n", place) + 1
        yield one, data[place : place + one.size]
        place += one.size + 1
