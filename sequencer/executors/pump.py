"""The loop that moves an agent's output, and decides when it has to stop.

One selectors loop in the calling thread, over stdout, stderr, the guard's status socket and
the cancellation; a piece is handed on before the next one is read. It decides when the agent
has to stop, also at the file by which an agent says that it is done.
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

PIECE = 65_536
"""Bytes read at once: what a pipe holds."""
TAIL = 4_096
DONE = "done"
"""Why an agent is stopped whose file has appeared."""
STUCK = "stuck"
"""Why one is stopped that repeats the same tool call."""
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


_FIRST_WORD = re.compile(
    rb'\{"event": (?:"started", "pid": \d{1,10}, "is_walled": (?:true|false)|'
    rb'"refused", "errno": \d{1,4}, "stage": "[a-z]+")\}'
)
_LAST_WORD = re.compile(
    rb'\{"event": "ended", "exit_code": (?:null|-?\d{1,3}), "stopped_by": (?:null|"[a-z]+"), '
    rb'"survivors": \d{1,9}(?:, "left": \d{1,9}, "first": "(?:[0-9a-f]{2}){0,600}")?\}'
)


class Pump(Struct):
    """One attempt's loop; the attributes say afterwards what happened."""

    guard: Guard
    """Has been sent its record."""
    launch: Launch
    consumer: OutputConsumer
    cancellation: Cancellation
    selector: selectors.BaseSelector
    """Empty, and made before: nothing that a system may be short of is needed any more."""
    mark: FileWatch | None = None
    """Made before as well: the agent may be quick."""
    report: dict[str, Any] | None = None
    """The guard's last word, or None if it was lost."""
    has_started: bool = False
    """Whether the guard has started the agent."""
    is_walled: bool = False
    """Whether the agent is in a domain of its own."""
    stop_cause: StopReason | str | None = None
    """Why the guard was told to stop, if it was."""
    stderr_tail: bytes = b""
    _status: bytes = b""
    _started: float = field(default_factory=time.monotonic)
    _last_progress: float = field(default_factory=time.monotonic)
    _until: float | None = None

    @property
    def lacks_wall(self) -> bool:
        """Return whether the agent runs without a wall that it should have."""
        return self.has_started and not self.is_walled and self.launch.wall is Wall.SCOPES

    def run(self) -> None:
        """Loop until the guard has reported and the streams have ended."""
        streams = {self.guard.stdout, self.guard.stderr, self.guard.status}
        for fd in streams:
            self.selector.register(fd, selectors.EVENT_READ)
        self.selector.register(self.cancellation, selectors.EVENT_READ)
        while streams:
            ready = self.selector.select(self._wait_s())
            for fd in sorted(key.fd for key, _ in ready):
                if fd == self.cancellation.fileno():
                    self.selector.unregister(fd)
                elif not self._read(fd):
                    self.selector.unregister(fd)
                    streams.discard(fd)
            if self._is_over():
                break

    def _wait_s(self) -> float | None:
        dates = [self._until] if self._until is not None else [date for date, _ in self._limits()]
        wait_s = max(min(dates) - time.monotonic(), 0.0) if dates else None
        if self.mark is None or self._until is not None:
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
        if self._until is not None:
            return now >= self._until
        cause: StopReason | str | None = self.cancellation.reason
        if cause is None:
            cause = next((name for date, name in sorted(self._limits()) if now >= date), None)
        if cause is None and self.mark is not None and self.mark.has_appeared():
            cause = DONE
        if cause is None and self.launch.is_stuck is not None and self.launch.is_stuck():
            cause = STUCK
        if cause is not None:
            self.stop_cause = cause
            self._until = now + self.launch.grace_s + _OVERDUE_S
            self.guard.stop()
        return False

    def _read(self, fd: int) -> bool:
        """Take what is there; return whether more may come."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return True
        if fd == self.guard.status:
            return self._take_status(data)
        if not data:
            return False
        if fd == self.guard.stdout:
            has_progressed = self.consumer.stdout(data)
        else:
            self.stderr_tail = (self.stderr_tail + data)[-TAIL:]
            has_progressed = self.consumer.stderr(data)
        if has_progressed:
            # After the consumer: a terminal that is held with Ctrl-S is not the agent's silence.
            self._last_progress = time.monotonic()
        return True

    def _take_status(self, data: bytes) -> bool:
        """Keep the guard's last word; its silence at the end means that it was killed.

        So does a word that no guard would say now: the guard is as good as lost.
        """
        self._status += data
        *lines, self._status = self._status.split(b"\n")
        is_sane = True
        for line in lines:
            is_sane = (_LAST_WORD if self.has_started else _FIRST_WORD).fullmatch(line) is not None
            event = json.loads(line) if is_sane else {}
            if event.get("event") != "started":
                self.report = event or None
                break
            self.has_started, self.is_walled = True, event["is_walled"]
        if data and is_sane and self.report is None:
            return True
        self._until = time.monotonic() + _DRAIN_S
        return False
