"""What `start` shows of the run that it makes: its steps or tasks in words, or as a chart."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from sequencer.cli.views.states import shown
from sequencer.cli.views.text import columns, columns_of, cut, one_line, purposes, width
from sequencer.errors import UsageRefused
from sequencer.model.request import Route

if TYPE_CHECKING:
    from sequencer.cli.context import Invocation
    from sequencer.model.net.graph import Graph, Node
    from sequencer.model.request import Definition
    from sequencer.model.step import Step
    from sequencer.project import Project

_TASK_KEYS = ("step", "subject", "role", "agent")
SUBJECT = 1
"""The column that gives way."""
LEAST_SUBJECT, WIDEST = 14, 1000


class Shape(Enum):
    """How it is shown."""

    WORDS = ""
    MERMAID = "--mermaid"
    DIAGRAM = "--diagram"

    @classmethod
    def of(cls, invocation: Invocation, *, mermaid: bool, diagram: bool, shows: bool) -> Self:
        """Return the shape that these options ask for.

        Raises:
            UsageRefused: they exclude each other, or nothing is shown before it is worked on.
        """
        asked = [one for one, is_it in ((cls.MERMAID, mermaid), (cls.DIAGRAM, diagram)) if is_it]
        if not asked:
            return cls.WORDS
        if len(asked) > 1:
            raise UsageRefused("--mermaid and --diagram exclude each other")
        if invocation.is_json:
            raise UsageRefused("a drawing is no JSON", where="--json", hint="leave it out")
        if not shows:
            raise UsageRefused(
                "shows what would be made", where=asked[0].value, hint="add --dry-run or --no-run"
            )
        return asked[0]


def explained(chosen: Route) -> list[str]:
    """Return the lines that say how the procedure was chosen."""
    lines = [f"{one_line(chosen.procedure)}  ({one_line(chosen.reason)})"]
    for one in chosen.considered:
        result = f" -> {one_line(one.result)}" if one.result else ""
        lines.append(f"  {one.source:<15} {one_line(one.why)}{result}")
    return lines


def show(
    invocation: Invocation,
    project: Project,
    definition: Definition,
    name: str,
    *,
    is_made: bool = False,
    shape: Shape = Shape.WORDS,
) -> None:
    """Print what the run called *name* is made of."""
    if shape is not Shape.WORDS:
        _draw(invocation, definition, name, shape)
        return
    graph = definition.workflow.graph
    resolved = enumerate(definition.workflow.steps)
    steps = [_described(project, step, index, graph) for index, step in resolved]
    if invocation.is_json:
        invocation.print_json(
            {
                "run": name,
                "created": is_made,
                "procedure": definition.route.get("procedure"),
                "classification": definition.route.get("classification"),
                "request": definition.request.model_dump(mode="json"),
                "route": definition.route,
                "team": definition.team,
                "steps": steps,
                "substitutions": definition.substitutions,
                "notes": list(definition.notes),
            }
        )
        return
    invocation.echo(f"run        {one_line(name)}{'' if is_made else '  (not made: --dry-run)'}")
    chosen = Route.model_validate(definition.route)
    invocation.echo(f"procedure  {explained(chosen)[0]}")
    if about := one_line(definition.workflow.description):
        invocation.echo(f"           {about}")
    _show_team(invocation, definition)
    (_show_steps if graph is None else _show_tasks)(invocation, steps)
    for note in definition.notes:
        invocation.say(f"notice: {note}")


def _show_team(invocation: Invocation, definition: Definition) -> None:
    """Say whether a team works on it, and why, where that was a question."""
    team = definition.team or {}
    if team.get("uses_team"):
        score = f"score {team['score']}: {', '.join(team['reasons'])}"
        invocation.echo(f"team       {team['size']} at once  ({one_line(team['why'])}; {score})")
    elif team and "teams.enabled" not in team["why"]:
        invocation.echo(f"team       none  ({one_line(team['why'])})")


def _show_steps(invocation: Invocation, steps: list[dict[str, Any]]) -> None:
    """Print the steps of a procedure, and what their authors say that they do."""
    keys = ("step", "prompt", "agent")
    rows = [
        tuple(map(one_line, (str(n), *(step[key] for key in keys), _marks(step))))
        for n, step in enumerate(steps)
    ]
    head = ("N", "STEP", "PROMPT", "AGENT", "")
    invocation.echo(columns(head, rows, right={0}, room=invocation.room))
    if said := purposes((one["step"], one.get("description", "")) for one in steps):
        invocation.echo(f"\n{said}")


def _show_tasks(invocation: Invocation, steps: list[dict[str, Any]]) -> None:
    """Print the tasks of a team; a narrow terminal gets the beginnings of their subjects."""
    rows = []
    for step in steps:
        cells = (*(step[key] for key in _TASK_KEYS), ", ".join(step["blocked_by"]), _marks(step))
        rows.append([shown(cell) for cell in cells])
    head = ["TASK", "SUBJECT", "ROLE", "AGENT", "BLOCKED BY", ""]
    room = (columns_of(sys.stdout) or WIDEST) - _others(head, rows)
    if room < LEAST_SUBJECT:
        # What is special about a task can be looked up; who does it and when can't be guessed.
        head, rows = head[:-1], [row[:-1] for row in rows]
        room = (columns_of(sys.stdout) or WIDEST) - _others(head, rows)
    for row in rows:
        row[SUBJECT] = cut(row[SUBJECT], max(LEAST_SUBJECT, room))
    invocation.echo(columns(head, rows, room=invocation.room))


def _others(head: list[str], rows: list[list[str]]) -> int:
    """Return how many columns all but the subject take."""
    widths = (max(width(line[place]) for line in (head, *rows)) for place in range(len(head)))
    return sum(wide + 2 for place, wide in enumerate(widths) if place != SUBJECT)


def _draw(invocation: Invocation, definition: Definition, name: str, shape: Shape) -> None:
    """Draw the run, and nothing else on standard output, so that a file can take it."""
    workflow = definition.workflow
    graph = workflow.graph
    if graph is None:
        if shape is Shape.DIAGRAM:
            raise UsageRefused(
                "is for teams, and this would be a procedure",
                where=shape.value,
                hint="--mermaid draws it; --team shares it out",
            )
        from sequencer.cli.views.mermaid import chart  # noqa: PLC0415 - only who draws needs it

        invocation.echo(chart(workflow), is_verbatim=True)
        return
    from sequencer.engine.flow.view import view_of  # noqa: PLC0415 - see above

    view = view_of(name, graph, None, None, ())
    if shape is Shape.DIAGRAM:
        from sequencer.cli.views.diagram import print_diagram  # noqa: PLC0415 - see above

        print_diagram(view, sys.stdout)
        return
    from sequencer.cli.views.mermaid import charted  # noqa: PLC0415 - see above

    invocation.echo(charted(view).rstrip(), is_verbatim=True)


def _described(project: Project, step: Step, index: int, graph: Graph | None) -> dict[str, Any]:
    """Return what a person or a program asks for about a resolved step, of a team a task."""
    agent, _ = project.agents.choose(step, step.name)
    fields = step.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    fields.pop("name")
    fields.pop("prompt", None)
    return {
        "step_index": index,
        "step": step.name,
        "prompt": step.prompt_name,
        "agent": agent,
        "model": step.model,
        **fields,
        **({} if graph is None else _task(graph.by_id[step.name])),
    }


def _task(node: Node) -> dict[str, Any]:
    task = node.task
    return {
        "subject": node.label,
        "role": task.role or "" if task is not None else "",
        "blocked_by": list(task.blocked_by) if task is not None else [],
    }


def _marks(step: dict[str, Any]) -> str:
    """Return what is special about a step, in a few words."""
    marks = [
        word
        for key, word in (
            ("requires_approval", "gate"),
            ("validation", "repeats until yes"),
            ("single_turn", "single turn"),
            ("append_system_prompt", "system prompt"),
        )
        if step.get(key)
    ]
    if step["model"]:
        marks.append(f"model {step['model']}")
    return ", ".join(marks)
