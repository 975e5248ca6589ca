"""Watches for the file with which an agent reports that it is done."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

LOOK_S = 0.2
"""Seconds between two checks."""
SETTLED_S = 0.5
"""Seconds for which the file has to stay unchanged."""

_FileState = tuple[int, int, int, int] | None


class FileWatch:
    """Watches for one file that appears after the watch was created."""

    def __init__(self, folder: Path, name: str) -> None:
        """Watch for *name* below *folder* from now on; a file that already exists is ignored."""
        self._folder = folder
        self._parts = name.split("/")
        self._before = self._last = self._read_state()
        self._since = self._next = time.monotonic()

    def has_appeared(self) -> bool:
        """Return whether the file is there, differs from an old one, and no longer changes."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_S
        state = self._read_state()
        if state != self._last:
            self._last, self._since = state, now
        return state not in (None, self._before) and now - self._since >= SETTLED_S

    def wait_s(self) -> float:
        """Return the seconds until the next check."""
        return max(self._next - time.monotonic(), 0.0)

    def _read_state(self) -> _FileState:
        path = str(self._folder)
        try:
            for part in self._parts[:-1]:
                path = os.path.join(path, part)  # noqa: PTH118 - looked at five times a second
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    return None
            info = os.lstat(os.path.join(path, self._parts[-1]))  # noqa: PTH118 - same
        except OSError:
            return None
        if not stat.S_ISREG(info.st_mode):
            return None
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
