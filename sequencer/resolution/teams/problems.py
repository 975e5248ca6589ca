"""What is wrong with a list of tasks as a whole: ids, what blocks what, circles, roles.

Every problem is found, not the first, each with its path in the list; where that is in a
file is the caller's to say. The work grows with tasks and dependencies, whatever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from sequencer.documents.reader import KeyPath
from sequencer.model.team import Role, Task

MAX_LISTED = 20
"""Names in one hint, and unknown names that are compared with the known ones."""
MAX_TOLD = 10
"""Tasks of one circle that are named."""
MAX_PROBLEMS = 500
"""More are not shown."""


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """One thing that is wrong."""

    path: KeyPath
    """Below the list: the task's place, then its field."""
    message: str
    hint: str | None = None
    cycle: tuple[str, ...] = ()
    """The ids of a circle, each before the one that waits for it; the first is the last too."""


def list_problems(
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    most: int,
    there: Mapping[str, Collection[str]] | None = None,
    lost: Collection[str] = (),
) -> list[TaskProblem]:
    """Return what keeps *tasks* from being a graph, in the order of the list.

    *there* are the tasks that a run has already, each with those that block it once *tasks*
    are added; ids in *lost* were refused for something else and count as known.
    """
    there = there or {}
    found: list[TaskProblem] = []
    if not tasks:
        return [TaskProblem((), "there is no task in it", "list at least one")]
    if len(tasks) + len(there) > most:
        total = f"{len(tasks) + len(there)} tasks" + (f", {len(there)} of them there" * bool(there))
        found.append(TaskProblem((), f"{total}; at most {most} are allowed"))
    most_shown = MAX_PROBLEMS + 1
    found += islice(_ids(tasks, there), most_shown)
    known = dict.fromkeys([*(task.id for task in tasks), *there])
    found += islice(_unknown(tasks, known, roles, lost), most_shown)
    found += islice(_misplaced(tasks, roles), most_shown)
    found += _circles(tasks, there, known)
    found.sort(key=lambda problem: _place(problem.path))
    if len(found) > MAX_PROBLEMS:
        found[MAX_PROBLEMS:] = [TaskProblem((), "more problems are not shown")]
    return found


def nearest(name: str, known: Collection[str], *, compares: bool = True) -> str:
    """Return a hint that names the nearest of *known* to *name*, and lists them.

    >>> nearest("tset", ["test", "build"])
    "did you mean 'test'? there are: test, build"
    """
    if not known:
        return "there is none"
    near = get_close_matches(name, known, n=1) if compares else []
    guess = f"did you mean {near[0]!r}? " if near else ""
    more = ", …" if len(known) > MAX_LISTED else ""
    return f"{guess}there are: {', '.join(islice(known, MAX_LISTED))}{more}"


def _ids(tasks: Sequence[Task], there: Collection[str]) -> Iterator[TaskProblem]:
    first: dict[str, int] = {}
    for place, task in enumerate(tasks):
        if task.id in there:
            yield TaskProblem((place, "id"), f"the run has a task {task.id!r} already")
        elif task.id in first:
            message = f"two tasks are called {task.id!r}; the other one is number "
            yield TaskProblem((place, "id"), f"{message}{first[task.id] + 1}")
        first.setdefault(task.id, place)


def _unknown(
    tasks: Sequence[Task],
    known: Mapping[str, object],
    roles: Collection[str],
    lost: Collection[str],
) -> Iterator[TaskProblem]:
    names, compared = list(known), 0
    for place, task in enumerate(tasks):
        if task.role is not None and task.role not in roles:
            hint = nearest(task.role, sorted(roles))
            yield TaskProblem((place, "role"), f"there is no role {task.role!r}", hint)
        twice = {name for name, times in Counter(task.blocked_by).items() if times > 1}
        for number, name in enumerate(task.blocked_by):
            path = (place, "blocked_by", number)
            if name == task.id:
                yield TaskProblem(path, f"task {name!r} waits for itself", cycle=(name, name))
            elif name not in known and name not in lost:
                compared += 1
                hint = nearest(name, names, compares=compared <= MAX_LISTED)
                yield TaskProblem(path, f"there is no task {name!r} to wait for", hint)
            elif name in twice and task.blocked_by.index(name) < number:
                yield TaskProblem(path, f"{name!r} is named twice")


