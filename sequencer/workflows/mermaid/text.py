"""The text of a chart as it is scanned, with the place in the file of each character.

Mermaid takes front matter, directives and comments out before it reads a chart, and what
is left closes up: a label over a comment is one label. The same is done here, in the same
order, and each cut is remembered, so that line and column stay those of the file. Each step
takes time linear in the text, whatever the text is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import yaml

from sequencer.errors import ConfigurationError

Position = tuple[int, int]
"""Line and column, both from 1."""


class ChartError(ConfigurationError):
    """The text is no flowchart; ``where`` has file, line and column."""


class ChartText:
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
                self._breaks = [0, *(found.end() for found in re.finditer("\n", self._original))]
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


SPACES = " \t\n\v\f\r\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
SPACES += "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What counts as blank; Python's own idea of it differs in a few characters."""

S = f"[{SPACES}]"
"""The same as a character class."""

_RANGES = """
aa b5 ba c0-d6 d8-f6 f8-2c1 2c6-2d1 2e0-2e4 2ec 2ee 370-374 376-377 37a-37d 386 388-38a 38c
38e-3a1 3a3-3f5 3f7-481 48a-527 531-556 559 561-587 5d0-5ea 5f0-5f2 620-64a 66e-66f 671-6d3 6d5
6e5-6e6 6ee-6ef 6fa-6fc 6ff 710 712-72f 74d-7a5 7b1 7ca-7ea 7f4-7f5 7fa 800-815 81a 824 828
840-858 8a0 8a2-8ac 904-939 93d 950 958-961 971-977 979-97f 985-98c 98f-990 993-9a8 9aa-9b0 9b2
9b6-9b9 9bd 9ce 9dc-9dd 9df-9e1 9f0-9f1 a05-a0a a0f-a10 a13-a28 a2a-a30 a32-a33 a35-a36 a38-a39
a59-a5c a5e a72-a74 a85-a8d a8f-a91 a93-aa8 aaa-ab0 ab2-ab3 ab5-ab9 abd ad0 ae0-ae1 b05-b0c
b0f-b10 b13-b28 b2a-b30 b32-b33 b35-b39 b3d b5c-b5d b5f-b61 b71 b83 b85-b8a b8e-b90 b92-b95
b99-b9a b9c b9e-b9f ba3-ba4 ba8-baa bae-bb9 bd0 c05-c0c c0e-c10 c12-c28 c2a-c33 c35-c39 c3d
c58-c59 c60-c61 c85-c8c c8e-c90 c92-ca8 caa-cb3 cb5-cb9 cbd cde ce0-ce1 cf1-cf2 d05-d0c d0e-d10
d12-d3a d3d d4e d60-d61 d7a-d7f d85-d96 d9a-db1 db3-dbb dbd dc0-dc6 e01-e30 e32-e33 e40-e46
e81-e82 e84 e87-e88 e8a e8d e94-e97 e99-e9f ea1-ea3 ea5 ea7 eaa-eab ead-eb0 eb2-eb3 ebd ec0-ec4
ec6 edc-edf f00 f40-f47 f49-f6c f88-f8c 1000-102a 103f 1050-1055 105a-105d 1061 1065-1066
106e-1070 1075-1081 108e 10a0-10c5 10c7 10cd 10d0-10fa 10fc-1248 124a-124d 1250-1256 1258
125a-125d 1260-1288 128a-128d 1290-12b0 12b2-12b5 12b8-12be 12c0 12c2-12c5 12c8-12d6 12d8-1310
1312-1315 1318-135a 1380-138f 13a0-13f4 1401-166c 166f-167f 1681-169a 16a0-16ea 1700-170c
170e-1711 1720-1731 1740-1751 1760-176c 176e-1770 1780-17b3 17d7 17dc 1820-1877 1880-18a8 18aa
18b0-18f5 1900-191c 1950-196d 1970-1974 1980-19ab 19c1-19c7 1a00-1a16 1a20-1a54 1aa7 1b05-1b33
1b45-1b4b 1b83-1ba0 1bae-1baf 1bba-1be5 1c00-1c23 1c4d-1c4f 1c5a-1c7d 1ce9-1cec 1cee-1cf1
1cf5-1cf6 1d00-1dbf 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d
1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc
2071 207f 2090-209c 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2139
213c-213f 2145-2149 214e 2183-2184 2c00-2c2e 2c30-2c5e 2c60-2ce4 2ceb-2cee 2cf2-2cf3 2d00-2d25
2d27 2d2d 2d30-2d67 2d6f 2d80-2d96 2da0-2da6 2da8-2dae 2db0-2db6 2db8-2dbe 2dc0-2dc6 2dc8-2dce
2dd0-2dd6 2dd8-2dde 2e2f 3005-3006 3031-3035 303b-303c 3041-3096 309d-309f 30a1-30fa 30fc-30ff
3105-312d 3131-318e 31a0-31ba 31f0-31ff 3400-4db5 4e00-9fcc a000-a48c a4d0-a4fd a500-a60c
a610-a61f a62a-a62b a640-a66e a67f-a697 a6a0-a6e5 a717-a71f a722-a788 a78b-a78e a790-a793
a7a0-a7aa a7f8-a801 a803-a805 a807-a80a a80c-a822 a840-a873 a882-a8b3 a8f2-a8f7 a8fb a90a-a925
a930-a946 a960-a97c a984-a9b2 a9cf aa00-aa28 aa40-aa42 aa44-aa4b aa60-aa76 aa7a aa80-aaaf aab1
aab5-aab6 aab9-aabd aac0 aac2 aadb-aadd aae0-aaea aaf2-aaf4 ab01-ab06 ab09-ab0e ab11-ab16
ab20-ab26 ab28-ab2e abc0-abe2 ac00-d7a3 d7b0-d7c6 d7cb-d7fb f900-fa6d fa70-fad9 fb00-fb06
fb13-fb17 fb1d fb1f-fb28 fb2a-fb36 fb38-fb3c fb3e fb40-fb41 fb43-fb44 fb46-fbb1 fbd3-fd3d
fd50-fd8f fd92-fdc7 fdf0-fdfb fe70-fe74 fe76-fefc ff21-ff3a ff41-ff5a ff66-ffbe ffc2-ffc7
ffca-ffcf ffd2-ffd7 ffda-ffdc
"""
LETTERS = "".join(
    "-".join(f"\\u{int(end, 16):04x}" for end in part.split("-")) for part in _RANGES.split()
)
"""Which characters beyond ASCII may stand in an id, as the inside of a character class.

These are the letters of Unicode 6.1, as Mermaid has it. The standard library knows those of a
newer Unicode, which Mermaid refuses, so the ranges are written down. Not there: digits, marks
and emoji, and everything above U+FFFF.
"""

