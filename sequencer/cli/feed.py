"""An agent's output as lines to show: safe, bounded, and without flooding anybody.

Output beyond `BYTES_PER_S` is counted and left out, because a terminal that is slower
than the agent would hold the agent up; the step log has all of it. Pure but for the clock
that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from sequencer.cli.sanitise import Sanitiser
from sequencer.cli.wording import size
from sequencer.executors.protocol import Kind

BYTES_PER_S = 512 * 1024
BURST_BYTES = 1024 * 1024
LINE_CHARS = 4096
"""A longer line is shown in pieces."""
LAST_CHARS = 200


class Line(NamedTuple):
    """One line to show, without its end."""

    kind: Kind
    text: str


def _as_it_is(text: str) -> str:
    return text


class Feed:
    """Turns the chunks of one attempt into lines."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        hide: Callable[[str], str] = _as_it_is,
    ) -> None:
        """Start with a full allowance; *clock* counts seconds, *hide* takes secrets out."""
        self._clock = clock
        self._hide = hide
        self._sanitiser = Sanitiser()
        self._kind = Kind.OUTPUT
        self._begun = ""
        self._hidden = 0
        self._allowance = float(BURST_BYTES)
        self._refilled = clock()
        self.last = ""
        """The newest line that is not blank, perhaps still unfinished."""

    def take(self, data: bytes, kind: Kind, *, has_room: bool = True) -> list[Line]:
        """Return the lines that *data* completes; none where there is no room for more."""
        lines = [] if kind is self._kind else self._cut()
        self._kind = kind
        if not (has_room and self._is_allowed(len(data))):
            self._hidden += len(data)
            return lines
        if self._hidden:
            lines += self._told()
        return lines + self._split(self._sanitiser.feed(data))

    def finish(self) -> list[Line]:
        """Return what is left; the next chunk begins another attempt."""
        return [*self._cut(), *self._told()]

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

    def _split(self, text: str) -> list[Line]:
        *done, self._begun = (self._begun + text).split("\n")
        while len(self._begun) > LINE_CHARS:
            done.append(self._begun[:LINE_CHARS])
            self._begun = self._begun[LINE_CHARS:]
        newest = next((t for t in (self._begun, *reversed(done)) if t.strip()), None)
        if newest is not None:
            self.last = self._hide(newest.strip())[-LAST_CHARS:]
        return [Line(self._kind, self._hide(line)) for line in done]

    def _cut(self) -> list[Line]:
        """End the line that has begun: another kind of output follows, or none."""
        lines = self._split(self._sanitiser.finish())
        if self._begun:
            lines.append(Line(self._kind, self._hide(self._begun)))
            self._begun = ""
        return lines

    def _told(self) -> list[Line]:
        if not self._hidden:
            return []
        note = f"[{size(self._hidden)} of output are not shown; the step log has them]"
        self._hidden = 0
        return [Line(Kind.NOTICE, note)]
