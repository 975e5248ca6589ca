"""Turns tasks into a graph: one node and one step each, an edge from each blocker to its task.

It also adds tasks to a graph that runs. Tasks that wait for the adding task then wait for the
added tasks too, so that a summary comes after the work that it sums up.

Every problem of a list is found, not only the first, each with its path in the list. The caller
knows where a path is in a file.

Not promised: that an agent supports the fields of a task's step. Only the agents know that.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from sequencer.errors import ConfigurationError, raise_all
from sequencer.files.yamlfile import KeyPath, format_key_path
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind, TaskExpansion
from sequencer.model.graph.task import MAX_TASKS, TaskTraits
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.options import FIXER, UNNAMED
from sequencer.plugins.teams.team import Role, Task
from sequencer.workflows.finding import MAX_LISTED, shorten_links, suggest_nearest

BRIEF = """You are one of a team of agents that share a piece of work. Do the task below, the
whole of it, and nothing that belongs to another task: others do those, before you, beside you
and after you.

Your last answer is all that they get to see of your work besides the files that you leave. Put
into it what they need: what you did or found, how it was checked, and what is open.
"""
"""The prompt of a task without its own; the task's description follows it."""

Locate = Callable[[KeyPath], str]


def _format_path(path: KeyPath) -> str:
    return format_key_path(("tasks", *path))


def build_task_workflow(
    name: str,
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    size: int | None = None,
    max_tasks: int = MAX_TASKS,
    locate: Locate = _format_path,
) -> Workflow:
    """Return the graph workflow in which each of *tasks* is a node; at most *size* run at once.

    Raises:
        ConfigurationError: an id, a blocker or a role is wrong, or tasks wait for each other in
            a circle; *locate* returns the place of a path in the list. Several problems are
            `ConfigurationErrors`.
    """
    _ensure_valid(tasks, roles, most=max_tasks, locate=locate)
    pairs = [_make_node_and_step(task, roles) for task in tasks]
    graph = Graph(
        nodes=tuple(node for node, _ in pairs),
        edges=tuple(
            Edge(source=blocker, target=task.id) for task in tasks for blocker in task.blocked_by
        ),
        entries=tuple(task.id for task in tasks if not task.blocked_by),
        max_parallel=size,
        is_team=True,
    )
    return Workflow(name, tuple(step for _, step in pairs), kind="graph", graph=graph)


def expand_by_tasks(
    graph: Graph,
    adding: str,
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    max_tasks: int = MAX_TASKS,
    locate: Locate = _format_path,
) -> TaskExpansion:
    """Return the expansion of *graph* by *tasks*, which the answer of the task *adding* lists.

    New tasks without a new blocker start after *adding*. Tasks that wait for *adding* also wait
    for the last new tasks, those that block no other new task.

    Raises:
        ConfigurationError: see `build_task_workflow`. New tasks may wait for ids of *graph*, but
            can't use them again. *max_tasks* counts the tasks of both.
    """
    new_ids = {task.id for task in tasks}
    waited_for = {blocker for task in tasks for blocker in task.blocked_by if blocker != task.id}
    last_names = [task.id for task in tasks if task.id not in waited_for]
    followers = [graph.edges[place].target for place in graph.outgoing[adding]]
    edges = []
    for task in tasks:
        is_first = new_ids.isdisjoint(task.blocked_by)
        blockers = dict.fromkeys((adding, *task.blocked_by) if is_first else task.blocked_by)
        edges += [(blocker, task.id) for blocker in blockers]
    edges += [(name, follower) for name in last_names for follower in dict.fromkeys(followers)]
    existing: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for place, edge in enumerate(graph.edges):
        if place not in graph.back_edges:
            existing[edge.target].append(edge.source)
    for source, target in edges:
        if target in existing and target not in new_ids:
            existing[target].append(source)
    _ensure_valid(tasks, roles, most=max_tasks, locate=locate, existing=existing)
    pairs = [_make_node_and_step(task, roles, or_else=(adding,)) for task in tasks]
    return TaskExpansion(
        nodes=tuple(node for node, _ in pairs),
        edges=tuple(Edge(source=source, target=target) for source, target in edges),
        steps=tuple(step for _, step in pairs),
    )