# Stand-ins for '#' and ';' of an entity code: no character of any language, and as long
# as what they stand for, so that nothing moves.
_NAMED, _NUMBERED, _END = "\ufdd0", "\ufdd1", "\ufdd2"

_TAG = re.compile(r"<[A-Za-z0-9_]+([^>]*)>")
_ATTRIBUTE = re.compile(r'="([^"]*)"')
_FRONT = re.compile(rf"([^\S\n]*)---({S}*)")
_DIRECTIVE = re.compile(
    rf"%%\{{{S}*+(?:\w++{S}*+:|\w++){S}*(?:\w++|(?:(?!\}}%%)[^\n\u2028\u2029]|\n)*+)?{S}*(?:\}}%%)?",
    re.ASCII,
)
_LINE_START = "\n\u2028\u2029"
_ENTITY = re.compile(r"#(\w+);", re.ASCII)
_COLOUR = re.compile(rf":[^{SPACES}#:]*#")
_AFTER_BRACE = re.compile(rf"\}}({S}*+)")


def prepare(source: ChartText) -> None:
    """Leave in *source* what is scanned: no front matter, no directive, no comment.

    Raises:
        ChartError: the front matter is no YAML; Mermaid refuses the chart as well.
    """
    _soften_tag_quotes(source)
    _drop_front_matter(source)
    if "%%" in source.text:
        source.cut([match.span() for match in _DIRECTIVE.finditer(source.text)])
        source.cut(_comments(source.text))
    source.cut([(0, len(source.text) - len(source.text.lstrip(SPACES)))])
    if "#" in source.text:
        source.cut(_ends_of_colours(source.text, "style"))
        source.cut(_ends_of_colours(source.text, "classDef"))
        source.text = _ENTITY.sub(_hide_entity, source.text)
    source.text += "\n"
    source.cut(_blanks_after_braces(source.text))


def reveal(text: str) -> str:
    """Return *text* with its entity codes as HTML writes them.

    >>> reveal(_ENTITY.sub(_hide_entity, "#35; and #amp;"))
    '&#35; and &amp;'
    """
    if _END in text:
        return text.replace(_NUMBERED, "&#").replace(_NAMED, "&").replace(_END, ";")
    return text


def _hide_entity(match: re.Match[str]) -> str:
    name = match[1]
    return f"{_NUMBERED if name.isdecimal() else _NAMED}{name}{_END}"


def _soften_tag_quotes(source: ChartText) -> None:
    # Up to the last '>', so that each '<' finds its end and none scans in vain.
    end = source.text.rfind(">") + 1
    if '="' in source.text and end:
        head = _TAG.sub(lambda tag: _ATTRIBUTE.sub(r"='\1'", tag[0]), source.text[:end])
        source.text = head + source.text[end:]


def _drop_front_matter(source: ChartText) -> None:
    text = source.text
    opening = _FRONT.match(text)
    if opening is None or "\n" not in opening[2]:
        return
    last = opening.start(2) + opening[2].rindex("\n")
    closing = re.compile(rf"\n{re.escape(opening[1])}---{S}*\n", re.ASCII)
    # The blank lines after the first '---' may also be all of the front matter.
    found = closing.search(text, last + 1) or (
        closing.match(text, last) if opening[2].count("\n") > 1 else None
    )
    if found is None:
        return
    body = text[last + 1 : found.start()]
    indent = opening[1]
    if indent:
        body = "\n".join(line.removeprefix(indent) for line in body.split("\n"))
    try:
        read_properties(body)
    except Unreadable as error:
        raise source.refusal(f"the front matter is not YAML: {error}", last + 1) from error
    end = found.end()
    while text[end : end + 1] == "\n":
        end += 1
    source.cut([(0, end)])


