"""A chart's text as tokens, in the modes in which Mermaid reads it.

What a character means depends on where it stands: ``x`` begins an id, ends an arrow, or is
part of a label. So each mode has a method of its own, and brackets, quotes and line
operators switch between them. The rules of a mode are tried in a fixed order and the first
that fits is taken, not the longest; several odd charts are valid, or not, for that reason.

Every character is looked at a bounded number of times: runs of blanks and of id
characters are measured once and remembered.
"""

from __future__ import annotations

import re

from sequencer.resolution.flowcharts.labels import LabelModes
from sequencer.resolution.flowcharts.patterns import (
    BLANK,
    BLANKS,
    DIRECTION,
    DIRECTIONS,
    LETTER,
    LINE,
    LINE_END,
    LINE_STARTS,
    NO_ARGUMENTS,
    NO_DIRECTION,
    NODE,
    NODE_STARTS,
    NOT_BLANK,
    NUMBER,
    RUN,
    SINGLE,
    WORD_MODES,
    WORD_STARTS,
    WORDS,
)


class Tokens(LabelModes):
    """All tokens of a chart."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._mode = self._base
        self._has_header = False
        self._blank_end = 0
        self._line_end = -1
        self._run = (0, -1)
        self._directions = [
            (match.start(), match.end(), match[1])
            for match in (DIRECTION.finditer(source) if "direction" in source else ())
        ][::-1]
        self._has_link_ids = "@" in source and re.search(r'@[^{"]', source) is not None
        self._is_plain = not (self._directions or self._has_link_ids)
        """No rule applies that looks further than the next character or two."""
        self.advance()

    def _base(self) -> bool:  # noqa: C901, PLR0911 - the rules of this mode in their order
        """Outside of labels: words, ids, operators, opening brackets."""
        source, pos = self._source, self._pos
        if pos >= self._length:
            return self._take("EOF", pos)
        char = source[pos]
        if self._is_plain and char in BLANK:
            return self._blank()
        if char in WORD_STARTS and (match := WORDS.match(source, pos)):
            return self._word(match)
        if not self._is_plain:
            if self._directions and (found := self._direction_statement(pos)):
                return self._take(f"DIRECTION {found[1]}", found[0])
            if self._has_link_ids and (last := self._link_id(pos)) > pos:
                return self._take("LINK_ID", last + 1)
            if char in BLANK:
                return self._blank()
        if char in LINE_STARTS and (match := LINE.match(source, pos)):
            return self._line(match)
        if char in NODE_STARTS and (match := NODE.match(source, pos)):
            end = match.end()
            if char == "v" and (end == pos + 1 or not _is_word(source[pos + 1])):
                return self._take("DOWN", pos + 1)
            if char == "\\" and source.startswith("|", pos + 1):
                return self._take("SEP", pos + 2)
            return self._take("NODE", end)
        return self._mark(char)

    def _mark(self, char: str) -> bool:
        source, pos = self._source, self._pos
        if match := NUMBER.match(source, pos):
            return self._take("NUM", match.end())
        if char in SINGLE:
            if char == ":" and source.startswith(":::", pos):
                return self._take("CLASS_MARK", pos + 3)
            if char == ">":
                self._push("label")
            return self._take(SINGLE[char], pos + 1)
        if source.startswith("[|", pos):
            return self._take("[|", pos + 2)
        if LETTER.match(source, pos):
            return self._take("LETTER", pos + 1)
        return self._anywhere()

    def _word(self, match: re.Match[str]) -> bool:
        kind = match.lastgroup or ""
        if kind == "GRAPH" and not self._has_header:
            self._has_header = True
            self._push("direction")
        elif kind in WORD_MODES:
            self._push(WORD_MODES[kind])
        self._take(kind, match.end())
        if kind == "SHAPE_DATA":
            self.text = ""
        return kind not in {"ACC_BLOCK", "CALL", "MARKDOWN", "QUOTE", "CLICK"}

    def _direction_statement(self, pos: int) -> tuple[int, str] | None:
        """Return end and direction of the statement that takes the rest of this line."""
        while self._directions and self._directions[-1][0] < pos:
            self._directions.pop()
        if not self._directions:
            return None
        if pos > self._line_end:
            found = LINE_END.search(self._source, pos)
            self._line_end = found.start() if found else len(self._source)
        here = []
        for candidate in reversed(self._directions):
            if candidate[0] > self._line_end:
                break
            here.append(candidate)
        for wanted in ("TB", "BT", "RL", "LR", "TD"):
            ends = [end for _, end, name in here if name == wanted]
            if ends:
                end = self._source.find("\n", ends[-1])
                return (end if end >= 0 else len(self._source)), wanted
        return None

    def _link_id(self, pos: int) -> int:
        """Return where the last '@' of this run stands that can end an edge's id, or -1."""
        if pos >= self._run[0]:
            run = RUN.match(self._source, pos)
            if run is None:
                return -1
            end = run.end()
            last = self._source.rfind("@", pos, end)
            while last >= 0 and self._source[last + 1 : last + 2] in ("{", '"', ""):
                last = self._source.rfind("@", pos, last)
            self._run = (end, last)
        return self._run[1]

    def _blank(self) -> bool:
        source, pos = self._source, self._pos
        if pos >= self._blank_end:
            end = pos + 1
            if source[end : end + 1] in BLANK and (blanks := BLANKS.match(source, end)):
                end = blanks.end()
            self._blank_end = end
            if source[end : end + 1] in LINE_STARTS and (match := LINE.match(source, end)):
                return self._line(match)
        if source[pos] != "\n":
            return self._take("SPACE", pos + 1)
        end = self._blank_end
        if not self._is_plain:
            # The blanks before a word decide whether a direction later in the line counts.
            end = pos + 1
            while source[end : end + 1] == "\n":
                end += 1
        return self._take("NEWLINE", end)

    def _line(self, match: re.Match[str]) -> bool:
        kind = match.lastgroup or ""
        if kind.startswith("LINK"):
            return self._take("LINK", match.end())
        self._push(kind.lower())
        return self._take("START_LINK", match.end())

    def _direction(self) -> bool:
        """After the first word of the header."""
        for kind, pattern in (("NODIR", NO_DIRECTION), ("DIR", DIRECTIONS)):
            if match := pattern.match(self._source, self._pos):
                self._pop()
                return self._take(kind, match.end())
        return self._anywhere()

    def _title(self) -> bool:
        self._pop()
        end = self._source.find("\n", self._pos)
        return self._take("ACC_VALUE", end if end >= 0 else len(self._source))

    def _description(self) -> bool:
        if self._source.startswith("}", self._pos):
            self._pop()
            self._pos += 1
            return False
        end = self._source.find("}", self._pos)
        return self._take("ACC_BLOCK_VALUE", end if end >= 0 else len(self._source))

    def _click(self) -> bool:
        source, pos = self._source, self._pos
        if source.startswith('"', pos):
            return self._anywhere()
        if source[pos : pos + 1] and source[pos] in BLANK:
            self._pop()
            self._pos = pos + 1
            return False
        word = NOT_BLANK.match(source, pos)
        return self._take("CLICK", word.end() if word else pos)

    def _callback(self) -> bool:
        source, pos = self._source, self._pos
        if source.startswith("(", pos):
            self._pop()
            empty = NO_ARGUMENTS.match(source, pos)
            if empty is None:
                self._push("arguments")
            self._pos = empty.end() if empty else pos + 1
            return False
        end = source.find("(", pos)
        return self._take("CALLBACK", end if end >= 0 else len(source))

    def _arguments(self) -> bool:
        if self._source.startswith(")", self._pos):
            self._pop()
            self._pos += 1
            return False
        end = self._source.find(")", self._pos)
        return self._take("ARGUMENTS", end if end >= 0 else len(self._source))


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())
