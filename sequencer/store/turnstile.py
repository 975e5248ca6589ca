"""Where processes queue for the same steps, so that one of them watches the run and not all.

The queue is the kernel's: each process takes a place at one file (see `tickets`) and keeps
it until it leaves; one that is killed leaves with its descriptor. Standing in the queue
blocks, so a thread does it, and wakes its process through a pipe.

Not promised: anything that safety needs. Without the file (deleted, a link, a folder that
can't be written) everybody is first, and the claim decides as it always does.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path

from sequencer.errors import UnsafeFolder
from sequencer.store import folder as folders
from sequencer.store.tickets import FileQueue, new_queue

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


class FileTurnstile:
    """One process's way into the queue of a file; see `protocol.Turnstile`."""

    def __init__(self, path: Path, queue: Callable[[], FileQueue] = new_queue) -> None:
        """Queue at *path*, which is made when somebody has to wait; *queue* says how."""
        self._path = str(path)
        self._new_queue = queue
        self._place: _Place | None = None

    def is_awaited(self) -> bool:
        """See `Turnstile.is_awaited`."""
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
        """See `Turnstile.enter`."""
        if self._place is None:
            self._place = _Place(self._path, self._new_queue())
        return self._place.is_first

    def wait(self, timeout_s: float, wake_fd: int) -> bool:
        """See `Turnstile.wait`."""
        if not self.enter() and self._place is not None:
            poller = select.poll()
            for fd in (self._place.first_fd, wake_fd):
                poller.register(fd, select.POLLIN)
            poller.poll(timeout_s * 1000)
        return self.enter()

    def leave(self) -> None:
        """See `Turnstile.leave`."""
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