def _ensure_valid(
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    most: int,
    locate: Locate,
    existing: Mapping[str, Sequence[str]] | None = None,
) -> None:
    errors = [
        ConfigurationError(problem.message, where=locate(problem.path), hint=problem.hint)
        for problem in list_problems(tasks, roles, most=most, existing=existing)
    ]
    raise_all(errors)


def _make_node_and_step(
    task: Task, roles: Mapping[str, Role], *, or_else: tuple[str, ...] = ()
) -> tuple[Node, Step]:
    role = Role() if task.role is None else roles[task.role]
    fields, role_fields = _merge_fields(task.step, role)
    if task.adds is not None and "validation" in role_fields:
        # Its answer is a list of tasks, which can't be a verdict.
        del fields["validation"]
        role_fields.remove("validation")
    validation = fields.get("validation")
    if isinstance(validation, Mapping) and "fixer" not in validation:
        # A task that changes the validation still keeps the fixer of its role.
        by_default = role.step.get("validation")
        fixer = by_default.get("fixer") if isinstance(by_default, Mapping) else None
        validation = {**validation, **({} if fixer is None else {"fixer": fixer})}
        fields["validation"] = validation
    if isinstance(validation, Mapping) and isinstance(validation.get("fixer"), Mapping):
        fixer, by_role = _merge_fields(validation["fixer"], roles.get(FIXER, Role()))
        fields["validation"] = {**validation, "fixer": _with_prompt(fixer)}
        role_fields += [f"fixer.{name}" for name in by_role]
    if task.adds is not None:
        output = fields.get("output") or {}
        fields["output"] = {**output, "format": "json", "schema": schema_for(task.adds, roles)}
    # A task without a role may write: no role says that it only reads.
    writes = role.writes if task.role is not None else True
    traits = TaskTraits(
        role=task.role,
        description=_add_answer_form(task, roles),
        active_form=task.active_form,
        blocked_by=task.blocked_by or or_else,
        needs=task.needs,
        weight=task.weight,
        writes=writes if task.writes is None else task.writes,
        # Files in the worktree of such a task would never be accepted, see `is_answer_only`.
        worktree=role.worktree and not is_answer_only(task, role)
        if task.worktree is None
        else task.worktree,
        adds=task.adds,
        budget=task.budget,
        brought=tuple(role_fields),
    )
    node = Node(id=task.id, kind=NodeKind.AGENT, label=task.subject, task=traits)
    return node, Step.model_validate({"name": task.id, **_with_prompt(fields)})


def _add_answer_form(task: Task, roles: Mapping[str, Role]) -> str:
    """Return the description of *task*, and the form of its answer if it adds tasks."""
    form = None if task.adds is None else form_for(task.adds, roles)
    return "\n\n".join(filter(None, (task.description.strip(), form))) if form else task.description


def _merge_fields(task_fields: Mapping[str, Any], role: Role) -> tuple[dict[str, Any], list[str]]:
    """Return *role*'s fields updated with *task_fields*, and the names of those from *role*."""
    # A prompt file and a text exclude each other, so one in the task replaces both of the role.
    has_prompt = task_fields.keys() & {"prompt", "text"}
    names = [
        name
        for name in role.step
        if name not in task_fields and not (has_prompt and name in ("prompt", "text"))
    ]
    return {**{name: role.step[name] for name in names}, **task_fields}, sorted(names)


def _with_prompt(fields: Mapping[str, Any]) -> dict[str, Any]:
    has_one = fields.get("prompt") is not None or fields.get("text") is not None
    return dict(fields) if has_one else {**fields, "text": BRIEF}


MAX_PROBLEMS = 500
"""Maximum number of listed problems."""


