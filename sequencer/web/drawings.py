"""The pictures on the pages: a graph, a cycle as a ring, a run's time, a plot of its cost.

All are SVG with classes, whose colors are the style sheet's: one picture serves light and
dark, and a change of a state is a change of a class. The colors that a file of ours has
stand in them too; a style sheet goes before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from msgspec.structs import replace

from sequencer.cli.views.diagram import Drawn, Texts
from sequencer.cli.views.gantt import Bar, Gantt
from sequencer.cli.views.layout import Box, EdgeLine, GroupFrame, Layout
from sequencer.cli.views.pictures import (
    CELL,
    CELL_ROW,
    FLOW_MARGIN,
    MARGIN,
    FlowPicture,
    GanttPicture,
    ensure_drawable,
    flow_picture,
    points,
)
from sequencer.cli.views.states import MARKS, shown
from sequencer.cli.views.text import short
from sequencer.engine.view import FlowView, NodeState, NodeView
from sequencer.model.net.graph import Edge
from sequencer.workflows.mermaid.chart import Chart

Link = Callable[[str], str]
"""From a node's id to the address of its page."""
CLASSES = {
    NodeState.PENDING: "pending",
    NodeState.WAITING: "pending",
    NodeState.READY: "ready",
    NodeState.RUNNING: "running",
    NodeState.RETRYING: "retrying",
    NodeState.ASKED: "waiting",
    NodeState.DONE: "done",
    NodeState.FAILED: "failed",
    NodeState.CANCELLED: "skipped",
}
"""The classes of states; WAITING is of a node that others hold up, not of a person's."""


def graph_svg(view: FlowView, chart: Chart | None, link: Link) -> str:
    """Return the graph of *view* for a page, each node with a *link*.

    Raises:
        UsageRefused: it is too large for a picture.
    """
    parts = _LinkedPicture(*flow_picture(view, chart), link).parts()
    return "".join(parts)


def around(view: FlowView, focus: Sequence[str], most: int) -> FlowView:
    """Return at most *most* nodes of *view*: those in *focus*, and what is nearest to them."""
    beside: dict[str, list[str]] = {}
    for edge in view.graph.edges:
        beside.setdefault(edge.source, []).append(edge.target)
        beside.setdefault(edge.target, []).append(edge.source)
    kept = [*dict.fromkeys(focus)]
    for name in kept:  # it grows on the way, until there are enough
        near = [one for one in dict.fromkeys(beside.get(name, ())) if one not in kept]
        kept += near[: max(most - len(kept), 0)]
    inside = frozenset(kept)
    places = [
        place
        for place, edge in enumerate(view.graph.edges)
        if edge.source in inside and edge.target in inside
    ]
    nodes = tuple(one for one in view.nodes if one.node.id in inside)
    entries = tuple(name for name in view.graph.entries if name in inside) or (nodes[0].node.id,)
    graph = view.graph.replace(
        nodes=tuple(one.node for one in nodes),
        edges=tuple(view.graph.edges[place] for place in places),
        entries=entries,
        on_error=None,
    )
    followed = frozenset(new for new, place in enumerate(places) if place in view.followed)
    return replace(view, graph=graph, nodes=nodes, followed=followed)


WIDE = 640
"""From here on a graph has the whole width of its page, and scrolls in its card."""


class _LinkedPicture(FlowPicture):
    def __init__(
        self, view: FlowView, layout: Layout, texts: Texts, drawn: Drawn, link: Link
    ) -> None:
        super().__init__(view, layout, texts, drawn)
        self._link = link

    def parts(self) -> Iterator[str]:
        wide = self._layout.width * CELL + 2 * FLOW_MARGIN
        high = self._layout.height * CELL_ROW + 2 * FLOW_MARGIN
        kind = "graph wide" if wide > WIDE else "graph"
        yield (
            f'<svg class="{kind}" viewBox="{-FLOW_MARGIN} {-FLOW_MARGIN} {wide} {high}" '
            f'width="{wide}" height="{high}" role="img" '
            f'aria-label="Graph of {escape(shown(self._view.title))}">'
        )
        yield from self.inner()
        yield "</svg>"

    def _frame(self, frame: GroupFrame) -> Iterator[str]:
        yield from _grouped("frame", super()._frame(frame))

    def _title(self, frame: GroupFrame) -> Iterator[str]:
        yield from _grouped("title", super()._title(frame))

    def _line(self, line: EdgeLine) -> Iterator[str]:
        edge: Edge = self._view.graph.edges[line.place]
        kind = "on" if line.place in self._view.followed else "off"
        kind += " loop" if line.is_loop else ""
        kind += f" {self._drawn.stroke(edge)}"
        yield from _grouped(f"edge {kind}", super()._line(line))

    def _box(self, box: Box, view: NodeView) -> Iterator[str]:
        node = escape(box.node)
        yield f'<a href="{escape(self._link(box.node))}" id="n-{node}">'
        yield from _grouped(f"node {CLASSES[view.state]}", super()._box(box, view))
        yield "</a>"


