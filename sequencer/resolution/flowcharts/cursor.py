"""Where the reading of a chart stands: the present token, and the mode for the next one."""

from __future__ import annotations

import re
from collections.abc import Callable

from sequencer.resolution.flowcharts.patterns import BRACKET


class Cursor:
    """The present token, as ``kind``, ``text`` and ``start``; `advance` goes to the next.

    The last one is ``STOP``, or ``BAD`` where no rule fits. A mode is a method that takes
    the token at ``_pos`` and returns True, or passes something that is no token.
    """

    def __init__(self, source: str) -> None:
        self.kind = self.text = self.previous = ""
        self.start = 0
        self._source = source
        self._pos = 0
        self._length = len(source)
        self._at_end = False
        self._outer: list[Callable[[], bool]] = []
        self._mode: Callable[[], bool] = self._bad

    def _mode_of(self, name: str) -> Callable[[], bool]:
        """Return the method that reads in the mode *name*."""
        mode: Callable[[], bool] = getattr(self, f"_{name}")
        return mode

    def advance(self) -> None:
        """Go to the next token."""
        self.previous = self.kind
        while self._pos < self._length:
            if self._mode():
                return
        is_first = not self._at_end
        self._at_end = True
        # Some modes have a token for nothing, once; the statements that use them need it.
        if not (is_first and self._mode()):
            self.kind, self.text, self.start = "STOP", "", self._pos

    def _take(self, kind: str, end: int) -> bool:
        self.kind = kind
        self.start = self._pos
        self.text = self._source[self.start : end]
        self._pos = end
        return True

    def _bad(self) -> bool:
        self.kind, self.start = "BAD", self._pos
        self.text = self._source[self._pos : self._pos + 1]
        return True

    def _push(self, mode: str) -> None:
        self._outer.append(self._mode)
        self._mode = self._mode_of(mode)

    def _pop(self) -> None:
        if self._outer:
            self._mode = self._outer.pop()

    def _anywhere(self) -> bool:
        """What means the same in every mode: quotes and opening brackets."""
        source, pos = self._source, self._pos
        if source.startswith('"', pos):
            is_markdown = source.startswith('"`', pos)
            self._push("markdown" if is_markdown else "string")
            self._pos = pos + 1 + is_markdown
            return False
        if match := BRACKET.match(source, pos):
            self._push({"(-": "ellipse", "[/": "slanted", "[\\": "slanted"}.get(match[0], "label"))
            return self._take(match[0], match.end())
        return self._bad()

    def _chunk(self, pattern: re.Pattern[str], kind: str) -> bool:
        """Take what *pattern* fits; where it does not, what means the same in every mode."""
        if self._pos >= self._length:
            return False
        match = pattern.match(self._source, self._pos)
        return self._take(kind, match.end()) if match else self._anywhere()
