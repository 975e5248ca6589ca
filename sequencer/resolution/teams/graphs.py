"""Tasks become a graph: one node and one step each, an edge from each blocker to its task.

The same for tasks that are added to a graph while it runs. What waits for the task that
adds them waits for them too, so that a summary comes behind the work that it sums up.

Not promised: that an agent can do what a task's step asks; that is known where agents are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sequencer.documents.keys import dotted
from sequencer.documents.problems import raise_all
from sequencer.documents.reader import KeyPath
from sequencer.errors import ConfigurationError
from sequencer.model.net.graph import Edge, Graph, Growth, Node, NodeKind
from sequencer.model.step import Step
from sequencer.model.team import MAX_TASKS, Role, Task, TaskTraits
from sequencer.model.workflow import Workflow
from sequencer.resolution.teams.answers import form_for, schema_for
from sequencer.resolution.teams.problems import answers_only, list_problems
from sequencer.resolution.teams.roles import FIXER

BRIEF = """You are one of a team of agents that share a piece of work. Do the task below, the
whole of it, and nothing that belongs to another task: others do those, before you, beside you
and after you.

Your last answer is all that they get to see of your work besides the files that you leave. Put
into it what they need: what you did or found, how it was checked, and what is open.
"""
"""The prompt of a task that brings none; what the task is stands below it."""

Locate = Callable[[KeyPath], str]


def _in_list(path: KeyPath) -> str:
    return dotted(("tasks", *path))


def workflow_of(
    name: str,
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    size: int | None = None,
    max_tasks: int = MAX_TASKS,
    locate: Locate = _in_list,
) -> Workflow:
    """Return the graph workflow in which each of *tasks* is a node, worked on *size* at once.

    Raises:
        ConfigurationError: an id, a blocker or a role is wrong, or tasks wait for each other in
            a circle; *locate* says where a path below the list stands. Several problems are
            `ConfigurationErrors`.
    """
    _ensure(tasks, roles, most=max_tasks, locate=locate)
    made = [_node_and_step(task, roles) for task in tasks]
    graph = Graph(
        nodes=tuple(node for node, _ in made),
        edges=tuple(
            Edge(source=blocker, target=task.id) for task in tasks for blocker in task.blocked_by
        ),
        entries=tuple(task.id for task in tasks if not task.blocked_by),
        max_parallel=size,
        is_team=True,
    )
    return Workflow(name, tuple(step for _, step in made), kind="graph", graph=graph)


def growth_of(
    graph: Graph,
    adding: str,
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    max_tasks: int = MAX_TASKS,
    locate: Locate = _in_list,
) -> Growth:
    """Return what *tasks*, which the task *adding* of *graph* asks for, add to it.

    Those that wait for no other new task begin behind *adding*; what waited for *adding*
    waits for those that no other new task waits for, too.

    Raises:
        ConfigurationError: see `workflow_of`; ids of *graph* may be waited for, and can't be
            used again. *max_tasks* counts the tasks of both.
    """
    own = {task.id for task in tasks}
    waited_for = {blocker for task in tasks for blocker in task.blocked_by if blocker != task.id}
    last = [task.id for task in tasks if task.id not in waited_for]
    followers = [graph.edges[place].target for place in graph.outgoing[adding]]
    edges = []
    for task in tasks:
        is_first = own.isdisjoint(task.blocked_by)
        before = dict.fromkeys((adding, *task.blocked_by) if is_first else task.blocked_by)
        edges += [(blocker, task.id) for blocker in before]
    edges += [(name, follower) for name in last for follower in dict.fromkeys(followers)]
    there: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for place, edge in enumerate(graph.edges):
        if place not in graph.back_edges:
            there[edge.target].append(edge.source)
    for source, target in edges:
        if target in there and target not in own:
            there[target].append(source)
    _ensure(tasks, roles, most=max_tasks, locate=locate, there=there)
    made = [_node_and_step(task, roles, or_else=(adding,)) for task in tasks]
    return Growth(
        nodes=tuple(node for node, _ in made),
        edges=tuple(Edge(source=source, target=target) for source, target in edges),
        steps=tuple(step for _, step in made),
    )


def _ensure(
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    *,
    most: int,
    locate: Locate,
    there: Mapping[str, Sequence[str]] | None = None,
) -> None:
    found = list_problems(tasks, roles, most=most, there=there)
    errors = [
        ConfigurationError(one.message, where=locate(one.path), hint=one.hint) for one in found
    ]
    raise_all(errors)


def _node_and_step(
    task: Task, roles: Mapping[str, Role], *, or_else: tuple[str, ...] = ()
) -> tuple[Node, Step]:
    role = Role() if task.role is None else roles[task.role]
    fields, brought = _merged(task.step, role)
    if task.adds is not None and "validation" in brought:
        # It answers with tasks, and no such answer is a verdict.
        del fields["validation"]
        brought.remove("validation")
    validation = fields.get("validation")
    if isinstance(validation, Mapping) and "fixer" not in validation:
        # Who says something else about judging does not say that nothing is to be mended.
        usual = role.step.get("validation")
        fixer = usual.get("fixer") if isinstance(usual, Mapping) else None
        validation = {**validation, **({} if fixer is None else {"fixer": fixer})}
        fields["validation"] = validation
    if isinstance(validation, Mapping) and isinstance(validation.get("fixer"), Mapping):
        fixer, by_role = _merged(validation["fixer"], roles.get(FIXER, Role()))
        fields["validation"] = {**validation, "fixer": _with_prompt(fixer)}
        brought += [f"fixer.{name}" for name in by_role]
    if task.adds is not None:
        written = fields.get("output") or {}
        fields["output"] = {**written, "format": "json", "schema": schema_for(task.adds, roles)}
    # Without a role nobody has said that the task only reads.
    writes = role.writes if task.role is not None else True
    traits = TaskTraits(
        role=task.role,
        description=_with_form(task, roles),
        active_form=task.active_form,
        blocked_by=task.blocked_by or or_else,
        weight=task.weight,
        writes=writes if task.writes is None else task.writes,
        # What it would leave there has no task that is accepted for it, see `list_problems`.
        worktree=role.worktree and not answers_only(task, role)
        if task.worktree is None
        else task.worktree,
        adds=task.adds,
        budget=task.budget,
        brought=tuple(brought),
    )
    node = Node(id=task.id, kind=NodeKind.AGENT, label=task.subject, task=traits)
    return node, Step.model_validate({"name": task.id, **_with_prompt(fields)})


def _with_form(task: Task, roles: Mapping[str, Role]) -> str:
    """Return what the agent of *task* is told, with the form of its answer if that is to add."""
    form = None if task.adds is None else form_for(task.adds, roles)
    return "\n\n".join(filter(None, (task.description.strip(), form))) if form else task.description


def _merged(own: Mapping[str, Any], role: Role) -> tuple[dict[str, Any], list[str]]:
    """Return *own* fields over those of *role*, and which of them the role has brought."""
    # A prompt and a text are two ways to say the same; so are the two lists of tools.
    has_prompt = own.keys() & {"prompt", "text"}
    brought = [
        name
        for name in role.step
        if name not in own and not (has_prompt and name in ("prompt", "text"))
    ]
    return {**{name: role.step[name] for name in brought}, **own}, sorted(brought)


def _with_prompt(fields: Mapping[str, Any]) -> dict[str, Any]:
    has_one = fields.get("prompt") is not None or fields.get("text") is not None
    return dict(fields) if has_one else {**fields, "text": BRIEF}
