"""Who worked when in a run: its spans, the critical path, and how much ran in parallel."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from enum import StrEnum
from graphlib import TopologicalSorter
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sequencer.history.facts import EndState, StartKind
from sequencer.history.story import Story, StoryEntry


class SpanKind(StrEnum):
    """What happened during a span."""

    DONE = "done"
    """An attempt that was accepted."""
    FAILED = "failed"
    """An attempt that failed, or that judged "no"."""
    RELEASED = "released"
    """An attempt that was given up without a failure."""
    CUT = "cut"
    """An attempt whose process was lost, or that was canceled."""
    RUNNING = "running"
    """An attempt that has not ended."""
    PERSON = "person"
    """The run waited for a person."""


_KINDS: Mapping[EndState | None, SpanKind] = {
    None: SpanKind.RUNNING,
    EndState.DONE: SpanKind.DONE,
    EndState.FAILED: SpanKind.FAILED,
    EndState.REFUSED: SpanKind.FAILED,
    EndState.RELEASED: SpanKind.RELEASED,
}
"""The kind of an attempt by its ending; with any other ending it was cut."""


class Span(Struct, frozen=True):
    """One attempt, or one wait for a person."""

    kind: SpanKind
    begin: float
    """Seconds since 1970, UTC."""
    end: float
    attempt: int = 0
    agent: str = ""
    host: str = ""
    """The machine where it ran."""
    shown: str = ""
    """Its evidence in one line."""

    @property
    def seconds(self) -> float:
        """Return its length."""
        return self.end - self.begin

    @property
    def is_work(self) -> bool:
        """Return whether an agent was at work."""
        return self.kind is not SpanKind.PERSON


class Execution(Struct, frozen=True):
    """One turn of a step: its attempts until one is accepted or the step is given up."""

    step: str
    sources: tuple[int, ...]
    """Indexes in ``Timeline.executions`` of the executions that it had to wait for."""
    begin: float
    step_index: int
    spans: tuple[Span, ...]
    is_accepted: bool

    @property
    def end(self) -> float:
        """Return when its last attempt or wait ended."""
        return self.spans[-1].end if self.spans else self.begin

    @property
    def seconds(self) -> float:
        """Return the length of its last attempt and of the waits for people after that."""
        total = 0.0
        for span in reversed(self.spans):
            total += span.seconds
            if span.is_work:
                break
        return total


class Timeline(Struct, frozen=True):
    """The executions of one run, in the order in which they started."""

    executions: tuple[Execution, ...]
    is_over: bool

    @property
    def spans(self) -> list[Span]:
        """Return every attempt and every wait."""
        return [span for execution in self.executions for span in execution.spans]


def build_timeline(
    story: Story,
    now: float,
    lost: Mapping[int, float] = MappingProxyType({}),
    max_executions: int | None = None,
) -> Timeline:
    """Return the timeline of *story*; an attempt that still runs ends at *now*.

    With *max_executions*, it starts later and has only the newest executions.

    *lost* maps the tokens of attempts whose processes have died to the seconds until their last
    sign of life. Their spans end there, because the machine may have been off for days.
    """
    open_spans = {
        id(turn): _build_open_span(attempt, now, lost)
        for turn, attempt in story.open
        if attempt.start is not StartKind.PASSAGE
    }
    executions = []
    start = 0 if max_executions is None else max(len(story.turns) - max_executions, 0)
    for turn in story.turns[start:]:
        spans = [_build_span(attempt) for attempt in turn.tries]
        if turn.is_dead_end and spans[-1].is_work:
            spans[-1] = replace(spans[-1], kind=SpanKind.FAILED)
        spans += [open_spans[id(turn)]] if id(turn) in open_spans else []
        sources = tuple(index - start for index in turn.sources if index >= start)
        is_accepted = turn.is_accepted
        executions.append(
            Execution(turn.step, sources, turn.begin, turn.step_index, tuple(spans), is_accepted)
        )
    return Timeline(tuple(executions), story.is_over)


def _build_span(attempt: StoryEntry) -> Span:
    kind = _KINDS.get(attempt.ending, SpanKind.CUT)
    if attempt.is_question:
        kind = SpanKind.PERSON
    return Span(
        kind,
        attempt.begin,
        attempt.end,
        0 if attempt.is_question else attempt.number,
        str(attempt.outcome.get("agent") or ""),
        attempt.host,
        attempt.shown,
    )


def _build_open_span(attempt: StoryEntry, now: float, lost_times: Mapping[int, float]) -> Span:
    """Return the span of an *attempt* that has not ended."""
    span, lived_s = _build_span(attempt), lost_times.get(attempt.token)
    if lived_s is None:
        return replace(span, end=max(now, attempt.begin))
    return replace(span, kind=SpanKind.CUT, end=attempt.begin + lived_s)


Task = TypeVar("Task", bound=Hashable)


def critical_path(
    durations: Mapping[Task, float], blockers: Mapping[Task, Collection[Task]]
) -> tuple[Task, ...]:
    """Return the chain of tasks that takes longest, first to last; of equal chains the first.

    With enough workers and no overhead, all tasks together take as long as this chain.

    >>> critical_path({"a": 1, "b": 5, "c": 2, "d": 1}, {"c": ["a"], "b": ["a"], "d": ["c", "b"]})
    ('a', 'b', 'd')

    Raises:
        graphlib.CycleError: tasks wait for each other, so there is no longest chain.
    """
    graph = {task: list(blockers.get(task, ())) for task in durations}
    longest: dict[Task, float] = {}
    predecessors: dict[Task, Task | None] = {}
    for task in TopologicalSorter(graph).static_order():
        sources = graph.get(task, [])
        latest_source = max(sources, key=longest.__getitem__) if sources else None
        predecessors[task] = latest_source
        longest[task] = durations.get(task, 0.0) + (
            longest[latest_source] if latest_source is not None else 0.0
        )
    # Between equal tasks the order of *durations* decides, because the sorter's order is arbitrary.
    last_task = max(durations, key=longest.__getitem__, default=None)
    path: list[Task] = []
    while last_task is not None:
        path.append(last_task)
        last_task = predecessors[last_task]
    return tuple(reversed(path))


class Figures(Struct, frozen=True):
    """A run's time in figures; seconds."""

    wall_s: float
    """From the first start to the last end."""
    work_s: float
    """The sum of all attempts: the time that one worker would have needed."""
    people_s: float
    """Time in which no attempt ran and the run waited for a person."""
    critical_s: float
    """Length of the critical path, including waits for people."""
    critical: tuple[int, ...]
    """Indexes of the executions on the critical path."""
    peak: int
    """The highest number of attempts that ran at the same time."""
    places: int
    """The number of attempts that could have run at the same time."""

    @property
    def speed_up(self) -> float | None:
        """Return how many times faster it was than one worker; None: no time was used."""
        busy_s = self.wall_s - self.people_s
        return self.work_s / busy_s if busy_s > 0 else None

    @property
    def overhead(self) -> float | None:
        """Return how much longer it took than its critical path: 0.05 is 5 %."""
        return self.wall_s / self.critical_s - 1 if self.critical_s > 0 else None

    @property
    def utilisation(self) -> float | None:
        """Return the fraction of the available time that was work, without waits for people."""
        busy_place_s = (self.wall_s - self.people_s) * self.places
        return self.work_s / busy_place_s if busy_place_s > 0 else None


