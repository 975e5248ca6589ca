"""SIGINT, SIGTERM and SIGHUP end a step instead of the program.

The interpreter's own handlers run on the main thread, between any two instructions, also
while that thread holds a lock that ending a step needs. So the signal only wakes a thread
through a descriptor, and the thread asks for the end. Later signals change nothing: the
claim is released and the agent is gone before the program ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndOnSignal:
    """While it is entered, a signal asks the work to end; only for the main thread."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Tell people about the first signal through *tell*."""
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
        """Take the signals over."""
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        # Whoever started this with a signal ignored (nohup) meant it.
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, _do_nothing)
            for number in ENDING
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back, or ignore more of them once the program is ending."""
        for number, handler in self._before.items():
            # An impatient Ctrl-C would else replace the exit code by a death.
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
                self._tell("ending: the step that runs is stopped and given back")
            if interrupt is not None:
                interrupt()


def _do_nothing(number: int, frame: object) -> None:
    """Only be there: the wake-up descriptor does the work."""
    del number, frame
