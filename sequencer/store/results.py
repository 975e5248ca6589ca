"""Outputs that are too large for the journal, one folder an attempt.

The folder's name holds the token, so that a worker that lost its claim can't overwrite
what the next one writes.
"""

from __future__ import annotations

import re
import shutil
from hashlib import blake2b
from pathlib import Path

from sequencer.store.journal_file import open_new, sync_folder, write_durably

_NAME = re.compile(r"(\d+)-(\d+)")


NAME = "results"
OUTPUT = "output.txt"
"""In an attempt's folder."""
_SEAL = re.compile(re.escape(OUTPUT) + r"\.[0-9a-f]{32}")


def folder(results: Path, step_index: int, token: int) -> Path:
    """Return where in *results* an attempt's folder is, if who writes there has made one."""
    return results / f"{step_index}-{token}"


def keep(attempt: Path, data: bytes) -> None:
    """Keep *data* as the output in the folder of an *attempt*, so that it survives a power loss."""
    attempt.mkdir(parents=True, exist_ok=True)
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
    seals = [entry.name for entry in output.parent.iterdir() if _SEAL.fullmatch(entry.name)]
    return _seal(data) in seals if seals else bool(data)


def _seal(data: bytes) -> str:
    return f"{OUTPUT}.{blake2b(data, digest_size=16).hexdigest()}"


def prune(results: Path, oldest_token: int) -> None:
    """Remove the outputs in *results* whose records have left the journal."""
    try:
        entries = list(results.iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match and int(match[2]) < oldest_token and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
