"""A list of tasks that somebody has written, checked: the workflow that it makes.

A list comes from a file of its own (YAML or Markdown) or from orchestration.yaml; by the time
it gets here it is data, and a function that knows where each part of it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

from pydantic import ValidationError

from sequencer.documents.problems import problems_of, raise_all
from sequencer.documents.reader import Document, KeyPath, Position
from sequencer.errors import ConfigurationError
from sequencer.model.net.graph import Graph
from sequencer.model.team import Role, Task
from sequencer.model.workflow import Workflow
from sequencer.resolution.teams.entries import ListFile, TaskEntry
from sequencer.resolution.teams.graphs import workflow_of
from sequencer.resolution.teams.problems import list_problems

_PLACE = re.compile(r":(\d+):(\d+)$")
Where = Callable[[KeyPath], str]
"""From a path in the list's data to the place where it was written."""


@dataclass(frozen=True)
class TaskList:
    """A list of tasks that can be run; what shows flowcharts shows it too."""

    workflow: Workflow
    graph: Graph
    """The workflow's own."""
    title: str
    description: str
    file: Path
    """In which it is written."""
    where_of: Where = field(repr=False, compare=False)
    version: str | None = None
    warnings: tuple[ConfigurationError, ...] = ()
    mermaid: str | None = None
    """Nobody has drawn it."""

    def where(self, node: str, *path: str | int) -> str:
        """Return ``file:line:column`` of the setting *path* of the task *node*."""
        return self.where_of(("tasks", self.graph.order[node], *path))


def list_of(
    document: Document,
    roles: Mapping[str, Role],
    *,
    name: str | None = None,
    told: Iterable[ConfigurationError] = (),
) -> TaskList:
    """Return the list of tasks that *document* is.

    It is called *name*, else as it says itself, else as its file is. *told* is what was wrong
    with the file before it was this data.

    Raises:
        ConfigurationError: something is wrong with it; `ConfigurationErrors`: several things
            are, in the order of the file.
    """
    found = [(_line_of(error), error) for error in told]
    try:
        said = ListFile.model_validate(document.data)
    except ValidationError as refused:
        said = None
        found += [
            (document.position(problem.path) or (0, 0), problem.error)
            for problem in problems_of(refused, ListFile, document.where)
        ]
    errors = list_errors(document.data.get("tasks"), roles, document.where)
    found += [(document.position(path) or (0, 0), error) for path, error in errors]
    raise_all([error for _, error in sorted(found, key=itemgetter(0))])
    if said is None:
        raise AssertionError("there is no list, and nobody has said so")
    called = name or said.name or document.file.stem or "team"
    made = inline_list(
        called, said.as_tasks(), roles, said.size, file=document.file, where=document.where
    )
    return replace(made, title=said.title or called, description=said.description)


def inline_list(
    name: str,
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    size: int | None,
    *,
    file: Path,
    where: Where,
) -> TaskList:
    """Return *tasks*, which are written in *file* among other things, as the list *name*.

    Raises:
        ConfigurationError: see `graphs.workflow_of`.
    """
    workflow = workflow_of(name, tasks, roles, size=size)
    if workflow.graph is None:
        raise AssertionError("a team's workflow has a graph")
    return TaskList(
        workflow=workflow,
        graph=workflow.graph,
        title=name,
        description="",
        file=file,
        where_of=where,
    )


def list_errors(
    listed: object, roles: Mapping[str, Role], where: Where
) -> list[tuple[KeyPath, ConfigurationError]]:
    """Return what is wrong with the entries *listed* as a whole, each with its path.

    An entry that was refused for a field counts without that field, so that one mistake does
    not make others of it; nothing is told about it here.
    """
    entries = listed if isinstance(listed, (list, tuple)) else ()
    kept = {place: task for place, entry in enumerate(entries) if (task := _lenient(entry))}
    if not kept:
        return []
    places = list(kept)
    lost = {str(entry.get("id")) for entry in entries if isinstance(entry, Mapping)}
    found = []
    for one in list_problems(list(kept.values()), roles, most=len(kept), lost=lost):
        path: KeyPath = ("tasks",)
        if one.path and isinstance(one.path[0], int):
            path = (*path, places[one.path[0]], *one.path[1:])
        error = ConfigurationError(one.message, where=where(path), hint=one.hint)
        found.append((path, error))
    return found


def _lenient(entry: object) -> Task | None:
    """Return the task that *entry* is without what is wrong with it; None: it has no id."""
    try:
        return TaskEntry.model_validate(entry).as_task()
    except ValidationError as refused:
        wrong = {one["loc"][0] for one in refused.errors() if one["loc"]}
    if not isinstance(entry, Mapping):
        return None
    rest = {key: entry[key] for key in ("id", "blocked_by", "role") if key in entry}
    rest = {key: value for key, value in rest.items() if key not in wrong}
    try:
        return TaskEntry.model_validate({"subject": "refused", **rest}).as_task()
    except ValidationError:
        return None


def _line_of(error: ConfigurationError) -> Position:
    place = _PLACE.search(error.where or "")
    return (int(place[1]), int(place[2])) if place else (0, 0)
