"""Splits a workflow file into its parts: front matter, the flowchart, one section per node.

CommonMark decides which lines are headings and fences, so ``###`` in a fence, a list or a
comment starts no section. Prompts may have headings too: only a ``###`` heading with the name of
a node starts a section, so the chart is read before the sections. There are two exceptions to
CommonMark: the settings between ``---`` lines below a ``###`` heading are not Markdown, and
underlined headings are text, because ``---`` below a line ends such settings.

Not checked: the content of the parts, which is returned unchanged.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
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
    """Number of the first line, from 1."""


class Heading(Struct, frozen=True):
    """A heading of level 1, 2 or 3."""

    level: int
    text: str
    line: int
    """From 1."""
    begin: int
    """Index of its first token."""
    place: int
    """Index of the first token after it."""


class NodeSection(Struct, frozen=True):
    """The section below ``### id``."""

    id: str
    line: int
    """Line of the heading, from 1."""
    settings: Excerpt | None
    """The lines between the ``---`` lines."""
    prompt: Excerpt
    """The rest, without blank lines around it."""
    headings: tuple[Heading, ...] = ()
    """The headings inside the prompt."""


class Parts(Struct, frozen=True):
    """The parts of a workflow file."""

    front: Excerpt | None
    chart: Excerpt | None
    title: str | None
    """The first heading of level 1 before any ``###`` heading."""
    body: _Body | None = None

    def read_sections(
        self, names: Collection[str] | None, keys: Collection[str] = ()
    ) -> tuple[NodeSection, ...]:
        """Return the sections in the order of the file; two may have the same id.

        *names* are the nodes and groups of the chart; None: the chart can't be read, and every
        ``###`` heading starts a section. A heading with settings that have one of *keys* always
        starts a section, so that a misspelled node is reported and not added to another prompt.
        """
        return () if self.body is None else self.body.read_sections(names, keys)


