"""A graph drawn with characters: boxes, the lines between them, and loops.

Agents have single borders, people have double ones, and markers have round ones. A diamond before
the text marks a decision without an agent. Dashed lines at the right go back up. With a run,
boxes have marks and colors, and lines that were never followed are dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise, product
from operator import itemgetter
from typing import IO

from msgspec import Struct

from sequencer.cli.views.states import get_node_display, get_node_mark, sanitize_text, wrap_text
from sequencer.cli.views.text import can_write, cut, has_color, terminal_width, width
from sequencer.errors import StorageFailed
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.plugins.drawing.layers import Group, item_count
from sequencer.plugins.drawing.layout import (
    Box,
    EdgeLine,
    GroupFrame,
    Layout,
    TextSizes,
    compute_layout,
)
from sequencer.workflows.mermaid.chart import Chart

MAX_PLACES = 3000
"""A larger graph is described in words, because no one could follow its lines."""
MAX_CELLS = 4_000_000
USUAL_COLUMNS = 80
"""Width of a terminal that does not report it."""
WRAPS = (26, 18, 12, 9)
"""Widths of texts in boxes; the first one with which the drawing fits is used."""
BOX_LINES = 3
LABEL_COLUMNS, LABEL_LINES = 24, 3

_UP, _RIGHT, _DOWN, _LEFT = 1, 2, 4, 8
_SOLID = " ╵╶└╷│┌├╴┘─┴┐┤┬┼"
_DASHED = " ╎╌╰╎╎╭├╌╯╌┴╮┤┬┼"
_THICK = " ╹╺┗╻┃┏┣╸┛━┻┓┫┳╋"
_PLAIN = " |-+||++-+-+++++"
_PLAIN_DASHED = " :.+::++.+.+++++"
_HEADS = {(0, 1): "▼v", (0, -1): "▲^", (1, 0): "▶>", (-1, 0): "◀<"}
"""Direction of the graph -> arrow head, and the same in ASCII."""
_SHAPES = {
    NodeKind.HUMAN: "hexagon",
    NodeKind.MARKER: "circle",
    NodeKind.DECISION: "diamond",
}
_LEAVES = {(0, 1): "┬╤", (0, -1): "┴╧", (1, 0): "├╟", (-1, 0): "┤╢"}
"""Where a line leaves a border, and a double one."""
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}


Pieces = tuple[tuple[str, str], ...]
"""The texts of a row, each with rich's name of its style, perhaps empty."""


class Drawing(Struct, frozen=True):
    """Rows of styled pieces of text."""

    rows: tuple[Pieces, ...]

    @property
    def width(self) -> int:
        """Return its width in columns."""
        return max((width("".join(text for text, _ in row)) for row in self.rows), default=0)

    def to_text(self, *, has_colors: bool = False) -> str:
        """Return it as text, with colors as terminal sequences."""
        return "\n".join(
            "".join(_colorize(text, style) if has_colors else text for text, style in row).rstrip()
            for row in self.rows
        )


def merge_cells(cells: Iterable[tuple[str, str]]) -> Pieces:
    """Return *cells* with neighbors of the same style joined."""
    return tuple(
        ("".join(text for text, _ in group), style)
        for style, group in groupby(cells, key=itemgetter(1))
    )


def _colorize(text: str, style: str) -> str:
    codes, ground = [], 38
    for word in style.split():
        if word.startswith("#"):
            parts = ";".join(str(part) for part in bytes.fromhex(word[1:]))
            codes.append(f"{ground};2;{parts}")
        elif word != "on":
            codes.append(str(_CODES[word]))
        ground = 48 if word == "on" else 38
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text


