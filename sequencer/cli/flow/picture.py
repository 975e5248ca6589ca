"""A graph as a picture: SVG from nothing but text, PNG by resvg.

Whatever a chart's author or an agent wrote is escaped; the picture refers to nothing
outside of itself. In a PNG the texts have a font that comes with the extra ``picture``, so
that it looks the same on a machine without any; what this font lacks (Chinese, say) is
taken from the machine's fonts if it has some.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from importlib.resources import as_file, files
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from sequencer.cli.flow.classes import LOOKS
from sequencer.cli.flow.drawing import MOST_PLACES, Texts, jumps
from sequencer.cli.flow.layers import place_count
from sequencer.cli.flow.layout import Box, Label, Layout, Line, Words, laid_out
from sequencer.cli.flow.marks import shown
from sequencer.cli.flow.table import summary
from sequencer.cli.tables import width as columns_of
from sequencer.errors import ConfigurationError, StorageFailed, UsageRefused
from sequencer.model.flow_view import FlowView, NodeState, NodeView
from sequencer.model.graph import NodeKind

EXTRA = "pip install 'step-sequencer[picture]'"
FONTS = "DejaVu Sans, Verdana, sans-serif"
CELL, CELL_ROW = 10, 12
"""Points of one column and of one row."""
MARGIN, HEADER = 20, 34
TEXT, SMALL = 14, 12
LINE_STEP = 18
WRAP = 24
ROUND = 5.0
MOST_PIXELS = 24_000_000
SCALE = 2.0
"""Pixels a point, unless the picture is too large for it."""

_PLAIN = "fill:#ffffff,stroke:#868e96,color:#212529"
_INK, _FAINT, _LOOP = "#495057", "#ced4da", "#862e9c"
_NARROW, _WIDE = frozenset("ijlftrI|.,:;'`!()[]{}/\\- "), frozenset("mwMW@%—…→✓✗●○↻↺◇")


def _points(text: str, size: int) -> float:
    """Return about how wide *text* is, rather more than less; fonts differ."""
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


def _cells(text: str, size: int) -> int:
    return math.ceil(_points(text, size) / CELL)


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
    try:
        import resvg_py  # noqa: PLC0415 - an extra that few want

        font = files("ziafont") / "fonts" / "DejaVuSans.ttf"
    except ImportError as error:
        raise ConfigurationError("a PNG picture needs the extra 'picture'", hint=EXTRA) from error
    text = svg(view)
    wide, high = _size(text)
    scale = min(SCALE, math.sqrt(MOST_PIXELS / (wide * high)))
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


def save(path: Path, data: bytes) -> None:
    """Write a picture to *path*, all of it or nothing, in place of an earlier picture.

    Raises:
        UsageRefused: *path* is something else than a picture, which a slip of the keyboard
            must not destroy.
        StorageFailed: it can't be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not _is_picture(target):
            raise UsageRefused(
                "there is something else than a picture; it is left as it is",
                where=str(path),
                hint="name another file",
            )
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                # What mkstemp makes is for the owner only; a picture is for whom files are.
                umask = os.umask(0)
                os.umask(umask)
                os.fchmod(stream.fileno(), 0o666 & ~umask)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageFailed(f"can't be written: {error.strerror}", where=str(path)) from error


def _is_picture(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        head = stream.read(512).lstrip()
    return not head or head.startswith((b"\x89PNG\r\n", b"<svg")) or b"<svg" in head


def _size(text: str) -> tuple[int, int]:
    """Return the points that the first line of an SVG document of ours names."""
    head = text.partition("\n")[0].split('"')
    return int(head[3]), int(head[5])


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
        wide = max(layout.width * CELL, *(int(_points(t, TEXT)) for t in (said, *notes)))
        wide += 2 * MARGIN
        high = layout.height * CELL_ROW + 2 * MARGIN + HEADER + LINE_STEP * len(notes)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
            f'viewBox="0 0 {wide} {high}" font-family="{FONTS}">'
        )
        yield f"<title>{escape(said)}</title>"
        yield f'<rect width="{wide}" height="{high}" fill="#ffffff"/>'
        yield self._text(said, MARGIN, MARGIN + 6, "#212529")
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
            yield self._text(note, MARGIN, y, _INK, size=SMALL)
        yield "</svg>"

    @staticmethod
    def _text(
        text: str, x: float, y: float, colour: str, *, size: int = TEXT, anchor: str = "start"
    ) -> str:
        return (
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def _line(self, line: Line) -> Iterator[str]:
        colour = _LOOP if line.is_loop else _INK
        if self._has_run and line.place not in self._view.followed:
            colour = _FAINT
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
        ink = _INK if colour == _FAINT else colour
        x, y = label.x * CELL, label.y * CELL_ROW
        if is_beside:
            yield self._text(label.text, x - CELL / 2, y + CELL_ROW / 2 + 4, ink, size=SMALL)
            return
        wide, y = label.width * CELL, y + CELL_ROW
        # Over the line's own column, also where the width is even.
        middle = x + label.width // 2 * CELL + CELL / 2
        yield (
            f'<rect x="{middle - wide / 2:g}" y="{y - 8}" width="{wide}" height="16" '
            'fill="#ffffff"/>'
        )
        yield self._text(label.text, middle, y + 4, ink, size=SMALL, anchor="middle")

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
            yield self._text(
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
