"""How a signal ends a step instead of the program.

SIGINT, SIGTERM and SIGHUP end a step instead of the program. Python runs signal handlers on
the main thread, between any two instructions, even while that thread holds a lock that is
needed to end a step. So a signal only wakes a thread through a descriptor, and the thread
asks for the end. Later signals change nothing: before the program ends, the claim is
released and the agent is gone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndOnSignal:
    """A context in which a signal asks the work to end. Use it only on the main thread."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Report the first signal through *tell*."""
        self._tell = tell
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self._has_come = False

    def on_ready(self, interrupt: Callable[[], None]) -> None:
        """Take the function that asks the work to end."""
        with self._lock:
            self._interrupt = interrupt
            has_come = self._has_come
        if has_come:
            interrupt()

    def __enter__(self) -> Self:
        """Take over the signals."""
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        # If this was started with a signal ignored (nohup), that was on purpose.
        self._before: dict[signal.Signals, Any] = {
            # The handler does nothing: the wake-up descriptor does the work.
            number: signal.signal(number, lambda *_: None)
            for number in ENDING
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the signals, or ignore further ones if the program is ending."""
        for number, handler in self._before.items():
            # Otherwise an impatient Ctrl-C would kill the program and lose its exit code.
            signal.signal(number, signal.SIG_IGN if self._has_come else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._write_fd)
        self._thread.join()
        os.close(self._read_fd)

    def _listen(self) -> None:
        while data := os.read(self._read_fd, 64):
            if not any(number in data for number in ENDING):
                continue
            with self._lock:
                is_first, self._has_come = not self._has_come, True
                interrupt = self._interrupt
            if is_first:
                self._tell("ending: stopping the running step and releasing it")
            if interrupt is not None:
                interrupt()
