"""The text of a chart for the scanner, with the position in the file of each character.

Mermaid removes front matter, directives and comments before it reads a chart, and joins the
rest: a label around a comment is one label. This module does the same in the same order, and
remembers each cut, so that lines and columns are still correct for the file. Each step takes
linear time for any text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import yaml

from sequencer.errors import ConfigurationError

Position = tuple[int, int]
"""Line and column, both from 1."""


class ChartError(ConfigurationError):
    """The text is not a valid flowchart; ``where`` has file, line and column."""


class ChartText:
    """A text from which pieces can be cut; it knows the original position of each character."""

    __slots__ = ("_breaks", "_cuts", "_first_line", "_line", "_original", "file", "text")

    def __init__(self, text: str, file: Path | None, first_line: int) -> None:
        self.text = text
        self.file = file
        self._original = text
        self._first_line = first_line
        self._cuts: list[tuple[list[int], list[int]]] = []
        self._breaks: list[int] = []
        self._line = (0, 0, 0)
        """Start, number and end of the line of the last `position`."""

    def cut(self, spans: list[tuple[int, int]]) -> None:
        """Remove *spans* (start and end, in order, without overlaps) from the text."""
        if not spans:
            return
        parts: list[str] = []
        offsets: list[int] = []
        shifts: list[int] = []
        last_end = shift = 0
        for start, end in spans:
            parts.append(self.text[last_end:start])
            shift += end - start
            offsets.append(end - shift)
            shifts.append(shift)
            last_end = end
        parts.append(self.text[last_end:])
        self.text = "".join(parts)
        self._cuts.append((offsets, shifts))

    def position(self, offset: int) -> Position:
        """Return line and column, in the file, of the character at *offset*."""
        for offsets, shifts in reversed(self._cuts):
            index = bisect_right(offsets, offset)
            if index:
                offset += shifts[index - 1]
        line_start, line, end = self._line
        if not line_start <= offset < end:
            offset = min(offset, len(self._original))
            if not self._breaks:
                self._breaks = [0, *(match.end() for match in re.finditer("\n", self._original))]
            line = bisect_right(self._breaks, offset)
            line_start = self._breaks[line - 1]
            end = self._breaks[line] if line < len(self._breaks) else len(self._original) + 1
            self._line = (line_start, line, end)
        return self._first_line + line - 1, offset - line_start + 1

    def error_at(self, message: str, offset: int, hint: str | None = None) -> ChartError:
        """Return the error with *message* for the character at *offset*."""
        line, column = self.position(offset)
        location = f"line {line}, column {column}"
        if self.file is not None:
            location = f"{self.file}:{line}:{column}"
        return ChartError(message, where=location, hint=hint)


SPACES = " \t\n\v\f\r\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
SPACES += "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""All characters that count as blanks; Python's definition differs in a few of them."""

S = f"[{SPACES}]"
"""The same blanks as a character class."""

TABLES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "builtin" / "mermaid.json").read_bytes()
)
"""Names of shapes and of colors, and ranges of letters."""
LETTERS = "".join(
    "-".join(f"\\u{int(end, 16):04x}" for end in part.split("-")) for part in TABLES["letters"]
)
"""Characters beyond ASCII that an id may have, as the inside of a character class.

These are the letters of Unicode 6.1, like in Mermaid. The standard library has a newer Unicode,
with letters that Mermaid refuses, so the ranges are in a file. Digits, marks, emoji and
everything above U+FFFF are not included.
"""

# Placeholders for '#' and ';' of an entity code. They are not used in any language, and have the
# same length, so that positions do not change.
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
_COLOR_VALUE = re.compile(rf":[^{SPACES}#:]*#")
_AFTER_BRACE = re.compile(rf"\}}({S}*+)")


def prepare(source: ChartText) -> None:
    """Remove front matter, directives and comments from *source*.

    Raises:
        ChartError: the front matter is not YAML; Mermaid refuses such a chart too.
    """
    _soften_tag_quotes(source)
    _drop_front_matter(source)
    if "%%" in source.text:
        source.cut([match.span() for match in _DIRECTIVE.finditer(source.text)])
        source.cut(_find_comments(source.text))
    source.cut([(0, len(source.text) - len(source.text.lstrip(SPACES)))])
    if "#" in source.text:
        source.cut(_ends_of_colors(source.text, "style"))
        source.cut(_ends_of_colors(source.text, "classDef"))
        source.text = _ENTITY.sub(_hide_entity, source.text)
    source.text += "\n"
    source.cut(_blanks_after_braces(source.text))


def restore_entities(text: str) -> str:
    """Return *text* with its entity codes in HTML's form.

    >>> restore_entities(_ENTITY.sub(_hide_entity, "#35; and #amp;"))
    '&#35; and &amp;'
    """
    if _END in text:
        return text.replace(_NUMBERED, "&#").replace(_NAMED, "&").replace(_END, ";")
    return text


def _hide_entity(match: re.Match[str]) -> str:
    name = match[1]
    return f"{_NUMBERED if name.isdecimal() else _NAMED}{name}{_END}"


def _soften_tag_quotes(source: ChartText) -> None:
    # Stop at the last '>', so that no '<' searches the whole rest for its end in vain.
    end = source.text.rfind(">") + 1
    if '="' in source.text and end:
        head = _TAG.sub(lambda tag: _ATTRIBUTE.sub(r"='\1'", tag[0]), source.text[:end])
        source.text = head + source.text[end:]


