"""How a signal handler or another thread asks a running step to end."""

from __future__ import annotations

import math
import threading
import time
from enum import StrEnum

from sequencer.model.transitions import CLAIM_LOST as CLAIM_LOST_REASON
from sequencer.store.wake_up import WakeUp
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
        """Create an unset flag; `close` frees its descriptor."""
        # Reentrant, because a signal handler interrupts the thread that may hold it.
        self._lock = threading.RLock()
        self._reason: StopReason | None = None
        # Opened when its descriptor is first needed: most steps never need it.
        self._wake_up: WakeUp | None = None
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
                if self._wake_up is not None:
                    self._wake_up.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is set; return whether it is.

        It waits on the descriptor and not on a `threading.Event`: the waiting thread may hold the
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
            if self._wake_up is None and not self._is_closed:
                wake_up = WakeUp()
                self._wake_up = wake_up
                # A signal handler may have set the flag before there was a descriptor.
                if self._reason is not None:
                    wake_up.set()
            return -1 if self._wake_up is None else self._wake_up.fileno()

    def close(self) -> None:
        """Free the descriptor; the flag keeps its value."""
        with self._lock:
            self._is_closed = True
            if self._wake_up is not None:
                self._wake_up.close()
