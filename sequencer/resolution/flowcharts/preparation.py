"""What Mermaid does to a chart's text before it reads it, in the same order.

Each step works in time linear in the text, whatever the text is; the obvious patterns
would take the square of it on long runs of blanks.
"""

from __future__ import annotations

import re

from sequencer.resolution.flowcharts.properties import Unreadable, read_properties
from sequencer.resolution.flowcharts.source import Source

SPACES = " \t\n\v\f\r\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
SPACES += "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What counts as blank; Python's own idea of it differs in a few characters."""

S = f"[{SPACES}]"
"""The same as a character class."""

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


def prepare(source: Source) -> None:
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


def _soften_tag_quotes(source: Source) -> None:
    # Up to the last '>', so that each '<' finds its end and none scans in vain.
    end = source.text.rfind(">") + 1
    if '="' in source.text and end:
        head = _TAG.sub(lambda tag: _ATTRIBUTE.sub(r"='\1'", tag[0]), source.text[:end])
        source.text = head + source.text[end:]


def _drop_front_matter(source: Source) -> None:
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
