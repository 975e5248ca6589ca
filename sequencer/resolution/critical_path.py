"""What a run's time was spent on: the longest chain of tasks, and how much ran side by side.

Pure: from measured durations to figures, whoever measured them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TypeVar

from sequencer.resolution.timeline import Span, Timeline

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


@dataclass(frozen=True, slots=True)
class Figures:
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
