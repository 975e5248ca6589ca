"""The contents of a Gantt chart, for any width: rows, bars, and a time axis."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct, field

from sequencer.cli.views.states import sanitize_text
from sequencer.cli.views.text import cut, pluralize, shorten_middle, width
from sequencer.engine.graph_changes import load_as_started
from sequencer.engine.run import Run
from sequencer.errors import ConfigurationError, CorruptState, DefinitionChanged, SequencerError
from sequencer.history.spans import (
    Execution,
    Figures,
    Span,
    SpanKind,
    Timeline,
    build_timeline,
    compute_figures,
)
from sequencer.history.story import Story, build_story
from sequencer.model.head import Head
from sequencer.model.outcome import format_duration
from sequencer.model.workflow import Workflow
from sequencer.plugins.drawing.diagram import Drawing, Pieces, merge_cells
from sequencer.store.leases import open_leases

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
SHORTEST_SHOWN_S = 0.05
MIN_BASE_S = 1.0
"""Shorter times are not meaningful: starting a process takes about as long."""
MIN_OVERHEAD, MAX_OVERHEAD = 0.005, 10.0
"""Ratios to the critical path: a smaller one rounds to 0, and a larger factor has no decimals."""
STEPS_S = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 28 * _DAY),
)
"""Possible distances between two ticks of an axis."""


class BarStyle(StrEnum):
    """How a bar is drawn."""

    CRITICAL = "critical path"
    DONE = "accepted"
    FAILED = "failed"
    CUT = "given back or lost"
    RUNNING = "runs"
    PERSON = "waits for a person"
    RETRY = "waits for another try"


STATE_DISPLAYS: Mapping[SpanKind, BarStyle] = {
    SpanKind.DONE: BarStyle.DONE,
    SpanKind.FAILED: BarStyle.FAILED,
    SpanKind.RELEASED: BarStyle.CUT,
    SpanKind.CUT: BarStyle.CUT,
    SpanKind.RUNNING: BarStyle.RUNNING,
    SpanKind.PERSON: BarStyle.PERSON,
}


class Bar(Struct, frozen=True):
    """One attempt or one wait; times are seconds from the start of the chart."""

    look: BarStyle
    begin: float
    end: float
    attempt: int = 0
    is_critical: bool = False
    """Set even if its look shows something more important."""
    agent: str = ""
    host: str = ""

    @property
    def in_words(self) -> str:
        """Return the bar in words.

        >>> Bar(BarStyle.DONE, 0, 4, attempt=2, agent="claude", host="ci-3").in_words
        'attempt 2, accepted, 4.0 s by claude on ci-3'
        """
        number = f"attempt {self.attempt}, " if self.attempt > 1 else ""
        maker = f" by {self.agent}" if self.agent else ""
        place = f" on {self.host}" if self.host else ""
        return f"{number}{self.look}, {format_duration(self.end - self.begin)}{maker}{place}"


class Row(Struct):
    """One task."""

    name: str
    role: str
    bars: list[Bar] = field(default_factory=list)
    work_s: float = 0.0
    """Seconds that the agents of all its attempts worked."""
    title: str = ""
    """Its title in the workflow's chart, if it says more than the name."""

    @property
    def named(self) -> str:
        """Return its name with its title."""
        return f"{self.name} ({self.title})" if self.title else self.name

    @property
    def is_critical(self) -> bool:
        """Return whether it is on the critical path."""
        return any(bar.is_critical for bar in self.bars)


class Gantt(Struct, frozen=True):
    """A run's time."""

    title: str
    rows: tuple[Row, ...]
    figures: Figures
    critical: tuple[str, ...]
    """The names on the critical path, without steps that take no time."""

    @property
    def path(self) -> list[str]:
        """Return the critical path as text for people."""
        titles = {row.name: row.named for row in self.rows}
        return [titles.get(name, name) for name in self.critical]

    @property
    def looks(self) -> tuple[BarStyle, ...]:
        """Return the looks that a legend must explain."""
        looks = {bar.look for row in self.rows for bar in row.bars}
        return tuple(look for look in BarStyle if look in looks)


