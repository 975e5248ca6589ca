"""Splits a chart's text into tokens, with the same modes as Mermaid.

The meaning of a character depends on its place: ``x`` starts an id, ends an arrow, or is part of
a label. So each mode has its own method, and brackets, quotes and line operators switch between
them. The rules of a mode are tried in a fixed order and the first match wins, not the longest;
for that reason several unusual charts are valid, and others are not.

Every character is read a bounded number of times: runs of blanks and of id characters are
measured once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from sequencer.workflows.mermaid.text import LETTERS, SPACES, S

# Outside of labels these are tried first; the name of a group is the kind of the token.
WORDS = re.compile(
    rf"""accTitle{S}*:{S}*(?P<ACC_TITLE>)|accDescr{S}*:{S}*(?P<ACC_DESCR>)
    |accDescr{S}*\{{{S}*(?P<ACC_BLOCK>)|@\{{(?P<SHAPE_DATA>)|call{S}+(?P<CALL>)
    |"`(?P<MARKDOWN>)|"(?P<QUOTE>)|style\b(?P<STYLE>)|default\b(?P<DEFAULT>)
    |linkStyle\b(?P<LINKSTYLE>)|interpolate\b(?P<INTERPOLATE>)|classDef\b(?P<CLASSDEF>)
    |class\b(?P<CLASS>)|href{S}(?P<HREF>)|click{S}+(?P<CLICK>)
    |(?:flowchart-elk|swimlane-beta|graph|flowchart)\b(?P<GRAPH>)
    |subgraph\b(?P<SUBGRAPH>)|end\b{S}*(?P<END>)|_(?:self|blank|parent|top)\b(?P<LINK_TARGET>)""",
    re.ASCII | re.VERBOSE,
)
BLANK = frozenset(SPACES)
WORD_STARTS = frozenset('aAcC@"sdliIhfgSe_')
WORD_MODES = {
    "ACC_TITLE": "title", "ACC_DESCR": "title", "ACC_BLOCK": "description",
    "SHAPE_DATA": "shape_data", "CALL": "callback", "MARKDOWN": "markdown",
    "QUOTE": "string", "CLICK": "click",
}  # fmt: skip
DIRECTION = re.compile(rf"direction{S}+(TB|BT|RL|LR|TD)")
LINE_END = re.compile(r"[\n\u2028\u2029]")
RUN = re.compile(rf'[^"{SPACES}]+')
BLANKS = re.compile(rf"{S}+")
LINE = re.compile(
    rf"""[xo<]?--+[-xo>]{S}*(?P<LINK>)|[xo<]?--{S}*(?P<NORMAL>)
    |[xo<]?==+[=xo>]{S}*(?P<LINK2>)|[xo<]?=={S}*(?P<THICK>)
    |[xo<]?-?\.+-[xo>]?{S}*(?P<LINK3>)|[xo<]?-\.{S}*(?P<DOTTED>)|~~~+{S}*(?P<LINK4>)""",
    re.VERBOSE,
)
LINE_STARTS = frozenset("xo<-=.~")
NODE = re.compile(r"""(?:[A-Za-z0-9!"#$%&'*+.`?\\_/]|-(?=[^>.-]))+""")
NODE_STARTS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!$%'+.`?\\_/-")
DOWN = re.compile(r"v(?!\w)", re.ASCII)
NUMBER = re.compile(r"[0-9]+")
LETTER = re.compile(f"[{LETTERS}]")
BRACKET = re.compile(r"\(\(\(|\(-|\(\[|\[\[|\[\(|\[/|\[\\|\||\(|\[|\{")
LABEL_BRACKET = re.compile(r"\(-|\]\)|\(\[|\]\]|\[\[|\)\]|\[\(|\)\)\)|\(\(\(|\[/|\[\\|[|()\[\]{}]")
LABEL = re.compile(r'[^\[\](){}|"]+')
TILDES = re.compile(rf"{S}*~~~+{S}*")
DIRECTIONS = re.compile(rf"{S}*(?:LR|RL|TB|BT|TD|BR|v)\b|{S}*[<>^]", re.ASCII)
NO_DIRECTION = re.compile(rf"{S}*\n")
SINGLE = {
    ":": "COLON", "&": "AMP", ";": "SEMI", ",": "COMMA", "*": "MULT", "#": "BRKT",
    "<": "TAGSTART", ">": "TAGEND", "^": "UP", "-": "MINUS",
}  # fmt: skip
EDGE_TEXT = {
    "normal": re.compile(r'(?:[^-"]|-(?!-))+'),
    "thick": re.compile(r'[^="]+'),
    "dotted": re.compile(r'[^."]+'),
}
EDGE_END = {
    "normal": re.compile(rf"{S}*[xo<]?--+[-xo>]{S}*"),
    "thick": re.compile(rf"{S}*[xo<]?==+[=xo>]{S}*"),
    "dotted": re.compile(rf"{S}*[xo<]?-?\.+-[xo>]?{S}*"),
}
IN_STRING = re.compile(r'[^"]+')
IN_MARKDOWN = re.compile(r'[^`"]+')
IN_SHAPE_DATA = re.compile(r'[^}^"]+')
ELLIPSE = re.compile(rf'[^()\[\]{{}}"~/{SPACES}-]+')
SLANTED = re.compile(r"[^\\\[\](){}/]+")
NOT_BLANK = re.compile(f"[^{SPACES}]+")
NO_ARGUMENTS = re.compile(rf"\({S}*\)")
NEW_LINE = re.compile(rf"\n{S}*")

ID_KINDS = frozenset(
    ["NODE", "NUM", "DOWN", "MINUS", "DEFAULT", "COMMA", "COLON", "AMP", "BRKT", "MULT", "LETTER"]
)
"""Kinds of tokens that can be part of an id."""
SEPARATORS = frozenset({"NEWLINE", "SEMI", "EOF"})
"""Kinds of tokens that end a statement."""


class Scanner:
    """The current token, as ``kind``, ``text`` and ``start``; `advance` goes to the next one.

    The last token is ``STOP``, or ``BAD`` if no rule matches. A mode is a method that takes the
    token at ``_pos`` and returns True, or skips text that is not a token and returns False.
    """

    def __init__(self, source: str) -> None:
        self.kind = self.text = self.previous = ""
        self.start = 0
        self._source, self._length, self._pos = source, len(source), 0
        self._at_end = self._has_header = False
        self._mode: Callable[[], bool] = self._scan_base
        self._outer: list[Callable[[], bool]] = []
        self._stroke = ""
        self._blank_end, self._line_end = 0, -1
        self._run = (0, -1)
        self._directions = [
            (match.start(), match.end(), match[1])
            for match in (DIRECTION.finditer(source) if "direction" in source else ())
        ][::-1]
        self._has_link_ids = "@" in source and re.search(r'@[^{"]', source) is not None
        self._is_plain = not (self._directions or self._has_link_ids)
        """No rule needs to look further ahead than the next one or two characters."""
        self.advance()

    @property
    def start_of_text(self) -> int:
        """The start of the token, without blanks that belong to it."""
        text = self.text.lstrip(SPACES)
        return self.start + len(self.text) - len(text) if text else self.start

    def advance(self) -> None:
        """Go to the next token."""
        self.previous = self.kind
        while self._pos < self._length:
            if self._mode():
                return
        is_first = not self._at_end
        self._at_end = True
        # Some modes have one empty token at the end, which their statements need.
        if not (is_first and self._mode()):
            self.kind, self.text, self.start = "STOP", "", self._pos

    def skip_spaces(self) -> bool:
        """Skip blanks, and return whether there were any."""
        has_spaces = self.kind == "SPACE"
        while self.kind == "SPACE":
            self.advance()
        return has_spaces

    def consume(self, kinds: Collection[str] = ()) -> str:
        """Return the text of this token and of following tokens of *kinds*, and skip them."""
        text = self.text
        self.advance()
        while self.kind in kinds:
            text += self.text
            self.advance()
        return text

    def consume_id(self) -> str:
        """Return the id that starts here, and skip it."""
        return self.consume(ID_KINDS)

    def _set_token(self, kind: str, end: int) -> bool:
        self.kind = kind
        self.start = self._pos
        self.text = self._source[self.start : end]
        self._pos = end
        return True

    def _set_token_up_to(self, mark: str, kind: str) -> bool:
        end = self._source.find(mark, self._pos)
        return self._set_token(kind, end if end >= 0 else self._length)

    def _push(self, mode: str) -> None:
        self._outer.append(self._mode)
        self._mode = getattr(self, f"_{mode}")

    def _pop(self) -> None:
        if self._outer:
            self._mode = self._outer.pop()

    def _leave(self, length: int) -> bool:
        """End this mode, and skip the *length* characters that end it."""
        self._pop()
        self._pos += length
        return False

    def _scan_base(self) -> bool:  # noqa: C901, PLR0911 - the rules of this mode in their order
        """Outside of labels: words, ids, operators, opening brackets."""
        source, pos = self._source, self._pos
        if pos >= self._length:
            return self._set_token("EOF", pos)
        char = source[pos]
        if self._is_plain and char in BLANK:
            return self._scan_blank()
        if char in WORD_STARTS and (match := WORDS.match(source, pos)):
            return self._scan_word(match)
        if not self._is_plain:
            if self._directions and (statement := self._direction_statement(pos)):
                return self._set_token(f"DIRECTION {statement[1]}", statement[0])
            if self._has_link_ids and (id_end := self._find_link_id_end(pos)) > pos:
                return self._set_token("LINK_ID", id_end + 1)
            if char in BLANK:
                return self._scan_blank()
        if char in LINE_STARTS and (match := LINE.match(source, pos)):
            return self._scan_line(match)
        if char in NODE_STARTS and (match := NODE.match(source, pos)):
            end = match.end()
            if char == "v" and DOWN.match(source, pos):
                return self._set_token("DOWN", pos + 1)
            if char == "\\" and source.startswith("|", pos + 1):
                return self._set_token("SEP", pos + 2)
            return self._set_token("NODE", end)
        return self._scan_mark(char)

    def _scan_mark(self, char: str) -> bool:
        source, pos = self._source, self._pos
        if match := NUMBER.match(source, pos):
            return self._set_token("NUM", match.end())
        if char in SINGLE:
            if char == ":" and source.startswith(":::", pos):
                return self._set_token("CLASS_MARK", pos + 3)
            if char == ">":
                self._push("label")
            return self._set_token(SINGLE[char], pos + 1)
        if source.startswith("[|", pos):
            return self._set_token("[|", pos + 2)
        if LETTER.match(source, pos):
            return self._set_token("LETTER", pos + 1)
        return self._scan_common()

    def _scan_word(self, match: re.Match[str]) -> bool:
        kind = match.lastgroup or ""
        if kind == "GRAPH" and not self._has_header:
            self._has_header = True
            self._push("direction")
        elif kind in WORD_MODES:
            self._push(WORD_MODES[kind])
        self._set_token(kind, match.end())
        if kind == "SHAPE_DATA":
            self.text = ""
        return kind not in {"ACC_BLOCK", "CALL", "MARKDOWN", "QUOTE", "CLICK"}

    def _direction_statement(self, pos: int) -> tuple[int, str] | None:
        """Return end and direction of the direction statement in the rest of this line."""
        while self._directions and self._directions[-1][0] < pos:
            self._directions.pop()
        if not self._directions:
            return None
        if pos > self._line_end:
            match = LINE_END.search(self._source, pos)
            self._line_end = match.start() if match else len(self._source)
        in_line = []
        for candidate in reversed(self._directions):
            if candidate[0] > self._line_end:
                break
            in_line.append(candidate)
        for direction in ("TB", "BT", "RL", "LR", "TD"):
            ends = [end for _, end, name in in_line if name == direction]
            if ends:
                end = self._source.find("\n", ends[-1])
                return (end if end >= 0 else self._length), direction
        return None

    def _find_link_id_end(self, pos: int) -> int:
        """Return the last '@' of this run that can end an edge's id, or -1."""
        if pos >= self._run[0]:
            run = RUN.match(self._source, pos)
            if run is None:
                return -1
            end = run.end()
            id_end = self._source.rfind("@", pos, end)
            while id_end >= 0 and self._source[id_end + 1 : id_end + 2] in ("{", '"', ""):
                id_end = self._source.rfind("@", pos, id_end)
            self._run = (end, id_end)
        return self._run[1]

    def _scan_blank(self) -> bool:
        source, pos = self._source, self._pos
        if pos >= self._blank_end:
            end = pos + 1
            if source[end : end + 1] in BLANK and (blanks := BLANKS.match(source, end)):
                end = blanks.end()
            self._blank_end = end
            if source[end : end + 1] in LINE_STARTS and (match := LINE.match(source, end)):
                return self._scan_line(match)
        if source[pos] != "\n":
            return self._set_token("SPACE", pos + 1)
        end = self._blank_end
        if not self._is_plain:
            # The blanks in front of a word decide whether a direction later in the line counts.
            end = pos + 1
            while source[end : end + 1] == "\n":
                end += 1
        return self._set_token("NEWLINE", end)

    def _scan_line(self, match: re.Match[str]) -> bool:
        kind = match.lastgroup or ""
        if kind.startswith("LINK"):
            return self._set_token("LINK", match.end())
        self._stroke = kind.lower()
        self._push("edge_text")
        return self._set_token("START_LINK", match.end())

    def _direction(self) -> bool:
        """After the first word of the header."""
        for kind, pattern in (("NODIR", NO_DIRECTION), ("DIR", DIRECTIONS)):
            if match := pattern.match(self._source, self._pos):
                self._pop()
                return self._set_token(kind, match.end())
        return self._scan_common()

    def _title(self) -> bool:
        self._pop()
        return self._set_token_up_to("\n", "ACC_VALUE")

    def _description(self) -> bool:
        return self._scan_up_to("}", "ACC_BLOCK_VALUE")

    def _arguments(self) -> bool:
        return self._scan_up_to(")", "ARGUMENTS")

    def _scan_up_to(self, closing_mark: str, kind: str) -> bool:
        is_end = self._source.startswith(closing_mark, self._pos)
        return self._leave(1) if is_end else self._set_token_up_to(closing_mark, kind)

    def _click(self) -> bool:
        source, pos = self._source, self._pos
        if source.startswith('"', pos):
            return self._scan_common()
        if source[pos : pos + 1] and source[pos] in BLANK:
            return self._leave(1)
        word = NOT_BLANK.match(source, pos)
        return self._set_token("CLICK", word.end() if word else pos)

    def _callback(self) -> bool:
        if not self._source.startswith("(", self._pos):
            return self._set_token_up_to("(", "CALLBACK")
        match = NO_ARGUMENTS.match(self._source, self._pos)
        self._leave(len(match[0]) if match else 1)
        if not match:
            self._push("arguments")
        return False

    def _scan_common(self) -> bool:
        """Tokens with the same meaning in every mode: quotes and opening brackets."""
        source, pos = self._source, self._pos
        if source.startswith('"', pos):
            is_markdown = source.startswith('"`', pos)
            self._push("markdown" if is_markdown else "string")
            self._pos = pos + 1 + is_markdown
            return False
        if match := BRACKET.match(source, pos):
            self._push({"(-": "ellipse", "[/": "slanted", "[\\": "slanted"}.get(match[0], "label"))
            return self._set_token(match[0], match.end())
        self.kind, self.start, self.text = "BAD", pos, source[pos : pos + 1]
        return True

    def _label(self) -> bool:
        """Between brackets, and between the pipes of an edge's label."""
        source, pos = self._source, self._pos
        if pos >= self._length:
            return False
        if (source[pos] == "~" or source[pos] in BLANK) and (tildes := TILDES.match(source, pos)):
            return self._set_token("LINK", tildes.end())
        if match := LABEL.match(source, pos):
            return self._set_token("TEXT", match.end())
        match = LABEL_BRACKET.match(source, pos)
        if match is None or match[0][0] in "([{":
            return self._scan_common()
        self._pop()
        return self._set_token(match[0], match.end())

    def _scan_enclosed(
        self, closing_mark: str, content_pattern: re.Pattern[str], kind: str
    ) -> bool:
        """In quotes or ``@{ … }``: text that *content_pattern* matches, up to *closing_mark*."""
        if self._source.startswith(closing_mark, self._pos):
            return self._leave(len(closing_mark))
        if self._pos >= self._length:
            return False
        match = content_pattern.match(self._source, self._pos)
        return self._set_token(kind, match.end()) if match else self._scan_common()

    def _string(self) -> bool:
        if self._source.startswith('"`', self._pos):
            return self._scan_common()
        return self._scan_enclosed('"', IN_STRING, "STR")

    def _markdown(self) -> bool:
        return self._scan_enclosed('`"', IN_MARKDOWN, "MD_STR")

    def _shape_data(self) -> bool:
        if self._source.startswith('"', self._pos):
            self._push("shape_string")
            return self._set_token("SHAPE_DATA", self._pos + 1)
        return self._scan_enclosed("}", IN_SHAPE_DATA, "SHAPE_DATA")

    def _shape_string(self) -> bool:
        if self._source.startswith('"', self._pos):
            self._pop()
            return self._set_token("SHAPE_DATA", self._pos + 1)
        if self._pos < self._length:
            self._set_token_up_to('"', "SHAPE_DATA")
            # A label on several lines is one label with breaks.
            self.text = NEW_LINE.sub("<br/>", self.text)
            return True
        return False

    def _edge_text(self) -> bool:
        """Between the two halves of an operator: ``-- text -->``."""
        source, pos, stroke = self._source, self._pos, self._stroke
        if match := EDGE_END[stroke].match(source, pos):
            self._pop()
            return self._set_token("LINK", match.end())
        run = EDGE_TEXT[stroke].match(source, pos)
        if run is None:
            return pos < self._length and self._scan_common()
        end = run.end()
        start = end
        if stroke == "dotted" and source[start - 1] == "-":
            start -= 1
        if start > pos and source[start - 1] in "xo<":
            start -= 1
        while start > pos and source[start - 1] in BLANK:
            start -= 1
        # Blanks and the arrowhead in front of the second half belong to it.
        is_end = start > pos and EDGE_END[stroke].match(source, start) is not None
        return self._set_token("EDGE_TEXT", start if is_end else end)

    def _ellipse(self) -> bool:
        source, pos = self._source, self._pos
        if match := TILDES.match(source, pos) if source[pos : pos + 1] == "~" else None:
            return self._set_token("LINK", match.end())
        if match := BLANKS.match(source, pos):
            tildes = TILDES.match(source, match.end())
            return self._set_token("LINK" if tildes else "TEXT", (tildes or match).end())
        if source[pos : pos + 1] in ("-", "/", ")") and source[pos + 1 : pos + 2] == ")":
            self._pop()
            return self._set_token("-)", pos + 2)
        if match := ELLIPSE.match(source, pos):
            return self._set_token("TEXT", match.end())
        if source[pos : pos + 1] in ("-", "/", "~"):
            return self._set_token("TEXT", pos + 1)
        return self._scan_common()

    def _slanted(self) -> bool:  # noqa: PLR0911 - the rules of this mode in their order
        """In a label that a slash or a backslash opens or closes."""
        source, pos = self._source, self._pos
        if source.startswith('"', pos):
            return self._scan_common()
        if match := TILDES.match(source, pos):
            return self._set_token("LINK", match.end())
        pair = source[pos : pos + 2]
        if pair in ("(-", "([", "[[", "[(") or source.startswith("(((", pos):
            return self._scan_common()
        if len(pair) == 2 and pair[1] == "]" and pair[0] in "\\(?=])/":  # noqa: PLR2004
            self._pop()
            return self._set_token("/]" if pair[0] == "/" else "\\]", pos + 2)
        if match := SLANTED.match(source, pos):
            return self._set_token("TEXT", match.end())
        if pair[:1] in ("/", "\\"):
            return self._set_token("TEXT", pos + 1)
        return self._scan_common()