def draw_flow(
    view: FlowView,
    *,
    columns: int | None = None,
    is_ascii: bool = False,
    chart: Chart | None = None,
) -> Drawing:
    """Return *view* drawn; with *columns*, as narrow as needed to fit into them, if possible.

    Directions, shapes and strokes follow *chart*, the author's drawing. The result may still be
    too wide; `list_nodes` has the same content in words.
    """
    drawing = Drawn(chart)
    graph = view.graph
    if item_count(graph) > MAX_PLACES:
        return list_nodes(view, is_ascii=is_ascii)
    best = None
    # A drawing that is too wide from left to right may fit from top to bottom.
    for direction, wrap in product(dict.fromkeys((drawing.direction, "TB")), WRAPS):
        texts = DiagramTexts(view, wrap, drawing, is_ascii=is_ascii)
        layout = compute_layout(
            graph, texts.measure_texts(), direction, drawing.build_groups(graph, width)
        )
        if layout.width * layout.height > MAX_CELLS:
            return list_nodes(view, is_ascii=is_ascii)
        if best is None or layout.width < best[0].width:
            best = (layout, texts)
        if columns is None or layout.width <= columns:
            break
    assert best is not None  # noqa: S101 - WRAPS is not empty
    return _paint(view, *best, drawing, is_ascii=is_ascii)


def list_nodes(view: FlowView, *, is_ascii: bool = False) -> Drawing:
    """Return *view* in words: each node and its successors."""
    graph = view.graph
    arrow, back = ("->", "(loop)") if is_ascii else ("→", "↺")
    rows = []
    for node in view.nodes:
        name = node.node.id
        ways = []
        for place in graph.outgoing[name]:
            edge = graph.edges[place]
            label = f" [{sanitize_text(edge.label)}]" if edge.label else ""
            loop = f" {back}" if place in graph.back_edges else ""
            ways.append(f"{sanitize_text(edge.target)}{label}{loop}")
        text = f" {get_node_mark(node, is_ascii=is_ascii)} {sanitize_text(name)}"
        suffix = f" {arrow} {', '.join(ways)}" if ways else ""
        style = get_node_display(node).style
        rows.append(
            (
                (_replace_non_ascii(text, is_ascii), style),
                (_replace_non_ascii(suffix, is_ascii), ""),
            )
        )
    return Drawing((*rows, *format_jumps(graph, is_ascii=is_ascii)))


def _replace_non_ascii(text: str, is_ascii: bool) -> str:
    return text.encode("ascii", "replace").decode() if is_ascii else text


def format_jumps(graph: Graph, *, is_ascii: bool) -> Iterator[Pieces]:
    """Yield the paths that no edge shows."""
    arrow = "->" if is_ascii else "→"
    jumps = [("on error", graph.on_error)] if graph.on_error else []
    jumps += [
        (f"{sanitize_text(n.id)} on timeout", n.on_timeout) for n in graph.nodes if n.on_timeout
    ]
    if jumps:
        yield ()
    for what, target in jumps:
        yield (
            (_replace_non_ascii(f"{what} {arrow} {sanitize_text(target or '')}", is_ascii), "dim"),
        )


class DiagramTexts:
    """The texts in boxes and on lines."""

    def __init__(
        self, view: FlowView, wrap: int, drawn: Drawn, *, is_ascii: bool, has_shapes: bool = False
    ) -> None:
        self._is_ascii, self._drawn, self._has_shapes = is_ascii, drawn, has_shapes
        self._dots = "..." if is_ascii else "…"
        self._loop = "loop" if is_ascii else "↺"
        self._has_run = any(node.state is not NodeState.PENDING for node in view.nodes)
        self.lines = {node.node.id: self._box(node, wrap) for node in view.nodes}

    def _box(self, view: NodeView, wrap: int) -> list[str]:
        node = view.node
        text = self._sanitize(node.label) or self._sanitize(node.id)
        lines = wrap_text(text, wrap, BOX_LINES, dots=self._dots)
        if self._sanitize(node.title):
            # Commands need the id, which the label does not contain.
            lines.append(cut(f"({self._sanitize(node.id)})", wrap, dots=self._dots))
        if self._drawn.shape(node) == "diamond" and not self._has_shapes:
            lines[0] = f"{'<>' if self._is_ascii else '◇'} {lines[0]}"
        if self._has_run and view.state is not NodeState.PENDING:
            lines[0] = f"{get_node_mark(view, is_ascii=self._is_ascii)} {lines[0]}"
            if view.runs > 1:
                lines[0] += f" {'x' if self._is_ascii else '×'}{view.runs}"  # noqa: RUF001 - times
        return lines

    def _sanitize(self, text: str) -> str:
        return _replace_non_ascii(
            sanitize_text(text.replace("<br/>", " ").replace("<br>", " ")), self._is_ascii
        )

    def format_label(self, text: str) -> tuple[str, ...]:
        """Return the drawn form of an edge's label."""
        return tuple(wrap_text(self._sanitize(text), LABEL_COLUMNS, LABEL_LINES, dots=self._dots))

    def format_loop_label(self, text: str) -> tuple[str, ...]:
        """Return the text next to a line that closes a loop, even without a label."""
        first_line, *other_lines = self.format_label(text)
        return (f"{self._loop} {first_line}".strip(), *other_lines)

    def measure_texts(self) -> TextSizes:
        """Return the sizes of all texts on a terminal."""
        sizes = {
            name: (max(width(line) for line in lines) + 4, len(lines) + 2)
            for name, lines in self.lines.items()
        }
        return TextSizes(sizes, self.format_label, self.format_loop_label, width)