def build_chart(
    title: str, timeline: Timeline, figures: Figures, workflow: Workflow | None
) -> Gantt:
    """Return the chart of *timeline*; tasks are in the order of their starts.

    While a team works, tasks that have not started yet have rows without bars.
    """
    executions = timeline.executions
    numbered_executions = [
        (n, execution) for n, execution in enumerate(executions) if execution.spans
    ]
    origin = min((span.begin for span in timeline.spans), default=0.0)
    nodes = () if workflow is None else workflow.nodes
    roles = {node.id: node.task.role or "" for node in nodes if node.task is not None}
    charted_nodes = {node.id: node for node in nodes if node.task is None}
    on_path = frozenset(figures.critical)
    rows: dict[str, Row] = {}
    for number, execution in sorted(numbered_executions, key=lambda pair: pair[1].spans[0].begin):
        row = rows.setdefault(execution.step, Row(execution.step, roles.get(execution.step, "")))
        if (node := charted_nodes.get(execution.step)) is not None:
            row.title = node.title
        row.bars += _bars(execution, origin, is_critical=number in on_path)
        row.work_s += sum(span.seconds for span in execution.spans if span.is_work)
    if workflow is not None and not timeline.is_over:
        for task in workflow.tasks:
            rows.setdefault(task.id, Row(task.id, roles.get(task.id, "")))
    critical = tuple(executions[n].step for n in figures.critical if executions[n].spans)
    return Gantt(title, tuple(rows.values()), figures, critical)


def _bars(execution: Execution, origin: float, *, is_critical: bool) -> list[Bar]:
    # Only the last attempt, and the waits for people after it, are on the critical path.
    last_number = max((n for n, span in enumerate(execution.spans) if span.is_work), default=0)
    bars: list[Bar] = []
    for number, span in enumerate(execution.spans):
        counts = is_critical and number >= last_number
        bars.append(_bar(span, origin, is_critical=counts))
    for span, next_span in pairwise(execution.spans):
        if next_span.begin > span.end and next_span.is_work:
            bars.append(Bar(BarStyle.RETRY, span.end - origin, next_span.begin - origin))
    return bars


def _bar(span: Span, origin: float, *, is_critical: bool) -> Bar:
    look = STATE_DISPLAYS[span.kind]
    if is_critical and look is BarStyle.DONE:
        look = BarStyle.CRITICAL
    begin, end = span.begin - origin, span.end - origin
    return Bar(look, begin, end, span.attempt, is_critical, span.agent, span.host)


def ticks(total_s: float, most: int) -> list[tuple[float, str]]:
    """Return at most *most* moments of an axis of *total_s*, with their names.

    >>> ticks(9, 5), ticks(5400, 4)
    ([(0, '0s'), (2, '2s'), (4, '4s'), (6, '6s'), (8, '8s')], [(0, '0s'), (1800, '30m'), \
(3600, '1h'), (5400, '1h30')])
    """
    step = next((step_s for step_s in STEPS_S if total_s / step_s < most), None)
    if step is None:
        step = (int(total_s / most / STEPS_S[-1]) + 1) * STEPS_S[-1]
    count = min(int(total_s / step + 1e-9), most - 1)
    return [(number * step, _format_moment(number * step)) for number in range(count + 1)]


def _format_moment(seconds: float) -> str:
    if seconds < _MINUTE:
        return (
            f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds:.2f}".rstrip("0") + "s"
        )
    days, remainder = divmod(round(seconds), _DAY)
    hours, remainder = divmod(remainder, _HOUR)
    minutes, remainder = divmod(remainder, _MINUTE)
    if days:
        return f"{days}d{hours}h" if hours else f"{days}d"
    if hours:
        return f"{hours}h{minutes:02d}" if minutes else f"{hours}h"
    return f"{minutes}m{remainder:02d}" if remainder else f"{minutes}m"


def gantt_summary(figures: Figures, names: str, shortened: Callable[[str], str]) -> list[str]:
    """Return the figures in words, a line each; *shortened* makes the line of *names* fit."""
    speed, overhead, utilisation = figures.speed_up, figures.overhead, figures.utilisation
    if figures.places == 1 or figures.wall_s < MIN_BASE_S:
        # For sequential steps, or an instant, a ratio would mean nothing.
        speed = overhead = utilisation = None
    lines = [
        f"total time {format_duration(figures.wall_s)}, "
        f"agent work {format_duration(figures.work_s)}"
        + (f", speedup {_format_factor(speed)}" if speed is not None else "")
    ]
    if names:
        is_base = figures.critical_s >= MIN_BASE_S
        overhead_text = _format_overhead(overhead) if overhead is not None and is_base else ""
        lines.append(f"critical path {format_duration(figures.critical_s)}{overhead_text}")
        lines.append(shortened(f"  {names}"))
    if utilisation is not None:
        lines.append(
            f"{pluralize(figures.places, 'place')} for agents, {utilisation:.0%} busy, "
            f"at most {figures.peak} in use at once"
        )
    if figures.people_s >= SHORTEST_SHOWN_S:
        lines.append(
            f"{format_duration(figures.people_s)} waiting only for people, "
            "not counted in the speedup or as idle places"
        )
    return lines


def _format_factor(speed: float) -> str:
    """Return a speedup as text, with enough digits for a run that was idle for hours.

    >>> _format_factor(1.8), _format_factor(0.0028), _format_factor(0.0)
    ('1.80', '0.0028', '0.00')
    """
    return f"{speed:.2g}" if 0 < speed < 0.1 else f"{speed:.2f}"  # noqa: PLR2004 - two digits


