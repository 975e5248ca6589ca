"""The text of a chart as it is scanned, with the place in the file of each character.

Mermaid takes front matter, directives and comments out before it reads a chart, and what
is left closes up: a label over a comment is one label. The same is done here, and each
cut is remembered, so that line and column stay those of the file.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from sequencer.resolution.flowcharts.chart import ChartError, Position


class Source:
    """A text from which pieces are cut, and that still knows where everything stood."""

    __slots__ = ("_breaks", "_cuts", "_first_line", "_line", "_original", "file", "text")

    def __init__(self, text: str, file: Path | None, first_line: int) -> None:
        self.text = text
        self.file = file
        self._original = text
        self._first_line = first_line
        self._cuts: list[tuple[list[int], list[int]]] = []
        self._breaks: list[int] = []
        self._line = (0, 0, 0)
        """Where the line that was asked for last begins, its number, and where it ends."""

    def cut(self, spans: list[tuple[int, int]]) -> None:
        """Take the *spans* (start and end, in order, apart) out of the text."""
        if not spans:
            return
        kept: list[str] = []
        starts: list[int] = []
        shifts: list[int] = []
        done = removed = 0
        for start, end in spans:
            kept.append(self.text[done:start])
            removed += end - start
            starts.append(end - removed)
            shifts.append(removed)
            done = end
        kept.append(self.text[done:])
        self.text = "".join(kept)
        self._cuts.append((starts, shifts))

    def position(self, offset: int) -> Position:
        """Return line and column, in the file, of the character at *offset*."""
        for starts, shifts in reversed(self._cuts):
            index = bisect_right(starts, offset)
            if index:
                offset += shifts[index - 1]
        first, line, end = self._line
        if not first <= offset < end:
            offset = min(offset, len(self._original))
            if not self._breaks:
                self._breaks = _line_starts(self._original)
            line = bisect_right(self._breaks, offset)
            first = self._breaks[line - 1]
            end = self._breaks[line] if line < len(self._breaks) else len(self._original) + 1
            self._line = (first, line, end)
        return self._first_line + line - 1, offset - first + 1

    def refusal(self, message: str, offset: int, hint: str | None = None) -> ChartError:
        """Return the error that says *message* about the place *offset*."""
        line, column = self.position(offset)
        where = f"line {line}, column {column}"
        if self.file is not None:
            where = f"{self.file}:{line}:{column}"
        return ChartError(message, where=where, hint=hint)


def _line_starts(text: str) -> list[int]:
    starts = [0]
    found = text.find("\n")
    while found >= 0:
        starts.append(found + 1)
        found = text.find("\n", found + 1)
    return starts
