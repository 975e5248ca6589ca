"""The loop that moves an agent's output and decides when the agent has to stop.

One selectors loop in the calling thread reads stdout, stderr, the guard's status socket and
the cancellation. It passes a piece of output on before it reads the next one. It also stops
the agent when its `done_file` appears.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import time
from typing import Any, Protocol

from msgspec import Struct, field

from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.file_watch import FileWatch
from sequencer.executors.guard_process import Guard
from sequencer.executors.launch import Launch
from sequencer.executors.wall import Wall
from sequencer.store.watch import LONGEST_POLL_S

PIECE = 65_536
"""Bytes read at once: the capacity of a pipe."""
TAIL = 4_096
DONE = "done"
"""The cause of a stop: the agent's file has appeared."""
STUCK = "stuck"
"""The cause of a stop: the agent repeats the same tool call."""
_DRAIN_S = 1.0
"""Seconds to wait for the end of the streams after all processes of the agent have ended: only
a process outside the tree (one that got the descriptor) can still hold them open."""
_GUARD_LOST_S = 6.5
"""Seconds after the grace period until a guard that was asked to stop counts as lost."""


class OutputConsumer(Protocol):
    """Receives an agent's output piece by piece, in the thread that runs the core.

    A piece has at most 64 KiB. Both methods return whether the piece shows progress: a client
    that hangs may continue to send events that say nothing.
    """

    def feed_stdout(self, data: bytes) -> bool:
        """Process a piece of standard output."""

    def feed_stderr(self, data: bytes) -> bool:
        """Process a piece of standard error."""


_FIRST_REPORT = re.compile(
    rb'\{"event": (?:"started", "pid": \d{1,10}, "is_walled": (?:true|false)|'
    rb'"refused", "errno": \d{1,4}, "stage": "[a-z]+")\}'
)
_LAST_REPORT = re.compile(
    rb'\{"event": "ended", "exit_code": (?:null|-?\d{1,3}), "stopped_by": (?:null|"[a-z]+"), '
    rb'"survivors": \d{1,9}(?:, "left": \d{1,9}, "first": "(?:[0-9a-f]{2}){0,600}")?\}'
)


class Pump(Struct):
    """The loop of one attempt; after it, the attributes say what happened."""

    guard: Guard
    """It already has its launch record."""
    launch: Launch
    consumer: OutputConsumer
    cancellation: Cancellation
    selector: selectors.BaseSelector
    """Empty, and created before the agent's start: from then on no new descriptor is needed."""
    mark: FileWatch | None = None
    """Created before the agent's start, because a fast agent may write the file at once."""
    report: dict[str, Any] | None = None
    """The guard's last report, or None if the guard was lost."""
    has_started: bool = False
    """Whether the guard has started the agent."""
    is_walled: bool = False
    """Whether the agent runs in its own Landlock domain."""
    stop_cause: StopReason | str | None = None
    """Why the guard was asked to stop; None: it was not."""
    stderr_tail: bytes = b""
    _status: bytes = b""
    _started: float = field(default_factory=time.monotonic)
    _last_progress: float = field(default_factory=time.monotonic)
    _deadline: float | None = None

    @property
    def lacks_wall(self) -> bool:
        """Return whether the agent runs without the wall that its entry asks for."""
        return self.has_started and not self.is_walled and self.launch.wall is Wall.SCOPES

    def run(self) -> None:
        """Loop until the guard has reported and the streams have ended."""
        streams = {self.guard.stdout, self.guard.stderr, self.guard.status}
        for fd in streams:
            self.selector.register(fd, selectors.EVENT_READ)
        self.selector.register(self.cancellation, selectors.EVENT_READ)
        while streams:
            ready_keys = self.selector.select(self._wait_s())
            for fd in sorted(key.fd for key, _ in ready_keys):
                if fd == self.cancellation.fileno():
                    self.selector.unregister(fd)
                elif not self._read(fd):
                    self.selector.unregister(fd)
                    streams.discard(fd)
            if self._is_over():
                break

    def _wait_s(self) -> float | None:
        """Return how long to wait for output; None: without a limit.

        A limit may be further away than the system can wait; then the loop checks once a day.
        """
        dates = [date for date, _ in self._limits()]
        if self._deadline is not None:
            dates = [self._deadline]
        wait_s = None
        if dates:
            wait_s = min(max(min(dates) - time.monotonic(), 0.0), LONGEST_POLL_S)
        if self.mark is None or self._deadline is not None:
            return wait_s
        look_s = self.mark.wait_s()
        return look_s if wait_s is None else min(wait_s, look_s)

    def _limits(self) -> list[tuple[float, str]]:
        limits = []
        if self.launch.timeout_s is not None:
            limits.append((self._started + self.launch.timeout_s, "timeout"))
        if self.launch.idle_timeout_s is not None:
            limits.append((self._last_progress + self.launch.idle_timeout_s, "idle"))
        return limits

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._deadline is not None:
            return now >= self._deadline
        cause: StopReason | str | None = self.cancellation.reason
        if cause is None:
            cause = next((name for date, name in sorted(self._limits()) if now >= date), None)
        if cause is None and self.mark is not None and self.mark.has_appeared():
            cause = DONE
        if cause is None and self.launch.is_stuck is not None and self.launch.is_stuck():
            cause = STUCK
        if cause is not None:
            self.stop_cause = cause
            self._deadline = now + self.launch.grace_s + _GUARD_LOST_S
            self.guard.stop()
        return False

    def _read(self, fd: int) -> bool:
        """Read what is ready; return whether more may come."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return True
        if fd == self.guard.status:
            return self._process_status(data)
        if not data:
            return False
        if fd == self.guard.stdout:
            has_progressed = self.consumer.feed_stdout(data)
        else:
            self.stderr_tail = (self.stderr_tail + data)[-TAIL:]
            has_progressed = self.consumer.feed_stderr(data)
        if has_progressed:
            # After the consumer: time that a terminal was stopped with Ctrl-S is not idle time.
            self._last_progress = time.monotonic()
        return True

    def _process_status(self, data: bytes) -> bool:
        """Store the guard's last report; without one, the guard was killed.

        A line that is not a valid report counts as a lost guard too.
        """
        self._status += data
        *lines, self._status = self._status.split(b"\n")
        is_sane = True
        for line in lines:
            expected_pattern = _LAST_REPORT if self.has_started else _FIRST_REPORT
            is_sane = expected_pattern.fullmatch(line) is not None
            event = json.loads(line) if is_sane else {}
            if event.get("event") != "started":
                self.report = event or None
                break
            self.has_started, self.is_walled = True, event["is_walled"]
        if data and is_sane and self.report is None:
            return True
        self._deadline = time.monotonic() + _DRAIN_S
        return False