class Drawn:
    """The author's drawing of a graph; without a chart, shapes follow the kinds of nodes."""

    def __init__(self, chart: Chart | None) -> None:
        self._chart = chart = chart or Chart("TB", (), ())
        self.direction = chart.direction
        self._shapes = {node.id: node.bracket for node in chart.nodes}
        self._strokes = {
            (edge.source, edge.target, edge.label): edge.stroke for edge in chart.edges
        }

    def build_groups(self, graph: Graph, measured: Callable[[str], int]) -> list[Group]:
        """Return the groups of nodes in *graph*; *measured* returns a title's width in columns."""
        groups: dict[str, Group] = {}
        # In closing order: inner groups come before the group around them.
        for subgraph in self._chart.subgraphs:
            inner_groups = [groups[name] for name in subgraph.nodes if name in groups]
            nodes = {name for name in subgraph.nodes if name in graph.by_id}
            nodes.update(*(group.nodes for group in inner_groups))
            if nodes:
                levels = 1 + max((group.levels for group in inner_groups), default=0)
                title = cut(sanitize_text(subgraph.title), LABEL_COLUMNS)
                columns = measured(title) + 2 if title else 0
                groups[subgraph.id] = Group(subgraph.id, title, frozenset(nodes), levels, columns)
        return list(groups.values())

    def colors(self, name: str) -> dict[str, str]:
        """Return fill, stroke and color of a node or a group, as far as the chart sets them."""
        colors = dict(self._chart.colors.get(name, {}))
        if "fill" in colors and "color" not in colors:
            red, green, blue = bytes.fromhex(colors["fill"][1:])
            is_light = 0.3 * red + 0.6 * green + 0.1 * blue > 128  # noqa: PLR2004 - half of 255
            colors["color"] = "#212529" if is_light else "#ffffff"
        return colors

    def shape(self, node: Node) -> str:
        """Return square, round, stadium, circle, hexagon or diamond."""
        if node.kind is not NodeKind.AGENT:
            return _SHAPES[node.kind]
        # The chart may have changed since, and have another node there.
        shape = self._shapes.get(node.id)
        return shape if shape in ("round", "stadium", "diamond") else "square"

    def stroke(self, edge: Edge) -> str:
        """Return normal, dotted or thick."""
        return self._strokes.get((edge.source, edge.target, edge.label), "normal")


