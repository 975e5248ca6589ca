"""From the bytes that an agent writes to the thoughts and actions that are worth a post.

The agent's thread only puts bytes into a bounded queue; secrets are searched for, and lines
made, when there is something to post. What does not fit is left out, up to the next change
between thought and action, so that no half of a secret is taken for a beginning.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from typing import Any

from sequencer.activity.polish import without_controls
from sequencer.activity.protocol import Activity, ActivityType
from sequencer.executors.protocol import Kind
from sequencer.executors.redaction import Redaction
from sequencer.store.identity import utc_now

HELD_BYTES = 256 * 1024
"""What waits between two posts at most."""
THOUGHT_CHARS = 1_500
"""The newest end of a thought that is posted."""
_TOLD = {Kind.THOUGHT: Kind.THOUGHT, Kind.RESPONSE: Kind.THOUGHT, Kind.ACTION: Kind.ACTION}
"""What an agent says while it works is a thought; its answer comes from the journal."""
_CALL = re.compile(r"-> (\S+)\s*(.*)", re.DOTALL)
_RESULT = re.compile(r"<- ?(.*)", re.DOTALL)


class _Reading:
    """What was understood so far of one attempt's output; for one thread."""

    def __init__(
        self, redaction: Redaction, step: str, step_index: int, attempt: int, prefix: str
    ) -> None:
        self._redaction = redaction
        self._prefix = prefix
        self._told: dict[str, Any] = {
            "step": step,
            "step_index": step_index,
            "attempt": attempt,
        }
        self._kind: Kind | None = None
        self._stream = redaction.stream()
        self._begun = ""
        self._call: tuple[str, str] | None = None

    def take(self, kind: Kind, data: bytes) -> Activity | None:
        """Return the newest thought or action that *data* makes, if it makes one."""
        if kind is not self._kind:
            self._kind, self._begun = kind, ""
            self._stream = self._redaction.stream()
        plain = without_controls(data.decode("utf-8", "replace"))
        settled = self._stream.feed(plain.encode("utf-8", "replace"))
        self._begun += settled.decode("utf-8", "replace")
        if kind is Kind.ACTION:
            *lines, self._begun = self._begun.split("\n")
            acts = [self._acted(line) for line in lines if line.strip()]
            return acts[-1] if acts else None
        self._begun = self._begun[-2 * THOUGHT_CHARS :]
        body = _end_of(self._begun.strip())
        if not body:
            return None
        return self._activity(ActivityType.THOUGHT, body=f"{self._prefix}{body}")

    def _acted(self, line: str) -> Activity:
        call, result = _CALL.match(line), _RESULT.match(line)
        if call is not None:
            self._call = (call[1], call[2])
            return self._used(call[1], call[2])
        if result is None or self._call is None:
            return self._used("tool", line.strip())
        return self._used(*self._call, result=result[1])

    def _used(self, tool: str, parameter: str, result: str | None = None) -> Activity:
        return self._activity(
            ActivityType.ACTION,
            action=f"{self._prefix}{tool}",
            parameter=parameter,
            result=result,
        )

    def began(self, subject: str) -> Activity:
        """Return that work has begun on a team's task that is about *subject*."""
        action = f"{self._prefix}started"
        return self._activity(ActivityType.ACTION, action=action, parameter=subject)

    def _activity(self, kind: ActivityType, **fields: Any) -> Activity:
        return Activity(type=kind, at=utc_now(), **self._told, **fields)


class Gist:
    """The newest thought or action of the attempt that runs."""

    def __init__(self, redaction: Redaction) -> None:
        """Hear nothing yet; *redaction* knows the secrets."""
        self._redaction = redaction
        self._lock = threading.Lock()
        self._queue: deque[tuple[Kind, bytes]] = deque()
        self._held = 0
        self._skipped: Kind | None = None
        """The kind of which something was left out, until another one comes."""
        self._reading: _Reading | None = None
        self._opening: Activity | None = None
        self.heard_at = 0.0
        """When there was something new, on a clock that only compares."""

    def begin(
        self,
        step: str,
        step_index: int,
        attempt: int,
        *,
        prefix: str = "",
        subject: str | None = None,
    ) -> None:
        """Hear an attempt from its beginning.

        Of a team's task *subject* says what it is about, which is the first news of it, and
        *prefix* stands before all that its agent says and does.
        """
        with self._lock:
            self._clear()
            self._reading = _Reading(self._redaction, step, step_index, attempt, prefix)
            self._opening = None if subject is None else self._reading.began(subject)
            self.heard_at = time.monotonic()

    def end(self) -> None:
        """Forget what was not taken: a result follows, and nothing may come behind it."""
        with self._lock:
            self._clear()
            self._reading = None

    def _clear(self) -> None:
        self._queue.clear()
        self._held, self._skipped = 0, None
        self._opening = None

    def write(self, data: bytes, kind: Kind) -> bool:
        """Take output; return whether there was nothing waiting before."""
        told = _TOLD.get(kind)
        if told is None or self._reading is None:
            return False
        with self._lock:
            if self._skipped is told:
                return False
            self._skipped = None
            self.heard_at = time.monotonic()
            if self._held + len(data) > HELD_BYTES:
                self._clear()
                self._skipped = told
                return False
            self._queue.append((told, data))
            self._held += len(data)
            return len(self._queue) == 1

    @property
    def has_news(self) -> bool:
        """Return whether anything was written since the last `take`."""
        return bool(self._queue) or self._opening is not None

    def take(self) -> Activity | None:
        """Return the newest thought or action, if there is one; from one thread at a time."""
        with self._lock:
            queue, self._queue, self._held = self._queue, deque(), 0
            reading, newest, self._opening = self._reading, self._opening, None
        for kind, data in queue:
            if reading is not None:
                newest = reading.take(kind, data) or newest
        return newest


def _end_of(text: str) -> str:
    """Return the end of a long thought, from the beginning of a word on."""
    if len(text) <= THOUGHT_CHARS:
        return text
    return "… " + text[-THOUGHT_CHARS:].split(None, 1)[-1]
