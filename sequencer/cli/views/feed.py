"""An agent's output as lines to show: safe, bounded, and without flooding anybody.

Output beyond `BYTES_PER_S` is counted and left out, because a terminal that is slower
than the agent would hold the agent up; the step log has all of it. Pure but for the clock
that it is given.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from typing import NamedTuple

from sequencer.cli.views.text import Sanitiser, file_size
from sequencer.executors.protocol import Piece
from sequencer.executors.redaction import Redaction

BYTES_PER_S = 512 * 1024
BURST_BYTES = 1024 * 1024
LINE_CHARS = 4096
"""A longer line is shown in pieces."""
LAST_CHARS = 200


class FeedLine(NamedTuple):
    """One line to show, without its end."""

    kind: Piece
    text: str


class Feed:
    """Turns the chunks of one attempt into lines."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        redaction: Redaction | None = None,
    ) -> None:
        """Start with a full allowance; *clock* counts seconds, *redaction* knows the secrets."""
        self._clock = clock
        self._redaction = redaction or Redaction()
        self._kind = Piece.OUTPUT
        self._begun = ""
        self._hidden = 0
        self._is_mid_line = False
        self._allowance = float(BURST_BYTES)
        self._refilled = clock()
        self.last = ""
        """The newest line that is not blank, perhaps still unfinished."""
        self._begin()

    def _begin(self) -> None:
        """Begin a stretch of output that nothing was left out of."""
        self._sanitiser = Sanitiser()
        self._stream = self._redaction.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes, kind: Piece, *, has_room: bool = True) -> list[FeedLine]:
        """Return the lines that *data* completes; none where there is no room for more."""
        lines = [] if kind is self._kind else self._cut()
        self._kind = kind
        data = self._after_gap(data)
        if not data:
            return lines
        if not (has_room and self._is_allowed(len(data))):
            self._leave_out(data)
            return lines
        if self._hidden:
            lines += self._told()
        return lines + self._split(data)

    def finish(self) -> list[FeedLine]:
        """Return what is left; the next chunk begins another attempt."""
        return [*self._cut(), *self._told()]

    def _leave_out(self, data: bytes) -> None:
        if not self._hidden:
            # What is held back may be the beginning of a secret; its end won't be seen.
            self._begin()
        self._hidden += len(data)
        self._is_mid_line = not data.endswith(b"\n")

    def _after_gap(self, data: bytes) -> bytes:
        """Return *data* from where it can be shown; a line behind a gap may begin in a secret."""
        if not (self._hidden and self._is_mid_line):
            return data
        lost, newline, rest = data.partition(b"\n")
        self._leave_out(lost + newline)
        return rest

    def _is_allowed(self, count: int) -> bool:
        now = self._clock()
        earned = (now - self._refilled) * BYTES_PER_S
        self._allowance = min(self._allowance + earned, float(BURST_BYTES))
        self._refilled = now
        # Once over it, wait for a quarter: a message about each left-out line helps nobody.
        needed = max(count, BURST_BYTES // 4) if self._hidden else count
        if needed > self._allowance:
            return False
        self._allowance -= count
        return True

    def _split(self, data: bytes, *, is_end: bool = False) -> list[FeedLine]:
        text = self._sanitiser.finish() if is_end else self._sanitiser.feed(data)
        # Hidden behind the sanitiser, which may bring the halves of a secret together, and
        # once for all lines: line by line it takes longer than the agent takes to write them.
        settled = self._stream.feed(text.encode("utf-8", "replace"))
        if is_end:
            settled += self._stream.finish()
        *done, self._begun = (self._begun + self._decoder.decode(settled)).split("\n")
        while len(self._begun) > LINE_CHARS:
            done.append(self._begun[:LINE_CHARS])
            self._begun = self._begun[LINE_CHARS:]
        newest = next((t for t in (self._begun, *reversed(done)) if t.strip()), None)
        if newest is not None:
            self.last = newest.strip()[-LAST_CHARS:]
        return [FeedLine(self._kind, line) for line in done]

    def _cut(self) -> list[FeedLine]:
        """End the line that has begun: another kind of output follows, or none."""
        lines = self._split(b"", is_end=True)
        if self._begun:
            lines.append(FeedLine(self._kind, self._begun))
            self._begun = ""
        return lines

    def _told(self) -> list[FeedLine]:
        if not self._hidden:
            return []
        note = f"[{file_size(self._hidden)} of output are not shown; the step log has them]"
        self._hidden = 0
        return [*self._cut(), FeedLine(Piece.NOTICE, note)]