def _format_overhead(overhead: float) -> str:
    """Return how much longer it took: in percent, or as a factor from twice as long on.

    >>> _format_overhead(0.429), _format_overhead(-0.0001)
    (', the run took 43% longer', '')
    >>> _format_overhead(7.896), _format_overhead(1357.4)
    (', the run took 8.9 times as long', ', the run took 1358 times as long')
    """
    if overhead < MIN_OVERHEAD:
        return ""
    if overhead < 1:
        return f", the run took {overhead:.0%} longer"
    times = f"{overhead + 1:.1f}" if overhead < MAX_OVERHEAD else f"{overhead + 1:.0f}"
    return f", the run took {times} times as long"


MIN_COLUMNS = 60
MAX_NAME, MAX_ROLE = 36, 14
TICK_COLUMNS = 9


class LookStyle(Struct, frozen=True):
    """How a look is drawn, in all forms."""

    glyph: str
    ascii_glyph: str
    style: str
    """Color on a terminal, as rich names it."""
    fill: str
    """Color in a picture."""
    line: str
    weight: int = 1
    """The heavier of two bars in one column is visible, so that no failure is hidden."""


STYLES: Mapping[BarStyle, LookStyle] = {
    BarStyle.CRITICAL: LookStyle("█", "#", "bold green", "#2b8a3e", "#1b5e29", 2),
    BarStyle.DONE: LookStyle("━", "=", "green", "#b2e6bc", "#2b8a3e"),
    BarStyle.FAILED: LookStyle("✗", "x", "bold red", "#ff8787", "#c92a2a", 3),
    BarStyle.CUT: LookStyle("╌", "-", "dim", "#e9ecef", "#868e96"),
    BarStyle.RUNNING: LookStyle("▒", ">", "cyan", "#a5d8ff", "#1864ab", 2),
    BarStyle.PERSON: LookStyle("?", "?", "magenta", "#e599f7", "#862e9c"),
    BarStyle.RETRY: LookStyle("·", ".", "yellow", "none", "#b35900", 0),
}
NEEDED = "".join(one.glyph for one in STYLES.values()) + "…→◆"
"""An encoding without these characters gets a chart in ASCII."""


def draw_gantt(chart: Gantt, columns: int, *, is_ascii: bool) -> Drawing:
    """Return *chart* in *columns* columns, but at least `MIN_COLUMNS`."""
    return _Page(chart, max(columns, MIN_COLUMNS), is_ascii=is_ascii).draw()


