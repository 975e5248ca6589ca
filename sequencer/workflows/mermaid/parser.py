"""Reads the text of a Mermaid flowchart, or reports its first error.

Each method reads one construct. Mermaid 11.17 decides what is valid and what it means; only the
limits are our own. Styles, links and texts for screen readers are checked, because Mermaid
refuses the whole chart for an error in them, and then ignored, except for a node that ``style``
mentions first, the names of classes, and plain colors.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from msgspec import Struct, field

from sequencer.workflows.mermaid.chart import (
    BRACKETS,
    SMALLER,
    Chart,
    ChartBuilder,
    Link,
    parse_colors,
    read_link,
)
from sequencer.workflows.mermaid.chart_errors import ChartErrors
from sequencer.workflows.mermaid.scanner import ID_KINDS, SEPARATORS, Scanner
from sequencer.workflows.mermaid.text import (
    SPACES,
    ChartText,
    Unreadable,
    prepare,
    read_shape_data,
)

MAX_CHARACTERS = 999_999
MAX_DEPTH = 100
_TITLE_KINDS = frozenset([
    "NUM", "NODE", "SPACE", "MINUS", "AMP", "LETTER", "COLON", "MULT", "BRKT", "STYLE",
    "LINKSTYLE", "CLASSDEF", "CLASS", "CLICK", "GRAPH", "SUBGRAPH", "END", "DOWN", "UP",
    "START_LINK",
])  # fmt: skip
_STYLE_KINDS = frozenset({"NUM", "NODE", "COLON", "SPACE", "BRKT", "STYLE"})
_WORD_KINDS = ID_KINDS - {"DEFAULT"}
_ARROWS = {"<": "RL", "^": "BT", ">": "LR", "v": "TB", "TD": "TB"}


def read_chart(text: str, *, file: Path | None = None, first_line: int = 1) -> Chart:
    """Return the chart in *text*, which starts at *first_line* of *file*.

    Raises:
        ChartError: it is not a flowchart that Mermaid accepts, or exceeds a limit: a million
            characters, a hundred levels of groups, `MAX_EDGES` edges, `MAX_DECLARED` nodes and
            groups.
    """
    source = ChartText(text.replace("\r\n", "\n").replace("\r", "\n"), file, first_line)
    if len(text) > MAX_CHARACTERS:
        raise source.error_at(f"the chart has more than {MAX_CHARACTERS:,} characters", 0, SMALLER)
    prepare(source)
    return _Parser(source).read()


class _Group(Struct):
    """A subgraph whose ``end`` has not been read yet."""

    name: str | None
    title: str
    start: int
    direction: str | None = None
    members: list[str] = field(default_factory=list)


class _Parser:
    """Reads statement after statement; open subgraphs are in a list, without recursion."""

    def __init__(self, source: ChartText) -> None:
        self._tokens = Scanner(source.text)
        self._chart = ChartBuilder(source)
        self._errors = ChartErrors(source, self._tokens)
        self._open: list[_Group] = []
        self._side = ""
        """The kind of the style statement that is being read."""
        self._side_statements = {
            "STYLE": self._parse_style,
            "LINKSTYLE": self._parse_link_style,
            "CLASSDEF": self._parse_class_def,
            "CLASS": self._parse_class,
            "CLICK": self._parse_click,
        }

    def read(self) -> Chart:
        self._parse_header()
        while self._tokens.kind != "STOP":
            self._parse_statement(self._tokens.kind)
        if self._open:
            message = "the subgraph is not closed with 'end'"
            hint = "write 'end' on a separate line after its last node"
            raise self._errors.at(message, self._open[-1].start, hint)
        return self._chart.build()

    def _parse_header(self) -> None:
        tokens = self._tokens
        while tokens.kind in {"SPACE", "NEWLINE"}:
            tokens.advance()
        if tokens.kind != "GRAPH" or tokens.text == "swimlane-beta":
            message = "a flowchart starts with 'flowchart' or 'graph', not with"
            hint = "write 'flowchart TD' in the first line"
            raise self._errors.error_here(f"{message} {self._errors.token}", hint)
        tokens.advance()
        if tokens.kind != "NODIR":
            if tokens.kind != "DIR":
                raise self._errors.bad_direction()
            direction = tokens.consume().strip(SPACES)
            self._chart.direction = _ARROWS.get(direction, direction)
            ends = {"NEWLINE"} if tokens.skip_spaces() else {"SEMI", "NEWLINE"}
            if tokens.kind not in ends:
                raise self._errors.text_after_header()
        tokens.advance()

    def _parse_statement(self, kind: str) -> None:
        tokens = self._tokens
        if kind in ID_KINDS:
            self._parse_chain()
        elif kind in {"NEWLINE", "SPACE", "EOF"}:
            tokens.advance()
        elif kind == "SEMI":
            # For Mermaid, an empty statement is a member of the group.
            self._add_members([tokens.consume()])
        elif kind == "SUBGRAPH":
            self._parse_subgraph()
        elif kind == "END":
            self._parse_end()
        elif kind.startswith("DIRECTION"):
            if self._open:
                self._open[-1].direction = kind.removeprefix("DIRECTION ")
            tokens.advance()
        else:
            self._parse_side_statement(kind)

    def _parse_side_statement(self, kind: str) -> None:
        tokens = self._tokens
        if kind in {"ACC_TITLE", "ACC_DESCR", "ACC_BLOCK_VALUE"}:
            if kind != "ACC_BLOCK_VALUE":
                tokens.advance()
            # For Mermaid, the text is a member of the group.
            self._add_members([tokens.consume().strip(SPACES)])
        elif kind in self._side_statements:
            self._side = kind
            tokens.advance()
            self._side_statements[kind]()
            self._expect(SEPARATORS)
        else:
            raise self._errors.bad_statement()

    def _add_members(self, names: list[str]) -> None:
        if self._open:
            self._open[-1].members.extend(names)

    def _parse_chain(self) -> None:
        """Read ``a & b --> c -- text --> d``: groups of nodes, and the edges between them."""
        tokens = self._tokens
        groups = [self._parse_group()]
        while tokens.kind in {"LINK", "START_LINK", "LINK_ID"}:
            start = tokens.start_of_text
            link, label, name = self._parse_link(start)
            if tokens.kind not in ID_KINDS:
                raise self._errors.missing_target()
            group = self._parse_group()
            self._chart.add_edges(groups[-1], group, link, label=label, name=name, start=start)
            groups.append(group)
        if tokens.kind not in SEPARATORS:
            raise self._errors.bad_token_after_node()
        tokens.advance()
        self._add_members([name for group in reversed(groups) for name in group])

    def _parse_group(self) -> list[str]:
        """Read ``a & b & c``, each with its own label, class and properties; return the ids."""
        tokens = self._tokens
        names = [self._parse_node()]
        while tokens.kind in {"SPACE", "SHAPE_DATA"}:
            data = self._parse_shape_data() if tokens.kind == "SHAPE_DATA" else None
            has_space = tokens.skip_spaces()
            has_more = has_space and tokens.kind == "AMP"
            if has_more:
                tokens.advance()
                if not tokens.skip_spaces() or tokens.kind not in ID_KINDS:
                    message = f"after '&' there is {self._errors.token} instead of another node"
                    hint = "write: a & b --> c, with spaces on both sides of '&'"
                    raise self._errors.bad_id(message, hint)
                names.append(self._parse_node())
            elif data and has_space:
                raise self._errors.bad_token_after_node()
            if data:
                # After the next node: if that is the same node, its label comes first.
                self._apply_properties(names[-2] if has_more else names[-1], *data)
            if not has_more:
                break
        return names

    def _parse_node(self) -> str:
        """Read ``id``, ``id[label]`` or ``id:::class``; add the node, and return its id."""
        tokens = self._tokens
        start = tokens.start
        name = tokens.consume_id()
        label = shape = None
        if tokens.kind in BRACKETS or tokens.kind == "TAGEND":
            label, shape = self._parse_label(">" if tokens.kind == "TAGEND" else tokens.kind)
        self._chart.add_node(name, start, label, shape)
        if tokens.kind == "CLASS_MARK":
            tokens.advance()
            if tokens.kind not in ID_KINDS:
                message = (
                    f"after ':::' there is {self._errors.token} instead of the name of a class"
                )
                raise self._errors.error_here(message)
            self._chart.add_class([name], tokens.consume_id())
        return name

    def _parse_label(self, opening: str) -> tuple[str, str]:
        """Read ``[label]``, in *opening* or any other brackets; return the label and the shape."""
        tokens = self._tokens
        start = tokens.start
        tokens.advance()
        is_double = opening in ("(", "{") and tokens.kind == opening
        if is_double:
            opening *= 2
            tokens.advance()
        if opening == "[|":
            self._skip_rectangle_property()
        bracket, ends = BRACKETS[opening]
        label = self._parse_text(bracket, start)
        last_kind = tokens.kind
        if last_kind in ends:
            tokens.advance()
        if last_kind not in ends or (is_double and tokens.kind != last_kind):
            raise self._errors.unclosed_label(bracket, start)
        if is_double:
            tokens.advance()
        return label, ends[last_kind]

    def _skip_rectangle_property(self) -> None:
        """Skip ``[|name:value|``, which matters only for drawing."""
        for kind in ("NODE", "COLON", "NODE", "|"):
            if self._tokens.kind != kind:
                raise self._errors.error_here(
                    "'[|' needs a property", "write: a[|name:value|Label]"
                )
            self._tokens.advance()

    def _parse_text(self, closing_mark: str, start: int) -> str:
        """Return the label up to a token that can't be part of it."""
        if self._tokens.kind not in {"TEXT", "STR", "MD_STR"}:
            raise self._errors.empty_label(closing_mark, start)
        return self._tokens.consume({"TEXT"})

    def _parse_link(self, start: int) -> tuple[Link, str | None, str | None]:
        """Read ``-->``, ``-->|label|`` or ``-- label -->``, perhaps with ``id@`` before it.

        Return the link, its label and its id.
        """
        tokens = self._tokens
        name = tokens.consume().replace("@", "", 1) if tokens.kind == "LINK_ID" else None
        kind, operator = tokens.kind, tokens.text.strip(SPACES)
        if kind not in {"LINK", "START_LINK"}:
            message = f"after '@' there is {self._errors.token} instead of an edge"
            hint = "put '@' between an edge's id and the edge, 'a e1@--> b', or before '{'"
            raise self._errors.error_here(message, hint)
        tokens.advance()
        if kind == "START_LINK":
            label = self._parse_edge_text(operator, start)
            return read_link(tokens.consume().strip(SPACES), operator), label, name
        if tokens.kind != "|":
            return read_link(operator), None, name
        label = self._parse_pipe_label()
        if tokens.kind == "SPACE":
            tokens.advance()
        return read_link(operator), label, name

    def _parse_pipe_label(self) -> str:
        """Read ``|label|`` and return the label."""
        start = self._tokens.start
        self._tokens.advance()
        label = self._parse_text("|", start)
        if self._tokens.kind != "|":
            raise self._errors.unclosed_label("|", start)
        self._tokens.advance()
        return label

    def _parse_edge_text(self, operator: str, start: int) -> str:
        text = None
        if self._tokens.kind in {"EDGE_TEXT", "STR", "MD_STR"}:
            text = self._tokens.consume({"EDGE_TEXT"})
        if text is None or self._tokens.kind != "LINK":
            raise self._errors.unclosed_edge(operator, start)
        return text

    def _parse_shape_data(self) -> tuple[str, int]:
        """Read ``@{ … }``; return the text between the braces, and where the token starts."""
        start = self._tokens.start
        text = self._tokens.consume({"SHAPE_DATA"})
        if self._tokens.kind in {"STOP", "BAD"}:
            raise self._errors.unclosed_properties(start)
        return text, start

    def _apply_properties(self, name: str, data: str, start: int) -> None:
        try:
            self._chart.add_properties(name, read_shape_data(data))
        except Unreadable as error:
            hint = 'write: a@{ shape: hexagon, label: "Label" }'
            raise self._errors.at(f"'@{{ … }}': {error}", start, hint) from error

    def _parse_subgraph(self) -> None:
        """Read ``subgraph id``, ``subgraph id [title]`` or ``subgraph some title``, and open it."""
        tokens = self._tokens
        start = tokens.start
        tokens.advance()
        has_space = tokens.kind == "SPACE"
        if has_space:
            tokens.advance()
        if not has_space or tokens.kind not in _TITLE_KINDS | {"STR", "MD_STR"}:
            raise self._errors.missing_title(start)
        name = tokens.consume(_TITLE_KINDS)
        if tokens.kind == "[":
            title, _ = self._parse_label("[")
            group = _Group(name.strip(SPACES), title, start)
        else:
            has_blanks = any(char in SPACES for char in name)
            group = _Group(None if has_blanks else name, name, start)
        if tokens.kind not in SEPARATORS:
            message = f"{self._errors.token} is not allowed in a subgraph's line"
            hint = 'write titles in double quotes: subgraph name["Title"], and nothing after them'
            raise self._errors.error_here(message, hint)
        tokens.advance()
        if len(self._open) == MAX_DEPTH:
            raise self._errors.at(f"subgraphs are nested deeper than {MAX_DEPTH} levels", start)
        self._open.append(group)

    def _parse_end(self) -> None:
        if not self._open:
            message = "'end' closes no subgraph, and it can't be an id"
            raise self._errors.error_here(message, "name the node 'End' or 'end_node'")
        group = self._open.pop()
        self._tokens.advance()
        name = self._chart.add_subgraph(
            group.name, group.title, group.members, group.direction, group.start
        )
        self._add_members([name])

    def _expect(self, kinds: Collection[str]) -> None:
        """Skip a token of one of *kinds*, which the style statement needs here."""
        if self._tokens.kind not in kinds:
            raise self._errors.bad_side_statement(self._side)
        self._tokens.advance()

    def _expect_text(self, kinds: Collection[str]) -> str:
        """Return the text of one or more tokens of *kinds*, and skip them."""
        if self._tokens.kind not in kinds:
            raise self._errors.bad_side_statement(self._side)
        return self._tokens.consume(kinds)

    def _parse_styles(self) -> dict[str, str]:
        """Read the styles of a statement, and return the colors in them."""
        styles = [self._expect_text(_STYLE_KINDS)]
        while self._tokens.kind == "COMMA":
            self._tokens.advance()
            styles.append(self._expect_text(_STYLE_KINDS))
        return parse_colors(styles)

    def _parse_style(self) -> None:
        self._expect({"SPACE"})
        start = self._tokens.start
        name = self._expect_text(ID_KINDS)
        self._expect({"SPACE"})
        self._chart.styles.setdefault(name, {}).update(self._parse_styles())
        self._chart.add_node(name, start)

    def _parse_class_def(self) -> None:
        self._expect({"SPACE"})
        names = self._expect_text(ID_KINDS)
        self._expect({"SPACE"})
        colors = self._parse_styles()
        for name in names.split(","):
            self._chart.classes.setdefault(name, {}).update(colors)

    def _parse_class(self) -> None:
        self._expect({"SPACE"})
        names = self._expect_text(ID_KINDS).split(",")
        self._expect({"SPACE"})
        self._chart.add_class(names, self._expect_text(ID_KINDS))

    def _parse_link_style(self) -> None:
        tokens = self._tokens
        self._expect({"SPACE"})
        numbers: list[tuple[str, int]] = []
        if tokens.kind == "DEFAULT":
            tokens.advance()
        else:
            numbers.append((tokens.text, tokens.start))
            self._expect({"NUM"})
            while tokens.kind == "COMMA":
                tokens.advance()
                numbers.append((tokens.text, tokens.start))
                self._expect({"NUM"})
        self._expect({"SPACE"})
        if tokens.kind == "INTERPOLATE":
            tokens.advance()
            self._expect({"SPACE"})
            self._expect_text(_WORD_KINDS)
            if tokens.kind == "SPACE":
                tokens.advance()
                self._parse_styles()
        else:
            self._parse_styles()
        self._ensure_edges(numbers)

    def _ensure_edges(self, numbers: list[tuple[str, int]]) -> None:
        count = len(self._chart.edges)
        for text, start in numbers:
            is_index = text == "0" or not text.startswith("0")
            if not is_index or len(text) > len(str(count)) or int(text) >= count:
                shown_text = text if len(text) <= 20 else text[:20] + "…"  # noqa: PLR2004
                numbers_so_far = f"0 to {count - 1}" if count else "none so far"
                message = f"there is no edge number {shown_text}; there are {numbers_so_far}"
                raise self._errors.at(message, start)

    def _parse_click(self) -> None:
        """Read ``click`` and an id, then a callback, ``href`` or text, and a tooltip."""
        tokens = self._tokens
        is_link = tokens.kind in {"HREF", "STR"}
        if tokens.kind == "CALLBACK":
            tokens.advance()
            if tokens.kind == "ARGUMENTS":
                tokens.advance()
        elif is_link:
            if tokens.kind == "HREF":
                tokens.advance()
            self._expect({"STR"})
        else:
            self._expect_text(_WORD_KINDS)
        # A text in quotes may follow, and for a link also its target window.
        expected_kinds = ["STR", "LINK_TARGET"] if is_link else ["STR"]
        while expected_kinds and tokens.kind == "SPACE":
            tokens.advance()
            kind = tokens.kind
            self._expect(expected_kinds)
            expected_kinds = expected_kinds[1:] if kind == "STR" else []
