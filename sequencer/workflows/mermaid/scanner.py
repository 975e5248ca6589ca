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
from collections.abc import Callable

from sequencer.workflows.mermaid.chart import Link, read_link
from sequencer.workflows.mermaid.text import LETTERS, SPACES, S

# What is tried before anything else outside of labels; the name of a group is the kind.
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

_PLAIN = r'[A-Za-z0-9][^\[\](){}|"]*'
QUICK_NODE = re.compile(
    rf"""([A-Za-z_][A-Za-z0-9_]*)
    (?:\[(?:"([^"`]+)"|({_PLAIN}))\]
    |\((?:"([^"`]+)"|({_PLAIN}))\)
    |\(\((?:"([^"`]+)"|({_PLAIN}))\)\)
    |\{{(?:"([^"`]+)"|({_PLAIN}))\}}
    |\{{\{{(?:"([^"`]+)"|({_PLAIN}))\}}\}})?(?=[ \n;])""",
    re.VERBOSE,
)
"""A node in the forms that leave no doubt: the id, then two groups for each of these shapes."""
QUICK_SHAPES = ("square", "round", "circle", "diamond", "hexagon")
QUICK_LINK = re.compile(
    rf"""[ ](-->|---|-\.->|==>)
    (?:[ ](?=[A-Za-z_])|[ ]?\|(?:"([^"`]+)"|({_PLAIN}))\|[ ]?(?=[A-Za-z_]))""",
    re.VERBOSE,
)
"""A line in the forms that leave no doubt."""
NO_QUICK_NODE = frozenset([
    "style", "linkStyle", "interpolate", "classDef", "class", "graph", "flowchart", "subgraph",
    "end", "_self", "_blank", "_parent", "_top", "call", "click", "href", "accTitle", "accDescr",
])  # fmt: skip
"""Words that are no ids, or not always."""


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


ID_KINDS = frozenset(
    ["NODE", "NUM", "DOWN", "MINUS", "DEFAULT", "COMMA", "COLON", "AMP", "BRKT", "MULT", "LETTER"]
)
"""What ids consist of."""

SEPARATORS = frozenset({"NEWLINE", "SEMI", "EOF"})
"""What ends a statement."""


Step = tuple[Link | None, str | None, str, str | None, str | None, int, int]
"""The line from the step before and its label; a node, its label and shape; where both stand."""

_LINKS = {operator: read_link(operator) for operator in ("-->", "---", "-.->", "==>")}


class Stream(Tokens):
    """Tokens that can be skipped and joined."""

    @property
    def start_of_text(self) -> int:
        """Where the token stands, without the blanks that belong to it."""
        text = self.text.lstrip(SPACES)
        return self.start + len(self.text) - len(text) if text else self.start

    def skip_spaces(self) -> bool:
        """Pass the blanks that stand here, and say whether there were any."""
        found = self.kind == "SPACE"
        while self.kind == "SPACE":
            self.advance()
        return found

    def take_id(self) -> str:
        """Return the id that begins here, and pass it."""
        name = self.text
        self.advance()
        while self.kind in ID_KINDS:
            name += self.text
            self.advance()
        return name

    def take_plain_steps(self) -> list[Step]:
        """Return the nodes and lines that follow in plain forms, and pass them.

        Nothing is passed, and the list is empty, unless the first node is plain. What the
        last node is followed by, if anything, has not been read.
        """
        steps: list[Step] = []
        if not self._is_plain:
            return steps
        source, pos = self._source, self.start
        link = edge_label = None
        line = end = pos
        while node := QUICK_NODE.match(source, pos):
            name, index = node[1], node.lastindex or 1
            if name in NO_QUICK_NODE:
                break
            if index == 1:
                steps.append((link, edge_label, name, None, None, pos, line))
            else:
                shape = QUICK_SHAPES[index // 2 - 1]
                steps.append((link, edge_label, name, node[index], shape, pos, line))
            end = node.end()
            following = QUICK_LINK.match(source, end)
            if following is None:
                break
            operator, quoted, unquoted = following.groups()
            link, edge_label = _LINKS[operator], quoted or unquoted
            line, pos = end + 1, following.end()
        if steps:
            self._pos = end
            self.advance()
        return steps
