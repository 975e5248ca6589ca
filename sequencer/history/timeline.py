"""Who worked when: the executions and attempts of a run, from the facts of its journal.

An attempt that has ended is known to the millisecond, from the record of its end. What has
no such record (a person's answer, an attempt that was cut off or still runs) is known to the
second, as the journal is. One whose process was lost has worked until its last sign of life;
what nobody has heard of it counts as nothing, since the machine may have been off for days.

The longest chain of executions, and how much ran side by side, follow from that.

Not promised: that the clocks of two machines agree. Nothing decides by these times.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from graphlib import TopologicalSorter
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.model.evidence import evidence_of, evidence_words
from sequencer.model.transitions import Event

Facts = Mapping[str, Any]
CLASSIFICATION = "(classification)"
"""What a beginning has used, in the place of a step: no step has such a name."""
_SECOND = 1.0
BEGINNINGS = frozenset({Event.INITIALISED, Event.RESET})
_BEGUN = frozenset({Event.CLAIMED, Event.ASKED, Event.STARTED})
_DECIDED = frozenset({Event.APPROVED, Event.REJECTED, Event.FEEDBACK})
_CUTS = frozenset({Event.DIVERTED, Event.EXHAUSTED, Event.TIMED_OUT, Event.CANCELLED})


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


_ENDS = {
    Event.SUCCEEDED: SpanKind.DONE,
    Event.STAMPED: SpanKind.DONE,
    Event.SKIPPED: SpanKind.CUT,
    Event.FIXED: SpanKind.DONE,
    Event.ANSWERED: SpanKind.PERSON,
    Event.EXPIRED: SpanKind.PERSON,
    Event.PASSED: SpanKind.DONE,
    Event.FAILED: SpanKind.FAILED,
    Event.INVALID: SpanKind.FAILED,
    Event.RELEASED: SpanKind.RELEASED,
    Event.TAKEN_OVER: SpanKind.CUT,
}
_ACCEPTS = frozenset(
    {Event.SUCCEEDED, Event.STAMPED, Event.FIXED, Event.ANSWERED, Event.EXPIRED, Event.PASSED}
)


def is_failed_by_hand(event: str, outcome: Mapping[str, Any]) -> bool:
    """Return whether the fact is a person's `stamp fail`."""
    return event == Event.STAMPED and str(outcome.get("note", "")).split(":")[0] == "fail"


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
    """What it has shown, in a line."""

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.end - self.begin

    @property
    def is_work(self) -> bool:
        """Return whether an agent was at work."""
        return self.kind is not SpanKind.PERSON


class Execution(Struct):
    """One turn of a step: the attempts until one is accepted, or it is given up."""

    step: str
    sources: tuple[int, ...]
    """Places in ``Timeline.executions`` of what had to be done before it."""
    begin: float
    step_index: int = 0
    spans: list[Span] = field(default_factory=list)
    is_accepted: bool = False

    @property
    def end(self) -> float:
        """Return when its last attempt or wait ended."""
        return self.spans[-1].end if self.spans else self.begin

    @property
    def seconds(self) -> float:
        """Return how long its last attempt took, which counts, and the people behind it."""
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
    facts: Iterable[Facts], now: float, lost: Mapping[int, float] = MappingProxyType({})
) -> Timeline:
    """Return what *facts*, oldest first, tell; what still runs ends at *now*.

    *lost* has the tokens of attempts whose processes are gone, and how many seconds they lived.
    """
    reading = _Reading()
    for fact in facts:
        reading.keep(fact)
    return reading.result(now, lost)


class _Open(Struct):
    """An attempt, a question or a gate that has begun and not ended."""

    execution: Execution
    begin: float
    token: int
    attempt: int
    host: str = ""
    is_person: bool = False
    is_passing: bool = False
    """A node that does no work: it takes no time."""


