"""A queue of processes that wait for the same steps: only the first one watches the run.

Each process takes a ticket, and the lowest ticket is first. A ticket is a byte of a file that its
holder keeps locked. Nothing is written, so the end of a process frees its ticket, and a damaged
file blocks no one. A new ticket is above all others, so no process can be overtaken. Each process
waits for the ticket just below its own; that call blocks, so it runs in a thread. Without open
file description locks (macOS), `FlockQueue` uses the kernel's order.

Not promised: anything that safety depends on. Without the file (deleted, a link, a read-only
folder), every process is first, and the claim decides as always.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from sequencer.errors import UnsafeFolder
from sequencer.store import folder as folders
from sequencer.store.wake_up import WakeUp
from sequencer.store.watch import wait_readable

_FLOCK = "hhqqi4x"
"""Linux's `struct flock`: type, whence, start, length, and a pid that must be 0."""
_FIRST = 1
_TO_THE_END = 0


class FileQueue(Protocol):
    """One position in the queue of an open file, from `join` to `leave`.

    Raises:
        OSError: the file can't be locked; the caller must not wait because of that.
    """

    flags: int
    """How to open the file for `join`; `is_awaited` needs only read access."""

    def join(self, fd: int) -> bool:
        """Take a position; return whether it is the first."""

    def wait(self, fd: int) -> None:
        """Sleep until the position is the first, or was given up."""

    def leave(self, fd: int) -> None:
        """Give up the position, even in processes that were forked since."""

    def is_awaited(self, fd: int) -> bool:
        """Return whether a process is in the queue; only for a process that is not in it."""


class TicketQueue:
    """Tickets are bytes of the file, locked for as long as they are held."""

    flags = os.O_RDWR

    def __init__(self) -> None:
        """Hold no ticket."""
        self._ticket = 0

    def join(self, fd: int) -> bool:
        ticket = self._next_free(fd, _FIRST)
        while not self._try_take(fd, ticket):
            ticket = self._next_free(fd, ticket)
        self._ticket = ticket
        return self._predecessor(fd) is None

    def _try_take(self, fd: int, ticket: int) -> bool:
        """Take *ticket*, unless another process holds it or a higher one by now."""
        try:
            _call_fcntl(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, ticket, 1)
        except BlockingIOError:
            return False
        if self._next_free(fd, ticket + 1) == ticket + 1:
            return True
        # A process took a higher ticket since we looked. It came later, but may already believe
        # that it is the first.
        self.leave(fd)
        return False

    def _next_free(self, fd: int, ticket: int) -> int:
        """Return the first ticket, from *ticket* on, above all that are held."""
        # Read locks count too: processes that were just woken, or are about to leave, have them.
        while (lock_range := _conflicting_lock(fd, fcntl.F_WRLCK, ticket, _TO_THE_END)) is not None:
            ticket = sum(lock_range)
        return ticket

    def _predecessor(self, fd: int) -> int | None:
        """Return the highest ticket that is held below this one; None: this is the first."""
        start, ticket, predecessor = _FIRST, self._ticket, None
        while start < ticket:
            lock_range = _conflicting_lock(fd, fcntl.F_RDLCK, start, ticket - start)
            if lock_range is None:
                break
            start = sum(lock_range)
            predecessor = start - 1
        return predecessor

    def wait(self, fd: int) -> None:
        while (predecessor := self._predecessor(fd)) is not None:
            # A read lock: a process that looks for holders does not take it for a ticket.
            _call_fcntl(fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, predecessor, 1)

    def leave(self, fd: int) -> None:
        self._ticket = 0
        with contextlib.suppress(OSError):
            _call_fcntl(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, _TO_THE_END)

    def is_awaited(self, fd: int) -> bool:
        return _conflicting_lock(fd, fcntl.F_RDLCK, _FIRST, _TO_THE_END) is not None


