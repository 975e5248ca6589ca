"""Who comes next at a file: numbers are drawn, and the lowest that is held is served.

A number is a byte of the file that its holder keeps locked (nothing is ever written), so a
killed process gives its number back with its descriptor, and no file, however damaged, holds
up anybody. A new number is above all that are held: who waits can't be passed, not even in
the moment in which the kernel wakes it. Each waits for the number just below its own, so
that a turn wakes one and not all.

Where the system has no locks of open files (macOS), `FlockQueue` takes its place. Its order
is the kernel's: who comes between a wake-up and the woken's second try is served first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
from typing import Protocol

_FLOCK = "hhqqi4x"
"""Linux's `struct flock`: type, whence, start, length and a pid that has to be 0."""
_FIRST = 1
_TO_THE_END = 0


class FileQueue(Protocol):
    """One place in the queue at an open file, from asking until it is given back.

    Raises:
        OSError: the file can't be locked; nobody is to be kept waiting by that.
    """

    flags: int
    """How a file has to be opened to `ask`; to look, reading is enough."""

    def ask(self, fd: int) -> bool:
        """Take a place; return whether it is the first."""

    def stand(self, fd: int) -> None:
        """Sleep until the place that was taken is the first, or given back."""

    def give_back(self, fd: int) -> None:
        """Give up the place, also for processes that were forked since."""

    def is_awaited(self, fd: int) -> bool:
        """Return whether anybody has a place; for who has none itself."""


class TicketQueue:
    """Numbers that are bytes of the file, locked for as long as they are held."""

    flags = os.O_RDWR

    def __init__(self) -> None:
        """Hold no number."""
        self._number = 0

    def ask(self, fd: int) -> bool:
        """See `FileQueue.ask`."""
        number = self._above(fd, _FIRST)
        while not self._take(fd, number):
            number = self._above(fd, number)
        self._number = number
        return self._just_below(fd) is None

    def _take(self, fd: int, number: int) -> bool:
        """Hold *number*, unless somebody holds it or one above it by now."""
        try:
            _lock(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, number, 1)
        except BlockingIOError:
            return False
        if self._above(fd, number + 1) == number + 1:
            return True
        # Who drew after our look came after us, but has perhaps been told to be the first.
        self.give_back(fd)
        return False

    def _above(self, fd: int, number: int) -> int:
        """Return *number*, or the one above the highest that is held from there on."""
        # Read locks count as well: those of who has been woken, and of who has left meanwhile.
        while (held := _found(fd, fcntl.F_WRLCK, number, _TO_THE_END)) is not None:
            number = sum(held)
        return number

    def _just_below(self, fd: int) -> int | None:
        """Return the highest number held below the own one."""
        start, number, below = _FIRST, self._number, None
        while start < number:
            held = _found(fd, fcntl.F_RDLCK, start, number - start)
            if held is None:
                break
            start = sum(held)
            below = start - 1
        return below

    def stand(self, fd: int) -> None:
        """See `FileQueue.stand`."""
        while (below := self._just_below(fd)) is not None:
            # For reading, which nobody who looks for holders takes for a number.
            _lock(fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, below, 1)

    def give_back(self, fd: int) -> None:
        """See `FileQueue.give_back`."""
        self._number = 0
        with contextlib.suppress(OSError):
            _lock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, _TO_THE_END)

    def is_awaited(self, fd: int) -> bool:
        """See `FileQueue.is_awaited`."""
        return _found(fd, fcntl.F_RDLCK, _FIRST, _TO_THE_END) is not None


class FlockQueue:
    """One lock of the whole file, which the kernel grants in the order of asking."""

    flags = os.O_RDONLY

    def ask(self, fd: int) -> bool:
        """See `FileQueue.ask`."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def stand(self, fd: int) -> None:
        """See `FileQueue.stand`."""
        fcntl.flock(fd, fcntl.LOCK_EX)

    def give_back(self, fd: int) -> None:
        """See `FileQueue.give_back`."""
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)

    def is_awaited(self, fd: int) -> bool:
        """See `FileQueue.is_awaited`."""
        is_free = self.ask(fd)
        self.give_back(fd)
        return not is_free


def new_queue() -> FileQueue:
    """Return a place to be taken in the best queue that this system has."""
    is_linux = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
    return TicketQueue() if is_linux else FlockQueue()


def _lock(fd: int, command: int, kind: int, start: int, length: int) -> bytes:
    request = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    return bytes(fcntl.fcntl(fd, command, request))


def _found(fd: int, kind: int, start: int, length: int) -> tuple[int, int] | None:
    """Return start and length of a lock that is in the way of one of this *kind*.

    Raises:
        OSError: somebody, who is none of us, has locked the file to its end: there is no
            number above that.
    """
    answer = _lock(fd, fcntl.F_OFD_GETLK, kind, start, length)
    found, _, held_from, held, _ = struct.unpack(_FLOCK, answer)
    if found == fcntl.F_UNLCK:
        return None
    if held == _TO_THE_END:
        raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW))
    return held_from, held
