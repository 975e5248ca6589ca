"""Where processes queue for the same steps, so that one of them watches the run and not all.

Numbers are drawn, and the lowest that is held is served. A number is a byte of a file that its
holder keeps locked (nothing is ever written), so a killed process gives it back with its
descriptor, and a damaged file holds up nobody. A new number is above all that are held: who
waits can't be passed. Each waits for the number just below its own; that blocks, so a thread
does it. Without locks of open files (macOS) `FlockQueue` has the kernel's order.

Not promised: anything that safety needs. Without the file (deleted, a link, a folder that
can't be written) everybody is first, and the claim decides as it always does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import sys
import threading
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from sequencer.errors import UnsafeFolder
from sequencer.store import folder as folders

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
        while (below := self._just_below(fd)) is not None:
            # For reading, which nobody who looks for holders takes for a number.
            _lock(fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, below, 1)

    def give_back(self, fd: int) -> None:
        self._number = 0
        with contextlib.suppress(OSError):
            _lock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, _TO_THE_END)

    def is_awaited(self, fd: int) -> bool:
        return _found(fd, fcntl.F_RDLCK, _FIRST, _TO_THE_END) is not None


class FlockQueue:
    """One lock of the whole file, which the kernel grants in the order of asking."""

    flags = os.O_RDONLY

    def ask(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def stand(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def give_back(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)

    def is_awaited(self, fd: int) -> bool:
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


_DIGEST_CHARS = 16


def file_name(positions: Collection[str]) -> str:
    """Return the file of those that work at *positions*, or at all of them if it is empty.

    >>> file_name(()), file_name({"b", "a"}) == file_name(["a", "b"])
    ('turnstile.lock', True)
    """
    if not positions:
        return "turnstile.lock"
    names = "\0".join(sorted(positions)).encode("utf-8", "surrogatepass")
    return f"turnstile-{sha256(names).hexdigest()[:_DIGEST_CHARS]}.lock"


class WaitQueue:
    """Where processes queue that wait for the same steps; the first alone watches the run.

    A courtesy and no exclusion: a process that doesn't queue breaks nothing.
    """

    def __init__(self, path: Path, queue: Callable[[], FileQueue] = new_queue) -> None:
        """Queue at *path*, which is made when somebody has to wait; *queue* says how."""
        self._path = str(path)
        self._new_queue = queue
        self._place: _Place | None = None

    def is_awaited(self) -> bool:
        """Return whether any process is in the queue; for a process that is not in it itself."""
        try:
            # Not for writing: closing it would wake who watches the folder.
            fd = folders.open_file(self._path, os.O_RDONLY)
        except (OSError, UnsafeFolder):
            return False
        try:
            return self._new_queue().is_awaited(fd)
        except OSError:
            return False
        finally:
            os.close(fd)

    def enter(self) -> bool:
        """Be in the queue from now on, at its end; return whether that is the front."""
        if self._place is None:
            self._place = _Place(self._path, self._new_queue())
        return self._place.is_first

    def wait(self, timeout_s: float, wake_fd: int) -> bool:
        """Enter and sleep until this is the first, *wake_fd* wakes or the time is over.

        Returns whether this is the first; it stays so until it leaves.
        """
        if not self.enter() and self._place is not None:
            poller = select.poll()
            for fd in (self._place.first_fd, wake_fd):
                poller.register(fd, select.POLLIN)
            poller.poll(timeout_s * 1000)
        return self.enter()

    def leave(self) -> None:
        """Leave the queue, from the front or not; a process that ends does so too."""
        place, self._place = self._place, None
        if place is not None:
            place.leave()


class _Place:
    """One place in the queue, from asking for it until it is given back."""

    def __init__(self, path: str, queue: FileQueue) -> None:
        self.first_fd = self._wake_fd = self._fd = -1
        self._queue = queue
        self._is_left = False
        self._guard = threading.Lock()
        try:
            self._fd = folders.open_file(path, queue.flags | os.O_CREAT)
            self.is_first = queue.ask(self._fd)
            if not self.is_first:
                self.first_fd, self._wake_fd = os.pipe()
                threading.Thread(target=self._stand, name="turnstile", daemon=True).start()
        except (OSError, RuntimeError, UnsafeFolder):
            # No file or no thread: nobody queues, and nobody is kept waiting by that.
            self.is_first = True
            self._give_back()

    def _stand(self) -> None:
        with contextlib.suppress(OSError):
            self._queue.stand(self._fd)
        with self._guard:
            self.is_first = True
            if self._is_left:
                self._give_back()
            else:
                os.write(self._wake_fd, b"x")

    def leave(self) -> None:
        """Give the place back; a thread that still waits for it closes the file."""
        with self._guard:
            self._is_left = True
            for fd in (self.first_fd, self._wake_fd):
                if fd >= 0:
                    os.close(fd)
            if self.is_first:
                self._give_back()
            elif self._fd >= 0:
                self._queue.give_back(self._fd)

    def _give_back(self) -> None:
        """Unlock the file and close it; a process forked meanwhile may have it open as well."""
        if self._fd >= 0:
            self._queue.give_back(self._fd)
            os.close(self._fd)
            self._fd = -1