class TaskProblem(Struct, frozen=True):
    """One problem of a task list."""

    path: KeyPath
    """Path in the list: the task's index, then its field."""
    message: str
    hint: str | None = None


def list_problems(
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    most: int,
    existing: Mapping[str, Collection[str]] | None = None,
    lost: Collection[str] = (),
) -> list[TaskProblem]:
    """Return the problems that keep *tasks* from being a graph, in the order of the list.

    *existing* maps each task of the run to its blockers after *tasks* are added. Ids in *lost*
    belong to entries with other errors and are taken as known.
    """
    existing = existing or {}
    problems: list[TaskProblem] = []
    if not tasks:
        return [TaskProblem((), "there is no task in it", "list at least one")]
    if len(tasks) + len(existing) > most:
        total = f"{len(tasks) + len(existing)} tasks"
        total += f", {len(existing)} of them in the run already" if existing else ""
        problems.append(TaskProblem((), f"{total}; at most {most} are allowed"))
    most_shown = MAX_PROBLEMS + 1
    problems += islice(_find_id_problems(tasks, existing), most_shown)
    known_names = dict.fromkeys([*(task.id for task in tasks), *existing])
    problems += islice(_find_reference_problems(tasks, known_names, roles, lost), most_shown)
    problems += islice(_find_misplaced_fields(tasks, roles), most_shown)
    problems += _find_circle_problems(tasks, existing, known_names)
    problems.sort(key=lambda problem: _sort_key(problem.path))
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [TaskProblem((), "more problems are not shown")]
    return problems


def _find_id_problems(tasks: Sequence[Task], existing: Collection[str]) -> Iterator[TaskProblem]:
    first_places: dict[str, int] = {}
    for place, task in enumerate(tasks):
        if task.id in existing:
            yield TaskProblem((place, "id"), f"the run has a task {task.id!r} already")
        elif task.id in first_places:
            message = f"two tasks are called {task.id!r}; the other one is number "
            yield TaskProblem((place, "id"), f"{message}{first_places[task.id] + 1}")
        first_places.setdefault(task.id, place)


def _find_reference_problems(
    tasks: Sequence[Task],
    known_names: Mapping[str, object],
    roles: Collection[str],
    lost_ids: Collection[str],
) -> Iterator[TaskProblem]:
    names = list(known_names)
    compared_count = 0
    for place, task in enumerate(tasks):
        if task.role is not None and task.role not in roles:
            hint = suggest_nearest(task.role, sorted(roles))
            yield TaskProblem((place, "role"), f"there is no role {task.role!r}", hint)
        duplicates = {name for name, count in Counter(task.blocked_by).items() if count > 1}
        for number, name in enumerate(task.blocked_by):
            path = (place, "blocked_by", number)
            if name == task.id:
                yield TaskProblem(path, f"task {name!r} waits for itself")
            elif name not in known_names and name not in lost_ids:
                # Comparing names is slow, so only the first unknown names get a suggestion.
                compared_count += 1
                hint = suggest_nearest(name, names, compares=compared_count <= MAX_LISTED)
                yield TaskProblem(path, f"there is no task {name!r} to wait for", hint)
            elif name in duplicates and task.blocked_by.index(name) < number:
                yield TaskProblem(path, f"{name!r} is named twice")


def is_answer_only(task: Task, role: Role) -> bool:
    """Return whether *task* of *role* judges or adds tasks, so that only its answer counts.

    A "no" or a refused list means a failed attempt. Files that it left in a worktree would be
    merged with the files of the next attempt, or never.
    """
    return task.adds is not None or {**role.step, **task.step}.get("validation") is not None


def _find_misplaced_fields(
    tasks: Sequence[Task], roles: Mapping[str, Role]
) -> Iterator[TaskProblem]:
    for place, task in enumerate(tasks):
        role = roles.get(task.role or "", Role())
        if task.worktree and is_answer_only(task, role):
            activity = "adds tasks" if task.adds is not None else "judges"
            message = f"a task that {activity} has no worktree: only its answer counts"
            hint = "remove it; let another task write files that must stay"
            yield TaskProblem((place, "worktree"), message, hint)
        needed_count = task.needs if isinstance(task.needs, int) else int(task.needs == "any")
        if needed_count > len(task.blocked_by):
            message = f"it needs {task.needs} of the tasks it waits for, which are "
            hint = "name them under blocked_by; it starts when all of them have ended"
            yield TaskProblem((place, "needs"), f"{message}{len(task.blocked_by)}", hint)