def split(text: str, diagnostics: Diagnostics) -> Parts:
    """Return the parts of *text*; problems are added to *diagnostics*."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    name = diagnostics.file.name
    if len(text) > MAX_CHARS or text.count("\n") >= MAX_LINES:
        detail = f"has more than {MAX_CHARS} characters or {MAX_LINES} lines"
        diagnostics.add("E-FILE", name, detail, (1, 1))
        return Parts(None, None, None)
    lines = text.split("\n")
    front = _read_front(text, lines, diagnostics)
    body_start = 0 if front is None else front.line + front.text.count("\n")
    if front is not None and body_start > len(lines):
        return Parts(None, None, None)
    return _Body(lines, body_start, diagnostics).build_parts(front)


def _read_front(text: str, lines: list[str], diagnostics: Diagnostics) -> Excerpt | None:
    match = _FRONT_BEGIN.match(text)
    if match is None:
        return None
    first_line = match[0].count("\n") + 1
    for place in range(first_line, len(lines)):
        if lines[place].rstrip() in ("---", "..."):
            # Each line keeps its line break, so an empty front matter has no lines.
            return Excerpt("".join(f"{line}\n" for line in lines[first_line:place]), first_line + 1)
    detail = "the front matter is not closed"
    hint = "put a line '---' after its last key"
    diagnostics.add("E-FRONT", diagnostics.file.name, detail, (first_line, 1), hint)
    return Excerpt("".join(f"{line}\n" for line in lines[first_line:]), first_line + 1)


class _Body:
    """The file after the front matter."""

    def __init__(self, lines: list[str], begin: int, diagnostics: Diagnostics) -> None:
        self._lines = lines
        self._diagnostics = diagnostics
        self._tokens: list[Token] = []
        parser = _create_parser()
        parser.block.parse("\n".join(lines[begin:]), parser, {}, self._tokens)
        for token in self._tokens:
            if token.map is not None:
                token.map = [token.map[0] + begin, token.map[1] + begin]
        self._headings = list(self._find_headings())
        self._chart_heading: Heading | None = None
        """The heading of the part with the chart; a section before it ends there."""

    def build_parts(self, front: Excerpt | None) -> Parts:
        nodes = (heading for heading in self._headings if heading.level == _NODE_LEVEL)
        first_line = next((heading.line for heading in nodes), None)
        titles = (heading for heading in self._headings if heading.level == 1)
        title = next(
            (
                title_heading.text
                for title_heading in titles
                if first_line is None or title_heading.line < first_line
            ),
            None,
        )
        return Parts(front, self._first_chart(), title, self)

    def read_sections(
        self, names: Collection[str] | None, keys: Collection[str]
    ) -> tuple[NodeSection, ...]:
        """Return the sections in the order of the file; report charts and text outside of them."""
        section_starts = {
            heading for heading in self._headings if self._is_section_start(heading, names, keys)
        }
        borders = [
            heading
            for heading in self._headings
            if heading in section_starts or heading is self._chart_heading
        ]
        end = Heading(1, "", len(self._lines) + 1, len(self._tokens), len(self._tokens))
        sections: list[NodeSection] = []
        for heading, next_heading in pairwise([*borders, end]):
            if heading in section_starts:
                sections.append(self._read_section(heading, next_heading.line - 1))
            elif sections:
                self._warn_of_text(heading, next_heading)
        self._refuse_more_charts(sections)
        return tuple(sections)

    def _is_section_start(
        self, heading: Heading, names: Collection[str] | None, keys: Collection[str]
    ) -> bool:
        if heading.level != _NODE_LEVEL or names is None or heading.text in names:
            return heading.level == _NODE_LEVEL
        kind, start, end = self._find_settings(heading)
        if kind != _SETTINGS:
            return False
        key_matches = map(_KEY.match, self._lines[start + 1 : end - 1])
        return any(key is not None and key[1] in keys for key in key_matches)

    def _find_headings(self) -> Iterator[Heading]:
        for index, token in enumerate(self._tokens):
            if token.type == "heading_open" and token.level == 0 and token.tag <= "h3":
                text = self._tokens[index + 1].content
                yield Heading(int(token.tag[1]), text, _first_line(token), index, index + 3)

    def _read_section(self, heading: Heading, end: int) -> NodeSection:
        settings = None
        kind, first_line, start = self._find_settings(heading)
        if kind == _SETTINGS:
            settings = Excerpt("\n".join(self._lines[first_line + 1 : start - 1]), first_line + 2)
        elif kind == _UNCLOSED:
            detail = "the settings below its heading are not closed"
            hint = "put a line '---' after the last setting"
            self._diagnostics.add("E-SECTION", heading.text, detail, (first_line + 1, 1), hint)
        while start < end and not self._lines[start].strip():
            start += 1
        prompt = Excerpt("\n".join(self._lines[start:end]).rstrip(), start + 1)
        headings = tuple(heading for heading in self._headings if start < heading.line <= end)
        return NodeSection(heading.text, heading.line, settings, prompt, headings)

    def _find_settings(self, heading: Heading) -> tuple[str, int, int]:
        """Return the kind of the token after *heading*, and its first and last line, from 0."""
        if heading.place < len(self._tokens):
            token = self._tokens[heading.place]
            if token.type in (_SETTINGS, _UNCLOSED):
                return token.type, *_line_range(token)
        return "", heading.line, heading.line

    def _read_chart(self, fence: Token, *, is_reported: bool = False) -> Excerpt | None:
        """Return the flowchart in *fence*; with *is_reported*, report no problems again."""
        start, end = _line_range(fence)
        last_line = self._lines[end - 1].strip() if end - 1 > start else ""
        is_closed = last_line.startswith(fence.markup) and not last_line.strip(fence.markup[0])
        # Don't use the fence's text: its lines have lost their indentation.
        text = "\n".join(self._lines[start + 1 : end - is_closed])
        if not _is_flowchart(text):
            return None
        if not is_closed and not is_reported:
            detail, hint = "the block of the chart is not closed", f"put {fence.markup} after it"
            self._diagnostics.add(
                "E-CHART", self._diagnostics.file.name, detail, (start + 1, 1), hint
            )
        return Excerpt(text, start + 2)

    def _first_chart(self) -> Excerpt | None:
        """Return the first flowchart that is not below a ``###`` heading."""
        drawings = []
        for heading, token in self._drawings_above_nodes():
            drawings.append(token)
            if (chart := self._read_chart(token)) is not None:
                self._chart_heading = heading
                return chart
        name = self._diagnostics.file.name
        hint = "put one between ```mermaid and ```, above the first ### heading"
        position = (1, 1)
        if drawings:
            position = (_first_line(drawings[0]), 1)
            hint = "a chart starts with 'flowchart TD' or 'graph LR'"
        elif inner_token := next((token for token in self._tokens if _is_drawing(token)), None):
            position = (_first_line(inner_token), 1)
            hint = (
                "this one belongs to the ### section above it; move it above the first ### heading"
            )
        self._diagnostics.add("E-CHART", name, "there is no flowchart", position, hint)
        return None

    def _drawings_above_nodes(self) -> Iterator[tuple[Heading, Token]]:
        """Yield each drawing with the heading of level 1 or 2 above it."""
        end = Heading(1, "", len(self._lines) + 1, len(self._tokens), len(self._tokens))
        text_start = Heading(1, "", 1, 0, 0)
        for heading, next_heading in pairwise([text_start, *self._headings, end]):
            if heading.level != _NODE_LEVEL:
                for token in self._tokens[heading.place : next_heading.begin]:
                    if _is_drawing(token):
                        yield heading, token

    def _refuse_more_charts(self, sections: Sequence[NodeSection]) -> None:
        """Report every additional flowchart that is not in a prompt."""
        section_lines = [section.line for section in sections]
        ends = [section.prompt.line + section.prompt.text.count("\n") for section in sections]
        first_line = 0
        for _, token in self._drawings_above_nodes():
            line = _first_line(token)
            index = bisect_right(section_lines, line) - 1
            is_in_prompt = index >= 0 and line <= ends[index]
            if is_in_prompt or self._read_chart(token, is_reported=True) is None:
                continue
            if first_line:
                detail = f"a second flowchart; the first one starts in line {first_line}"
                hint = "a workflow has one; put a chart that only explains into a prompt or a list"
                self._diagnostics.add(
                    "E-CHART", self._diagnostics.file.name, detail, (line, 1), hint
                )
            first_line = first_line or line

    def _warn_of_text(self, heading: Heading, next_heading: Heading) -> None:
        for token in self._tokens[heading.place : next_heading.begin]:
            is_remark = token.type == "html_block" and token.content.lstrip().startswith("<!--")
            if token.map is not None and not is_remark and not _is_drawing(token):
                detail = "this text belongs to no node"
                hint = "the text below the heading of the chart is in no section"
                self._diagnostics.add(
                    "W-TEXT", heading.text or "#", detail, (_first_line(token), 1), hint
                )
                return


