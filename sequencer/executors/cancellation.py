"""How a signal handler or another thread asks a running step to end."""

from __future__ import annotations

import math
import os
import threading
import time
from enum import StrEnum

from sequencer.model.transitions import CLAIM_LOST as CLAIM_LOST_REASON
from sequencer.store.watch import wait_readable


class StopReason(StrEnum):
    """Why a running step has to end now."""

    INTERRUPTED = "interrupted"
    """SIGINT or SIGTERM reached the sequencer."""
    CLAIM_LOST = CLAIM_LOST_REASON
    """Another worker holds the step."""
    LEASE_LOST = "lease-lost"
    """Heartbeats could not be written; others may think that this worker has ended."""
    BUDGET = "budget"
    """A budget is exhausted."""


class Cancellation:
    """A flag that a signal handler or another thread sets and an executor obeys.

    ``fileno`` is readable once the flag is set, for use with `selectors`. Setting it is
    safe in a signal handler; the first reason stays.
    """

    def __init__(self) -> None:
        """Create an unset flag; `close` frees its pipe."""
        # Reentrant, because a signal handler interrupts the thread that may hold it.
        self._lock = threading.RLock()
        self._reason: StopReason | None = None
        # The pipe is created when its descriptor is first needed: most steps never need it.
        self._read_fd = self._write_fd = -1
        self._is_closed = False

    def __repr__(self) -> str:
        """Return whether it is set, and why."""
        return f"<Cancellation: {self._reason or 'not set'}>"

    @property
    def reason(self) -> StopReason | None:
        """Return why the step has to end, or None while it may continue."""
        return self._reason

    def is_set(self) -> bool:
        """Return whether the step has to end."""
        return self._reason is not None

    def set(self, reason: StopReason) -> None:
        """Ask the step to end."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
                if self._write_fd >= 0:
                    os.write(self._write_fd, b"x")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is set; return whether it is.

        It waits on the pipe and not on a `threading.Event`: the waiting thread may hold the
        event's lock when a signal handler in the same thread sets it.
        """
        if self._reason is None and (fd := self.fileno()) >= 0:
            end = math.inf if timeout_s is None else time.monotonic() + timeout_s
            while (left_s := end - time.monotonic()) > 0 and not wait_readable((fd,), left_s):
                pass
        return self.is_set()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the flag is set; -1 once closed."""
        with self._lock:
            if self._read_fd < 0 and not self._is_closed:
                self._read_fd, write_fd = os.pipe()
                os.set_blocking(write_fd, False)
                self._write_fd = write_fd
                # A signal handler may have set the flag before there was a pipe to write to.
                if self._reason is not None:
                    os.write(write_fd, b"x")
            return self._read_fd

    def close(self) -> None:
        """Free the pipe; the flag keeps its value."""
        with self._lock:
            self._is_closed = True
            fds, self._write_fd, self._read_fd = (self._read_fd, self._write_fd), -1, -1
            # Forget them first: a signal may still come, and other files may get the numbers.
            for fd in fds:
                if fd >= 0:
                    os.close(fd)
