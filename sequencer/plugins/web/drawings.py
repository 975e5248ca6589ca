"""Draws the pages' pictures: a graph, a cycle as a ring, a run's timeline, a plot of its costs.

All are SVG with classes, and the style sheet sets the colors: one picture works for light and
dark, and a new state is only another class. The pictures also contain the colors that our SVG
files have; the style sheet overrides them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

from msgspec import Struct
from msgspec.structs import replace

from sequencer.cli.views.states import STATE_DISPLAYS, StateDisplay, sanitize_text
from sequencer.cli.views.text import shorten_middle
from sequencer.history.view import FlowView, NodeState
from sequencer.plugins.drawing.gantt import Gantt
from sequencer.plugins.drawing.gantt_picture import MARGIN, GanttPicture, ensure_drawable
from sequencer.plugins.drawing.pictures import (
    CELL,
    CELL_ROW,
    FLOW_MARGIN,
    FlowPicture,
    Link,
    estimate_width,
    prepare_flow_picture,
)
from sequencer.workflows.mermaid.chart import Chart

WIDE = 640
"""A wider graph takes the full width of its page, and scrolls in its card."""


def graph_svg(view: FlowView, chart: Chart | None, link: Link) -> str:
    """Return the graph of *view* for a page; *link* returns the address of a node.

    Raises:
        UsageRefused: it is too large for a picture.
    """
    view, layout, texts, drawing = prepare_flow_picture(view, chart)
    width = layout.width * CELL + 2 * FLOW_MARGIN
    height = layout.height * CELL_ROW + 2 * FLOW_MARGIN
    kind = "graph wide" if width > WIDE else "graph"
    opening = (
        f'<svg class="{kind}" viewBox="{-FLOW_MARGIN} {-FLOW_MARGIN} {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f'aria-label="Graph of {escape(sanitize_text(view.title))}">'
    )
    content = FlowPicture(view, layout, texts, drawing, link).render_content()
    return "".join([opening, *content, "</svg>"])


def crop_view(view: FlowView, focus: Sequence[str], most: int) -> FlowView:
    """Return *view* with at most *most* nodes: those in *focus*, and the nearest ones."""
    neighbors: dict[str, list[str]] = {}
    for edge in view.graph.edges:
        neighbors.setdefault(edge.source, []).append(edge.target)
        neighbors.setdefault(edge.target, []).append(edge.source)
    names = [*dict.fromkeys(focus)]
    for name in names:  # the list grows in the loop, until there are enough
        neighbor_names = [
            neighbor for neighbor in dict.fromkeys(neighbors.get(name, ())) if neighbor not in names
        ]
        names += neighbor_names[: max(most - len(names), 0)]
    cropped_names = frozenset(names)
    places = [
        place
        for place, edge in enumerate(view.graph.edges)
        if edge.source in cropped_names and edge.target in cropped_names
    ]
    nodes = tuple(node for node in view.nodes if node.node.id in cropped_names)
    entries = tuple(name for name in view.graph.entries if name in cropped_names) or (
        nodes[0].node.id,
    )
    graph = view.graph.replace(
        nodes=tuple(node.node for node in nodes),
        edges=tuple(view.graph.edges[place] for place in places),
        entries=entries,
        on_error=None,
    )
    followed_edges = frozenset(
        index for index, place in enumerate(places) if place in view.followed
    )
    return replace(view, graph=graph, nodes=nodes, followed=followed_edges)


GANTT_TOP = 28
"""Top of a timeline's first row. There is no text above the axis: the page itself has it."""


def gantt_page_svg(chart: Gantt) -> str:
    """Return *chart* for a page.

    Raises:
        UsageRefused: it has too many rows or bars to be readable.
    """
    ensure_drawable(chart)
    picture = GanttPicture(chart, GANTT_TOP)
    # Without its own margins, because its card has some.
    width, height = picture.size[0] - 2 * MARGIN + 8, picture.size[1] - 16
    opening = (
        f'<svg class="gantt" viewBox="{MARGIN - 4} 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="Timeline of the run">'
    )
    return "".join([opening, *picture.render_content(), "</svg>"])


RING, PILL_HIGH, PILL_LEAST = 104, 40, 120


class RingReview(Struct, frozen=True):
    """The review of whole cycles; it is drawn inside the ring."""

    name: str
    state: NodeState
    link: str
    when: Sequence[str]
    """Lines of text below it."""


def ring_svg(
    steps: Sequence[tuple[str, StateDisplay, str]], title: str, review: RingReview | None = None
) -> str:
    """Return a cycle as a ring; *steps* has (name, display, link) for each step.

    *title* is in the middle, above the *review*.
    """
    names = [name for name, _, _ in steps] + ([review.name] if review else [])
    pill_width = max(
        [
            PILL_LEAST,
            *(int(estimate_width(f"{_shorten_for_pill(name)}  ", 14)) + 28 for name in names),
        ]
    )
    count = len(steps)
    # Two neighboring pills are a chord of the ring, which must have room for both.
    radius = max(RING, int((PILL_HIGH + 26) / (2 * math.sin(math.pi / max(count, 2)))))
    radius_x = max(radius, pill_width * (0.62 if count < 3 or review is None else 1.3))  # noqa: PLR2004
    half_w, half_h = radius_x + pill_width / 2 + 10, radius + PILL_HIGH / 2 + 10
    parts = [
        (
            f'<svg class="graph ring" width="{2 * half_w:g}" height="{2 * half_h:g}" '
            f'viewBox="{-half_w:g} {-half_h:g} {2 * half_w:g} {2 * half_h:g}" role="img" '
            'aria-label="Cycle of steps">'
        ),
        f'<ellipse class="track" rx="{radius_x:g}" ry="{radius:g}"/>',
        _ring_line("mid", title, -38 if review else 5),
    ]
    for place, (name, look, link) in enumerate(steps):
        position = _ring_position(place, count, radius_x, radius)
        mark = "" if look.css in _UNMARKED else look.mark
        text = f"{mark} {_shorten_for_pill(name)}".strip()
        parts.append(_arrow((place + 0.5) / count, radius_x, radius))
        parts.append(_pill(position, pill_width, text, look.css, link))
    if review is not None:
        parts.append(
            _pill(
                (0, -4),
                pill_width,
                _shorten_for_pill(review.name),
                f"{STATE_DISPLAYS[review.state].css} eye",
                review.link,
            )
        )
        parts += [
            _ring_line("lab", text, 36 + 17 * line_number)
            for line_number, text in enumerate(review.when)
        ]
    return "".join([*parts, "</svg>"])


