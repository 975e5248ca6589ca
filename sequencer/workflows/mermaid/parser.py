"""From the text of a Mermaid flowchart to what it says, or the first thing wrong with it.

One method reads one construct. What is valid, and what it means, is what Mermaid 11.17
makes of it; only the limits are this module's own, and they are refusals. Not read: what
only changes colours, links and texts for screen readers; it is checked and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sequencer.workflows.mermaid.chart import BRACKETS, Chart, Drawing, Link, TooLarge, read_link
from sequencer.workflows.mermaid.complaints import Complaints
from sequencer.workflows.mermaid.scanner import ID_KINDS, SEPARATORS, Stream
from sequencer.workflows.mermaid.text import (
    SPACES,
    Source,
    Unreadable,
    prepare,
    read_shape_data,
)

MAX_CHARACTERS = 999_999
MAX_DEPTH = 100
_SMALLER = "make several workflows of it"

_TITLE_KINDS = frozenset([
    "NUM", "NODE", "SPACE", "MINUS", "AMP", "LETTER", "COLON", "MULT", "BRKT", "STYLE",
    "LINKSTYLE", "CLASSDEF", "CLASS", "CLICK", "GRAPH", "SUBGRAPH", "END", "DOWN", "UP",
    "START_LINK",
])  # fmt: skip
_ARROWS = {"<": "RL", "^": "BT", ">": "LR", "v": "TB", "TD": "TB"}


def read_chart(text: str, *, file: Path | None = None, first_line: int = 1) -> Chart:
    """Return what the flowchart *text* says; it begins at *first_line* of *file*.

    Raises:
        ChartError: not a flowchart that Mermaid reads, or past a limit: a million
            characters, groups nested deeper than a hundred, `MAX_EDGES` edges,
            `MAX_DECLARED` nodes and groups.
    """
    source = Source(text.replace("\r\n", "\n").replace("\r", "\n"), file, first_line)
    if len(text) > MAX_CHARACTERS:
        raise source.refusal(f"the chart has more than {MAX_CHARACTERS:,} characters", 0, _SMALLER)
    prepare(source)
    try:
        return _Scanner(source).read()
    except TooLarge as error:
        raise source.refusal(str(error), error.start, _SMALLER) from None


@dataclass(slots=True)
class _Group:
    """A subgraph whose ``end`` has not been read."""

    name: str | None
    title: str
    start: int
    direction: str | None = None
    members: list[str] = field(default_factory=list)


class _Scanner:
    """Reads statement after statement; the subgraphs that are open are a list, not a stack."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stream = Stream(source.text)
        self._drawing = Drawing()
        self._complaints = Complaints(source, self._stream)
        self._side = SideStatements(self._stream, self._drawing, self._complaints)
        self._open: list[_Group] = []

    def read(self) -> Chart:
        stream = self._stream
        self._header()
        while stream.kind != "STOP":
            self._statement(stream.kind)
        if self._open:
            raise self._complaints.open_subgraph(self._open[-1].start)
        return self._drawing.chart(self._source.position)

    def _header(self) -> None:
        stream = self._stream
        while stream.kind in {"SPACE", "NEWLINE"}:
            stream.advance()
        if stream.kind != "GRAPH" or stream.text == "swimlane-beta":
            raise self._complaints.no_header()
        stream.advance()
        if stream.kind == "NODIR":
            stream.advance()
            return
        if stream.kind != "DIR":
            raise self._complaints.bad_direction()
        direction = stream.text.strip(SPACES)
        self._drawing.direction = _ARROWS.get(direction, direction)
        stream.advance()
        if stream.kind == "SPACE":
            stream.skip_spaces()
            if stream.kind != "NEWLINE":
                raise self._complaints.after_header()
        elif stream.kind not in {"SEMI", "NEWLINE"}:
            raise self._complaints.after_header()
        stream.advance()

    def _statement(self, kind: str) -> None:
        stream = self._stream
        if kind in ID_KINDS:
            self._chain()
        elif kind in {"NEWLINE", "SPACE", "EOF"}:
            stream.advance()
        elif kind == "SEMI":
            # Mermaid counts an empty statement among the members of the group.
            self._mention([";"])
            stream.advance()
        elif kind == "SUBGRAPH":
            self._subgraph()
        elif kind == "END":
            self._end()
        elif kind.startswith("DIRECTION"):
            if self._open:
                self._open[-1].direction = kind.removeprefix("DIRECTION ")
            stream.advance()
        elif kind in {"ACC_TITLE", "ACC_DESCR", "ACC_BLOCK_VALUE"}:
            self._description()
        elif not self._side.read(kind):
            raise self._complaints.no_statement()

    def _description(self) -> None:
        """``accTitle: text``; Mermaid counts the text among the members of the group."""
        stream = self._stream
        if stream.kind != "ACC_BLOCK_VALUE":
            stream.advance()
        self._mention([stream.text.strip(SPACES)])
        stream.advance()

    def _mention(self, names: list[str]) -> None:
        if self._open:
            self._open[-1].members.extend(names)

    def _chain(self) -> None:
        """``a & b --> c -- text --> d``: groups of nodes, and the lines between them."""
        stream = self._stream
        groups = self._plain_groups()
        if not groups:
            groups.append(self._group(self._node()))
        while stream.kind in {"LINK", "START_LINK", "LINK_ID"}:
            start = stream.start_of_text
            link, label, name = self._link(start)
            if stream.kind not in ID_KINDS:
                raise self._complaints.no_target()
            group = self._group(self._node())
            self._drawing.add_edges(groups[-1], group, link, label=label, name=name, start=start)
            groups.append(group)
        if stream.kind not in SEPARATORS:
            raise self._complaints.after_node()
        stream.advance()
        if self._open:
            self._mention([name for group in reversed(groups) for name in group])

    def _plain_groups(self) -> list[list[str]]:
        """Return what the chain begins with in plain forms; the last group may go on after it."""
        drawing = self._drawing
        groups: list[list[str]] = []
        steps = self._stream.take_plain_steps()
        last = len(steps) - 1
        for index, (link, edge_label, name, label, shape, start, line) in enumerate(steps):
            drawing.add_node(name, start, label, shape)
            group = [name] if index < last else self._group(name)
            if link is not None:
                drawing.add_edges(groups[-1], group, link, label=edge_label, name=None, start=line)
            groups.append(group)
        return groups

    def _group(self, first: str) -> list[str]:
        """``a & b & c``, each with label, class and properties of its own; *first* is read."""
        stream = self._stream
        names = [first]
        while stream.kind in {"SPACE", "SHAPE_DATA"}:
            data = self._shape_data() if stream.kind == "SHAPE_DATA" else None
            has_space = stream.skip_spaces()
            has_more = has_space and stream.kind == "AMP"
            if has_more:
                stream.advance()
                if not stream.skip_spaces() or stream.kind not in ID_KINDS:
                    raise self._complaints.after_ampersand()
                names.append(self._node())
            elif data and has_space:
                raise self._complaints.after_node()
            if data:
                # After the next node, because a label of the same node there comes first.
                self._apply(names[-2] if has_more else names[-1], *data)
            if not has_more:
                break
        return names

    def _node(self) -> str:
        """``id``, ``id[label]``, ``id:::class``."""
        stream = self._stream
        start = stream.start
        name = stream.take_id()
        if stream.kind in BRACKETS or stream.kind == "TAGEND":
            label, shape = self._label(">" if stream.kind == "TAGEND" else stream.kind)
            self._drawing.add_node(name, start, label, shape)
        else:
            self._drawing.add_node(name, start)
        if stream.kind == "CLASS_MARK":
            stream.advance()
            if stream.kind not in ID_KINDS:
                raise self._complaints.no_class()
            self._drawing.classes.add(stream.take_id())
        return name

    def _label(self, opening: str) -> tuple[str, str]:
        """Return label and shape of ``[label]`` and of all other brackets."""
        stream = self._stream
        start = stream.start
        stream.advance()
        is_double = opening in ("(", "{") and stream.kind == opening
        if is_double:
            opening *= 2
            stream.advance()
        if opening == "[|":
            self._rectangle_property()
        bracket = BRACKETS[opening]
        label = self._text(bracket.written, start)
        shape = bracket.ends.get(stream.kind)
        if shape is None:
            raise self._complaints.open_label(bracket.written, start)
        last = stream.kind
        stream.advance()
        if is_double:
            if stream.kind != last:
                raise self._complaints.open_label(bracket.written, start)
            stream.advance()
        return label, shape

    def _rectangle_property(self) -> None:
        """``[|name:value|``; what it says has no meaning but for drawing."""
        stream = self._stream
        for kind in ("NODE", "COLON", "NODE", "|"):
            if stream.kind != kind:
                raise self._complaints.bad_property()
            stream.advance()

    def _text(self, closing: str, start: int) -> str:
        """Return the label up to a token that can't be part of it."""
        stream = self._stream
        if stream.kind not in {"TEXT", "STR", "MD_STR"}:
            raise self._complaints.empty_label(closing, start)
        return self._joined("TEXT")

    def _joined(self, kind: str) -> str:
        """Return the text of this token and of those of *kind* that follow."""
        stream = self._stream
        text = stream.text
        stream.advance()
        while stream.kind == kind:
            text += stream.text
            stream.advance()
        return text

    def _link(self, start: int) -> tuple[Link, str | None, str | None]:
        """``-->``, ``-->|label|``, ``-- label -->``, each with ``id@`` before it."""
        stream = self._stream
        name = None
        if stream.kind == "LINK_ID":
            name = stream.text.replace("@", "", 1)
            stream.advance()
        operator = stream.text.strip(SPACES)
        if stream.kind == "START_LINK":
            stream.advance()
            label = self._edge_text(operator, start)
            link = read_link(stream.text.strip(SPACES), operator)
            stream.advance()
            return link, label, name
        if stream.kind != "LINK":
            raise self._complaints.no_link()
        stream.advance()
        if stream.kind != "|":
            return read_link(operator), None, name
        label = self._pipe()
        if stream.kind == "SPACE":
            stream.advance()
        return read_link(operator), label, name

    def _pipe(self) -> str:
        """``|label|``."""
        stream = self._stream
        start = stream.start
        stream.advance()
        label = self._text("|", start)
        if stream.kind != "|":
            raise self._complaints.open_label("|", start)
        stream.advance()
        return label

    def _edge_text(self, operator: str, start: int) -> str:
        stream = self._stream
        if stream.kind not in {"EDGE_TEXT", "STR", "MD_STR"}:
            raise self._complaints.open_edge(operator, start)
        text = self._joined("EDGE_TEXT")
        if stream.kind != "LINK":
            raise self._complaints.open_edge(operator, start)
        return text

    def _shape_data(self) -> tuple[str, int]:
        """Return the inside of ``@{ … }`` and where it stands."""
        stream = self._stream
        start = stream.start
        pieces = []
        while stream.kind == "SHAPE_DATA":
            pieces.append(stream.text)
            stream.advance()
        if stream.kind in {"STOP", "BAD"}:
            raise self._complaints.open_properties(start)
        return "".join(pieces), start

    def _apply(self, name: str, data: str, start: int) -> None:
        try:
            self._drawing.add_properties(name, read_shape_data(data))
        except Unreadable as error:
            raise self._complaints.bad_properties(str(error), start) from error

    def _subgraph(self) -> None:
        """``subgraph id``, ``subgraph id [title]``, ``subgraph some title``."""
        stream = self._stream
        start = stream.start
        stream.advance()
        if stream.kind != "SPACE":
            raise self._complaints.no_title(start)
        stream.advance()
        if stream.kind not in _TITLE_KINDS and stream.kind not in {"STR", "MD_STR"}:
            raise self._complaints.no_title(start)
        name = stream.text
        stream.advance()
        while stream.kind in _TITLE_KINDS:
            name += stream.text
            stream.advance()
        if stream.kind == "[":
            title, _ = self._label("[")
            group = _Group(name.strip(SPACES), title, start)
        else:
            has_blanks = any(char in SPACES for char in name)
            group = _Group(None if has_blanks else name, name, start)
        if stream.kind not in SEPARATORS:
            raise self._complaints.after_subgraph()
        stream.advance()
        if len(self._open) == MAX_DEPTH:
            raise self._complaints.too_deep(MAX_DEPTH, start)
        self._open.append(group)

    def _end(self) -> None:
        if not self._open:
            raise self._complaints.stray_end()
        group = self._open.pop()
        self._stream.advance()
        name = self._drawing.add_subgraph(
            group.name, group.title, group.members, group.direction, group.start
        )
        self._mention([name])


