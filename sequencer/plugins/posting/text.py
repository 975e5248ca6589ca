"""Prepares text of agents for posting: no secrets, no control characters, not too long.

Control characters are removed first, because that may join the halves of a secret. A text is cut
before the search for secrets, so that the start of a secret at the cut is removed too.

While an agent works, its thread only puts bytes into a bounded queue. The search for secrets and
the split into lines happen only when something is posted. Text that does not fit is dropped, up
to the next change between thought and action.
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
from sequencer.executors.redaction import Redaction, strip_sequences
from sequencer.plugins.metrics.facts import Metrics
from sequencer.plugins.posting.protocol import Activity, ActivityType
from sequencer.store import results
from sequencer.store.folder import read_regular
from sequencer.store.identity import utc_now

MAX_NAMES = 100
MAX_SHORT_CHARS = 2_000
"""Maximum length of every text except the body."""


def strip_controls(text: str) -> str:
    r"""Return *text* without terminal sequences and other control characters.

    >>> strip_controls("\x1b]0;owned\x07red: \x1b[31mno\x1b[0m\x08\r\n\tyes")
    'red: no\n\tyes'
    """
    return strip_sequences(text.replace("\r\n", "\n").replace("\r", "\n"))


def hide_secrets(text: str, redaction: Redaction, *, is_cut: bool = False) -> str:
    """Return *text* without control characters and secrets, and without half a secret at a cut."""
    stream = redaction.start_stream()
    plain_bytes = strip_controls(text).encode("utf-8", "replace")
    settled_bytes = (
        stream.feed(plain_bytes) if is_cut else stream.feed(plain_bytes) + stream.finish()
    )
    return settled_bytes.decode("utf-8", "replace")


def sanitize_activity(
    activity: Activity, redaction: Redaction, folder: Path, max_chars: int
) -> Activity:
    """Return *activity* in the form that may leave this machine.

    A body that is too large for the journal is read from the run's *folder*.
    """
    body, is_cut, note = activity.body, False, ""
    if activity.output_file is not None:
        body, is_cut, note = _read_output_start(folder, activity.output_file, max_chars)
    if len(body) > max_chars:
        body, is_cut = body[:max_chars], True
    if is_cut and not note:
        location = f"; all of it is in `{activity.output_file}`" if activity.output_file else ""
        note = f"[cut after {max_chars} characters{location}]"
    body = hide_secrets(body, redaction, is_cut=is_cut)
    # Hiding may make the text longer: the replacement is longer than a short secret.
    body = body[:max_chars]

    def short(text: str | None) -> str | None:
        if text is None:
            return None
        is_long = len(text) > MAX_SHORT_CHARS
        return hide_secrets(text[:MAX_SHORT_CHARS], redaction, is_cut=is_long)

    return replace(
        activity,
        step=short(activity.step) or "",
        title=short(activity.title) or "",
        body=f"{body.rstrip()}\n\n{note}".strip() if note else body,
        action=short(activity.action),
        parameter=short(activity.parameter),
        result=short(activity.result),
        metrics=_hide_metric_secrets(activity.metrics, redaction),
    )


def _hide_metric_secrets(metrics: Metrics | None, redaction: Redaction) -> Metrics | None:
    """Return *metrics* without secrets: a name of an agent or a step may contain one."""
    if metrics is None:
        return None

    def shown(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(hide_secrets(name, redaction) for name in names[:MAX_NAMES])

    return replace(
        metrics, agents=shown(metrics.agents), critical_path=shown(metrics.critical_path)
    )


def _read_output_start(folder: Path, name: str, max_chars: int) -> tuple[str, bool, str]:
    """Return (start of the output file *name*, whether it was cut, note if it is unreadable)."""
    try:
        path = results.output_path(folder, name)
    except CorruptState:
        return "", True, f"[the file that the record names is not a step's output: `{name}`]"
    # A character of UTF-8 has at most four bytes.
    max_bytes = 4 * max_chars
    try:
        data = read_regular(path, max_bytes=max_bytes)
    except (OSError, SequencerError):
        return "", True, f"[the output can no longer be read: `{name}`]"
    return data[:max_bytes].decode("utf-8", "replace"), len(data) > max_bytes, ""


HELD_BYTES = 256 * 1024
"""Maximum size of the queue between two posts."""
THOUGHT_CHARS = 1_500
"""Maximum length of a posted thought; its end is posted."""
_POSTED_AS = {
    Piece.THOUGHT: Piece.THOUGHT,
    Piece.RESPONSE: Piece.THOUGHT,
    Piece.ACTION: Piece.ACTION,
}
"""Kind of output -> kind of post. While an agent works, its response is a thought: the final
answer comes from the journal."""
_CALL = re.compile(r"-> (\S+)\s*(.*)", re.DOTALL)
_RESULT = re.compile(r"<- ?(.*)", re.DOTALL)


class CurrentAction:
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
        """Follow an attempt from its start; *redaction* finds the secrets.

        The start itself is the first activity, so that people see that the work was taken before
        the agent says anything. *subject* is the subject of a team's task, and *prefix* comes
        before every thought and action.
        """
        self._redaction = redaction
        self._prefix = prefix
        self._fields: dict[str, Any] = {"step": step, "step_index": step_index, "attempt": attempt}
        self._lock = threading.Lock()
        self._queue: deque[tuple[Piece, bytes]] = deque()
        self._queued_bytes = 0
        self._skipped: Piece | None = None
        """The kind that is dropped because it did not fit, until output of another kind comes."""
        self._has_ended = False
        self._opening: Activity | None = self._activity(
            ActivityType.ACTION, action=f"{prefix}started", parameter=subject or step
        )
        self.heard_at = time.monotonic()
        """Time of the newest output, on the monotonic clock."""
        # Only the thread that calls `pop_newest` may use the fields below.
        self._kind: Piece | None = None
        self._stream = redaction.start_stream()
        self._partial = ""
        self._call: tuple[str, str] | None = None

    def end(self) -> None:
        """Drop everything that was not taken: no thought may come after the result."""
        with self._lock:
            self._clear()
            self._has_ended = True

    def _clear(self) -> None:
        self._queue.clear()
        self._queued_bytes, self._skipped = 0, None
        self._opening = None

    def write(self, data: bytes, kind: Piece) -> bool:
        """Add output to the queue; return whether the queue was empty before."""
        action = _POSTED_AS.get(kind)
        if action is None or self._has_ended:
            return False
        with self._lock:
            if self._skipped is action:
                return False
            self._skipped = None
            self.heard_at = time.monotonic()
            if self._queued_bytes + len(data) > HELD_BYTES:
                self._clear()
                self._skipped = action
                return False
            self._queue.append((action, data))
            self._queued_bytes += len(data)
            return len(self._queue) == 1

    @property
    def has_news(self) -> bool:
        """Return whether there was output since the last `pop_newest`."""
        return bool(self._queue) or self._opening is not None

    def pop_newest(self) -> Activity | None:
        """Return the newest thought or action, or None; call it from one thread at a time."""
        with self._lock:
            queue, self._queue, self._queued_bytes = self._queue, deque(), 0
            activity, self._opening = self._opening, None
        for kind, data in queue:
            activity = self._read(kind, data) or activity
        return activity

    def _read(self, kind: Piece, data: bytes) -> Activity | None:
        """Return the newest complete thought or action in *data*, or None."""
        if kind is not self._kind:
            self._kind, self._partial = kind, ""
            self._stream = self._redaction.start_stream()
        plain_text = strip_controls(data.decode("utf-8", "replace"))
        settled_bytes = self._stream.feed(plain_text.encode("utf-8", "replace"))
        self._partial += settled_bytes.decode("utf-8", "replace")
        if kind is Piece.ACTION:
            *lines, self._partial = self._partial.split("\n")
            actions = [self._action(line) for line in lines if line.strip()]
            return actions[-1] if actions else None
        self._partial = self._partial[-2 * THOUGHT_CHARS :]
        body = _cut_to_end(self._partial.strip())
        if not body:
            return None
        return self._activity(ActivityType.THOUGHT, body=f"{self._prefix}{body}")

    def _action(self, line: str) -> Activity:
        call, result = _CALL.match(line), _RESULT.match(line)
        (tool, parameter), answer = ("tool", line.strip()), None
        if call is not None:
            self._call = tool, parameter = call[1], call[2]
        elif result is not None and self._call is not None:
            (tool, parameter), answer = self._call, result[1]
        return self._activity(
            ActivityType.ACTION,
            action=f"{self._prefix}{tool}",
            parameter=parameter,
            result=answer,
        )

    def _activity(self, kind: ActivityType, **fields: Any) -> Activity:
        return Activity(type=kind, at=utc_now(), **self._fields, **fields)


def _cut_to_end(text: str) -> str:
    """Return the end of a long thought, starting at a word."""
    if len(text) <= THOUGHT_CHARS:
        return text
    return "… " + text[-THOUGHT_CHARS:].split(None, 1)[-1]
