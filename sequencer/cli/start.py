"""`start` and `plan --request`: from a request to the run of a procedure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from msgspec.structs import asdict

from sequencer.cli import run_work
from sequencer.cli.context import Invocation
from sequencer.cli.options import (
    AGENT,
    MAX_COST,
    REHEARSE,
    complete_workflows,
    pass_invocation,
    verb,
    with_options,
)
from sequencer.cli.requests import FILE, LABEL, request_from
from sequencer.cli.show import present
from sequencer.cli.views.mermaid import chart
from sequencer.cli.views.states import shown
from sequencer.cli.views.tables import columns, purposes
from sequencer.cli.views.text import one_line
from sequencer.engine.starting import WantedTeam
from sequencer.engine.stint import Mode
from sequencer.engine.view import view_of
from sequencer.errors import UsageRefused
from sequencer.model.limits import InvocationLimits
from sequencer.model.net.graph import Graph
from sequencer.model.request import Definition, Route
from sequencer.model.step import Step
from sequencer.project import Project
from sequencer.workflows.requests.issues import free_name
from sequencer.workflows.teams import scoring
from sequencer.workflows.teams.scoring import TeamChoice

_START_OPTIONS = with_options(
    click.option("--comment", "comments", multiple=True, metavar="TEXT",
                 help="A comment on the request; repeatable."),
    click.option("--attach", "attachments", multiple=True, metavar="PATH",
                 help="A file of the project that belongs to it; repeatable."),
    click.option("--procedure", metavar="P", shell_complete=complete_workflows,
                 help="This procedure, whatever the request says."),
    AGENT,
    MAX_COST,
    click.option("--team/--no-team", "team", default=None,
                 help="Share it out among a team, or don't, whatever its score is."),
    click.option("--team-size", type=click.IntRange(1, 64), metavar="N",
                 help="Agents at once in the team; asks for one."),
    click.option("--no-run", is_flag=True,
                 help="Make the run, and leave its steps to 'run' or 'tick'."),
    REHEARSE,
    click.option("--dry-run", is_flag=True, help="Show what would be made; change nothing."),
    click.option("--mermaid", is_flag=True, help="Show it as a Mermaid chart."),
    click.option("--diagram", is_flag=True,
                 help="Show a team's tasks as a drawing in the terminal."),
)  # fmt: skip


@verb("start", first=("--file", "--label", "--procedure", "--team", "--max-cost", "--no-run"))
@click.argument("text", required=False)
@FILE
@LABEL
@_START_OPTIONS
@pass_invocation
def start(
    invocation: Invocation,
    /,
    *,
    procedure: str | None,
    agent: str | None,
    max_cost: float | None,
    team: bool | None,
    team_size: int | None,
    no_run: bool,
    rehearse: bool,
    dry_run: bool,
    mermaid: bool,
    diagram: bool,
    **given: Any,
) -> int:
    """Make a run of a request, and work on it until its end or until a person is asked.

    TEXT is the request, its first line the title, or an issue of GitHub or Linear as JSON; -
    reads it from standard input. Labels, or an agent that classifies it, choose the procedure;
    'sequencer plan --request' explains the choice. The run keeps the steps as they are now. Its
    name is made from the title, unless --run gives one; 'sequencer --run NAME run' continues it.

    \b
    Examples:
      sequencer start "Debug login timeout" --label bug
      sequencer start --file issue.md --procedure full-development --no-run
      gh issue view 7 --json title,body,labels,comments | sequencer start -
      sequencer start --file issue.md --team --dry-run --mermaid
    """
    draw = {"mermaid": mermaid, "diagram": diagram}
    _ensure_drawable(invocation, draw, shows=dry_run or no_run)
    project = invocation.project({"agent": agent}, rehearses=rehearse)
    if not dry_run:
        project.ensure_may_act()
    request = request_from(invocation, project, "start", **given)
    invocation.run_name = name = invocation.run_name or free_name(
        request.title, project.run_names()
    )
    if team is False and team_size is not None:
        raise UsageRefused("--team-size asks for a team, and --no-team for none")
    definition = project.starter.define(request, procedure, WantedTeam(team, team_size))
    if not dry_run:
        if not no_run:
            # One that is to be worked on at once needs its agents.
            project.starter.ensure_installed(definition)
        project.run(name, definition).control.start(definition)
    if dry_run or no_run or not invocation.is_json:
        show_made(invocation, project, definition, name, draw, is_made=not dry_run)
    return 0 if dry_run or no_run else _work(invocation, project, max_cost)


def _work(invocation: Invocation, project: Project, max_cost: float | None) -> int:
    """Work on the run that was made, until it ends or waits."""
    defaults = project.settings.run
    # A procedure ends by itself; what its loops and its hooks may add is limited there.
    limits = InvocationLimits(
        max_steps=None,
        max_cost_usd=max_cost or defaults.max_cost_usd,
        step_timeout_s=defaults.step_timeout_s,
    )
    return run_work.work(invocation, project, run_work.Plan(Mode.COMBINED, limits))


def _ensure_drawable(invocation: Invocation, draw: Mapping[str, bool], *, shows: bool) -> None:
    """Return if what is to be drawn can be; the ways exclude each other, and so does JSON."""
    names = [f"--{name}" for name, is_asked in draw.items() if is_asked]
    if len(names) > 1:
        raise UsageRefused(f"{' and '.join(names)} can't be used together")
    if names and invocation.is_json:
        raise UsageRefused("a drawing is no JSON", where="--json", hint="leave it out")
    if names and not shows:
        hint = "add --dry-run or --no-run"
        raise UsageRefused("shows what would be made", where=names[0], hint=hint)


def plan_request(invocation: Invocation, **given: Any) -> None:
    """Explain which procedure a request would go to, how much a team would help, and why."""
    project = invocation.project()
    procedure = given.pop("procedure")
    request = request_from(invocation, project, "plan", **given)
    route = project.starter.route(request, procedure)
    choice = project.starter.choose_team(request, route)
    if invocation.is_json:
        team = None if choice is None else _team_json(project, choice)
        found = {"request": request.model_dump(mode="json"), **route.model_dump(mode="json")}
        kind = scoring.classification_of(request, route, project.settings.routing)
        invocation.print_json({**found, "classification": kind, "team": team})
        return
    for line in explained(route):
        invocation.echo(line)
    if choice is None or _HAS_NO_TEAMS in choice.why:
        return
    invocation.echo(f"team: {'yes' if choice.uses_team else 'no'}  ({choice.why})")
    invocation.echo(f"score: {choice.score.score} of 100, for a team of {_size(choice)}")
    rows = [
        (f"{reason.points:+d}" if reason.points else "0", one_line(reason.text))
        for reason in choice.score.reasons
    ]
    invocation.echo(columns(("POINTS", "FOR"), rows, right={0}, room=invocation.room))


_HAS_NO_TEAMS = "teams.enabled"
"""In the reason of a project that has not asked for any."""


def _size(choice: TeamChoice) -> int:
    """Return the members that the score speaks for, if there may be so many."""
    return min(choice.size, choice.score.team_size)


def _team_json(project: Project, choice: TeamChoice) -> dict[str, Any]:
    return {
        "uses_team": choice.uses_team,
        "why": choice.why,
        "size": _size(choice),
        "score": choice.score.score,
        "threshold": project.settings.teams.threshold,
        "reasons": [asdict(reason) for reason in choice.score.reasons],
    }


def explained(chosen: Route) -> list[str]:
    """Return the lines that say how the procedure was chosen."""
    lines = [f"{one_line(chosen.procedure)}  ({one_line(chosen.reason)})"]
    for one in chosen.considered:
        result = f" -> {one_line(one.result)}" if one.result else ""
        lines.append(f"  {one.source:<15} {one_line(one.why)}{result}")
    return lines


def show_made(
    invocation: Invocation,
    project: Project,
    definition: Definition,
    name: str,
    draw: Mapping[str, bool],
    *,
    is_made: bool,
) -> None:
    """Print what the run called *name* is made of, or only a drawing if one was asked for."""
    if any(draw.values()):
        _draw(invocation, definition, name, draw)
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
    (_show_tasks if graph else _show_steps)(invocation, steps)
    for note in definition.notes:
        invocation.say(f"notice: {note}")


def _draw(
    invocation: Invocation, definition: Definition, name: str, draw: Mapping[str, bool]
) -> None:
    """Draw the run, and nothing else on standard output, so that a file can take it."""
    if graph := definition.workflow.graph:
        present(invocation, view_of(name, graph, None, None, ()), None, draw)
    elif draw["mermaid"]:
        invocation.echo(chart(definition.workflow), is_verbatim=True)
    else:
        raise UsageRefused(
            "is for teams, and this would be a procedure",
            where="--diagram",
            hint="--mermaid draws it; --team shares it out",
        )


def _show_team(invocation: Invocation, definition: Definition) -> None:
    """Say whether a team works on it, and why, where that was a question."""
    team = definition.team or {}
    if team.get("uses_team"):
        score = f"score {team['score']}: {', '.join(team['reasons'])}"
        invocation.echo(f"team       {team['size']} at once  ({one_line(team['why'])}; {score})")
    elif team and _HAS_NO_TEAMS not in team["why"]:
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
    keys = ("step", "subject", "role", "agent")
    rows = [
        [shown(c) for c in (*(step[k] for k in keys), ", ".join(step["blocked_by"]), _marks(step))]
        for step in steps
    ]
    head = ("TASK", "SUBJECT", "ROLE", "AGENT", "BLOCKED BY", "")
    # What is special about a task can be looked up; who does it and when can't be guessed.
    invocation.echo(columns(head, rows, room=invocation.room, goes=(5,), whole={1}, prose={1}))


def _described(project: Project, step: Step, index: int, graph: Graph | None) -> dict[str, Any]:
    """Return what a person or a program asks for about a resolved step, of a team a task."""
    agent, _ = project.agents.choose(step, step.name)
    fields = step.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    fields.pop("name")
    fields.pop("prompt", None)
    task: dict[str, Any] = {}
    if graph:
        node = graph.by_id[step.name]
        task = {
            "subject": node.label,
            "role": (node.task and node.task.role) or "",
            "blocked_by": [] if node.task is None else list(node.task.blocked_by),
        }
    return {
        "step_index": index,
        "step": step.name,
        "prompt": step.prompt_name,
        "agent": agent,
        "model": step.model,
        **fields,
        **task,
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