_STYLE_KINDS = frozenset({"NUM", "NODE", "COLON", "SPACE", "BRKT", "STYLE"})
_WORD_KINDS = ID_KINDS - {"DEFAULT"}


class SideStatements:
    """Reads them from the same stream of tokens."""

    def __init__(self, stream: Stream, drawing: Drawing, complaints: Complaints) -> None:
        self._stream = stream
        self._drawing = drawing
        self._complaints = complaints

    def read(self, kind: str) -> bool:
        """Read the statement that begins with a token of *kind*; False: none does."""
        reader = {
            "STYLE": self._style,
            "LINKSTYLE": self._link_style,
            "CLASSDEF": self._class_def,
            "CLASS": self._class,
            "CLICK": self._click,
        }.get(kind)
        if reader is None:
            return False
        self._stream.advance()
        reader()
        if self._stream.kind not in SEPARATORS:
            raise self._complaints.bad_side_statement(kind)
        self._stream.advance()
        return True

    def _space(self, statement: str) -> None:
        if self._stream.kind != "SPACE":
            raise self._complaints.bad_side_statement(statement)
        self._stream.advance()

    def _id(self, statement: str) -> str:
        if self._stream.kind not in ID_KINDS:
            raise self._complaints.bad_side_statement(statement)
        return self._stream.take_id()

    def _styles(self, statement: str) -> None:
        stream = self._stream
        while True:
            if stream.kind not in _STYLE_KINDS:
                raise self._complaints.bad_side_statement(statement)
            while stream.kind in _STYLE_KINDS:
                stream.advance()
            if stream.kind != "COMMA":
                return
            stream.advance()

    def _style(self) -> None:
        self._space("STYLE")
        start = self._stream.start
        name = self._id("STYLE")
        self._space("STYLE")
        self._styles("STYLE")
        self._drawing.add_node(name, start)

    def _class_def(self) -> None:
        self._space("CLASSDEF")
        names = self._id("CLASSDEF")
        self._space("CLASSDEF")
        self._styles("CLASSDEF")
        self._drawing.classes.update(names.split(","))

    def _class(self) -> None:
        self._space("CLASS")
        self._id("CLASS")
        self._space("CLASS")
        self._drawing.classes.add(self._id("CLASS"))

    def _link_style(self) -> None:
        stream = self._stream
        self._space("LINKSTYLE")
        numbers: list[tuple[str, int]] = []
        if stream.kind == "DEFAULT":
            stream.advance()
        else:
            self._number(numbers)
            while stream.kind == "COMMA":
                stream.advance()
                self._number(numbers)
        self._space("LINKSTYLE")
        if stream.kind == "INTERPOLATE":
            stream.advance()
            self._space("LINKSTYLE")
            if stream.kind not in _WORD_KINDS:
                raise self._complaints.bad_side_statement("LINKSTYLE")
            while stream.kind in _WORD_KINDS:
                stream.advance()
            if stream.kind == "SPACE":
                stream.advance()
                self._styles("LINKSTYLE")
        else:
            self._styles("LINKSTYLE")
        self._ensure_edges(numbers)

    def _number(self, numbers: list[tuple[str, int]]) -> None:
        if self._stream.kind != "NUM":
            raise self._complaints.bad_side_statement("LINKSTYLE")
        numbers.append((self._stream.text, self._stream.start))
        self._stream.advance()

    def _ensure_edges(self, numbers: list[tuple[str, int]]) -> None:
        count = self._drawing.edge_count
        for text, start in numbers:
            is_index = text == "0" or not text.startswith("0")
            if not is_index or len(text) > len(str(count)) or int(text) >= count:
                raise self._complaints.no_edge(text, count, start)

    def _click(self) -> None:
        """``click`` and an id, then a callback, ``href`` or text, and a tooltip."""
        stream = self._stream
        if stream.kind == "CALLBACK":
            stream.advance()
            if stream.kind == "ARGUMENTS":
                stream.advance()
            self._tooltip()
        elif stream.kind in {"HREF", "STR"}:
            if stream.kind == "HREF":
                stream.advance()
            if stream.kind != "STR":
                raise self._complaints.bad_side_statement("CLICK")
            stream.advance()
            self._tooltip(has_target=True)
        elif stream.kind in _WORD_KINDS:
            while stream.kind in _WORD_KINDS:
                stream.advance()
            self._tooltip()
        else:
            raise self._complaints.bad_side_statement("CLICK")

    def _tooltip(self, *, has_target: bool = False) -> None:
        """Read what may follow: a text in quotes, and where the link opens."""
        stream = self._stream
        for kind in ("STR", "LINK_TARGET") if has_target else ("STR",):
            if stream.kind != "SPACE":
                return
            stream.advance()
            if stream.kind == "STR" and kind == "STR":
                stream.advance()
            elif stream.kind == "LINK_TARGET" and has_target:
                stream.advance()
                return
            else:
                raise self._complaints.bad_side_statement("CLICK")