class _Canvas:
    """Cells with one character each; the second cell of a wide character is empty."""

    def __init__(self, layout: Layout, *, is_ascii: bool) -> None:
        self._is_ascii, self._way = is_ascii, layout.way
        self._cells = [[" "] * layout.width for _ in range(layout.height)]
        self._styles = [[""] * layout.width for _ in range(layout.height)]
        self._arms: dict[tuple[int, int], tuple[int, bool]] = {}

    def write_text(self, x: int, y: int, text: str, style: str) -> None:
        """Write *text*; the part that doesn't fit is left out."""
        row = self._cells[y]
        for character in text:
            size = width(character)
            if not size:
                row[x - 1] += character
                continue
            if x + size > len(row):
                return
            row[x : x + size] = [character, *[""] * (size - 1)]
            self._styles[y][x : x + size] = [style] * size
            x += size

    def draw_border(self, one: Box | GroupFrame, glyphs: str, style: str, fill: str = "") -> None:
        """Draw the edge of a box or of a group, which lines may cross if it has no *fill*."""
        inner_width, bottom = one.width - 2, one.y + one.height - 1
        self.write_text(one.x, one.y, glyphs[0] + glyphs[1] * inner_width + glyphs[2], style)
        for y in range(one.y + 1, bottom):
            self.write_text(one.x, y, glyphs[3] + fill * inner_width, style)
            self.write_text(one.x + one.width - 1, y, glyphs[3], style)
        self.write_text(one.x, bottom, glyphs[4] + glyphs[1] * inner_width + glyphs[5], style)

    def draw_title(self, frame: GroupFrame, style: str) -> None:
        """Write a group's title into the upper edge of its frame."""
        if title := _replace_non_ascii(frame.group.title, self._is_ascii):
            text = cut(f" {title} ", frame.width - 2, dots="")
            self.write_text(frame.x + frame.title, frame.y, text, style)

    def draw_line(self, line: EdgeLine, style: str, stroke: str) -> None:
        """Draw the line from corner to corner, and its arrow head."""
        is_dashed = line.is_loop or stroke == "dotted"
        points = list(_walk(line.points))
        for start, end in pairwise(points):
            self._add_arm(start, _direction(start, end), is_dashed=is_dashed)
            self._add_arm(end, _direction(end, start), is_dashed=is_dashed)
        for x, y in points[1:-1]:
            arms, are_dashed = self._arms[x, y]
            is_thick = stroke == "thick" and not self._is_ascii
            glyphs = _THICK if is_thick else self._glyphs(is_dashed=are_dashed)
            self.write_text(x, y, glyphs[arms], style)
        x, y = points[-1]
        self.write_text(x, y, _HEADS[self._way][self._is_ascii], style)

    def _glyphs(self, *, is_dashed: bool) -> str:
        if self._is_ascii:
            return _PLAIN_DASHED if is_dashed else _PLAIN
        return _DASHED if is_dashed else _SOLID

    def _add_arm(self, cell: tuple[int, int], arm: int, *, is_dashed: bool) -> None:
        arms, was_dashed = self._arms.get(cell, (0, is_dashed))
        self._arms[cell] = (arms | arm, was_dashed and is_dashed)

    def rows(self) -> Iterator[Pieces]:
        """Yield each row as pieces of one style."""
        for cells, styles in zip(self._cells, self._styles, strict=True):
            yield merge_cells(zip(cells, styles, strict=True))


