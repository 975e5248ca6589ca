"""Moves an agent's output to its consumer and decides when the agent has to stop.

One selectors loop in the calling thread, over stdout, stderr, the guard's status pipe and
the cancellation. Memory is bounded: a piece is handed on before the next one is read.
"""

from __future__ import annotations

import json
import os
import selectors
import time
from typing import Any, Protocol

from sequencer.executors.file_mark import FileWatch
from sequencer.executors.guarding import Guard, Launch
from sequencer.executors.protocol import Cancellation, StopReason

PIECE = 65_536
"""Bytes read at once: what a pipe holds."""
TAIL = 4_096
DONE = "done"
"""Why an agent is stopped whose file has appeared."""
_DRAIN_S = 1.0
"""Seconds to wait for the end of the streams once everything of the agent is gone: only
a process outside the tree (one that was handed the descriptor) can still hold them."""
_OVERDUE_S = 6.5
"""Seconds beyond the grace after which a guard that was told to stop counts as lost."""


class OutputConsumer(Protocol):
    """Who takes an agent's output as it comes; called from the thread that runs the core.

    Each piece is at most 64 KiB. What is returned says whether it shows that the agent makes
    progress: a client that hangs may go on sending events that say nothing.
    """

    def stdout(self, data: bytes) -> bool:
        """Take a piece of standard output."""

    def stderr(self, data: bytes) -> bool:
        """Take a piece of standard error."""


class Pump:
    """One attempt's loop; the attributes say afterwards what happened."""

    def __init__(
        self,
        guard: Guard,
        launch: Launch,
        consumer: OutputConsumer,
        cancellation: Cancellation,
        selector: selectors.BaseSelector,
        *,
        mark: FileWatch | None = None,
    ) -> None:
        """Watch *guard*, which has been sent its record, with *selector*, which is empty.

        It was made before: nothing that a system may be short of is needed any more. So was
        *mark*: the agent may be quick.
        """
        self.report: dict[str, Any] | None = None
        """The guard's last word, or None if it was lost."""
        self.has_started = False
        """Whether the guard has started the agent."""
        self.stop_cause: StopReason | str | None = None
        """Why the guard was told to stop, if it was."""
        self.stderr_tail = b""
        self._guard = guard
        self._launch = launch
        self._consumer = consumer
        self._cancellation = cancellation
        self._selector = selector
        self._status = b""
        self._started = self._last_progress = time.monotonic()
        self._until: float | None = None
        self._mark = mark

    def run(self) -> None:
        """Loop until the guard has reported and the streams have ended."""
        streams = {self._guard.stdout, self._guard.stderr, self._guard.status}
        for fd in streams:
            self._selector.register(fd, selectors.EVENT_READ)
        self._selector.register(self._cancellation, selectors.EVENT_READ)
        while streams:
            ready = self._selector.select(self._wait_s())
            for fd in sorted(key.fd for key, _ in ready):
                if fd == self._cancellation.fileno():
                    self._selector.unregister(fd)
                elif not self._read(fd):
                    self._selector.unregister(fd)
                    streams.discard(fd)
            if self._is_over():
                break

    def _wait_s(self) -> float | None:
        dates = [self._until] if self._until is not None else [date for date, _ in self._limits()]
        wait_s = max(min(dates) - time.monotonic(), 0.0) if dates else None
        if self._mark is None or self._until is not None:
            return wait_s
        look_s = self._mark.wait_s()
        return look_s if wait_s is None else min(wait_s, look_s)

    def _limits(self) -> list[tuple[float, str]]:
        limits = []
        if self._launch.timeout_s is not None:
            limits.append((self._started + self._launch.timeout_s, "timeout"))
        if self._launch.idle_timeout_s is not None:
            limits.append((self._last_progress + self._launch.idle_timeout_s, "idle"))
        return limits

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._until is not None:
            return now >= self._until
        cause: StopReason | str | None = self._cancellation.reason
        if cause is None:
            cause = next((name for date, name in sorted(self._limits()) if now >= date), None)
        if cause is None and self._mark is not None and self._mark.has_appeared():
            cause = DONE
        if cause is not None:
            self.stop_cause = cause
            self._until = now + self._launch.grace_s + _OVERDUE_S
            self._guard.stop()
        return False

    def _read(self, fd: int) -> bool:
        """Take what is there; return whether more may come."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return True
        if fd == self._guard.status:
            return self._take_status(data)
        if not data:
            return False
        if fd == self._guard.stdout:
            has_progressed = self._consumer.stdout(data)
        else:
            self.stderr_tail = (self.stderr_tail + data)[-TAIL:]
            has_progressed = self._consumer.stderr(data)
        if has_progressed:
            # After the consumer: a terminal that is held with Ctrl-S is not the agent's silence.
            self._last_progress = time.monotonic()
        return True

    def _take_status(self, data: bytes) -> bool:
        """Keep the guard's last word; its silence at the end means that it was killed."""
        self._status += data
        *lines, self._status = self._status.split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "started":
                self.has_started = True
            else:
                self.report = event
        if data and self.report is None:
            return True
        self._until = time.monotonic() + _DRAIN_S
        return False