class _Page:
    def __init__(self, chart: Gantt, columns: int, *, is_ascii: bool) -> None:
        self._chart, self._columns, self._is_ascii = chart, columns, is_ascii
        self._dots = "..." if is_ascii else "…"
        times = [format_duration(row.work_s) if row.work_s else "-" for row in chart.rows]
        self._time = max(map(len, ("WORK", *times)))
        self._names = self._pad_column("TASK", [row.named for row in chart.rows], MAX_NAME)
        roles = [row.role for row in chart.rows]
        self._roles = (
            self._pad_column("ROLE", roles, MAX_ROLE) if any(roles) else [""] * (len(times) + 1)
        )
        self._times = [f"  {time:>{self._time}}" for time in times]
        label_columns = 2 + width(self._names[0]) + width(self._roles[0]) + 2 + self._time
        self._plot = columns - label_columns

    def _pad_column(self, head: str, texts: list[str], limit: int) -> list[str]:
        """Return *head* and *texts* padded to the widest one plus a gap."""
        column_width = max(
            len(head), min(limit, max((width(self._fit(t, limit)) for t in texts), default=0))
        )
        cells = [head, *(self._fit(text, column_width) for text in texts)]
        return [text + " " * (column_width + 2 - width(text)) for text in cells]

    def _fit(self, text: str, columns: int, shorten: Callable[..., str] = shorten_middle) -> str:
        safe = sanitize_text(text)
        if self._is_ascii:
            safe = safe.replace("·", "-").encode("ascii", "replace").decode()
        return shorten(safe, columns, dots=self._dots)

    def draw(self) -> Drawing:
        rows: list[Pieces] = [((self._fit(self._chart.title, self._columns, cut), "bold"),), ()]
        if self._chart.rows:
            cells = zip(
                self._chart.rows, self._names[1:], self._roles[1:], self._times, strict=True
            )
            rows += [self._format_axis(), *(self._row(*cell) for cell in cells), ()]
        if legend := self._legend():
            rows += [*legend, ()]
        path = (" -> " if self._is_ascii else " → ").join(self._chart.path)
        lines = gantt_summary(
            self._chart.figures,
            path,
            lambda text: f"  {self._fit(text, self._columns - 2, cut)}",
        )
        return Drawing((*rows, *(((line, ""),) for line in lines)))

    def _format_axis(self) -> Pieces:
        """Return the line of the axis; a tick's name starts at its column."""
        total, axis = self._chart.figures.wall_s, [" "] * self._plot
        next_place = 0
        for moment, name in ticks(total, max(self._plot // TICK_COLUMNS, 2)):
            place = self._column(moment)
            if place >= next_place and place + len(name) <= self._plot:
                axis[place : place + len(name)] = name
                next_place = place + len(name) + 1
        label = f"  {self._names[0]}{self._roles[0]}{''.join(axis)}"
        return ((f"{label}  {'WORK':>{self._time}}", "dim"),)

    def _row(self, row: Row, name: str, role: str, time: str) -> Pieces:
        mark = ("*" if self._is_ascii else "◆") if row.is_critical else " "
        style = "bold" if row.is_critical else "" if row.bars else "dim"
        return ((f"{mark} {name}", style), (role, "dim"), *self._bars(row.bars), (time, ""))

    def _column(self, moment: float) -> int:
        total = self._chart.figures.wall_s
        return min(int(moment / total * self._plot), self._plot - 1) if total > 0 else 0

    def _bars(self, bars: list[Bar]) -> Pieces:
        cells: list[BarStyle | None] = [None] * self._plot
        for bar in bars:
            start, end = self._column(bar.begin), self._column(bar.end)
            # The end column belongs to the next bar, but even the shortest bar stays visible.
            for place in range(start, max(end, start + 1)):
                cell = cells[place]
                if cell is None or STYLES[bar.look].weight > STYLES[cell].weight:
                    cells[place] = bar.look
        if bars and (last_bar := max(bars, key=lambda b: b.end)).end >= self._chart.figures.wall_s:
            cells[-1] = cells[-1] or last_bar.look
        return merge_cells((" ", "") if look is None else self._glyph(look) for look in cells)

    def _glyph(self, look: BarStyle) -> tuple[str, str]:
        shape = STYLES[look]
        return (shape.ascii_glyph if self._is_ascii else shape.glyph), shape.style

    def _legend(self) -> list[Pieces]:
        rows: list[Pieces] = []
        column = self._columns
        for look in self._chart.looks:
            text, style = self._glyph(look)
            entry_width = 2 + len(look) + 4
            if column + entry_width > self._columns:
                rows.append(())
                column = 0
            rows[-1] += ((text * 2, style), (f" {look}   ", "dim"))
            column += entry_width
        return rows


def build_gantt(
    run: Run,
    head: Head | None,
    warn: Callable[[str], None],
    story: Story | None = None,
    max_executions: int | None = None,
) -> tuple[Gantt, Timeline]:
    """Return the chart of *run* at *head*, and its timeline; *warn* gets warnings.

    *story* is the story of the run, if the caller has it already. With *max_executions*, the
    chart has only the newest executions.
    """
    workflow = _load_workflow(run, head, warn)
    timeline = build_timeline(
        build_story(run.history()) if story is None else story,
        time.time(),
        {} if head is None else _find_lost_attempts(run, head),
        max_executions,
    )
    figures = compute_figures(timeline, _find_max_parallel(workflow))
    return build_chart(_title(run, head), timeline, figures, workflow), timeline


def _find_lost_attempts(run: Run, head: Head) -> dict[int, float]:
    """Return token -> seconds that the attempt lived, for attempts whose processes are gone."""
    leases = open_leases(run.store.state_path)
    lost_claims = (claim for claim in head.claims if run.store.liveness(claim).allows_take_over)
    return {claim.token: leases.read_usage(claim).seconds for claim in lost_claims}


def _load_workflow(run: Run, head: Head | None, warn: Callable[[str], None]) -> Workflow | None:
    """Return the run's workflow with added tasks; None: unknown."""
    if head is None:
        return None
    try:
        try:
            return run.kind.get_workflow(head)
        except (ConfigurationError, DefinitionChanged):
            with suppress(CorruptState):
                return load_as_started(run.store, head).graph_kind.get_workflow(head)
            raise
    except SequencerError as error:
        warn(f"warning: roles and places are not known: {error.message}")
        return None


def _find_max_parallel(workflow: Workflow | None) -> int | None:
    """Return the maximum number of parallel attempts; None: no limit is set, or it is unknown."""
    if workflow is None:
        return None
    # Without a graph, steps run one after another.
    return workflow.graph.max_parallel if workflow.graph else 1


def _title(run: Run, head: Head | None) -> str:
    if head is None:
        return run.name or "(default)"
    status = head.exit_reason or str(head.status)
    name = "" if run.name in (None, head.workflow_name) else f"{run.name} · "
    return f"{name}{head.workflow_name} · {status.replace('_', ' ').replace('-', ' ')}"