def compute_figures(timeline: Timeline, places: int | None = None) -> Figures:
    """Return the figures of *timeline*; *places* is how many attempts could run at the same time.

    None: as many as did run at the same time.
    """
    executions, spans = timeline.executions, timeline.spans
    durations = {n: execution.seconds for n, execution in enumerate(executions)}
    path = critical_path(durations, dict(enumerate(execution.sources for execution in executions)))
    people_s, peak = _measure_concurrency(spans)
    wall = max(s.end for s in spans) - min(s.begin for s in spans) if spans else 0.0
    return Figures(
        wall_s=wall,
        work_s=sum(span.seconds for span in spans if span.is_work),
        people_s=people_s,
        critical_s=sum(durations[n] for n in path),
        critical=path,
        peak=peak,
        places=max(places or peak, 1),
    )


def _measure_concurrency(spans: Iterable[Span]) -> tuple[float, int]:
    """Return the seconds in which the run only waited for people, and the peak of attempts."""
    spans = list(spans)
    # Sort an end before a start at the same moment: consecutive spans are not parallel. Starts
    # are recorded in whole milliseconds, truncated, so truncate ends too.
    moments = sorted(
        (moment, change, span.is_work)
        for span in spans
        if (end := round(span.end * 1_000_000) // 1_000 / 1_000) > span.begin
        for moment, change in ((span.begin, 1), (end, -1))
    )
    work_count = wait_count = 0
    peak = int(any(span.is_work for span in spans))
    busy_s = last_moment = 0.0
    for moment, change, is_work in moments:
        if wait_count and not work_count:
            busy_s += moment - last_moment
        last_moment = moment
        if is_work:
            work_count += change
        else:
            wait_count += change
        peak = max(peak, work_count)
    return busy_s, peak