class _Reading:
    def __init__(self) -> None:
        self._executions: list[Execution] = []
        self._last: dict[str, int] = {}
        """The latest execution of each step, by its place."""
        self._open: dict[str, _Open] = {}
        self._diverted: dict[str, str] = {}
        self._is_over = False

    def keep(self, fact: Facts) -> None:
        event, step, at = fact["event"], fact["step"], _seconds(fact["at"])
        outcome = fact.get("outcome") or {}
        if event in BEGINNINGS:
            self._forget()
        elif event in _BEGUN:
            self._begin(fact, step, at, outcome)
        elif event in _ENDS:
            self._end(fact, step, at, outcome)
            self._cut_all(outcome.get("cancelled", ()), at)
        elif event in _DECIDED:
            self._cut(step, at, SpanKind.PERSON)
        elif event in _CUTS:
            self._cut_all(outcome.get("cancelled", ()), at)
            if event == Event.DIVERTED:
                self._diverted[outcome["to"]] = step
        elif event == Event.COMPLETED:
            self._is_over = True
            self._cut_all(tuple(self._open), at)

    def result(self, now: float, lost: Mapping[int, float]) -> Timeline:
        for name, begun in tuple(self._open.items()):
            lived_s = lost.get(begun.token)
            kind = SpanKind.RUNNING if lived_s is None else SpanKind.CUT
            end = now if lived_s is None else begun.begin + lived_s
            self._cut(name, end, kind)
        return Timeline(tuple(self._executions), self._is_over)

    def _forget(self) -> None:
        for kept in (self._executions, self._last, self._open, self._diverted):
            kept.clear()
        self._is_over = False

    # --- beginnings ----------------------------------------------------------------

    def _begin(self, fact: Facts, step: str, at: float, outcome: Mapping[str, Any]) -> None:
        self._is_over = False
        # A gate that a person went past by hand, say.
        self._cut(step, at, SpanKind.CUT)
        execution = self._execution(fact, step, at, outcome)
        before = [self._executions[place].end for place in execution.sources]
        before += [execution.end] if execution.spans else []
        # Seconds are cut off in the journal; nothing begins before what it waited for.
        begin = max(at, min(max(before, default=at), at + _SECOND))
        if not execution.spans:
            execution.begin = begin
        event = fact["event"]
        self._open[step] = _Open(
            execution,
            begin,
            fact.get("token") or 0,
            fact.get("attempt") or 0,
            str(fact.get("host") or ""),
            is_person=event == Event.ASKED,
            is_passing=event == Event.STARTED,
        )

    def _execution(
        self, fact: Facts, step: str, at: float, outcome: Mapping[str, Any]
    ) -> Execution:
        """Return the execution that goes on here, or a new one."""
        index = fact.get("step_index") or 0
        last = self._last.get(step)
        is_of_graph = bool(outcome.keys() & {"from", "retry", "again"})
        if last is not None and "from" not in outcome:
            known = self._executions[last]
            if is_of_graph or (known.step_index == index and not known.is_accepted):
                return known
        if is_of_graph:
            names = list(dict.fromkeys(outcome.get("from") or ()))
            if not names and step in self._diverted:
                names = [self._diverted.pop(step)]
            sources = tuple(self._last[name] for name in names if name in self._last)
        else:
            sources = (len(self._executions) - 1,) if self._executions else ()
        made = Execution(step, sources, at, index)
        self._last[step] = len(self._executions)
        self._executions.append(made)
        return made

    # --- ends ----------------------------------------------------------------------

    def _end(self, fact: Facts, step: str, at: float, outcome: Mapping[str, Any]) -> None:
        event, token = fact["event"], fact.get("token") or 0
        begun = self._open.get(step)
        if begun is None or (begun.token and token and begun.token != token):
            if not is_failed_by_hand(event, outcome):
                self._end_by_hand(event, step)
            return
        del self._open[step]
        execution = begun.execution
        execution.is_accepted = event in _ACCEPTS
        if begun.is_passing:
            return
        usage = outcome.get("usage") or {}
        began_at, took = outcome.get("began_at"), float(usage.get("seconds", 0.0))
        begin = _seconds(began_at) if began_at else begun.begin
        is_known = began_at or took or event == Event.TAKEN_OVER
        end = begin + took if is_known else max(at, begin)
        kind = SpanKind.PERSON if begun.is_person else _ENDS[event]
        agent = str(outcome.get("agent") or "")
        if not execution.spans:
            execution.begin = begin
        shown = evidence_words(evidence_of(outcome))
        execution.spans.append(Span(kind, begin, end, begun.attempt, agent, begun.host, shown))
        if outcome.get("gate") is True:
            self._open[step] = _Open(execution, end, 0, 0, is_person=True)

    def _end_by_hand(self, event: str, step: str) -> None:
        """Take what was said about a step that nobody runs."""
        last = self._last.get(step)
        if last is None:
            return
        execution = self._executions[last]
        if event in _ACCEPTS:
            execution.is_accepted = True
        elif event == Event.FAILED and execution.spans and execution.is_accepted:
            # Its answer led nowhere.
            was = execution.spans[-1]
            execution.is_accepted = False
            execution.spans[-1] = replace(was, kind=SpanKind.FAILED) if was.is_work else was

    def _cut_all(self, steps: Iterable[str], at: float) -> None:
        for step in steps:
            self._cut(step, at, SpanKind.CUT)

    def _cut(self, step: str, at: float, kind: SpanKind) -> None:
        """End what is open at *step* without a record of its own."""
        begun = self._open.pop(step, None)
        if begun is None or begun.is_passing:
            return
        kind = SpanKind.PERSON if begun.is_person else kind
        span = Span(kind, begun.begin, max(at, begun.begin), begun.attempt, host=begun.host)
        begun.execution.spans.append(span)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


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