class FlockQueue:
    """One lock of the whole file, which the kernel grants in the order of the requests."""

    flags = os.O_RDONLY

    def join(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def leave(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)

    def is_awaited(self, fd: int) -> bool:
        is_free = self.join(fd)
        self.leave(fd)
        return not is_free


def new_queue() -> FileQueue:
    """Return a position, not yet taken, in the best queue that this system supports."""
    is_linux = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
    return TicketQueue() if is_linux else FlockQueue()


def _call_fcntl(fd: int, command: int, kind: int, start: int, length: int) -> bytes:
    request = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    return bytes(fcntl.fcntl(fd, command, request))


def _conflicting_lock(fd: int, kind: int, start: int, length: int) -> tuple[int, int] | None:
    """Return start and length of a lock that conflicts with one of this *kind*.

    Raises:
        OSError: another program has locked the rest of the file, so there is no higher ticket.
    """
    answer = _call_fcntl(fd, fcntl.F_OFD_GETLK, kind, start, length)
    held_kind, _, held_start, held_length, _ = struct.unpack(_FLOCK, answer)
    if held_kind == fcntl.F_UNLCK:
        return None
    if held_length == _TO_THE_END:
        raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW))
    return held_start, held_length


_DIGEST_CHARS = 16


def queue_file_name(positions: Collection[str]) -> str:
    """Return the name of the queue's file for *positions*; empty means all of them.

    >>> queue_file_name(()), queue_file_name({"b", "a"}) == queue_file_name(["a", "b"])
    ('turnstile.lock', True)
    """
    if not positions:
        return "turnstile.lock"
    names = "\0".join(sorted(positions)).encode("utf-8", "surrogatepass")
    return f"turnstile-{sha256(names).hexdigest()[:_DIGEST_CHARS]}.lock"


class WaitQueue:
    """One queue of processes that wait for the same steps; only the first one watches the run.

    It saves work and excludes no one: a process that doesn't queue breaks nothing.
    """

    def __init__(self, path: Path, queue: Callable[[], FileQueue] = new_queue) -> None:
        """Queue at *path*, which is made when a process has to wait; *queue* makes a position."""
        self._path = str(path)
        self._new_queue = queue
        self._entry: _Entry | None = None

    def is_awaited(self) -> bool:
        """Return whether a process is in the queue; only for a process that is not in it."""
        try:
            # Not for writing: closing it would wake the processes that watch the folder.
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
        """Join the end of the queue, unless already in it; return whether this is the first."""
        if self._entry is None:
            self._entry = _Entry(self._path, self._new_queue())
        return self._entry.is_first

    def wait(self, timeout_s: float, wake_fd: int) -> bool:
        """Enter and sleep until this is the first, *wake_fd* is readable or *timeout_s* passed.

        Returns whether this is the first; it stays the first until it leaves.
        """
        if not self.enter() and self._entry is not None:
            wait_readable((self._entry.fileno(), wake_fd), timeout_s)
        return self.enter()

    def leave(self) -> None:
        """Leave the queue from any position; the end of the process does the same."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.leave()


class _Entry:
    """One position in the queue, from joining to leaving."""

    def __init__(self, path: str, queue: FileQueue) -> None:
        self._fd = -1
        self._wake_up: WakeUp | None = None
        self._queue = queue
        self._has_left = False
        self._guard = threading.Lock()
        try:
            self._fd = folders.open_file(path, queue.flags | os.O_CREAT)
            self.is_first = queue.join(self._fd)
            if not self.is_first:
                self._wake_up = WakeUp()
                threading.Thread(target=self._wait, name="wait-queue", daemon=True).start()
        except (OSError, RuntimeError, UnsafeFolder):
            # Without a file or a thread there is no queue, and this process must not wait for one.
            self.is_first = True
            self._close()

    def fileno(self) -> int:
        """Return the descriptor that is readable once this is the first; -1: it is already."""
        return -1 if self._wake_up is None else self._wake_up.fileno()

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            self._queue.wait(self._fd)
        with self._guard:
            self.is_first = True
            if self._has_left:
                self._close()
            elif self._wake_up is not None:
                self._wake_up.set()

    def leave(self) -> None:
        """Give up the position; a thread that still waits for it closes the file."""
        with self._guard:
            self._has_left = True
            if self._wake_up is not None:
                self._wake_up.close()
            if self.is_first:
                self._close()
            elif self._fd >= 0:
                self._queue.leave(self._fd)

    def _close(self) -> None:
        """Unlock the file and close it; a process that was forked since may have it open too."""
        if self._fd >= 0:
            self._queue.leave(self._fd)
            os.close(self._fd)
            self._fd = -1
