"""A Gantt chart on a terminal: a line a task, and below it what the time was spent on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sequencer.cli.gantt_rows import Bar, Chart, Look, Row, summary, ticks
from sequencer.cli.views.diagram import Drawing
from sequencer.cli.views.states import shown
from sequencer.cli.views.text import cut, short, width
from sequencer.model.outcome import duration

LEAST_COLUMNS = 60
MOST_NAME, MOST_ROLE = 28, 14
TICK_COLUMNS = 9
Pieces = list[tuple[str, str]]

GLYPHS: Mapping[Look, tuple[str, str, str]] = {
    Look.CRITICAL: ("█", "#", "bold green"),
    Look.DONE: ("━", "=", "green"),
    Look.FAILED: ("✗", "x", "bold red"),
    Look.CUT: ("╌", "-", "dim"),
    Look.RUNNING: ("▒", ">", "cyan"),
    Look.PERSON: ("?", "?", "magenta"),
    Look.RETRY: ("·", ".", "yellow"),
}
"""Of each look the character, that of ASCII, and rich's name of the style."""
NEEDED = "".join(unicode for unicode, _, _ in GLYPHS.values()) + "…→◆"
"""An encoding that has none of these gets a chart in ASCII."""
_WEIGHT = {
    **dict.fromkeys(Look, 1),
    Look.RETRY: 0,
    Look.CRITICAL: 2,
    Look.RUNNING: 2,
    Look.FAILED: 3,
}
"""Of two bars in one column the heavier one is seen: no failure is hidden."""


def drawn(chart: Chart, columns: int, *, is_ascii: bool) -> Drawing:
    """Return *chart* in *columns* columns, or in `LEAST_COLUMNS` if those are more."""
    return _Page(chart, max(columns, LEAST_COLUMNS), is_ascii=is_ascii).drawing()


class _Page:
    def __init__(self, chart: Chart, columns: int, *, is_ascii: bool) -> None:
        self._chart, self._columns, self._is_ascii = chart, columns, is_ascii
        self._dots = "..." if is_ascii else "…"
        self._times = [duration(row.work_s) if row.work_s else "-" for row in chart.rows]
        self._name = self._widest([row.name for row in chart.rows], "TASK", MOST_NAME)
        roles = [row.role for row in chart.rows]
        self._role = self._widest(roles, "ROLE", MOST_ROLE) if any(roles) else 0
        time = max([len("WORK"), *map(len, self._times)])
        used = 2 + self._name + 2 + (self._role + 2 if self._role else 0) + 2 + time
        self._plot, self._time = columns - used, time

    def _widest(self, texts: list[str], head: str, most: int) -> int:
        return max(len(head), min(most, max((width(self._fit(t, most)) for t in texts), default=0)))

    def _fit(self, text: str, columns: int, shorten: Callable[..., str] = short) -> str:
        safe = shown(text)
        if self._is_ascii:
            safe = safe.replace("·", "-").encode("ascii", "replace").decode()
        return shorten(safe, columns, dots=self._dots)

    def drawing(self) -> Drawing:
        rows = [[(self._fit(self._chart.title, self._columns, cut), "bold")], []]
        if self._chart.rows:
            rows += [self._head(), *map(self._row, self._chart.rows, self._times), []]
        if legend := self._legend():
            rows += [*legend, []]
        arrow = " -> " if self._is_ascii else " → "
        path = arrow.join(self._chart.critical)
        lines = summary(self._chart.figures, path, self._path)
        return Drawing(tuple(map(tuple, [*rows, *([(line, "")] for line in lines)])))

    def _path(self, text: str) -> str:
        return f"  {self._fit(text, self._columns - 2, cut)}"

    def _padded(self, text: str, columns: int) -> str:
        return text + " " * (columns - width(text))

    def _head(self) -> Pieces:
        """Return the line of the axis: a tick's name begins at its column."""
        total, axis = self._chart.figures.wall_s, [" "] * self._plot
        free = 0
        for moment, name in ticks(total, max(self._plot // TICK_COLUMNS, 2)):
            place = self._column(moment)
            if place >= free and place + len(name) <= self._plot:
                axis[place : place + len(name)] = name
                free = place + len(name) + 1
        role = self._padded("ROLE", self._role) + "  " if self._role else ""
        left = f"  {self._padded('TASK', self._name)}  {role}{''.join(axis)}"
        return [(f"{left}  {'WORK':>{self._time}}", "dim")]

    def _row(self, row: Row, time: str) -> Pieces:
        mark = ("*" if self._is_ascii else "◆") if row.is_critical else " "
        name = self._padded(self._fit(row.name, self._name), self._name)
        role = (
            self._padded(self._fit(row.role, self._role), self._role) + "  " if self._role else ""
        )
        style = "bold" if row.is_critical else "" if row.bars else "dim"
        return [
            (f"{mark} {name}  ", style),
            (role, "dim"),
            *self._bars(row.bars),
            (f"  {time:>{self._time}}", ""),
        ]

    def _column(self, moment: float) -> int:
        total = self._chart.figures.wall_s
        return min(int(moment / total * self._plot), self._plot - 1) if total > 0 else 0

    def _bars(self, bars: list[Bar]) -> Pieces:
        cells: list[Look | None] = [None] * self._plot
        for bar in bars:
            first, last = self._column(bar.begin), self._column(bar.end)
            # The column in which a bar ends is the next one's, but the shortest is seen too.
            for place in range(first, max(last, first + 1)):
                known = cells[place]
                if known is None or _WEIGHT[bar.look] > _WEIGHT[known]:
                    cells[place] = bar.look
        if bars and (last_bar := max(bars, key=lambda b: b.end)).end >= self._chart.figures.wall_s:
            cells[-1] = cells[-1] or last_bar.look
        pieces: Pieces = []
        for look in cells:
            text, style = (" ", "") if look is None else self._glyph(look)
            if pieces and pieces[-1][1] == style:
                pieces[-1] = (pieces[-1][0] + text, style)
            else:
                pieces.append((text, style))
        return pieces

    def _glyph(self, look: Look) -> tuple[str, str]:
        unicode, plain, style = GLYPHS[look]
        return (plain if self._is_ascii else unicode), style

    def _legend(self) -> list[Pieces]:
        rows: list[Pieces] = []
        used = self._columns
        for look in self._chart.looks:
            text, style = self._glyph(look)
            wide = 2 + len(look) + 4
            if used + wide > self._columns:
                rows.append([])
                used = 0
            rows[-1] += [(text * 2, style), (f" {look}   ", "dim")]
            used += wide
        return rows
