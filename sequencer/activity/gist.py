"""From the bytes that an agent writes to the thoughts and actions that are worth a post.

The agent's thread only puts bytes into a bounded queue; secrets are searched for, and lines
made, when there is something to post. What does not fit is left out, up to the next change
between thought and action, so that no half of a secret is taken for a beginning.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from typing import Any

from sequencer.activity.polish import without_controls
from sequencer.activity.protocol import Activity, ActivityType
from sequencer.executors.protocol import Kind
from sequencer.executors.redaction import Redaction
from sequencer.store.clock import utc_now

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

    def __init__(self, redaction: Redaction, step: str, step_index: int, attempt: int) -> None:
        self._redaction = redaction
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
        return self._activity(ActivityType.THOUGHT, body=body) if body else None

    def _acted(self, line: str) -> Activity:
        call, result = _CALL.match(line), _RESULT.match(line)
        if call is not None:
            self._call = (call[1], call[2])
            return self._activity(ActivityType.ACTION, action=call[1], parameter=call[2])
        if result is None or self._call is None:
            return self._activity(ActivityType.ACTION, action="tool", parameter=line.strip())
        tool, parameter = self._call
        return self._activity(
            ActivityType.ACTION, action=tool, parameter=parameter, result=result[1]
        )

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

    def begin(self, step: str, step_index: int, attempt: int) -> None:
        """Hear an attempt from its beginning."""
        with self._lock:
            self._clear()
            self._reading = _Reading(self._redaction, step, step_index, attempt)

    def end(self) -> None:
        """Forget what was not taken: a result follows, and nothing may come behind it."""
        with self._lock:
            self._clear()
            self._reading = None

    def _clear(self) -> None:
        self._queue.clear()
        self._held, self._skipped = 0, None

    def write(self, data: bytes, kind: Kind) -> bool:
        """Take output; return whether there was nothing waiting before."""
        told = _TOLD.get(kind)
        if told is None or self._reading is None:
            return False
        with self._lock:
            if self._skipped is told:
                return False
            self._skipped = None
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
        return bool(self._queue)

    def take(self) -> Activity | None:
        """Return the newest thought or action, if there is one; from one thread at a time."""
        with self._lock:
            queue, self._queue, self._held = self._queue, deque(), 0
            reading = self._reading
        newest: Activity | None = None
        for kind, data in queue:
            if reading is not None:
                newest = reading.take(kind, data) or newest
        return newest


def _end_of(text: str) -> str:
    """Return the end of a long thought, from the beginning of a word on."""
    if len(text) <= THOUGHT_CHARS:
        return text
    return "… " + text[-THOUGHT_CHARS:].split(None, 1)[-1]