def _comments(text: str) -> list[tuple[int, int]]:
    """Return the lines that are comments, each with the blank lines above it."""
    spans: list[tuple[int, int]] = []
    done = 0
    at = text.find("%%")
    while at >= 0:
        start = at
        while start > done and text[start - 1] in SPACES:
            start -= 1
        if start and text[start - 1] not in _LINE_START:
            breaks = [text.find(mark, start, at) for mark in _LINE_START]
            start = min((found + 1 for found in breaks if found >= 0), default=-1)
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if start >= 0 and end > at + 2 and text[at + 2] != "{":
            done = min(end + 1, len(text))
            spans.append((start, done))
            at = text.find("%%", done)
        else:
            at = text.find("%%", at + 1)
    return spans


def _ends_of_colours(text: str, word: str) -> list[tuple[int, int]]:
    """Return the last ';' of each line that sets a colour: it ends a line, and no entity."""
    spans = []
    done = 0
    at = text.find(word)
    while at >= 0:
        ends = (text.find(mark, at) for mark in _LINE_START)
        line_end = min((end for end in ends if end >= 0), default=len(text))
        last = text.rfind(";", at, line_end)
        if at >= done and last > at and _COLOUR.search(text, at + len(word), last):
            spans.append((last, last + 1))
        done = line_end
        at = text.find(word, line_end)
    return spans


def _blanks_after_braces(text: str) -> list[tuple[int, int]]:
    spans = []
    for match in _AFTER_BRACE.finditer(text):
        last = match[1].rfind("\n")
        if last > 0:
            spans.append((match.start(1), match.start(1) + last))
    return spans


MAX_CHARACTERS = 65_536
MAX_DEPTH = 32

_CONSTANTS: dict[str, Any] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_CONSTANTS |= dict.fromkeys(("true", "True", "TRUE"), True)
_CONSTANTS |= dict.fromkeys(("false", "False", "FALSE"), False)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,14})", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]{1,15}\.[0-9]{0,15}|\.[0-9]{1,15})(?:e[-+]?[0-9]{1,2})?", re.IGNORECASE
)


class Unreadable(Exception):
    """The text is no YAML that a chart may hold; the message says why."""


def read_shape_data(text: str) -> Any:
    """Return what the inside of ``@{ … }`` says: on one line a flow mapping, else a block.

    >>> read_shape_data(' shape: circle, label: "Ready?" ')
    {'shape': 'circle', 'label': 'Ready?'}

    Raises:
        Unreadable: see `read_properties`.
    """
    if "\n" in text:
        return read_properties(text + "\n")
    return read_properties("{\n" + text + "\n}")


def read_properties(text: str) -> Any:
    """Return the value that *text* spells; None if it holds nothing at all.

    Raises:
        Unreadable: not YAML, too long, too deep, a key twice, an anchor, alias or tag.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"more than {MAX_CHARACTERS} characters")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.add(event)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "bad text"
        raise Unreadable(problem) from error
    except UnicodeError as error:
        raise Unreadable("a character that is no text") from error
    return builder.value


class _Builder:
    """Puts the values of a stream of events together."""

    def __init__(self) -> None:
        self.value: Any = None
        self._open: list[tuple[Any, list[str]]] = []
        self._documents = 0

    def add(self, event: Any) -> None:
        name = type(event).__name__
        if name == "AliasEvent" or getattr(event, "anchor", None) is not None:
            raise Unreadable("anchors and aliases ('&', '*') are not read; use quotes")
        if name in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent") and event.tag:
            raise Unreadable("tags ('!') are not read; use quotes")
        if name == "ScalarEvent":
            self._put(_plain(event.value) if event.implicit[0] else event.value)
        elif name in ("MappingStartEvent", "SequenceStartEvent"):
            if len(self._open) == MAX_DEPTH:
                raise Unreadable(f"nested deeper than {MAX_DEPTH} levels")
            self._open.append(({} if name == "MappingStartEvent" else [], []))
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._put(self._open.pop()[0])
        elif name == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise Unreadable("a second document ('---')")

    def _put(self, value: Any) -> None:
        if not self._open:
            self.value = value
            return
        container, keys = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif keys:
            container[keys.pop()] = value
        else:
            key = as_text(value)
            if key in container:
                raise Unreadable(f"key {key!r} is there twice")
            keys.append(key)


def _plain(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def as_text(value: Any) -> str:
    """Return *value* as a label shows it.

    >>> [as_text(value) for value in ("a", 5, 1.50, 2.0, True, None, ["b", 2], {"a": 1})]
    ['a', '5', '1.5', '2', 'true', 'null', 'b,2', '[object Object]']
    """
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list):
        return ",".join("" if item is None else as_text(item) for item in value)
    return "[object Object]" if isinstance(value, dict) else str(value)
