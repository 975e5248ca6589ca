"""Who worked when in a run: its spans, the longest chain of them, and how much ran in parallel."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from enum import StrEnum
from graphlib import TopologicalSorter
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sequencer.history.facts import EndState, StartKind
from sequencer.history.story import Story, Try


class SpanKind(StrEnum):
    """What a stretch of time was."""

    DONE = "done"
    """An attempt that was accepted."""
    FAILED = "failed"
    """An attempt that failed, or that judged "no"."""
    RELEASED = "released"
    """An attempt that was given back: nobody's failure."""
    CUT = "cut"
    """An attempt whose process was lost, or that was cancelled."""
    RUNNING = "running"
    """An attempt that has not ended."""
    PERSON = "person"
    """A person was waited for."""


_KINDS: Mapping[EndState | None, SpanKind] = {
    None: SpanKind.RUNNING,
    EndState.DONE: SpanKind.DONE,
    EndState.FAILED: SpanKind.FAILED,
    EndState.REFUSED: SpanKind.FAILED,
    EndState.RELEASED: SpanKind.RELEASED,
}
"""Of an attempt that ended so; any other ending cuts it."""


class Span(Struct, frozen=True):
    """One attempt, or one wait for a person."""

    kind: SpanKind
    begin: float
    """Seconds since 1970, UTC."""
    end: float
    attempt: int = 0
    agent: str = ""
    host: str = ""
    """The machine that it ran on."""
    shown: str = ""
    """Its evidence, in a line."""

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.end - self.begin

    @property
    def is_work(self) -> bool:
        """Return whether an agent was at work."""
        return self.kind is not SpanKind.PERSON


class Execution(Struct, frozen=True):
    """One turn of a step: the attempts until one is accepted, or it is given up."""

    step: str
    sources: tuple[int, ...]
    """Indexes in ``Timeline.executions`` of what had to be done before it."""
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
        """Return how long its last attempt took, which counts, and the people after it."""
        total = 0.0
        for span in reversed(self.spans):
            total += span.seconds
            if span.is_work:
                break
        return total


class Timeline(Struct, frozen=True):
    """The executions of one run, in the order in which they began."""

    executions: tuple[Execution, ...]
    is_over: bool

    @property
    def spans(self) -> list[Span]:
        """Return every attempt and every wait."""
        return [span for execution in self.executions for span in execution.spans]


def timeline_of(
    story: Story, now: float, lost: Mapping[int, float] = MappingProxyType({})
) -> Timeline:
    """Return who worked when in *story*; what still runs ends at *now*.

    *lost* has the tokens of attempts whose processes are gone, and how many seconds they lived:
    they worked until their last sign of life, since the machine may have been off for days.
    """
    open_spans = {
        id(turn): _open_span(attempt, now, lost)
        for turn, attempt in story.open
        if attempt.start is not StartKind.PASSAGE
    }
    executions = []
    for turn in story.turns:
        spans = [_span(attempt) for attempt in turn.tries]
        if turn.is_dead_end and spans[-1].is_work:
            spans[-1] = replace(spans[-1], kind=SpanKind.FAILED)
        spans += [open_spans[id(turn)]] if id(turn) in open_spans else []
        executions.append(
            Execution(
                turn.step, turn.sources, turn.begin, turn.step_index, tuple(spans), turn.is_accepted
            )
        )
    return Timeline(tuple(executions), story.is_over)


def _span(attempt: Try) -> Span:
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


def _open_span(attempt: Try, now: float, lost: Mapping[int, float]) -> Span:
    """Return the span of an *attempt* that has not ended."""
    span, lived_s = _span(attempt), lost.get(attempt.token)
    if lived_s is None:
        return replace(span, end=max(now, attempt.begin))
    return replace(span, kind=SpanKind.CUT, end=attempt.begin + lived_s)


Task = TypeVar("Task", bound=Hashable)