def _shorten_for_pill(name: str) -> str:
    return shorten_middle(sanitize_text(name), 18)


def _pill(position: tuple[float, float], width: int, text: str, kind: str, link: str) -> str:
    x, y = position
    return (
        f'<a href="{escape(link)}"><g class="node {escape(kind)}">'
        f'<rect x="{x - width / 2:g}" y="{y - PILL_HIGH / 2:g}" width="{width}" '
        f'height="{PILL_HIGH}" rx="{PILL_HIGH / 2:g}"/><text x="{x:g}" y="{y + 5:g}" '
        f'font-size="14" text-anchor="middle">{escape(text)}</text></g></a>'
    )


def _ring_line(kind: str, text: str, y: float) -> str:
    return (
        f'<text class="{kind}" y="{y:g}" text-anchor="middle">{escape(sanitize_text(text))}</text>'
    )


_UNMARKED = (STATE_DISPLAYS["pending"].css, STATE_DISPLAYS["ready"].css)
"""Pills in these states have no mark: nothing has happened yet."""


def _ring_position(place: float, count: int, radius_x: float, radius: float) -> tuple[float, float]:
    """Return the middle of the *place*-th of *count* pills, clockwise from the top."""
    angle = 2 * math.pi * place / count - math.pi / 2
    return radius_x * math.cos(angle), radius * math.sin(angle)


def _arrow(share: float, radius_x: float, radius: float) -> str:
    """Return an arrow head on the ring, *share* of the way around."""
    angle = 2 * math.pi * share - math.pi / 2
    x, y = radius_x * math.cos(angle), radius * math.sin(angle)
    turn = math.degrees(math.atan2(radius * math.cos(angle), -radius_x * math.sin(angle)))
    place = f"translate({x:g} {y:g}) rotate({turn:g})"
    return f'<path class="head" d="M-5 -5L5 0L-5 5Z" transform="{place}"/>'


PLOT_WIDE, PLOT_HIGH, PLOT_LEFT, PLOT_BASE = 1120, 220, 60, 24


HOUR_S, DAY_S = 3600, 86400


class Series(Struct, frozen=True):
    """One area of a plot: its sums at evenly spaced times."""

    name: str
    values: Sequence[float]


def stacked_svg(
    series: Sequence[Series], first: float, last: float, label: Callable[[float], str]
) -> str:
    """Return *series* stacked on each other, from *first* to *last* in seconds since 1970."""
    peak = sum(area.values[-1] for area in series)
    width, base = PLOT_WIDE - PLOT_LEFT - 8, PLOT_HIGH - PLOT_BASE
    height = base - 8

    def line(values: Sequence[float]) -> list[str]:
        step = width / (len(values) - 1)
        return [
            f"{PLOT_LEFT + step * place:.0f} {base - height * value / peak:.1f}"
            for place, value in enumerate(values)
        ]

    size = f'viewBox="0 0 {PLOT_WIDE} {PLOT_HIGH}" width="{PLOT_WIDE}" height="{PLOT_HIGH}"'
    parts = [f'<svg class="plot" {size} role="img" aria-label="Sum over time">']
    for share in (0.0, 0.5, 1.0):
        y = base - height * share
        parts.append(
            f'<path class="grid" d="M{PLOT_LEFT} {y:g}H{PLOT_WIDE - 8}"/>'
            f'<text class="num" x="{PLOT_LEFT - 8}" y="{y + 4:g}" text-anchor="end">'
            f"{escape(label(peak * share))}</text>"
        )
    lower_edge = [0.0] * len(series[0].values)
    for place, area in enumerate(series):
        upper_edge = [lower + value for lower, value in zip(lower_edge, area.values, strict=True)]
        top = "L".join(line(upper_edge))
        path = f'<path class="area" d="M{top}L{"L".join(reversed(line(lower_edge)))}Z"/>'
        name = escape(f"{sanitize_text(area.name)}: {label(area.values[-1])}")
        parts.append(
            f'<g class="s{place}"><title>{name}</title>{path}<path class="sum" d="M{top}"/></g>'
        )
        lower_edge = upper_edge
    form = "%d %b" if last - first > 4 * DAY_S else "%d %b %H:%M"
    form = "%H:%M:%S" if last - first < HOUR_S else form
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        moment = datetime.fromtimestamp(first + (last - first) * share, UTC).astimezone()
        parts.append(
            f'<text class="num" x="{PLOT_LEFT + width * share:g}" y="{PLOT_HIGH - 6}" '
            f'text-anchor="{anchor}">{moment.strftime(form)}</text>'
        )
    return "".join([*parts, "</svg>"])
