"""The common parts of pictures: estimated text widths, PNG by resvg, and safe files.

All text of authors and agents is escaped, and a picture refers to nothing outside itself. The
texts in a PNG use a font of the extra ``picture``, so that it looks the same on a machine without
fonts. Letters that this font lacks (Chinese, for example) use fonts of the machine, if possible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from html import escape
from importlib.resources import as_file, files
from itertools import pairwise
from pathlib import Path

from sequencer.cli.context import Invocation
from sequencer.cli.options import save as save_file
from sequencer.cli.views.nodes import node_summary
from sequencer.cli.views.states import PICTURES, get_node_display, sanitize_text
from sequencer.cli.views.text import width as columns_of
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.plugins.drawing.diagram import MAX_PLACES, DiagramTexts, Drawn, format_jumps
from sequencer.plugins.drawing.layers import item_count
from sequencer.plugins.drawing.layout import (
    Box,
    EdgeLine,
    GroupFrame,
    Label,
    Layout,
    TextSizes,
    compute_layout,
)
from sequencer.project.dependencies import extra_hint
from sequencer.workflows.mermaid.chart import Chart

FONTS = "DejaVu Sans, Verdana, sans-serif"
TEXT, SMALL = 14, 12
INK, PALE_INK, FAINT, GROUND = "#212529", "#495057", "#ced4da", "#f8f9fa"
MAX_PIXELS = 24_000_000
FIRST_UNCOMMON, NO_LETTER = 0x590, "\U0010fffd"
"""Lower code points are Latin, Greek and Cyrillic, which the picture's font has."""
MAX_LETTERS = 8
"""Maximum number of checked letters, because each check renders a picture."""
SCALE = 2.0
"""Pixels per point, unless the picture is too large."""

_NARROW, _WIDE = frozenset("ijlftrI|.,:;'`!()[]{}/\\- "), frozenset("mwMW@%—…→✓✗●○↻↺◇")


def estimate_width(text: str, size: int) -> float:
    """Return an upper estimate of the width of *text*, because fonts differ."""
    total = 0.0
    for character in text:
        if columns_of(character) > 1:
            total += 1.0
        elif character in _NARROW:
            total += 0.42
        elif character in _WIDE:
            total += 1.0
        else:
            total += 0.78 if character.isupper() else 0.64
    return total * size


def svg_header(wide: int, high: int, title: str) -> tuple[str, str, str]:
    """Return the first lines of a picture: size, title, and white background."""
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="{FONTS}">'
    )
    return (
        opening,
        f"<title>{escape(title, quote=False)}</title>",
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    )