def answers_only(task: Task, role: Role) -> bool:
    """Return whether *task* of *role* judges or adds tasks: its answer is all that comes of it.

    After a "no", or a list that is refused, its attempt has failed, so that files that it left
    in a worktree would be merged with the next attempt's at best.
    """
    return task.adds is not None or {**role.step, **task.step}.get("validation") is not None


def _misplaced(tasks: Sequence[Task], roles: Mapping[str, Role]) -> Iterator[TaskProblem]:
    for place, task in enumerate(tasks):
        role = roles.get(task.role or "", Role())
        if task.worktree and answers_only(task, role):
            why = "adds tasks" if task.adds is not None else "judges"
            message = f"a task that {why} has no worktree: only its answer counts"
            hint = "take it away; files that are to stay are another task's work"
            yield TaskProblem((place, "worktree"), message, hint)


def _circles(
    tasks: Sequence[Task], there: Mapping[str, Collection[str]], known: Iterable[str]
) -> Iterator[TaskProblem]:
    blockers: dict[str, list[str]] = {name: [] for name in known}
    for name, others in [*there.items(), *((task.id, task.blocked_by) for task in tasks)]:
        blockers[name] += [o for o in others if o in blockers and o != name]
    places = {task.id: place for place, task in reversed(list(enumerate(tasks)))}
    for circle in circles(blockers):
        # It is told from the task that stands first in the list.
        start = min(range(len(circle)), key=lambda at: places.get(circle[at], len(tasks)))
        whole = (*circle[start:], *circle[:start], circle[start])
        told = list(whole)
        if len(told) > MAX_TOLD:
            told[MAX_TOLD - 1 : -1] = ["…"]
        yield TaskProblem(
            (places.get(circle[start], 0), "blocked_by"),
            f"tasks wait for each other in a circle: {' -> '.join(told)}",
            "an arrow leads to the task that waits; take one of them away",
            whole,
        )


def circles(blockers: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return circles that have no task in common, at least one if there is any.

    *blockers* names for every task those that it waits for, all of them tasks. In a circle
    each task is followed by one that waits for it.

    >>> circles({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["a"]})
    [('b', 'c', 'a')]
    """
    waiting: dict[str, list[str]] = {name: [] for name in blockers}
    for name, others in blockers.items():
        for other in dict.fromkeys(others):
            waiting[other].append(name)
    open_count = {name: len(dict.fromkeys(others)) for name, others in blockers.items()}
    left = dict.fromkeys(blockers)
    found: list[tuple[str, ...]] = []

    def take_out(names: list[str]) -> None:
        """Take *names* out, and then what waits for nothing any more."""
        while names:
            name = names.pop()
            if name not in left:
                continue
            del left[name]
            for other in waiting[name]:
                open_count[other] -= 1
                if open_count[other] == 0:
                    names.append(other)

    take_out([name for name, count in open_count.items() if count == 0])
    ordered = {name: tuple(blockers[name]) for name in left}
    passed = dict.fromkeys(left, 0)
    while left:
        circle = _walk(next(iter(left)), left, ordered, passed)
        found.append(circle)
        take_out(list(circle))
    return found


def _walk(
    name: str,
    left: Mapping[str, object],
    blockers: Mapping[str, Sequence[str]],
    passed: dict[str, int],
) -> tuple[str, ...]:
    """Return the circle that is met when one goes back from *name*; all that is *left* waits."""
    path: dict[str, int] = {}
    here = name
    while here not in path:
        path[here] = len(path)
        # What is gone stays gone, so that no dependency is looked at twice.
        while blockers[here][passed[here]] not in left:
            passed[here] += 1
        here = blockers[here][passed[here]]
    line = list(path)[path[here] :]
    return tuple(reversed(line))


def _place(path: KeyPath) -> tuple[int, int]:
    numbers = [part for part in path if isinstance(part, int)]
    return (numbers[0] if numbers else -1, numbers[1] if len(numbers) > 1 else -1)
