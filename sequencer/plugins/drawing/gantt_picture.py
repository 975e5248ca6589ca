"""The Gantt chart of a run as SVG, for files and for web pages."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from sequencer.cli.views.states import sanitize_text
from sequencer.cli.views.text import shorten_middle
from sequencer.errors import UsageRefused
from sequencer.model.outcome import format_duration
from sequencer.plugins.drawing.gantt import STYLES, Bar, BarStyle, Gantt, Row, gantt_summary, ticks
from sequencer.plugins.drawing.pictures import (
    FAINT,
    INK,
    PALE_INK,
    SMALL,
    TEXT,
    estimate_width,
    fit_text,
    render_text,
    svg_header,
    wrap_in_group,
)

MARGIN, GAP = 20, 14
PLOT = 860
ROW, BAR = 26, 16
LINE = 20
TICK = 80
NAME_COLUMNS, ROLE_COLUMNS = 34, 16
SAMPLE_WIDTH, SAMPLE_HEIGHT, SAMPLE_GAP = 18, 12, 6
"""A sample in the legend, and the gap between it and its name, in points."""
MIN_BAR = 2.0
"""Minimum width of a bar in points, so that the shortest attempt is visible."""
MAX_ROWS, MAX_BARS = 2000, 20_000


def gantt_svg(chart: Gantt) -> str:
    """Return *chart* as an SVG document.

    Raises: see `ensure_drawable`.
    """
    ensure_drawable(chart)
    return "\n".join(GanttPicture(chart).render()) + "\n"


def ensure_drawable(chart: Gantt) -> None:
    """Check that a picture of *chart* would show anything.

    Raises:
        UsageRefused: it has too many rows or bars to read.
    """
    bars = sum(len(row.bars) for row in chart.rows)
    if len(chart.rows) > MAX_ROWS or bars > MAX_BARS:
        raise UsageRefused(
            f"{len(chart.rows)} tasks with {bars} bars are too many for a picture",
            hint="'sequencer report' prints them, and --json has every attempt",
        )


class GanttPicture:
    """The picture of a Gantt chart."""

    def __init__(self, chart: Gantt, top: int | None = None) -> None:
        """Measure *chart*, whose first row is at *top*; None: below its title and its figures."""
        self._chart = chart
        self._names = [shorten_middle(sanitize_text(row.named), NAME_COLUMNS) for row in chart.rows]
        self._roles = [shorten_middle(sanitize_text(row.role), ROLE_COLUMNS) for row in chart.rows]
        name = max((estimate_width(text, TEXT) for text in self._names), default=0.0)
        role = max((estimate_width(text, SMALL) for text in self._roles), default=0.0)
        self._role_x = MARGIN + name + GAP
        self._left = self._role_x + (role + GAP if role else 0)
        self._times = [format_duration(row.work_s) if row.work_s else "" for row in chart.rows]
        time = max(estimate_width(text, SMALL) for text in (*self._times, "work"))
        self._width = int(self._left + PLOT + GAP + time + MARGIN)
        path = " → ".join(sanitize_text(name) for name in chart.path)
        max_width = self._width - 2 * MARGIN
        self._lines = gantt_summary(chart.figures, path, lambda text: fit_text(text, max_width))
        self._top = MARGIN + LINE * (3 + len(self._lines)) if top is None else top
        self._bottom = self._top + ROW * len(chart.rows)
        self._height = self._bottom + 2 * LINE + MARGIN

    def render(self) -> Iterator[str]:
        """Yield the document line by line."""
        title = fit_text(sanitize_text(self._chart.title), self._width - 2 * MARGIN, TEXT)
        yield from svg_header(self._width, self._height, title)
        y = MARGIN + TEXT
        yield render_text(title, MARGIN, y, INK)
        for number, line in enumerate(self._lines, 1):
            yield render_text(line.strip(), MARGIN, y + LINE * number, PALE_INK, size=SMALL)
        yield from self.render_content()
        yield "</svg>"

    @property
    def size(self) -> tuple[int, int]:
        """Return its width and height."""
        return self._width, self._height

    def render_content(self) -> Iterator[str]:
        """Yield the axis, the rows and the legend."""
        yield from wrap_in_group("axis", self._draw_axis())
        for number, row in enumerate(self._chart.rows):
            kind = "row critical" if row.is_critical else "row"
            yield from wrap_in_group(kind, self._draw_row(number, row))
        yield from self._draw_legend()

    def _x(self, moment: float) -> float:
        """Return where *moment*, in seconds since the start, is in the picture."""
        total = self._chart.figures.wall_s
        return self._left + (moment / total * PLOT if total > 0 else 0.0)

    def _draw_axis(self) -> Iterator[str]:
        """Yield the striped background of the rows, and the times with their lines."""
        if not self._chart.rows:
            return
        for number in range(0, len(self._chart.rows), 2):
            y = self._top + ROW * number
            stripe_width = self._width - 2 * MARGIN + 8
            yield (
                f'<rect x="{MARGIN - 4}" y="{y}" width="{stripe_width}" height="{ROW}" '
                'fill="#f8f9fa"/>'
            )
        for moment, name in ticks(self._chart.figures.wall_s, PLOT // TICK):
            x = self._x(moment)
            yield (
                f'<path d="M{x:.1f} {self._top - 4}V{self._bottom}" fill="none" '
                f'stroke="{FAINT}" stroke-width="1"/>'
            )
            yield render_text(
                name, round(x, 1), self._top - 9, PALE_INK, size=SMALL, anchor="middle"
            )
        right = self._width - MARGIN
        yield render_text("work", right, self._top - 9, PALE_INK, size=SMALL, anchor="end")

    def _draw_row(self, number: int, row: Row) -> Iterator[str]:
        """Yield the name of row *number*, its role, its bars and its time."""
        y = self._top + ROW * number
        base = y + ROW / 2 + 5
        color = STYLES[BarStyle.CRITICAL].line if row.is_critical else INK if row.bars else PALE_INK
        yield render_text(self._names[number], MARGIN, base, color)
        if row.role:
            yield render_text(self._roles[number], self._role_x, base, PALE_INK, size=SMALL)
        # Draw waits first, so that attempts are on top.
        for bar in sorted(row.bars, key=lambda bar: bar.look is not BarStyle.RETRY):
            yield from wrap_in_group(_bar_class(bar.look), [self._draw_bar(bar, row.named, y)])
        if self._times[number]:
            right = self._width - MARGIN
            yield render_text(self._times[number], right, base, PALE_INK, size=SMALL, anchor="end")

    def _draw_bar(self, bar: Bar, name: str, y: float) -> str:
        """Return *bar* of the row *name* at *y*: a box, or a dashed line for a wait."""
        x, end = self._x(bar.begin), self._x(bar.end)
        text = escape(f"{sanitize_text(name)}: {bar.in_words}", quote=False)
        title = f"<title>{text}</title>"
        fill, line = STYLES[bar.look].fill, STYLES[bar.look].line
        if bar.look is BarStyle.RETRY:
            middle = y + ROW / 2
            return (
                f'<path d="M{x:.1f} {middle}H{end:.1f}" fill="none" stroke="{line}" '
                f'stroke-width="2" stroke-dasharray="2 4">{title}</path>'
            )
        bar_width = max(end - x, MIN_BAR)
        x = min(x, self._left + PLOT - bar_width)
        stroke_width = 2 if bar.is_critical else 1
        dashes = ' stroke-dasharray="4 3"' if bar.look in (BarStyle.RUNNING, BarStyle.CUT) else ""
        return (
            f'<rect x="{x:.1f}" y="{y + (ROW - BAR) / 2}" width="{bar_width:.1f}" height="{BAR}" '
            f'rx="{min(3.0, bar_width / 2):g}" fill="{fill}" stroke="{line}" '
            f'stroke-width="{stroke_width}"{dashes}>{title}</rect>'
        )

    def _draw_legend(self) -> Iterator[str]:
        """Yield a sample and the name of each look in the chart, in one line below the rows."""
        x, y = float(MARGIN), self._bottom + LINE
        for look in self._chart.looks:
            fill, line = STYLES[look].fill, STYLES[look].line
            sample = (
                f'<rect x="{x:.1f}" y="{y}" width="{SAMPLE_WIDTH}" height="{SAMPLE_HEIGHT}" '
                f'rx="3" fill="{fill}" stroke="{line}"/>'
            )
            if look is BarStyle.RETRY:
                sample = (
                    f'<path d="M{x:.1f} {y + SAMPLE_HEIGHT // 2}h{SAMPLE_WIDTH}" fill="none" '
                    f'stroke="{line}" '
                    'stroke-width="2" stroke-dasharray="2 4"/>'
                )
            name_x, base = x + SAMPLE_WIDTH + SAMPLE_GAP, y + SAMPLE_HEIGHT - 1
            name = render_text(look, round(name_x, 1), base, PALE_INK, size=SMALL)
            yield from wrap_in_group(_bar_class(look), (sample, name))
            x = name_x + estimate_width(look, SMALL) + GAP


def _bar_class(look: BarStyle) -> str:
    return f"bar {look.name.lower()}"