def render_text(
    text: str, x: float, y: float, color: str, *, size: int = TEXT, anchor: str = "start"
) -> str:
    """Return the element for *text*."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" '
        f'text-anchor="{anchor}">{escape(text, quote=False)}</text>'
    )


def render_png(text: str) -> bytes:
    """Return the SVG document *text*, one of ours, as a PNG picture.

    Raises:
        ConfigurationError: the library that draws it is not installed.
    """
    try:
        import resvg_py  # noqa: PLC0415 - an extra that few want

        font = files("ziafont") / "fonts" / "DejaVuSans.ttf"
    except ImportError as error:
        hint = extra_hint("picture")
        raise ConfigurationError("a PNG picture needs the extra 'picture'", hint=hint) from error
    picture_width, picture_height = _parse_size(text)
    scale = min(SCALE, math.sqrt(MAX_PIXELS / (picture_width * picture_height)))
    with as_file(font) as path:
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=text,
                zoom=scale,
                font_files=[str(path)],
                font_family="DejaVu Sans",
                sans_serif_family="DejaVu Sans",
            )
        )


def find_missing_letters(text: str) -> str:
    """Return uncommon letters of *text* that no font of this machine has."""

    def drawn(letter: str) -> bytes:
        return render_png(
            "\n".join((*svg_header(20, 20, ""), render_text(letter, 2, 16, INK), "</svg>"))
        )

    letters = dict.fromkeys(
        letter for letter in text if ord(letter) >= FIRST_UNCOMMON and letter.isalpha()
    )
    empty_box = drawn(NO_LETTER)
    return "".join(letter for letter in list(letters)[:MAX_LETTERS] if drawn(letter) == empty_box)


def write_picture(invocation: Invocation, picture: str, svg: Path | None, png: Path | None) -> None:
    """Write *picture*, an SVG document, to the given files."""
    outputs = [] if svg is None else [(svg, picture.encode())]
    outputs += [] if png is None else [(png, render_png(picture))]
    for path, data in outputs:
        save(path, data)
        invocation.notify(f"{path} was written")
    if png is not None and (missing_letters := find_missing_letters(picture)):
        invocation.notify(
            f"notice: no font on this machine has {missing_letters}, so {png} shows boxes in their "
            "place; install one (fonts-noto-cjk has Chinese, Japanese and Korean), or use --svg"
        )


def save(path: Path, data: bytes) -> None:
    """Write a picture to *path* atomically; it may replace an earlier picture.

    Raises:
        UsageRefused: *path* exists and is not a picture.
        StorageFailed: it can't be written.
    """
    save_file(path, data, is_ours=_is_picture, what="a picture")


_PNG = b"\x89PNG\r\n\x1a\n"
_SVG = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml\b[^>]*>\s*)?"
    rb"(?:<!--(?:(?!-->).)*+-->\s*|<!DOCTYPE\s+svg\b[^>\[]*(?:\[[^\]]*\]\s*)?>\s*)*+<svg[\s>/]",
    re.DOTALL,
)
"""Before the element, only what XML allows there: a web page can contain a picture, too."""


def _is_picture(beginning: bytes) -> bool:
    is_empty = not beginning.strip()
    return is_empty or beginning.startswith(_PNG) or _SVG.match(beginning) is not None


def _parse_size(text: str) -> tuple[int, int]:
    """Return the size in points from the first line of one of our SVG documents."""
    head = text.partition("\n")[0].split('"')
    return int(head[3]), int(head[5])


CELL, CELL_ROW = 10, 12
"""Points per column and per row."""
FLOW_MARGIN, HEADER = 20, 34
LINE_STEP = 18
WRAP = 24
ROUND = 5.0

_PLAIN = "fill:#ffffff,stroke:#868e96,color:#212529"
_LOOP = "#862e9c"
_DOTS = {"dotted": ' stroke-dasharray="2 4"'}


def _count_cells(text: str, size: int) -> int:
    return math.ceil(estimate_width(text, size) / CELL)


_GROWN = {"diamond": (1.7, 2.5), "circle": (1.3, 1.2), "doublecircle": (1.3, 1.2)}
"""How much wider and higher than its text a shape is."""


def flow_svg(view: FlowView, chart: Chart | None = None) -> str:
    """Return *view* as an SVG document, in the directions, shapes and strokes of *chart*.

    Raises: see `prepare_flow_picture`.
    """
    return "\n".join(FlowPicture(*prepare_flow_picture(view, chart)).render()) + "\n"


def prepare_flow_picture(
    view: FlowView, chart: Chart | None = None
) -> tuple[FlowView, Layout, DiagramTexts, Drawn]:
    """Return the parts of a `FlowPicture` of *view*; see `flow_svg`.

    Raises:
        UsageRefused: it has too many boxes and lines to read in a picture.
    """
    if item_count(view.graph) > MAX_PLACES:
        raise UsageRefused(
            f"a graph of {len(view.graph.nodes)} nodes is too large for a picture",
            hint="the table and the list of nodes still show it",
        )
    drawing = Drawn(chart)
    texts = DiagramTexts(view, WRAP, drawing, is_ascii=False, has_shapes=True)
    sizes = {}
    for node in view.graph.nodes:
        lines = texts.lines[node.id]
        across, down = _GROWN.get(drawing.shape(node), (1.0, 1.0))
        box_width = max(_count_cells(line, TEXT) for line in lines) * across + 3
        box_height = (LINE_STEP * len(lines) * down + 18) / CELL_ROW
        sizes[node.id] = (math.ceil(box_width), math.ceil(box_height))
    words = TextSizes(
        sizes,
        texts.format_label,
        texts.format_loop_label,
        lambda text: _count_cells(text, SMALL) + 1,
        2,
        head_rows=2,
    )
    groups = drawing.build_groups(view.graph, lambda title: _count_cells(title, SMALL))
    return view, compute_layout(view.graph, words, drawing.direction, groups), texts, drawing


Link = Callable[[str], str]
"""Returns the address of the page for a node's id."""