def _find_circle_problems(
    tasks: Sequence[Task], existing: Mapping[str, Collection[str]], known_names: Iterable[str]
) -> Iterator[TaskProblem]:
    blockers: dict[str, list[str]] = {name: [] for name in known_names}
    for name, predecessors in [*existing.items(), *((task.id, task.blocked_by) for task in tasks)]:
        blockers[name] += [
            predecessor
            for predecessor in predecessors
            if predecessor in blockers and predecessor != name
        ]
    places = {task.id: place for place, task in reversed(list(enumerate(tasks)))}
    for circle in circles(blockers):
        # Start with the task that is first in the list, so that the message is stable.
        start = min(range(len(circle)), key=lambda index: places.get(circle[index], len(tasks)))
        closed_circle = (*circle[start:], *circle[:start], circle[start])
        yield TaskProblem(
            (places.get(circle[start], 0), "blocked_by"),
            f"tasks wait for each other in a circle: {' -> '.join(shorten_links(closed_circle))}",
            "an arrow points to the task that waits; remove one of them",
        )


def circles(blockers: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return circles that share no task; at least one if there are circles.

    *blockers* maps every task to the tasks that it waits for; all of them are keys. In a circle,
    each task is followed by one that waits for it.

    >>> circles({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["a"]})
    [('b', 'c', 'a')]
    """
    graph = {name: set(names) for name, names in blockers.items()}
    cycles: list[tuple[str, ...]] = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = tuple(error.args[1][1:])
            cycles.append(circle)
            graph = {
                name: names.difference(circle)
                for name, names in graph.items()
                if name not in circle
            }
        else:
            return cycles


def _sort_key(path: KeyPath) -> tuple[int, int]:
    numbers = [part for part in path if isinstance(part, int)]
    return (numbers[0] if numbers else -1, numbers[1] if len(numbers) > 1 else -1)


MOST = 200
"""Maximum number of tasks or sub-issues in one answer."""
TEXT_CHARS = 1_048_576
"""Maximum length of a description."""
ID_CHARS = 70
"""Maximum length of a sub-issue's id: the ids of its tasks are longer."""

_ANSWERS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "builtin" / "answers.json").read_bytes()
)
SCHEMAS: Mapping[str, dict[str, Any]] = {
    adds: answer["schema"] for adds, answer in _ANSWERS.items()
}
"""Value of `Task.adds` -> JSON Schema of the answer, for any roles."""


def schema_for(adds: Literal["tasks", "sub-issues"], roles: Collection[str]) -> dict[str, Any]:
    """Return the schema of an answer in a project with *roles*; no other roles are allowed."""
    schema = deepcopy(SCHEMAS[adds])
    if adds == "tasks" and roles:
        fields = schema["properties"]["tasks"]["items"]["properties"]
        fields["role"] = {"type": "string", "enum": sorted(roles)}
    return schema


def form_for(adds: Literal["tasks", "sub-issues"], roles: Collection[str]) -> str:
    """Return the form of an answer in words, because not every client sends its agent a schema.

    >>> print(form_for("tasks", ["verifier", "implementer"]).splitlines()[-1])
    A role is one of: implementer, verifier. Without one it is implementer.
    """
    example = "\n".join(_ANSWERS[adds]["example"])
    text = f"Answer with one JSON object, and nothing else, in this form:\n\n{example}"
    if adds == "sub-issues" or not roles:
        return text
    default = f" Without one it is {UNNAMED}." if UNNAMED in roles else ""
    return f"{text}\nA role is one of: {', '.join(sorted(roles))}.{default}"