def _grouped(name: str, parts: Iterator[str]) -> Iterator[str]:
    yield f'<g class="{name}">'
    yield from parts
    yield "</g>"


def gantt_page_svg(chart: Gantt) -> str:
    """Return *chart* for a page.

    Raises:
        UsageRefused: it has more rows or bars than anybody could tell apart.
    """
    ensure_drawable(chart)
    return "".join(_Timeline(chart).parts())


class _Timeline(GanttPicture):
    def __init__(self, chart: Gantt) -> None:
        super().__init__(chart)
        # The page says in its own words what a picture says above its axis.
        self._top = 2 * 14
        self._bottom = self._top + 26 * len(chart.rows)
        self._high = self._bottom + 44

    def parts(self) -> Iterator[str]:
        # Its margins are those of its card.
        wide = self._wide - 2 * MARGIN + 8
        yield (
            f'<svg class="gantt" viewBox="{MARGIN - 4} 0 {wide} {self._high}" width="{wide}" '
            f'height="{self._high}" role="img" aria-label="Timeline of the run">'
        )
        yield from _grouped("axis", self._axis())
        for number, row in enumerate(self._chart.rows):
            is_critical = " critical" if row.is_critical else ""
            yield from _grouped(f"row{is_critical}", self._row(number, row))
        yield from self._legend()
        yield "</svg>"

    def _legend(self) -> Iterator[str]:
        # Its pieces come in pairs, a sample and its name.
        parts = list(super()._legend())
        for look, sample, name in zip(self._chart.looks, parts[::2], parts[1::2], strict=True):
            yield from _grouped(f"bar {look.name.lower()}", iter([sample, name]))

    def _bar(self, bar: Bar, name: str, y: float) -> str:
        look = bar.look.name.lower()
        return f'<g class="bar {look}">{super()._bar(bar, name, y)}</g>'


RING, PILL_HIGH, PILL_LEAST = 104, 40, 120


class RingReview(NamedTuple):
    """What takes a whole cycle over, at times; it stands inside the ring."""

    name: str
    state: str
    link: str
    when: Sequence[str]
    """Said below it, a line each."""


def ring_svg(
    steps: Sequence[tuple[str, str, str]], title: str, review: RingReview | None = None
) -> str:
    """Return a cycle as a ring: of each of *steps* its name, its state's class and its link.

    *title* is said in the middle, over the *review*.
    """
    named = [name for name, _, _ in steps] + ([review.name] if review else [])
    wide = max([PILL_LEAST, *(int(points(f"{_in_pill(name)}  ", 14)) + 28 for name in named)])
    count = len(steps)
    # As large as the pills need: side by side they are a chord of the ring.
    radius = max(RING, int((PILL_HIGH + 26) / (2 * math.sin(math.pi / max(count, 2)))))
    across = max(radius, wide * (0.62 if count < 3 or review is None else 1.3))  # noqa: PLR2004
    half_w, half_h = across + wide / 2 + 10, radius + PILL_HIGH / 2 + 10
    parts = [
        (
            f'<svg class="graph ring" width="{2 * half_w:g}" height="{2 * half_h:g}" '
            f'viewBox="{-half_w:g} {-half_h:g} {2 * half_w:g} {2 * half_h:g}" role="img" '
            'aria-label="Cycle of steps">'
        ),
        f'<ellipse class="track" rx="{across:g}" ry="{radius:g}"/>',
        _ring_line("mid", title, -38 if review else 5),
    ]
    for place, (name, state, link) in enumerate(steps):
        at = _on_ring(place, count, across, radius)
        text = f"{RING_MARKS.get(state, '')} {_in_pill(name)}".strip()
        parts.append(_arrow((place + 0.5) / count, across, radius))
        parts.append(_pill(at, wide, text, state, link))
    if review is not None:
        parts.append(
            _pill((0, -4), wide, _in_pill(review.name), f"{review.state} eye", review.link)
        )
        parts += [_ring_line("lab", text, 36 + 17 * n) for n, text in enumerate(review.when)]
    return "".join([*parts, "</svg>"])