def _line_range(token: Token) -> tuple[int, int]:
    """Return the first line of *token*, from 0, and the line after its last."""
    assert token.map is not None  # noqa: S101 - block tokens have one
    return token.map[0], token.map[1]


def _first_line(token: Token) -> int:
    """Return the first line of *token*, from 1."""
    return _line_range(token)[0] + 1


def _is_drawing(token: Token) -> bool:
    words = token.info.split(maxsplit=1) if token.type == "fence" and token.level == 0 else []
    return bool(words) and words[0].lower() == "mermaid"


def _is_flowchart(text: str) -> bool:
    place, end = 0, len(text)
    while place < end:
        start_match = _NOT_BLANK.search(text, place)
        if start_match is None:
            return False
        place = start_match.start()
        if text.startswith("%%{", place):
            closing_place = text.find("}%%", place)
            place = end if closing_place < 0 else closing_place + 3
        elif text.startswith("%%", place):
            place = _line_end(text, place)
        elif text.startswith("---", place):
            closing_place = text.find("\n---", place)
            place = end if closing_place < 0 else _line_end(text, closing_place + 1)
        else:
            return _FLOWCHART.match(text, place) is not None
    return False


def _line_end(text: str, place: int) -> int:
    line_break = text.find("\n", place)
    return len(text) if line_break < 0 else line_break


@cache
def _create_parser() -> MarkdownIt:
    parser = MarkdownIt("zero", {"html": True, "maxNesting": 100})
    rules = ["code", "fence", "blockquote", "hr", "list", "html_block", "heading", "paragraph"]
    parser.enable(rules)
    parser.block.ruler.before("code", _SETTINGS, _read_settings)
    return parser


def _read_settings(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read the lines between ``---`` below a node's heading as settings, not as Markdown."""
    previous_token = state.tokens[-1] if state.tokens else None
    if (
        silent
        or previous_token is None
        or previous_token.type != "heading_close"
        or previous_token.level != 0
    ):
        return False
    if previous_token.tag != f"h{_NODE_LEVEL}" or state.is_code_block(start):
        return False
    if state.src[state.bMarks[start] : state.eMarks[start]].strip() != "---":
        return False
    kind, last_line = _UNCLOSED, start
    for line in range(start + 1, end):
        text = state.src[state.bMarks[line] : state.eMarks[line]]
        if text.rstrip() == "---":
            kind, last_line = _SETTINGS, line
            break
        if text.startswith("### "):
            break
    state.line = last_line + 1
    token = state.push(kind, "", 0)
    token.map = [start, state.line]
    return True
