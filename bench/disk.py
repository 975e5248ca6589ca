"""Keeps what one side leaves on the disk away from the other side.

ext4 does not give away the number of a file that was removed less than a minute ago, and
passes over such numbers one by one. Whoever removes many files (a state that is replaced
at each step is one a step) therefore makes each new file of its neighbours dearer. Folders
below a *spread* folder get neighbourhoods of their own, so that each side pays for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602
TOP_OF_HIERARCHY = 0x00020000
"""ext4: the folders in this one have nothing to do with each other (``chattr +T``)."""
CANDIDATES = 12
MEMORY = Path("/dev/shm")  # noqa: S108 (a file system, and a name of our own in it)


@contextlib.contextmanager
def in_memory(folder: Path, size: int) -> Iterator[tuple[Path, bool]]:
    """Yield a new folder whose files are in memory, if *size* bytes have room there.

    Otherwise it is *folder* itself; the second value tells.
    """
    try:
        has_room = shutil.disk_usage(MEMORY).free > 2 * size
        made = tempfile.mkdtemp(prefix="sequencer-bench-", dir=MEMORY) if has_room else None
    except OSError:
        made = None
    if made is None:
        yield folder, False
        return
    try:
        yield Path(made), True
    finally:
        shutil.rmtree(made, ignore_errors=True)


def undisturbed(parent: Path, name: str) -> Path:
    """Make a folder for one side in *parent*, which is spread, where new files are cheapest.

    Somewhere else thousands of files may have been removed a moment ago, by whomever.
    """
    tried = {}
    for number in range(CANDIDATES):
        candidate = parent / f"{name}-{number}"
        candidate.mkdir(parents=True)
        tried[candidate] = min(_seconds_of_a_new_file(candidate) for _ in range(3))
    best = min(tried, key=lambda candidate: tried[candidate])
    for other in tried:
        if other != best:
            other.rmdir()
    return best.rename(parent / name)


def _seconds_of_a_new_file(folder: Path) -> float:
    file, began = folder / "new", time.perf_counter()
    file.touch()
    seconds = time.perf_counter() - began
    file.unlink()
    return seconds


def spread(folder: Path) -> Path:
    """Let the folders that will be made in *folder* lie far from each other; return it."""
    if sys.platform == "linux":
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Other file systems don't know the flag, and need it less.
            with contextlib.suppress(OSError):
                (flags,) = struct.unpack("=Q", fcntl.ioctl(fd, GET_FLAGS, bytes(8)))
                fcntl.ioctl(fd, SET_FLAGS, struct.pack("=Q", flags | TOP_OF_HIERARCHY))
        finally:
            os.close(fd)
    return folder
