"""Text of agents made fit to be posted: no secrets, no control characters, not too long.

Control characters go first, because the halves of a secret may meet where one was. A text
is cut before it is searched for secrets, so that what may be the start of one stays out.

While an agent works, its thread only puts bytes into a bounded queue; secrets are searched
for, and lines made, when there is something to post. What does not fit is left out, up to
the next change between thought and action.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sequencer.errors import CorruptState, SequencerError
from sequencer.executors.protocol import Piece
from sequencer.executors.redaction import Redaction, without_sequences
from sequencer.plugins.metrics.facts import Metrics
from sequencer.plugins.posting.protocol import Activity, ActivityType
from sequencer.store import results
from sequencer.store.folder import read_regular
from sequencer.store.identity import utc_now

MAX_NAMES = 100
MAX_SHORT_CHARS = 2_000
"""Of everything but the body."""


def without_controls(text: str) -> str:
    r"""Return *text* without terminal sequences and other control characters.

    >>> without_controls("\x1b]0;owned\x07red: \x1b[31mno\x1b[0m\x08\r\n\tyes")
    'red: no\n\tyes'
    """
    return without_sequences(text.replace("\r\n", "\n").replace("\r", "\n"))


def hidden(text: str, redaction: Redaction, *, is_cut: bool = False) -> str:
    """Return *text* without control characters and secrets, nor the half of one at a cut."""
    stream = redaction.stream()
    plain = without_controls(text).encode("utf-8", "replace")
    settled = stream.feed(plain) if is_cut else stream.feed(plain) + stream.finish()
    return settled.decode("utf-8", "replace")


def polished(activity: Activity, redaction: Redaction, folder: Path, max_chars: int) -> Activity:
    """Return *activity* as it may leave the machine, its body from *folder* if it is kept there."""
    body, is_cut, note = activity.body, False, ""
    if activity.output_file is not None:
        body, is_cut, note = _kept(folder, activity.output_file, max_chars)
    if len(body) > max_chars:
        body, is_cut = body[:max_chars], True
    if is_cut and not note:
        where = f"; all of it is in `{activity.output_file}`" if activity.output_file else ""
        note = f"[cut after {max_chars} characters{where}]"
    body = hidden(body, redaction, is_cut=is_cut)
    # Hiding may make a text longer: eight letters become the word for a secret.
    body = body[:max_chars]

    def short(text: str | None) -> str | None:
        if text is None:
            return None
        is_long = len(text) > MAX_SHORT_CHARS
        return hidden(text[:MAX_SHORT_CHARS], redaction, is_cut=is_long)

    return replace(
        activity,
        step=short(activity.step) or "",
        title=short(activity.title) or "",
        body=f"{body.rstrip()}\n\n{note}".strip() if note else body,
        action=short(activity.action),
        parameter=short(activity.parameter),
        result=short(activity.result),
        metrics=_without_secrets(activity.metrics, redaction),
    )


def _without_secrets(metrics: Metrics | None, redaction: Redaction) -> Metrics | None:
    """Return *metrics* with names that show nothing; somebody may have put a secret into one."""
    if metrics is None:
        return None

    def shown(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(hidden(name, redaction) for name in names[:MAX_NAMES])

    return replace(
        metrics, agents=shown(metrics.agents), critical_path=shown(metrics.critical_path)
    )


def _kept(folder: Path, name: str, max_chars: int) -> tuple[str, bool, str]:
    """Return how the output file *name* begins, whether it was cut, and a note if it is gone."""
    try:
        path = results.output_path(folder, name)
    except CorruptState:
        return "", True, f"[what the record names is not an output of a step: `{name}`]"
    # Four bytes are the longest character of UTF-8.
    max_bytes = 4 * max_chars
    try:
        data = read_regular(path, max_bytes=max_bytes)
    except (OSError, SequencerError):
        return "", True, f"[the output can no longer be read: `{name}`]"
    return data[:max_bytes].decode("utf-8", "replace"), len(data) > max_bytes, ""


HELD_BYTES = 256 * 1024
"""What waits between two posts at most."""
THOUGHT_CHARS = 1_500
"""The newest end of a thought that is posted."""
_TOLD = {Piece.THOUGHT: Piece.THOUGHT, Piece.RESPONSE: Piece.THOUGHT, Piece.ACTION: Piece.ACTION}
"""What an agent says while it works is a thought; its answer comes from the journal."""
_CALL = re.compile(r"-> (\S+)\s*(.*)", re.DOTALL)
_RESULT = re.compile(r"<- ?(.*)", re.DOTALL)


class Gist:
    """The newest thought or action of one attempt while it runs."""

    def __init__(
        self,
        redaction: Redaction,
        step: str,
        step_index: int,
        attempt: int,
        *,
        prefix: str = "",
        subject: str | None = None,
    ) -> None:
        """Hear an attempt from its beginning; *redaction* knows the secrets.

        That it started is its first news: whoever gave the work away sees that it was taken
        before the agent says anything. *subject* says what a team's task is about, and *prefix*
        comes before everything that its agent says and does.
        """
        self._redaction = redaction
        self._prefix = prefix
        self._told: dict[str, Any] = {"step": step, "step_index": step_index, "attempt": attempt}
        self._lock = threading.Lock()
        self._queue: deque[tuple[Piece, bytes]] = deque()
        self._held = 0
        self._skipped: Piece | None = None
        """The kind of which something was left out, until another one comes."""
        self._has_ended = False
        self._opening: Activity | None = self._activity(
            ActivityType.ACTION, action=f"{prefix}started", parameter=subject or step
        )
        self.heard_at = time.monotonic()
        """When there was something new, on a clock that only compares."""
        # What was understood so far belongs to the thread that takes.
        self._kind: Piece | None = None
        self._stream = redaction.stream()
        self._begun = ""
        self._call: tuple[str, str] | None = None

    def end(self) -> None:
        """Forget what was not taken: a result follows, and nothing may come behind it."""
        with self._lock:
            self._clear()
            self._has_ended = True

    def _clear(self) -> None:
        self._queue.clear()
        self._held, self._skipped = 0, None
        self._opening = None

    def write(self, data: bytes, kind: Piece) -> bool:
        """Take output; return whether there was nothing waiting before."""
        told = _TOLD.get(kind)
        if told is None or self._has_ended:
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
            newest, self._opening = self._opening, None
        for kind, data in queue:
            newest = self._read(kind, data) or newest
        return newest

    def _read(self, kind: Piece, data: bytes) -> Activity | None:
        """Return the newest thought or action that *data* makes, if it makes one."""
        if kind is not self._kind:
            self._kind, self._begun = kind, ""
            self._stream = self._redaction.stream()
        plain = without_controls(data.decode("utf-8", "replace"))
        settled = self._stream.feed(plain.encode("utf-8", "replace"))
        self._begun += settled.decode("utf-8", "replace")
        if kind is Piece.ACTION:
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
        used, answer = ("tool", line.strip()), None
        if call is not None:
            self._call = used = (call[1], call[2])
        elif result is not None and self._call is not None:
            used, answer = self._call, result[1]
        return self._activity(
            ActivityType.ACTION,
            action=f"{self._prefix}{used[0]}",
            parameter=used[1],
            result=answer,
        )

    def _activity(self, kind: ActivityType, **fields: Any) -> Activity:
        return Activity(type=kind, at=utc_now(), **self._told, **fields)


def _end_of(text: str) -> str:
    """Return the end of a long thought, from the beginning of a word on."""
    if len(text) <= THOUGHT_CHARS:
        return text
    return "… " + text[-THOUGHT_CHARS:].split(None, 1)[-1]
