"""Outputs that are too large for the journal, in one folder per attempt.

The folder's name has the token, so that a worker that lost its claim can't overwrite the output
of the next worker, and a secret part that only the worker and its agent know. Folders of earlier
versions have no secret part; they are read and pruned too.
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
from sequencer.store.folder import open_new_file, sync_folder, write_durably

_NAME = re.compile(r"(\d{1,19})-(\d{1,19})(?:-[0-9a-f]{16})?")
_SECRET = os.urandom(16)
"""Key of this process, so that no other process can guess the names of its folders."""


NAME = "results"
OUTPUT = "output.txt"
"""The output's name in an attempt's folder."""
_OUTPUT_NAME = re.compile(f"{NAME}/([^/]+)/{re.escape(OUTPUT)}")
_SEAL = re.compile(re.escape(OUTPUT) + r"\.[0-9a-f]{32}")


def attempt_folder(results: Path, step_index: int, token: int) -> Path:
    """Return the folder in *results* for an attempt of this process.

    The first writer makes the folder. Its name can't be guessed, so an agent of another attempt,
    or a process that such an agent left running, can't prepare or change its content.
    """
    attempt = f"{step_index}-{token}"
    secret_name = blake2b(attempt.encode(), digest_size=8, key=_SECRET).hexdigest()
    return results / f"{attempt}-{secret_name}"


@contextlib.contextmanager
def separate_file(path: Path) -> Iterator[Path]:
    """Yield a path for the file of a second agent in the attempt of *path*; removed at the end.

    A separate folder: a file that one agent leaves must not count as the other's answer.
    """
    attempt = "-".join(path.parent.name.split("-")[:2])
    other_folder = path.parent.with_name(f"{attempt}-{os.urandom(8).hex()}")
    try:
        yield other_folder / path.name
    finally:
        folders.remove_tree(other_folder)


def parse_attempt_name(name: str) -> tuple[int, int] | None:
    """Return step_index and token of the attempt whose folder is *name*; None: no such folder.

    >>> [parse_attempt_name(name) for name in ("4-5-0123456789abcdef", "4-5", "../4-5")]
    [(4, 5), (4, 5), None]
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def find_attempt_folder(results: Path, name: str) -> Path:
    """Return the folder *name* in *results*, which an attempt of any process may have made.

    Raises:
        CorruptState: *name* is not the name of an attempt's folder.
    """
    if parse_attempt_name(name) is None:
        raise CorruptState(f"{name!r} is not an attempt at a step", where=str(results))
    return results / name


def extract_attempt_name(output_file: object) -> str | None:
    """Return the name of the attempt's folder in a record's *output_file*; None: it has none.

    >>> [extract_attempt_name(file) for file in ("results/4-5/output.txt", None, "/etc/passwd")]
    ['4-5', None, None]
    """
    match = _OUTPUT_NAME.fullmatch(output_file) if isinstance(output_file, str) else None
    return match[1] if match is not None and parse_attempt_name(match[1]) is not None else None


def output_path(run: Path, name: object) -> Path:
    """Return the path of the output *name* from a record, in the folder of its *run*.

    Raises:
        CorruptState: *name* is not a path that a step can have; a forged record could name any
            file on the machine.
    """
    if extract_attempt_name(name) is None:
        raise CorruptState(
            f"a record names {name!r} as its output, but that is not an output of a step",
            where=str(run),
            hint="'sequencer history' shows the records; 'sequencer rewind' repeats the step",
        )
    return run / str(name)


def write_output(attempt: Path, data: bytes) -> None:
    """Write *data* durably as the output in the folder of an *attempt*."""
    folders.make_folder(attempt)
    write_durably(attempt / OUTPUT, data)
    # The seal is an empty file, so syncing the folder is enough for it.
    with open_new_file(attempt / _seal(data)):
        pass
    for folder in (attempt, attempt.parent, attempt.parent.parent):
        sync_folder(folder)


def is_intact(output: Path, data: bytes) -> bool:
    """Return whether *data*, read from *output*, is the complete original content.

    An output of an earlier version has no seal. It is trusted unless it is empty, because no
    version stores an empty output.
    """
    seals = [name for name in folders.list_names(output.parent) if _SEAL.fullmatch(name)]
    return _seal(data) in seals if seals else bool(data)


def _seal(data: bytes) -> str:
    return f"{OUTPUT}.{blake2b(data, digest_size=16).hexdigest()}"


def prune(results: Path, oldest_token: int) -> None:
    """Remove the outputs in *results* whose records have left the journal."""
    for name in folders.list_names(results):
        attempt = parse_attempt_name(name)
        if attempt is not None and attempt[1] < oldest_token:
            folders.remove_tree(results / name)
