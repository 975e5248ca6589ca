"""The modes in which labels are read: each kind of bracket, quote and line has its own rules."""

from __future__ import annotations

from sequencer.resolution.flowcharts.cursor import Cursor
from sequencer.resolution.flowcharts.patterns import (
    BLANK,
    BLANKS,
    EDGE_END,
    EDGE_TEXT,
    ELLIPSE,
    IN_MARKDOWN,
    IN_SHAPE_DATA,
    IN_STRING,
    LABEL,
    LABEL_BRACKET,
    NEW_LINE,
    SLANTED,
    TILDES,
)


class LabelModes(Cursor):
    """Labels of nodes and lines, and what stands in ``@{ … }``."""

    def _label(self) -> bool:
        """Between brackets, and between the pipes of an edge's label."""
        source, pos = self._source, self._pos
        if pos >= len(source):
            return False
        if source[pos] == "~" or source[pos] in BLANK:
            tildes = TILDES.match(source, pos)
            if tildes:
                return self._take("LINK", tildes.end())
        if match := LABEL.match(source, pos):
            return self._take("TEXT", match.end())
        match = LABEL_BRACKET.match(source, pos)
        if match is None or match[0][0] in "([{":
            return self._anywhere()
        self._pop()
        return self._take(match[0], match.end())

    def _string(self) -> bool:
        source, pos = self._source, self._pos
        if source.startswith('"', pos) and not source.startswith('"`', pos):
            self._pop()
            self._pos = pos + 1
            return False
        return self._chunk(IN_STRING, "STR")

    def _markdown(self) -> bool:
        if self._source.startswith('`"', self._pos):
            self._pop()
            self._pos += 2
            return False
        return self._chunk(IN_MARKDOWN, "MD_STR")

    def _normal(self) -> bool:
        return self._edge_text("normal")

    def _thick(self) -> bool:
        return self._edge_text("thick")

    def _dotted(self) -> bool:
        return self._edge_text("dotted")

    def _edge_text(self, stroke: str) -> bool:
        """Between the two halves of an operator: ``-- text -->``."""
        source, pos = self._source, self._pos
        if match := EDGE_END[stroke].match(source, pos):
            self._pop()
            return self._take("LINK", match.end())
        run = EDGE_TEXT[stroke].match(source, pos)
        if run is None:
            return pos < self._length and self._anywhere()
        end = run.end()
        start = end
        if stroke == "dotted" and source[start - 1] == "-":
            start -= 1
        if start > pos and source[start - 1] in "xo<":
            start -= 1
        while start > pos and source[start - 1] in BLANK:
            start -= 1
        # The blanks and the head in front of the second half belong to it.
        is_end = start > pos and EDGE_END[stroke].match(source, start) is not None
        return self._take("EDGE_TEXT", start if is_end else end)

    def _ellipse(self) -> bool:
        source, pos = self._source, self._pos
        if match := TILDES.match(source, pos) if source[pos : pos + 1] == "~" else None:
            return self._take("LINK", match.end())
        if match := BLANKS.match(source, pos):
            tildes = TILDES.match(source, match.end())
            return self._take("LINK" if tildes else "TEXT", (tildes or match).end())
        if source[pos : pos + 1] in ("-", "/", ")") and source[pos + 1 : pos + 2] == ")":
            self._pop()
            return self._take("-)", pos + 2)
        if match := ELLIPSE.match(source, pos):
            return self._take("TEXT", match.end())
        if source[pos : pos + 1] in ("-", "/", "~"):
            return self._take("TEXT", pos + 1)
        return self._anywhere()

    def _slanted(self) -> bool:  # noqa: PLR0911 - the rules of this mode in their order
        """In a label that a slash or a backslash opens or closes."""
        source, pos = self._source, self._pos
        if source.startswith('"', pos):
            return self._anywhere()
        if match := TILDES.match(source, pos):
            return self._take("LINK", match.end())
        pair = source[pos : pos + 2]
        if pair in ("(-", "([", "[[", "[(") or source.startswith("(((", pos):
            return self._anywhere()
        if len(pair) == 2 and pair[1] == "]" and pair[0] in "\\(?=])/":  # noqa: PLR2004
            self._pop()
            return self._take("/]" if pair[0] == "/" else "\\]", pos + 2)
        if match := SLANTED.match(source, pos):
            return self._take("TEXT", match.end())
        if pair[:1] in ("/", "\\"):
            return self._take("TEXT", pos + 1)
        return self._anywhere()

    def _shape_data(self) -> bool:
        source, pos = self._source, self._pos
        if source.startswith('"', pos):
            self._push("shape_string")
            return self._take("SHAPE_DATA", pos + 1)
        if source.startswith("}", pos):
            self._pop()
            self._pos = pos + 1
            return False
        return self._chunk(IN_SHAPE_DATA, "SHAPE_DATA")

    def _shape_string(self) -> bool:
        if self._source.startswith('"', self._pos):
            self._pop()
            return self._take("SHAPE_DATA", self._pos + 1)
        if not self._chunk(IN_STRING, "SHAPE_DATA"):
            return False
        # A label over several lines is one label with breaks.
        self.text = NEW_LINE.sub("<br/>", self.text)
        return True