def wrap_in_group(kind: str, parts: Iterable[str]) -> Iterator[str]:
    """Yield *parts* as one element of the class *kind*, which a style sheet may know."""
    yield f'<g class="{kind}">'
    yield from parts
    yield "</g>"


class FlowPicture:
    """The picture of a graph."""

    def __init__(
        self,
        view: FlowView,
        layout: Layout,
        texts: DiagramTexts,
        drawn: Drawn,
        link: Link | None = None,
    ) -> None:
        """Draw *view* with its layout; on a web page, each node gets its *link*."""
        self._view, self._layout, self._texts, self._drawn = view, layout, texts, drawn
        self._link = link
        self._boxes = {box.node: box for box in layout.boxes}
        self._states = {node.node.id: node for node in view.nodes}
        self._has_run = view.status != "not-started"

    def render(self) -> Iterator[str]:
        """Yield the document line by line."""
        view, layout = self._view, self._layout
        notes = [
            "".join(text for text, _ in row) for row in format_jumps(view.graph, is_ascii=False)
        ][1:]
        title = sanitize_text(
            f"{view.title} · {node_summary(view)}" if self._has_run else view.title
        )
        picture_width = max(
            layout.width * CELL, *(int(estimate_width(t, TEXT)) for t in (title, *notes))
        )
        picture_width += 2 * FLOW_MARGIN
        picture_height = (
            layout.height * CELL_ROW + 2 * FLOW_MARGIN + HEADER + LINE_STEP * len(notes)
        )
        yield from svg_header(picture_width, picture_height, title)
        yield render_text(title, FLOW_MARGIN, FLOW_MARGIN + 6, INK)
        offset = (picture_width - layout.width * CELL) // 2
        yield f'<g transform="translate({offset} {FLOW_MARGIN + HEADER})">'
        yield from self.render_content()
        yield "</g>"
        for number, note in enumerate(notes):
            y = picture_height - FLOW_MARGIN - LINE_STEP * (len(notes) - 1 - number)
            yield render_text(note, FLOW_MARGIN, y, PALE_INK, size=SMALL)
        yield "</svg>"

    def render_content(self) -> Iterator[str]:
        """Yield the groups, lines and boxes."""
        layout, followed_places = self._layout, self._view.followed
        for frame in layout.frames:
            yield from wrap_in_group("frame", self._frame(frame))
        # Draw followed lines last, so that they are on top where lines cross.
        for line in sorted(layout.lines, key=lambda line: line.place in followed_places):
            yield from wrap_in_group(self._line_class(line), self._line(line))
        for box in layout.boxes:
            view = self._states[box.node]
            parts = wrap_in_group(f"node {get_node_display(view).css}", self._box(box, view))
            yield from (
                parts if self._link is None else self._wrap_in_link(box.node, parts, self._link)
            )
        for frame in layout.frames:
            yield from wrap_in_group("title", self._title(frame))

    def _line_class(self, line: EdgeLine) -> str:
        stroke = self._drawn.stroke(self._view.graph.edges[line.place])
        way = "on" if line.place in self._view.followed else "off"
        return f"edge {way}{' loop' if line.is_loop else ''} {stroke}"

    @staticmethod
    def _wrap_in_link(node: str, parts: Iterable[str], link: Link) -> Iterator[str]:
        yield f'<a href="{escape(link(node))}" id="n-{escape(node)}">'
        yield from parts
        yield "</a>"

    def _frame(self, frame: GroupFrame) -> Iterator[str]:
        colors = self._drawn.colors(frame.group.name)
        yield (
            f'<rect x="{frame.x * CELL}" y="{frame.y * CELL_ROW}" width="{frame.width * CELL}" '
            f'height="{frame.height * CELL_ROW}" rx="8" fill="{colors.get("fill", GROUND)}" '
            f'stroke="{colors.get("stroke", FAINT)}"/>'
        )

    def _title(self, frame: GroupFrame) -> Iterator[str]:
        """Yield the title of a group on the upper edge of its frame, because boxes are below."""
        title = fit_text(frame.group.title, (frame.width - 2) * CELL)
        colors = self._drawn.colors(frame.group.name)
        x, y = (frame.x + frame.title) * CELL, frame.y * CELL_ROW - 4
        # If a line can't be avoided, the title is drawn over it.
        yield (
            f'<rect x="{x}" y="{y}" width="{estimate_width(title, SMALL):g}" height="15" '
            f'fill="{colors.get("fill", GROUND)}"/>'
        )
        yield render_text(title, x, y + 12, colors.get("color", PALE_INK), size=SMALL)

    def _line(self, line: EdgeLine) -> Iterator[str]:
        edge = self._view.graph.edges[line.place]
        stroke = self._drawn.stroke(edge)
        was_followed = line.place in self._view.followed
        color = _LOOP if line.is_loop else PALE_INK
        if self._has_run and not was_followed:
            color = FAINT
        dashes = ' stroke-dasharray="5 4"' if line.is_loop else _DOTS.get(stroke, "")
        stroke_width = 2.4 if self._has_run and was_followed else 1.6
        stroke_width += 1.6 if stroke == "thick" else 0
        corners, (x, y) = self._trace_line(line)
        yield (
            f'<path d="{_round_corners(corners)}" fill="none" stroke="{color}" '
            f'stroke-width="{stroke_width:g}"{dashes}/>'
        )
        right, down = self._layout.way
        back_x, back_y = x - 9 * right, y - 9 * down
        left_corner = f"{back_x - 5 * down:g} {back_y - 5 * right:g}"
        right_corner = f"{back_x + 5 * down:g} {back_y + 5 * right:g}"
        yield f'<path d="M{left_corner}L{right_corner}L{x:g} {y:g}Z" fill="{color}"/>'
        if line.label is not None:
            yield from self._label(line.label, color, is_beside=line.is_loop)

    def _trace_line(self, line: EdgeLine) -> tuple[list[tuple[float, float]], tuple[float, float]]:
        """Return the corners of a line, from inside its box to its arrow head, and the tip."""
        right, down = self._layout.way
        corners = [(x * CELL + CELL / 2, y * CELL_ROW + CELL_ROW / 2) for x, y in line.points]
        edge = self._view.graph.edges[line.place]
        # The box is drawn over the start, so this works for every shape.
        source = self._boxes[edge.source]
        x, y = corners[0]
        x -= right * source.width * CELL / 2 if right else 0
        y -= down * source.height * CELL_ROW / 2 if down else 0
        corners[0] = (x, y)
        x, y = corners[-1]
        deep = self._border_distance(self._boxes[edge.target], x, y)
        tip = (x + right * (CELL / 2 + deep), y + down * (CELL_ROW / 2 + deep))
        corners[-1] = (tip[0] - 6 * right, tip[1] - 6 * down)
        return corners, tip

    def _border_distance(self, box: Box, x: float, y: float) -> float:
        """Return the distance from the box to the shape's border where a line arrives."""
        if self._drawn.shape(self._states[box.node].node) != "diamond":
            return 0.0
        half_width, half_height = box.width * CELL / 2, box.height * CELL_ROW / 2
        if self._layout.way[0]:
            return half_width * abs(y - box.y * CELL_ROW - half_height) / half_height
        return half_height * abs(x - box.x * CELL - half_width) / half_width

    def _label(self, label: Label, color: str, *, is_beside: bool) -> Iterator[str]:
        """Yield the text on a line, over a gap in it, or next to the line."""
        ink = PALE_INK if color == FAINT else color
        x, y = label.x * CELL, label.y * CELL_ROW
        rows = label.height * CELL_ROW / len(label.lines)
        if self._layout.way[0] and not is_beside:
            # Center it on the line's row, even if the height is even.
            y += CELL_ROW // 2
        # Center it on the line's column, even if the width is even.
        middle = x + label.width // 2 * CELL + CELL / 2
        if not is_beside:
            label_width, label_height = label.width * CELL, rows * (len(label.lines) - 1) + 16
            top = y + rows / 2 - 8
            yield (
                f'<rect x="{middle - label_width / 2:g}" y="{top:g}" width="{label_width}" '
                f'height="{label_height:g}" fill="{self._label_background(label)}"/>'
            )
        for number, text in enumerate(label.lines):
            base = y + rows * (number + 0.5) + 4
            if is_beside:
                yield render_text(text, x - CELL / 2, base, ink, size=SMALL)
            else:
                yield render_text(text, middle, base, ink, size=SMALL, anchor="middle")

    def _label_background(self, label: Label) -> str:
        """Return the background color of *label*."""
        color = "#ffffff"
        for frame in self._layout.frames:
            is_across = frame.x <= label.x < frame.x + frame.width
            if is_across and frame.y <= label.y < frame.y + frame.height:
                color = self._drawn.colors(frame.group.name).get("fill", GROUND)
        return color

    def _box(self, box: Box, view: NodeView) -> Iterator[str]:
        state = NodeState.WAITING if view.state is NodeState.READY else view.state
        attributes = dict(part.split(":") for part in PICTURES.get(state, _PLAIN).split(","))
        if state is NodeState.PENDING:
            attributes |= self._drawn.colors(box.node)
        style = " ".join(
            f'{name}="{value}"' for name, value in attributes.items() if name != "color"
        )
        x, y = box.x * CELL, box.y * CELL_ROW
        box_width, box_height = box.width * CELL, box.height * CELL_ROW
        yield f"{_shape(self._drawn.shape(view.node), x, y, box_width, box_height)} {style}/>"
        lines = self._texts.lines[box.node]
        top = y + box_height / 2 - LINE_STEP * (len(lines) - 1) / 2 + 5
        for number, text in enumerate(lines):
            is_id = number == len(lines) - 1 and number > 0 and text.startswith("(")
            size = SMALL if is_id else TEXT
            yield render_text(
                text,
                x + box_width / 2,
                top + LINE_STEP * number,
                attributes["color"],
                size=size,
                anchor="middle",
            )