def _walk(points: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    """Yield every cell between the corners, without repetitions."""
    x, y = points[0]
    yield x, y
    for to_x, to_y in points[1:]:
        while (x, y) != (to_x, to_y):
            x += (to_x > x) - (to_x < x)
            y += (to_y > y) - (to_y < y) if x == to_x else 0
            yield x, y


def _direction(start: tuple[int, int], end: tuple[int, int]) -> int:
    if start[0] != end[0]:
        return _RIGHT if end[0] > start[0] else _LEFT
    return _DOWN if end[1] > start[1] else _UP


def _paint(
    view: FlowView, layout: Layout, texts: DiagramTexts, drawing: Drawn, *, is_ascii: bool
) -> Drawing:
    canvas = _Canvas(layout, is_ascii=is_ascii)
    states = {node.node.id: node for node in view.nodes}
    edges = view.graph.edges
    has_run = bool(view.followed) or view.status not in ("not-started", "")
    for frame in layout.frames:
        canvas.draw_border(
            frame,
            ".-.:''" if is_ascii else "╭╌╮┆╰╯",
            drawing.colors(frame.group.name).get("stroke", "dim"),
        )
    for line in layout.lines:
        style = "dim" if has_run and line.place not in view.followed else ""
        canvas.draw_line(line, style, drawing.stroke(edges[line.place]))
    for frame in layout.frames:
        canvas.draw_title(frame, "bold")
    for box in layout.boxes:
        node = states[box.node]
        glyphs = _borders(drawing.shape(node.node), is_ascii=is_ascii)
        style = get_node_display(node).style
        if node.state is NodeState.PENDING:
            colors = drawing.colors(box.node)
            style = colors.get("stroke", "")
            if "fill" in colors:
                style = f"{colors['color']} on {colors['fill']}"
        _draw_box(canvas, box, style, texts.lines[box.node], glyphs)
    for line in layout.lines:
        x, y = line.points[0]
        node = states[edges[line.place].source]
        leaves = "+" if is_ascii else _LEAVES[layout.way][node.node.kind is NodeKind.HUMAN]
        canvas.write_text(x, y, leaves, get_node_display(node).style if has_run else "")
        for number, text in enumerate(line.label.lines if line.label is not None else ()):
            assert line.label is not None  # noqa: S101 - it has lines
            indent = 0 if line.is_loop else (line.label.width - width(text)) // 2
            canvas.write_text(line.label.x + indent, line.label.y + number, text, "yellow")
    return Drawing((*canvas.rows(), *format_jumps(view.graph, is_ascii=is_ascii)))


def _borders(shape: str, *, is_ascii: bool) -> str:
    """Return the corners and sides of a box."""
    if shape == "hexagon":
        return "+=+|++" if is_ascii else "╔═╗║╚╝"
    if shape in ("round", "stadium", "circle"):
        return ".-.|''" if is_ascii else "╭─╮│╰╯"
    return "+-+|++" if is_ascii else "┌─┐│└┘"


def _draw_box(canvas: _Canvas, box: Box, style: str, lines: list[str], glyphs: str) -> None:
    canvas.draw_border(box, glyphs, style, " ")
    top = box.y + 1 + (box.height - 2 - len(lines)) // 2
    for y, text in enumerate(lines, top):
        canvas.write_text(box.x + 1 + (box.width - 2 - width(text)) // 2, y, text, style)


NEEDED = "┌╔╭▼▶╎━✓●↻↺…"
"""An encoding without these characters gets a drawing in ASCII."""


def print_diagram(view: FlowView, stream: IO[str] | None, chart: Chart | None = None) -> None:
    """Draw *view* to *stream*; on a terminal, with colors and at most its width.

    A drawing that doesn't fit the terminal is replaced by words and a hint; a file or a pipe gets
    it at any width. Without a *stream*, because it was closed, nothing is drawn.

    Raises:
        BrokenPipeError: the reader of the pipe has ended.
        StorageFailed: it can't be written, for example because the disk is full.
    """
    if stream is None:
        return
    is_ascii = not can_write(stream, NEEDED)
    columns = (terminal_width(stream) or USUAL_COLUMNS) if stream.isatty() else None
    drawing = draw_flow(view, columns=columns, is_ascii=is_ascii, chart=chart)
    if columns is not None and drawing.width > columns:
        drawing = _list_instead(view, drawing.width, columns, is_ascii=is_ascii)
    print_drawing(drawing, stream)


def print_drawing(drawing: Drawing, stream: IO[str] | None) -> None:
    """Write *drawing* to *stream*, with colors on a terminal.

    Raises: see `print_diagram`.
    """
    if stream is None:
        return
    text = drawing.to_text(has_colors=has_color(stream))
    # Even an encoding with line characters may lack letters of a name.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "replace").decode(encoding)
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageFailed(f"can't be written: {error.strerror}", where="the drawing") from error


def _list_instead(view: FlowView, width: int, columns: int, *, is_ascii: bool) -> Drawing:
    hint = (
        f"the drawing takes {width} columns and this terminal has {columns}; "
        "to see all of it, pipe it through 'less -S', or make a picture with --svg"
    )
    return Drawing((*list_nodes(view, is_ascii=is_ascii).rows, (), ((hint, "dim"),)))
