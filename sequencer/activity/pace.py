"""When the last thought was posted to a sink, by whichever process that works on the run.

One line in a file, changed under its lock. It counts on the clock since the machine started,
so it says nothing to another machine, nor after a restart. Not promised: anything where the
file can't be written; a thought too many harms nobody.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sequencer.errors import CorruptState, UnsafeFolder
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular

_MAX_BYTES = 64


class Pace:
    """Lets one pass in each *every_s* seconds."""

    def __init__(self, path: Path, every_s: float) -> None:
        """Keep the time in *path*, which is made when somebody has passed."""
        self._path = path
        self._every_s = every_s

    def left_s(self, now: float) -> float:
        """Return how long nobody may pass yet, seen from *now*."""
        try:
            return self._left(read_regular(self._path, max_bytes=_MAX_BYTES)[:_MAX_BYTES], now)
        except (OSError, CorruptState, UnsafeFolder):
            return 0.0

    def take(self, now: float) -> bool:
        """Pass at *now*; return False if somebody else did a moment ago."""
        try:
            fd = folders.made(self._path.parent).open(self._path.name, os.O_RDWR | os.O_CREAT)
        except (OSError, UnsafeFolder):
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if self._left(os.pread(fd, _MAX_BYTES, 0), now) > 0:
                return False
            data = f"{now:.3f}\n".encode()
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        except OSError:
            return True
        finally:
            os.close(fd)
        return True

    def _left(self, data: bytes, now: float) -> float:
        try:
            since = now - float(data)
        except ValueError:
            return 0.0
        # What is ahead was written before the machine started, or by another one.
        return self._every_s - since if 0 <= since < self._every_s else 0.0
