"""The least that a durable step can cost here, in the same language on the same disk.

What is left out on purpose: deciding anything, naming a log, a heartbeat, a claim, a
second copy of the head in the record. Descriptors stay open, names are made beforehand.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

RECORD_BYTES = 1024
LOG = b"# step 'main'\n# started\n\n# ended ok\n"


class Floor:
    """flock, one small log file, append 1 KiB, fdatasync, replace a 1 KiB file."""

    def __init__(self, folder: Path, *, preallocates: bool = False) -> None:
        """Work in *folder*, which is made.

        With *preallocates* the blocks of a replacing file are reserved before it is
        written. Some file systems (ext4 with delayed allocation) flush a file that is
        renamed over another one, unless its blocks are there already.
        """
        self._preallocates = preallocates
        logs = folder / "logs"
        logs.mkdir(parents=True)
        self._logs = str(logs)
        self._head, self._temporary = str(folder / "head"), str(folder / "head.tmp")
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
        self._lock = os.open(folder / "lock", flags, 0o644)
        self._journal = os.open(folder / "journal", flags | os.O_APPEND, 0o644)
        self._record = b"x" * (RECORD_BYTES - 1) + b"\n"
        self._number = 0

    def step(self) -> None:
        """Do it once."""
        self._number += 1
        create = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
        log = os.open(f"{self._logs}/{self._number}", create | os.O_EXCL, 0o644)
        os.write(log, LOG)
        os.close(log)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.record()
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def record(self) -> None:
        """Append, flush and replace: the durable part alone."""
        self.append()
        self.replace(self._temporary, self._head)

    def append(self) -> None:
        """Make one record durable."""
        os.write(self._journal, self._record)
        os.fdatasync(self._journal)

    def replace(self, temporary: str, path: str, start: bytes = b"") -> None:
        """Replace *path* by 1 KiB that begins with *start*."""
        fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        if self._preallocates:
            os.posix_fallocate(fd, 0, RECORD_BYTES)
        os.write(fd, start + self._record[len(start) :])
        os.close(fd)
        os.replace(temporary, path)  # noqa: PTH105 (the floor has no wrapper)

    def block(self, count: int) -> tuple[list[float], list[float]]:
        """Return wall and CPU seconds of each of *count* steps."""
        wall, cpu = [], []
        for _ in range(count):
            started, used = time.perf_counter(), time.process_time()
            self.step()
            wall.append(time.perf_counter() - started)
            cpu.append(time.process_time() - used)
        return wall, cpu

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._lock)
        os.close(self._journal)
