"""A descriptor that lets a thread or a signal handler wake another thread that sleeps on it."""

from __future__ import annotations

import os
from contextlib import suppress


class WakeUp:
    """Its descriptor is readable from `set` to `clear`.

    On Linux it is an eventfd, because the kernel never refuses to set one. A write to a pipe may
    need memory, and if that is refused, the other thread keeps sleeping. Elsewhere it is a pipe.
    """

    def __init__(self) -> None:
        """Open it.

        Raises:
            OSError: there are too many descriptors.
        """
        if hasattr(os, "eventfd"):
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
            os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        """Return the descriptor; -1 once closed."""
        return self._read_fd

    def set(self) -> None:
        """Make the descriptor readable; safe in a signal handler, and does nothing once closed."""
        # It blocks only if it has been set so often that it is full, and then it is readable.
        with suppress(BlockingIOError):
            if self._write_fd < 0:
                return
            if self._write_fd == self._read_fd:
                os.eventfd_write(self._write_fd, 1)
            else:
                os.write(self._write_fd, b"x")

    def clear(self) -> bool:
        """Make the descriptor unreadable until the next `set`; return whether it was readable."""
        try:
            return bool(os.read(self._read_fd, 65_536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Free the descriptor."""
        fds, self._read_fd, self._write_fd = {self._read_fd, self._write_fd}, -1, -1
        # Forget them first: a signal may still come, and other files may get the numbers.
        for fd in fds - {-1}:
            os.close(fd)