def critical_path(
    durations: Mapping[Task, float], blockers: Mapping[Task, Collection[Task]]
) -> tuple[Task, ...]:
    """Return the chain of tasks that takes longest, first to last; of equals the first.

    With enough workers and no overhead the whole takes as long as this chain.

    >>> critical_path({"a": 1, "b": 5, "c": 2, "d": 1}, {"c": ["a"], "b": ["a"], "d": ["c", "b"]})
    ('a', 'b', 'd')

    Raises:
        graphlib.CycleError: tasks wait for each other, so there is no longest chain.
    """
    graph = {task: list(blockers.get(task, ())) for task in durations}
    longest: dict[Task, float] = {}
    before: dict[Task, Task | None] = {}
    for task in TopologicalSorter(graph).static_order():
        known = graph.get(task, [])
        came = max(known, key=longest.__getitem__) if known else None
        before[task] = came
        longest[task] = durations.get(task, 0.0) + (longest[came] if came is not None else 0.0)
    # The order of the durations decides between equals; the sorter's is nobody's choice.
    last = max(durations, key=longest.__getitem__, default=None)
    path: list[Task] = []
    while last is not None:
        path.append(last)
        last = before[last]
    return tuple(reversed(path))


class Figures(Struct, frozen=True):
    """A run's time in figures; seconds."""

    wall_s: float
    """From the first beginning to the last end."""
    work_s: float
    """Of all attempts, one after the other: what one worker would have taken."""
    people_s: float
    """While nobody worked and a person was waited for."""
    critical_s: float
    """Of the critical path, people's time included."""
    critical: tuple[int, ...]
    """The executions on the critical path, by their places."""
    peak: int
    """Attempts that ran at once, at most."""
    places: int
    """Attempts that might have run at once."""

    @property
    def speed_up(self) -> float | None:
        """Return how many times faster it was than one worker; None where there is no time."""
        busy = self.wall_s - self.people_s
        return self.work_s / busy if busy > 0 else None

    @property
    def overhead(self) -> float | None:
        """Return how much longer it took than its critical path: 0.05 is 5 %."""
        return self.wall_s / self.critical_s - 1 if self.critical_s > 0 else None

    @property
    def utilisation(self) -> float | None:
        """Return which part of the places' time was work, while no person was waited for."""
        busy = (self.wall_s - self.people_s) * self.places
        return self.work_s / busy if busy > 0 else None


def figures_of(timeline: Timeline, places: int | None = None) -> Figures:
    """Return the figures of *timeline*; *places* is how many attempts might run at once.

    None: as many as did.
    """
    executions, spans = timeline.executions, timeline.spans
    durations = {number: one.seconds for number, one in enumerate(executions)}
    path = critical_path(durations, {n: one.sources for n, one in enumerate(executions)})
    people_s, peak = _side_by_side(spans)
    wall = max(s.end for s in spans) - min(s.begin for s in spans) if spans else 0.0
    return Figures(
        wall_s=wall,
        work_s=sum(span.seconds for span in spans if span.is_work),
        people_s=people_s,
        critical_s=sum(durations[number] for number in path),
        critical=path,
        peak=peak,
        places=max(places or peak, 1),
    )


def _side_by_side(spans: Iterable[Span]) -> tuple[float, int]:
    """Return how long only people were waited for, and how many attempts ran at once."""
    spans = list(spans)
    # An end before a start at the same moment: one after the other is not side by side.
    # Starts are recorded in whole milliseconds, cut off; ends have to be cut off as well.
    moments = sorted(
        (when, change, span.is_work)
        for span in spans
        if (end := round(span.end * 1_000_000) // 1_000 / 1_000) > span.begin
        for when, change in ((span.begin, 1), (end, -1))
    )
    working = waiting = 0
    peak = int(any(span.is_work for span in spans))
    total = before = 0.0
    for when, change, is_work in moments:
        if waiting and not working:
            total += when - before
        before = when
        if is_work:
            working += change
        else:
            waiting += change
        peak = max(peak, working)
    return total, peak
