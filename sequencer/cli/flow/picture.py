"""A graph as a picture: SVG from nothing but text, and PNG of that; see `cli.svg`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from sequencer.cli.flow.table import summary
from sequencer.cli.svg import FAINT, INK, PALE_INK, SMALL, TEXT, beginning, png_of, points, words
from sequencer.cli.views.diagram import MOST_PLACES, Texts, jumps
from sequencer.cli.views.layers import place_count
from sequencer.cli.views.layout import Box, Label, Layout, Line, Words, laid_out
from sequencer.cli.views.mermaid import LOOKS
from sequencer.cli.views.states import shown
from sequencer.engine.flow.view import FlowView, NodeState, NodeView
from sequencer.errors import UsageRefused
from sequencer.model.net.graph import NodeKind

CELL, CELL_ROW = 10, 12
"""Points of one column and of one row."""
MARGIN, HEADER = 20, 34
LINE_STEP = 18
WRAP = 24
ROUND = 5.0

_PLAIN = "fill:#ffffff,stroke:#868e96,color:#212529"
_LOOP = "#862e9c"


def _cells(text: str, size: int) -> int:
    return math.ceil(points(text, size) / CELL)


def svg(view: FlowView) -> str:
    """Return *view* as an SVG document.

    Raises:
        UsageRefused: it has more boxes and lines than anybody could follow in a picture.
    """
    if place_count(view.graph) > MOST_PLACES:
        raise UsageRefused(
            f"a graph of {len(view.graph.nodes)} nodes is too large for a picture",
            hint="the table and the list of nodes still show it",
        )
    texts = Texts(view, WRAP, is_ascii=False)
    sizes = {
        name: (
            max(_cells(line, TEXT) for line in lines) + 3,
            math.ceil((LINE_STEP * len(lines) + 18) / CELL_ROW),
        )
        for name, lines in texts.lines.items()
    }
    words = Words(
        sizes, texts.label, texts.loop_label, lambda text: _cells(text, SMALL) + 1, 2, head_rows=2
    )
    layout = laid_out(view.graph, words)
    return "\n".join(_Picture(view, layout, texts).parts()) + "\n"


def png(view: FlowView) -> bytes:
    """Return *view* as a PNG picture.

    Raises:
        ConfigurationError: what draws it is not installed.
        UsageRefused: see `svg`.
    """
    return png_of(svg(view))


class _Picture:
    def __init__(self, view: FlowView, layout: Layout, texts: Texts) -> None:
        self._view, self._layout, self._texts = view, layout, texts
        self._states = {node.node.id: node for node in view.nodes}
        self._has_run = view.status != "not-started"

    def parts(self) -> Iterator[str]:
        """Yield the document line by line."""
        view, layout = self._view, self._layout
        notes = ["".join(text for text, _ in row) for row in jumps(view.graph, is_ascii=False)][1:]
        said = shown(f"{view.title} · {summary(view)}" if self._has_run else view.title)
        wide = max(layout.width * CELL, *(int(points(t, TEXT)) for t in (said, *notes)))
        wide += 2 * MARGIN
        high = layout.height * CELL_ROW + 2 * MARGIN + HEADER + LINE_STEP * len(notes)
        yield from beginning(wide, high, said)
        yield words(said, MARGIN, MARGIN + 6, INK)
        left = (wide - layout.width * CELL) // 2
        yield f'<g transform="translate({left} {MARGIN + HEADER})">'
        # Lines that were followed lie over the others where they cross.
        for line in sorted(layout.lines, key=lambda one: one.place in view.followed):
            yield from self._line(line)
        for box in layout.boxes:
            yield from self._box(box, self._states[box.node])
        yield "</g>"
        for number, note in enumerate(notes):
            y = high - MARGIN - LINE_STEP * (len(notes) - 1 - number)
            yield words(note, MARGIN, y, PALE_INK, size=SMALL)
        yield "</svg>"

    def _line(self, line: Line) -> Iterator[str]:
        colour = _LOOP if line.is_loop else PALE_INK
        if self._has_run and line.place not in self._view.followed:
            colour = FAINT
        dashes = ' stroke-dasharray="5 4"' if line.is_loop else ""
        heavy = 2.4 if self._has_run and line.place in self._view.followed else 1.6
        corners = [(x * CELL + CELL / 2, y * CELL_ROW + CELL_ROW / 2) for x, y in line.points]
        x, y = corners[-1]
        tip = y + CELL_ROW / 2
        corners[0] = (corners[0][0], corners[0][1] + CELL_ROW / 2)
        corners[-1] = (x, tip - 6)
        yield (
            f'<path d="{_rounded(corners)}" fill="none" stroke="{colour}" '
            f'stroke-width="{heavy}"{dashes}/>'
        )
        head = f"M{x - 5:g} {tip - 9:g}L{x + 5:g} {tip - 9:g}L{x:g} {tip:g}Z"
        yield f'<path d="{head}" fill="{colour}"/>'
        if line.label is not None:
            yield from self._label(line.label, colour, is_beside=line.is_loop)

    def _label(self, label: Label, colour: str, *, is_beside: bool) -> Iterator[str]:
        """Yield the text on a line, over a gap in it, or beside the line."""
        ink = PALE_INK if colour == FAINT else colour
        x, y = label.x * CELL, label.y * CELL_ROW
        if is_beside:
            yield words(label.text, x - CELL / 2, y + CELL_ROW / 2 + 4, ink, size=SMALL)
            return
        wide, y = label.width * CELL, y + CELL_ROW
        # Over the line's own column, also where the width is even.
        middle = x + label.width // 2 * CELL + CELL / 2
        yield (
            f'<rect x="{middle - wide / 2:g}" y="{y - 8}" width="{wide}" height="16" '
            'fill="#ffffff"/>'
        )
        yield words(label.text, middle, y + 4, ink, size=SMALL, anchor="middle")

    def _box(self, box: Box, view: NodeView) -> Iterator[str]:
        state = NodeState.WAITING if view.state is NodeState.READY else view.state
        looks = dict(part.split(":") for part in LOOKS.get(state, _PLAIN).split(","))
        style = " ".join(f'{name}="{value}"' for name, value in looks.items() if name != "color")
        x, y = box.x * CELL, box.y * CELL_ROW
        wide, high = box.width * CELL, box.height * CELL_ROW
        yield f"{_shape(view.node.kind, x, y, wide, high)} {style}/>"
        lines = self._texts.lines[box.node]
        top = y + high / 2 - LINE_STEP * (len(lines) - 1) / 2 + 5
        for number, text in enumerate(lines):
            is_id = number == len(lines) - 1 and number > 0 and text.startswith("(")
            size = SMALL if is_id else TEXT
            yield words(
                text,
                x + wide / 2,
                top + LINE_STEP * number,
                looks["color"],
                size=size,
                anchor="middle",
            )


def _shape(kind: NodeKind, x: int, y: int, wide: int, high: int) -> str:
    """Return the beginning of the element that is the border."""
    if kind in (NodeKind.AGENT, NodeKind.MARKER):
        round_ = 5 if kind is NodeKind.AGENT else high / 2
        return f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="{round_:g}"'
    side = 9
    steep = high / 2 if kind is NodeKind.HUMAN else side
    right, bottom = x + wide, y + high
    corners = (
        *((x + side, y), (right - side, y), (right, y + steep), (right, bottom - steep)),
        *((right - side, bottom), (x + side, bottom), (x, bottom - steep), (x, y + steep)),
    )
    return f'<polygon points="{" ".join(f"{a:g},{b:g}" for a, b in corners)}"'


def _rounded(corners: list[tuple[float, float]]) -> str:
    """Return the path through *corners*, each turn with a small arc."""
    way = [corner for corner, after in pairwise(corners) if corner != after] + [corners[-1]]
    path = f"M{way[0][0]:g} {way[0][1]:g}"
    for before, here, after in zip(way, way[1:], way[2:], strict=False):
        first, second = _toward(here, before), _toward(here, after)
        path += f"L{first[0]:g} {first[1]:g}Q{here[0]:g} {here[1]:g} {second[0]:g} {second[1]:g}"
    return path + f"L{way[-1][0]:g} {way[-1][1]:g}"


def _toward(here: tuple[float, float], there: tuple[float, float]) -> tuple[float, float]:
    """Return the point a little way from *here* to *there*."""
    far = math.dist(here, there)
    step = min(ROUND, far / 2) / far
    return here[0] + (there[0] - here[0]) * step, here[1] + (there[1] - here[1]) * step