def _drop_front_matter(source: ChartText) -> None:
    text = source.text
    opening = _FRONT.match(text)
    if opening is None or "\n" not in opening[2]:
        return
    last_break = opening.start(2) + opening[2].rindex("\n")
    closing_pattern = re.compile(rf"\n{re.escape(opening[1])}---{S}*\n", re.ASCII)
    # The front matter may also consist only of the blank lines after the first '---'.
    closing_match = closing_pattern.search(text, last_break + 1) or (
        closing_pattern.match(text, last_break) if opening[2].count("\n") > 1 else None
    )
    if closing_match is None:
        return
    body = text[last_break + 1 : closing_match.start()]
    indent = opening[1]
    if indent:
        body = "\n".join(line.removeprefix(indent) for line in body.split("\n"))
    try:
        read_properties(body)
    except Unreadable as error:
        raise source.error_at(f"the front matter is not YAML: {error}", last_break + 1) from error
    end = closing_match.end()
    while text[end : end + 1] == "\n":
        end += 1
    source.cut([(0, end)])


def _find_comments(text: str) -> list[tuple[int, int]]:
    """Return the spans of comment lines, each with the blank lines above it."""
    spans: list[tuple[int, int]] = []
    last_end = 0
    place = text.find("%%")
    while place >= 0:
        start = place
        while start > last_end and text[start - 1] in SPACES:
            start -= 1
        if start and text[start - 1] not in _LINE_START:
            breaks = [text.find(mark, start, place) for mark in _LINE_START]
            start = min((index + 1 for index in breaks if index >= 0), default=-1)
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        if start >= 0 and end > place + 2 and text[place + 2] != "{":
            last_end = min(end + 1, len(text))
            spans.append((start, last_end))
            place = text.find("%%", last_end)
        else:
            place = text.find("%%", place + 1)
    return spans


def _ends_of_colors(text: str, word: str) -> list[tuple[int, int]]:
    """Return the span of the last ';' in each line that sets a color: there, it ends no entity."""
    spans = []
    last_end = 0
    place = text.find(word)
    while place >= 0:
        ends = (text.find(mark, place) for mark in _LINE_START)
        line_end = min((end for end in ends if end >= 0), default=len(text))
        semicolon = text.rfind(";", place, line_end)
        if (
            place >= last_end
            and semicolon > place
            and _COLOR_VALUE.search(text, place + len(word), semicolon)
        ):
            spans.append((semicolon, semicolon + 1))
        last_end = line_end
        place = text.find(word, line_end)
    return spans


def _blanks_after_braces(text: str) -> list[tuple[int, int]]:
    spans = []
    for match in _AFTER_BRACE.finditer(text):
        last_break = match[1].rfind("\n")
        if last_break > 0:
            spans.append((match.start(1), match.start(1) + last_break))
    return spans


MAX_CHARACTERS = 65_536
MAX_DEPTH = 32
MAX_EMPTY_KEYS = 8
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CONSTANTS: dict[str, Any] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_CONSTANTS |= dict.fromkeys(("true", "True", "TRUE"), True)
_CONSTANTS |= dict.fromkeys(("false", "False", "FALSE"), False)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,14})", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]{1,15}\.[0-9]{0,15}|\.[0-9]{1,15})(?:e[-+]?[0-9]{1,2})?", re.IGNORECASE
)


class Unreadable(Exception):
    """The text is not YAML that is allowed in a chart; the message says why."""


def read_shape_data(text: str) -> Any:
    """Return the value of the inside of ``@{ … }``: a flow mapping on one line, else a block.

    >>> read_shape_data(' shape: circle, label: "Ready?" ')
    {'shape': 'circle', 'label': 'Ready?'}

    Raises:
        Unreadable: see `read_properties`.
    """
    if "\n" in text:
        return read_properties(text + "\n")
    return read_properties("{\n" + text + "\n}")


def read_properties(text: str) -> Any:
    """Return the value of *text* as YAML; None: it is empty.

    Raises:
        Unreadable: not YAML, too long, too deep, a key twice, an anchor, alias or tag.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"more than {MAX_CHARACTERS} characters")
    for _ in range(MAX_EMPTY_KEYS):
        builder = _Builder()
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                builder.add(event)
        except yaml.YAMLError as error:
            place = _empty_key(text, error)
            if place is None:
                reason = getattr(error, "problem", None) or getattr(error, "reason", None)
                raise Unreadable(reason or "bad text") from error
            end = place + 1
            # Without the blank, libyaml would read the sign as a part of the value.
            gap = " " * text.startswith((",", "]", "}"), end)
            text = f"{text[:place]}null :{gap}{text[end:]}"
        except UnicodeError as error:
            raise Unreadable("a character that is not text") from error
        else:
            return builder.value
    raise Unreadable("a value without a key")


def _empty_key(text: str, error: yaml.YAMLError) -> int | None:
    """Return the position of a missing key, as in ``{ : a}``, which Mermaid reads as null."""
    mark = getattr(error, "problem_mark", None)
    if mark is None or "node content" not in str(getattr(error, "problem", "")):
        return None
    return mark.index if text.startswith(":", mark.index) else None


class _Builder:
    """Builds a value from YAML events."""

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
            self._add_value(_parse_scalar(event.value) if event.implicit[0] else event.value)
        elif name in ("MappingStartEvent", "SequenceStartEvent"):
            if len(self._open) == MAX_DEPTH:
                raise Unreadable(f"nested deeper than {MAX_DEPTH} levels")
            self._open.append(({} if name == "MappingStartEvent" else [], []))
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._add_value(self._open.pop()[0])
        elif name == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise Unreadable("a second document ('---')")

    def _add_value(self, value: Any) -> None:
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
                raise Unreadable(f"duplicate key {key!r}")
            keys.append(key)


def _parse_scalar(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def as_text(value: Any) -> str:
    """Return *value* as the text that a label shows.

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
