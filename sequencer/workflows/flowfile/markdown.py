"""The parts of a workflow file: front matter, the flowchart, one section a node.

Which lines are headings and fences is what CommonMark says, so that ``###`` in a fence, a
list or a comment starts no section. Prompts have headings of their own: only a ``###``
heading that names a node starts a section, so the chart is read before the sections are.
Two things are this format's own: the settings between ``---`` lines below a ``###`` heading
are no Markdown, and underlined headings are text, because ``---`` below a line is how those
settings end.

Not promised: that the parts mean anything; they come out as they are written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from msgspec import Struct

from sequencer.workflows.finding import MAX_CHARS
from sequencer.workflows.flowfile.problems import Diagnostics

if TYPE_CHECKING:
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token

MAX_LINES = 60_000
_NODE_LEVEL = 3
_SETTINGS = "settings"
_UNCLOSED = "settings_unclosed"
_FRONT_BEGIN = re.compile(r"(?:[ \t]*\n)*---[ \t]*(?=\n|\Z)")
_NOT_BLANK = re.compile(r"\S")
_FLOWCHART = re.compile(r"(?:flowchart-elk|flowchart|graph)(?![\w-])")
_KEY = re.compile(r"([\w.]+)[ \t]*:")


class Excerpt(Struct, frozen=True):
    """Some lines of the file."""

    text: str
    line: int
    """Of its beginning, from 1."""


@dataclass(frozen=True, slots=True)
class Heading:
    """One of level 1, 2 or 3."""

    level: int
    text: str
    line: int
    """From 1."""
    begin: int = field(compare=False)
    """Of itself, in the tokens."""
    place: int = field(compare=False)
    """Of what follows it."""


class NodeSection(Struct, frozen=True):
    """What stands below ``### id``."""

    id: str
    line: int
    """Of the heading."""
    settings: Excerpt | None
    """What is between the ``---`` lines."""
    prompt: Excerpt
    """The rest, without blank lines around it."""
    headings: tuple[Heading, ...] = ()
    """Those that are part of the prompt."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A workflow file, taken apart."""

    front: Excerpt | None
    chart: Excerpt | None
    title: str | None
    """The first heading of level 1, unless a section may have started before it."""
    body: _Body | None = field(default=None, repr=False, compare=False)

    def sections(
        self, names: Collection[str] | None, keys: Collection[str] = ()
    ) -> tuple[NodeSection, ...]:
        """Return the sections in the order of the file; two may have the same id.

        *names* are the nodes and groups of the chart; None: it can't be read, and each
        ``###`` heading starts a section. Settings with one of *keys* make a section of any
        heading, so that a misspelled node is told and does not end up in another's prompt.
        """
        return () if self.body is None else self.body.sections(names, keys)