def _shape(shape: str, x: int, y: int, box_width: int, box_height: int) -> str:
    """Return the start of the element for the border."""
    right, bottom, side = x + box_width, y + box_height, 9
    if shape in ("hexagon", "diamond"):
        side = box_width // 2 if shape == "diamond" else side
        middle = y + box_height / 2
        corners = (
            *((x + side, y), (right - side, y), (right, middle)),
            *((right - side, bottom), (x + side, bottom), (x, middle)),
        )
        return f'<polygon points="{" ".join(f"{a:g},{b:g}" for a, b in corners)}"'
    if shape in ("circle", "doublecircle"):
        center = f'cx="{x + box_width / 2:g}" cy="{y + box_height / 2:g}"'
        return f'<ellipse {center} rx="{box_width / 2:g}" ry="{box_height / 2:g}"'
    turn = {"round": 12, "stadium": box_height / 2}.get(shape, 5)
    return f'<rect x="{x}" y="{y}" width="{box_width}" height="{box_height}" rx="{turn:g}"'


def _round_corners(corners: list[tuple[float, float]]) -> str:
    """Return the path through *corners*, with a small arc at each turn."""
    way = [corner for corner, next_corner in pairwise(corners) if corner != next_corner] + [
        corners[-1]
    ]
    path = f"M{way[0][0]:g} {way[0][1]:g}"
    for last_corner, corner, next_corner in zip(way, way[1:], way[2:], strict=False):
        start, end = _step_toward(corner, last_corner), _step_toward(corner, next_corner)
        path += f"L{start[0]:g} {start[1]:g}Q{corner[0]:g} {corner[1]:g} {end[0]:g} {end[1]:g}"
    return path + f"L{way[-1][0]:g} {way[-1][1]:g}"


def _step_toward(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Return the point a little way from *start* to *end*."""
    distance = math.dist(start, end)
    step = min(ROUND, distance / 2) / distance
    return start[0] + (end[0] - start[0]) * step, start[1] + (end[1] - start[1]) * step


def fit_text(text: str, max_width: float, size: int = SMALL) -> str:
    """Return *text*, cut if it is wider than *max_width* points."""
    if estimate_width(text, size) <= max_width:
        return text
    # Lower bound: no letter is narrower than a third of its height.
    prefix = text[: int(3 * max_width / size)]
    while prefix and estimate_width(f"{prefix}…", size) > max_width:
        prefix = prefix[:-1]
    return f"{prefix}…"
