"""Outputs that are too large for the journal, one folder an attempt.

The folder's name holds the token, so that a worker that lost its claim can't overwrite
what the next one writes.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_NAME = re.compile(r"(\d+)-(\d+)")


def folder(run_folder: Path, step_index: int, token: int) -> Path:
    """Return the folder for an attempt, created if need be."""
    path = run_folder / "results" / f"{step_index}-{token}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def prune(run_folder: Path, oldest_token: int) -> None:
    """Remove the outputs whose records have left the journal."""
    try:
        entries = list((run_folder / "results").iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match and int(match[2]) < oldest_token and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