def split(text: str, findings: Diagnostics) -> Parts:
    """Return the parts of *text*; what is wrong with them is added to *findings*."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    name = findings.file.name
    if len(text) > MAX_CHARS or text.count("\n") >= MAX_LINES:
        detail = f"has more than {MAX_CHARS} characters or {MAX_LINES} lines"
        findings.tell("E-FILE", name, detail, (1, 1))
        return Parts(None, None, None)
    lines = text.split("\n")
    front = _front(text, lines, findings)
    begin = 0 if front is None else front.line + front.text.count("\n")
    if front is not None and begin > len(lines):
        return Parts(None, None, None)
    return _Body(lines, begin, findings).parts(front)


def _front(text: str, lines: list[str], findings: Diagnostics) -> Excerpt | None:
    begin = _FRONT_BEGIN.match(text)
    if begin is None:
        return None
    first = begin[0].count("\n") + 1
    for place in range(first, len(lines)):
        if lines[place].rstrip() in ("---", "..."):
            # Its last line break belongs to it: an empty front matter is one of no lines.
            return Excerpt("".join(f"{line}\n" for line in lines[first:place]), first + 1)
    detail = "the front matter is not closed"
    hint = "put a line '---' after its last key"
    findings.tell("E-FRONT", findings.file.name, detail, (first, 1), hint)
    return Excerpt("".join(f"{line}\n" for line in lines[first:]), first + 1)


class _Body:
    """What follows the front matter."""

    def __init__(self, lines: list[str], begin: int, findings: Diagnostics) -> None:
        self._lines = lines
        self._findings = findings
        self._tokens: list[Token] = []
        parser = _parser()
        parser.block.parse("\n".join(lines[begin:]), parser, {}, self._tokens)
        for token in self._tokens:
            if token.map is not None:
                token.map = [token.map[0] + begin, token.map[1] + begin]
        self._headings = list(self._found_headings())
        self._charted: Heading | None = None
        """Of the part that has the chart: the section before it ends there."""

    def parts(self, front: Excerpt | None) -> Parts:
        first = next((one.line for one in self._headings if one.level == _NODE_LEVEL), None)
        titles = (one for one in self._headings if one.level == 1)
        title = next((one.text for one in titles if first is None or one.line < first), None)
        return Parts(front, self._first_chart(), title, self)

    def sections(
        self, names: Collection[str] | None, keys: Collection[str]
    ) -> tuple[NodeSection, ...]:
        """Return the sections in the order of the file; report charts and text that are in none."""
        begins = {one for one in self._headings if self._begins_section(one, names, keys)}
        ends = [one for one in self._headings if one in begins or one is self._charted]
        end = Heading(1, "", len(self._lines) + 1, len(self._tokens), len(self._tokens))
        found = []
        for here, following in pairwise([*ends, end]):
            if here in begins:
                found.append(self._section(here, following.line - 1))
            elif found:
                self._warn_of_text(here, following)
        self._refuse_more_charts(found)
        return tuple(found)

    def _begins_section(
        self, heading: Heading, names: Collection[str] | None, keys: Collection[str]
    ) -> bool:
        if heading.level != _NODE_LEVEL or names is None or heading.text in names:
            return heading.level == _NODE_LEVEL
        kind, begin, end = self._settings(heading)
        if kind != _SETTINGS:
            return False
        written = map(_KEY.match, self._lines[begin + 1 : end - 1])
        return any(key is not None and key[1] in keys for key in written)

    def _found_headings(self) -> Iterator[Heading]:
        for place, token in enumerate(self._tokens):
            if token.type == "heading_open" and token.level == 0 and token.tag <= "h3":
                text = self._tokens[place + 1].content
                yield Heading(int(token.tag[1]), text, _line(token), place, place + 3)

    def _section(self, heading: Heading, end: int) -> NodeSection:
        settings = None
        kind, first, begin = self._settings(heading)
        if kind == _SETTINGS:
            settings = Excerpt("\n".join(self._lines[first + 1 : begin - 1]), first + 2)
        elif kind == _UNCLOSED:
            detail = "the settings below its heading are not closed"
            hint = "put a line '---' after the last setting"
            self._findings.tell("E-SECTION", heading.text, detail, (first + 1, 1), hint)
        while begin < end and not self._lines[begin].strip():
            begin += 1
        prompt = Excerpt("\n".join(self._lines[begin:end]).rstrip(), begin + 1)
        headings = tuple(one for one in self._headings if begin < one.line <= end)
        return NodeSection(heading.text, heading.line, settings, prompt, headings)

    def _settings(self, heading: Heading) -> tuple[str, int, int]:
        """Return the kind of what follows *heading*, and its first and last line, from 0."""
        if heading.place < len(self._tokens):
            token = self._tokens[heading.place]
            if token.type in (_SETTINGS, _UNCLOSED):
                return token.type, *_lines(token)
        return "", heading.line, heading.line

    def _chart(self, fence: Token, *, is_told: bool = False) -> Excerpt | None:
        """Return the flowchart in *fence*; with *is_told* its faults were told before."""
        begin, end = _lines(fence)
        last = self._lines[end - 1].strip() if end - 1 > begin else ""
        is_closed = last.startswith(fence.markup) and not last.strip(fence.markup[0])
        # Not the fence's own text: there the lines have lost their indentation.
        text = "\n".join(self._lines[begin + 1 : end - is_closed])
        if not _is_flowchart(text):
            return None
        if not is_closed and not is_told:
            detail, hint = "the block of the chart is not closed", f"put {fence.markup} after it"
            self._findings.tell("E-CHART", self._findings.file.name, detail, (begin + 1, 1), hint)
        return Excerpt(text, begin + 2)

    def _first_chart(self) -> Excerpt | None:
        """Return the first flowchart that is not below a ``###`` heading."""
        drawn = []
        for here, token in self._drawn_above_nodes():
            drawn.append(token)
            if (chart := self._chart(token)) is not None:
                self._charted = here
                return chart
        name = self._findings.file.name
        hint = "put one between ```mermaid and ```, above the first ### heading"
        at = (1, 1)
        if drawn:
            at = (_line(drawn[0]), 1)
            hint = "a chart starts with 'flowchart TD' or 'graph LR'"
        elif inside := next((token for token in self._tokens if _is_drawn(token)), None):
            at = (_line(inside), 1)
            hint = (
                "this one belongs to the ### section above it; move it above the first ### heading"
            )
        self._findings.tell("E-CHART", name, "there is no flowchart", at, hint)
        return None

    def _drawn_above_nodes(self) -> Iterator[tuple[Heading, Token]]:
        """Yield each drawing with the heading of level 1 or 2 above it."""
        end = Heading(1, "", len(self._lines) + 1, len(self._tokens), len(self._tokens))
        before = Heading(1, "", 1, 0, 0)
        for here, following in pairwise([before, *self._headings, end]):
            if here.level != _NODE_LEVEL:
                for token in self._tokens[here.place : following.begin]:
                    if _is_drawn(token):
                        yield here, token

    def _refuse_more_charts(self, sections: Sequence[NodeSection]) -> None:
        """Tell every other flowchart that no prompt has."""
        begins = [one.line for one in sections]
        ends = [one.prompt.line + one.prompt.text.count("\n") for one in sections]
        first = 0
        for _, token in self._drawn_above_nodes():
            line = _line(token)
            place = bisect_right(begins, line) - 1
            is_taken = place >= 0 and line <= ends[place]
            if is_taken or self._chart(token, is_told=True) is None:
                continue
            if first:
                detail = f"a second flowchart; the first one starts in line {first}"
                hint = "a workflow has one; put a chart that only explains into a prompt or a list"
                self._findings.tell("E-CHART", self._findings.file.name, detail, (line, 1), hint)
            first = first or line

    def _warn_of_text(self, heading: Heading, following: Heading) -> None:
        for token in self._tokens[heading.place : following.begin]:
            is_remark = token.type == "html_block" and token.content.lstrip().startswith("<!--")
            if token.map is not None and not is_remark and not _is_drawn(token):
                detail = "this text belongs to no node"
                hint = "the text below the heading of the chart is in no section"
                self._findings.tell("W-TEXT", heading.text or "#", detail, (_line(token), 1), hint)
                return


