"""Outputs that are too large for the journal, one folder an attempt.

The folder's name holds the token, so that a worker that lost its claim can't overwrite
what the next one writes, and a part that only the worker and its agent know. Folders of
earlier versions have no such part; they are read and pruned as well.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from sequencer.errors import CorruptState
from sequencer.store import folder as folders
from sequencer.store.folder import open_new, sync_folder, write_durably

_NAME = re.compile(r"(\d{1,19})-(\d{1,19})(?:-[0-9a-f]{16})?")
_SECRET = os.urandom(16)
"""Of this process: nobody else can tell what its attempts' folders are called."""


NAME = "results"
OUTPUT = "output.txt"
"""In an attempt's folder."""
_OUTPUT_NAME = re.compile(f"{NAME}/([^/]+)/{re.escape(OUTPUT)}")
_SEAL = re.compile(re.escape(OUTPUT) + r"\.[0-9a-f]{32}")


def folder(results: Path, step_index: int, token: int) -> Path:
    """Return where in *results* this process has the folder of an attempt of its own.

    The folder is made by who writes there. Its name can't be guessed, so neither an agent of
    another attempt nor a process that one has left behind can prepare or change what is in it.
    """
    attempt = f"{step_index}-{token}"
    unguessable = blake2b(attempt.encode(), digest_size=8, key=_SECRET).hexdigest()
    return results / f"{attempt}-{unguessable}"


@contextlib.contextmanager
def another(path: Path) -> Iterator[Path]:
    """Give the place of a second agent's file in the attempt that has *path*, while it works.

    What one agent leaves behind must not be the other's answer.
    """
    attempt = "-".join(path.parent.name.split("-")[:2])
    place = path.parent.with_name(f"{attempt}-{os.urandom(8).hex()}")
    try:
        yield place / path.name
    finally:
        folders.remove_tree(place)


def attempt_of(name: str) -> tuple[int, int] | None:
    """Return step_index and token of the attempt whose folder is called *name*.

    >>> attempt_of("4-5-0123456789abcdef"), attempt_of("4-5"), attempt_of("../4-5")
    ((4, 5), (4, 5), None)
    """
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def kept(results: Path, name: str) -> Path:
    """Return the folder in *results* of the attempt that is called *name*, by any process.

    Raises:
        CorruptState: no attempt's folder is called so.
    """
    if attempt_of(name) is None:
        raise CorruptState(f"{name!r} is not an attempt at a step", where=str(results))
    return results / name


def name_in(output_file: object) -> str | None:
    """Return the name of the attempt's folder that a record's *output_file* lies in.

    >>> name_in("results/4-5/output.txt"), name_in(None), name_in("/etc/passwd")
    ('4-5', None, None)
    """
    found = _OUTPUT_NAME.fullmatch(output_file) if isinstance(output_file, str) else None
    return found[1] if found is not None and attempt_of(found[1]) is not None else None


def output_path(run: Path, name: object) -> Path:
    """Return the output that a record calls *name*, in the folder of its *run*.

    Raises:
        CorruptState: *name* is not what an accepted step has written there; a record that
            was forged could name any file of the machine.
    """
    if name_in(name) is None:
        raise CorruptState(
            f"a record names {name!r} as its output, but that is not an output of a step",
            where=str(run),
            hint="'sequencer history' shows the records; 'sequencer rewind' repeats the step",
        )
    return run / str(name)


def keep(attempt: Path, data: bytes) -> None:
    """Keep *data* as the output in the folder of an *attempt*, so that it survives a power loss."""
    folders.made(attempt)
    write_durably(attempt / OUTPUT, data)
    # It has no content to lose: its name is kept with that of the output.
    with open_new(attempt / _seal(data)):
        pass
    for changed in (attempt, attempt.parent, attempt.parent.parent):
        sync_folder(changed)


def is_whole(output: Path, data: bytes) -> bool:
    """Return whether *data*, read from *output*, is what was kept there.

    One that was kept by an earlier version has no seal, and is believed unless it is empty:
    only an output with something in it is ever kept.
    """
    seals = [name for name in folders.names(output.parent) if _SEAL.fullmatch(name)]
    return _seal(data) in seals if seals else bool(data)


def _seal(data: bytes) -> str:
    return f"{OUTPUT}.{blake2b(data, digest_size=16).hexdigest()}"


def prune(results: Path, oldest_token: int) -> None:
    """Remove the outputs in *results* whose records have left the journal."""
    for name in folders.names(results):
        attempt = attempt_of(name)
        if attempt is not None and attempt[1] < oldest_token:
            folders.remove_tree(results / name)