def _in_pill(name: str) -> str:
    return short(shown(name), 18)


def _pill(at: tuple[float, float], wide: int, text: str, kind: str, link: str) -> str:
    x, y = at
    return (
        f'<a href="{escape(link)}"><g class="node {escape(kind)}">'
        f'<rect x="{x - wide / 2:g}" y="{y - PILL_HIGH / 2:g}" width="{wide}" '
        f'height="{PILL_HIGH}" rx="{PILL_HIGH / 2:g}"/><text x="{x:g}" y="{y + 5:g}" '
        f'font-size="14" text-anchor="middle">{escape(text)}</text></g></a>'
    )


def _ring_line(kind: str, text: str, y: float) -> str:
    return f'<text class="{kind}" y="{y:g}" text-anchor="middle">{escape(shown(text))}</text>'


_MARKED = (NodeState.DONE, NodeState.RUNNING, NodeState.ASKED, NodeState.FAILED)
RING_MARKS = {CLASSES[state]: MARKS[state] for state in _MARKED}


def _on_ring(place: float, count: int, across: float, radius: float) -> tuple[float, float]:
    """Return the middle of the *place*-th of *count* pills, clockwise from the top."""
    angle = 2 * math.pi * place / count - math.pi / 2
    return across * math.cos(angle), radius * math.sin(angle)


def _arrow(share: float, across: float, radius: float) -> str:
    """Return an arrow head on the ring, *share* of the way around."""
    angle = 2 * math.pi * share - math.pi / 2
    x, y = across * math.cos(angle), radius * math.sin(angle)
    turn = math.degrees(math.atan2(radius * math.cos(angle), -across * math.sin(angle)))
    place = f"translate({x:g} {y:g}) rotate({turn:g})"
    return f'<path class="head" d="M-5 -5L5 0L-5 5Z" transform="{place}"/>'


PLOT_WIDE, PLOT_HIGH, PLOT_LEFT, PLOT_BASE = 1120, 220, 60, 24


HOUR_S, DAY_S = 3600, 86400


class Series(NamedTuple):
    """One area of a plot: the sums that it had reached at evenly spaced times."""

    name: str
    values: Sequence[float]


def stacked_svg(
    series: Sequence[Series], first: float, last: float, label: Callable[[float], str]
) -> str:
    """Return *series* stacked on each other, from *first* to *last* in seconds since 1970."""
    most = sum(one.values[-1] for one in series)
    wide, base = PLOT_WIDE - PLOT_LEFT - 8, PLOT_HIGH - PLOT_BASE
    high = base - 8

    def line(values: Sequence[float]) -> list[str]:
        step = wide / (len(values) - 1)
        return [
            f"{PLOT_LEFT + step * place:.0f} {base - high * value / most:.1f}"
            for place, value in enumerate(values)
        ]

    size = f'viewBox="0 0 {PLOT_WIDE} {PLOT_HIGH}" width="{PLOT_WIDE}" height="{PLOT_HIGH}"'
    parts = [f'<svg class="plot" {size} role="img" aria-label="Sum over time">']
    for share in (0.0, 0.5, 1.0):
        y = base - high * share
        parts.append(
            f'<path class="grid" d="M{PLOT_LEFT} {y:g}H{PLOT_WIDE - 8}"/>'
            f'<text class="num" x="{PLOT_LEFT - 8}" y="{y + 4:g}" text-anchor="end">'
            f"{escape(label(most * share))}</text>"
        )
    below = [0.0] * len(series[0].values)
    for place, one in enumerate(series):
        above = [a + b for a, b in zip(below, one.values, strict=True)]
        way = "L".join(line(above))
        area = f'<path class="area" d="M{way}L{"L".join(reversed(line(below)))}Z"/>'
        name = escape(f"{shown(one.name)}: {label(one.values[-1])}")
        parts.append(
            f'<g class="s{place}"><title>{name}</title>{area}<path class="sum" d="M{way}"/></g>'
        )
        below = above
    form = "%d %b" if last - first > 4 * DAY_S else "%d %b %H:%M"
    form = "%H:%M:%S" if last - first < HOUR_S else form
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        when = datetime.fromtimestamp(first + (last - first) * share, UTC).astimezone()
        parts.append(
            f'<text class="num" x="{PLOT_LEFT + wide * share:g}" y="{PLOT_HIGH - 6}" '
            f'text-anchor="{anchor}">{when.strftime(form)}</text>'
        )
    return "".join([*parts, "</svg>"])