def _lines(token: Token) -> tuple[int, int]:
    """Return the first line of *token*, from 0, and the one after its last."""
    assert token.map is not None  # noqa: S101 - block tokens have one
    return token.map[0], token.map[1]


def _line(token: Token) -> int:
    """Return the line, from 1, where *token* begins."""
    return _lines(token)[0] + 1


def _is_drawn(token: Token) -> bool:
    words = token.info.split(maxsplit=1) if token.type == "fence" and token.level == 0 else []
    return bool(words) and words[0].lower() == "mermaid"


def _is_flowchart(text: str) -> bool:
    place, end = 0, len(text)
    while place < end:
        begin = _NOT_BLANK.search(text, place)
        if begin is None:
            return False
        place = begin.start()
        if text.startswith("%%{", place):
            closed = text.find("}%%", place)
            place = end if closed < 0 else closed + 3
        elif text.startswith("%%", place):
            place = _line_end(text, place)
        elif text.startswith("---", place):
            closed = text.find("\n---", place)
            place = end if closed < 0 else _line_end(text, closed + 1)
        else:
            return _FLOWCHART.match(text, place) is not None
    return False


def _line_end(text: str, place: int) -> int:
    found = text.find("\n", place)
    return len(text) if found < 0 else found


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("zero", {"html": True, "maxNesting": 100})
    rules = ["code", "fence", "blockquote", "hr", "list", "html_block", "heading", "paragraph"]
    parser.enable(rules)
    parser.block.ruler.before("code", _SETTINGS, _read_settings)
    return parser


def _read_settings(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    """Take the lines between ``---`` below a node's heading out of the Markdown."""
    before = state.tokens[-1] if state.tokens else None
    if silent or before is None or before.type != "heading_close" or before.level != 0:
        return False
    if before.tag != f"h{_NODE_LEVEL}" or state.is_code_block(begin):
        return False
    if state.src[state.bMarks[begin] : state.eMarks[begin]].strip() != "---":
        return False
    kind, last = _UNCLOSED, begin
    for line in range(begin + 1, end):
        text = state.src[state.bMarks[line] : state.eMarks[line]]
        if text.rstrip() == "---":
            kind, last = _SETTINGS, line
            break
        if text.startswith("### "):
            break
    state.line = last + 1
    token = state.push(kind, "", 0)
    token.map = [begin, state.line]
    return True
