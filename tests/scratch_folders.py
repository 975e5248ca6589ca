"""Folders for as long as a block lasts, also if its process is killed in it.

Nobody cleans up behind SIGKILL but the next one: a folder bears the id of its process, and
whoever makes one removes those of processes that are gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PREFIX = "sequencer-scratch-"


@contextlib.contextmanager
def scratch_folder(within: Path | None = None) -> Iterator[Path]:
    """Return a new folder in *within*, or where temporary ones are."""
    base = Path(tempfile.gettempdir()) if within is None else within
    sweep_once(base)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=base) as made:
        yield Path(made)


@cache
def sweep_once(base: Path) -> None:
    """Remove from *base* what killed processes have left; once a process is enough."""
    sweep(base)


def sweep(base: Path) -> None:
    """Remove from *base* the folders of processes that are gone."""
    for left in base.glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and left.stat().st_uid == os.getuid() and not _lives(int(pid)):
                shutil.rmtree(left, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def remove_at_once(folder: Path) -> None:
    """Remove *folder* from its place in one moment, whatever still writes below it."""
    gone = folder.with_name(f"{folder.name}-gone")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
