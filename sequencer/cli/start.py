"""`start` and `route`: from a request to the run of a procedure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli import completion
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.request_options import FILE, LABEL, PROCEDURE, TEXT, request_from
from sequencer.cli.sanitise import one_line
from sequencer.errors import UsageRefused

if TYPE_CHECKING:
    from sequencer.assembly import Project
    from sequencer.model.definition import Definition
    from sequencer.model.graph import Graph
    from sequencer.model.route import Route
    from sequencer.model.step import Step


@verb("start")
@TEXT
@FILE
@LABEL
@click.option(
    "--comment",
    "comments",
    multiple=True,
    metavar="TEXT",
    help="A comment on the request; repeatable.",
)
@click.option(
    "--attach",
    "attachments",
    multiple=True,
    metavar="PATH",
    help="A file of the project that belongs to it; repeatable.",
)
@click.option(
    "--procedure",
    metavar="P",
    shell_complete=completion.workflows,
    help="This procedure, whatever the request says.",
)
@click.option(
    "--agent",
    metavar="A",
    shell_complete=completion.agents,
    help="The agent of steps that name none.",
)
@click.option(
    "--max-cost",
    type=click.FloatRange(min=0, min_open=True),
    metavar="USD",
    help="Cost of this invocation.",
)
@click.option(
    "--team/--no-team",
    "team",
    default=None,
    help="Share it out among a team, or don't, whatever its score is.",
)
@click.option(
    "--team-size",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Agents at once in the team; asks for one.",
)
@click.option(
    "--no-run", is_flag=True, help="Make the run, and leave its steps to 'run' or 'tick'."
)
@click.option("--dry-run", is_flag=True, help="Show what would be made; change nothing.")
@pass_invocation
def start(
    invocation: Invocation,
    /,
    *,
    text: str | None,
    file: Path | None,
    procedure: str | None,
    agent: str | None,
    max_cost: float | None,
    team: bool | None,
    team_size: int | None,
    no_run: bool,
    dry_run: bool,
    **given: tuple[str, ...],
) -> int:
    """Make a run of a request, and work on it until its end or until a person is asked.

    TEXT is the request, its first line the title; - reads it from standard input. Labels, or
    an agent that classifies it, choose the procedure; 'sequencer route' explains the choice.
    The run keeps the steps as they are resolved here. Its name is made from the title
    unless --run gives one; 'sequencer --run NAME run' goes on after an interruption.

    \b
    Examples:
      sequencer start "Debug login timeout" --label bug
      sequencer start --file issue.md --procedure full-development --no-run
      sequencer start "How does authentication work?" --dry-run
    """
    from sequencer.cli.requests import free_name  # noqa: PLC0415 - `--help` needs none
    from sequencer.engine.team_starting import WantedTeam  # noqa: PLC0415

    project = _project(invocation, agent)
    request = request_from(project, "start", text=text, file=file, **given)
    name = invocation.run_name or free_name(request.title, project.run_names())
    invocation.run_name = name
    if team is False and team_size is not None:
        raise UsageRefused("--team-size asks for a team, and --no-team for none")
    wanted = WantedTeam(team, team_size)
    definition = project.starter.define(request, procedure, wanted)
    if dry_run:
        _show(invocation, project, definition, name)
        return 0
    project.run(name, definition).control.start(definition)
    if not invocation.is_json or no_run:
        _show(invocation, project, definition, name, is_made=True)
    if no_run:
        return 0
    return _work(invocation, project, max_cost)


def _work(invocation: Invocation, project: Project, max_cost: float | None) -> int:
    """Work on the run that was made, until it ends or waits."""
    from sequencer.cli import working  # noqa: PLC0415 - `--help` needs no engine
    from sequencer.engine.work import Mode  # noqa: PLC0415
    from sequencer.model.limits import InvocationLimits  # noqa: PLC0415

    defaults = project.settings.run
    cap = max_cost or defaults.max_cost_usd
    # A procedure ends by itself; what its loops and its hooks may add is limited there.
    limits = InvocationLimits(
        max_steps=None, max_cost_usd=cap, step_timeout_s=defaults.step_timeout_s
    )
    return working.work(invocation, project, working.Plan(Mode.COMBINED, limits))


@verb("route")
@TEXT
@FILE
@LABEL
@PROCEDURE
@pass_invocation
def route(
    invocation: Invocation,
    text: str | None,
    file: Path | None,
    labels: tuple[str, ...],
    procedure: str | None,
) -> None:
    """Explain which procedure a request would go to, and why; nothing is started.

    Where an agent classifies requests it is asked, as 'start' would.

    \b
    Examples:
      sequencer route "Add user profile page"
      sequencer route "Crash on save" --label bug --json
    """
    project = invocation.project()
    request = request_from(project, "route", text=text, file=file, labels=labels)
    chosen = project.starter.route(request, procedure)
    if invocation.is_json:
        invocation.print_json({"request": request.model_dump(mode="json"), **_told(chosen)})
        return
    for line in _explained(chosen):
        invocation.echo(line)


def _project(invocation: Invocation, agent: str | None) -> Project:
    from sequencer.settings.sources import Given  # noqa: PLC0415 - pydantic; `--help` needs none

    flags: dict[tuple[str | int, ...], Given] = {}
    if agent is not None:
        flags["agent", "default"] = Given("--agent", agent)
    return invocation.project(flags)


def _told(chosen: Route) -> dict[str, Any]:
    return chosen.model_dump(mode="json")


def _explained(chosen: Route) -> list[str]:
    """Return the lines that say how the procedure was chosen."""
    lines = [f"{one_line(chosen.procedure)}  ({one_line(chosen.reason)})"]
    for one in chosen.considered:
        result = f" -> {one_line(one.result)}" if one.result else ""
        lines.append(f"  {one.source:<15} {one_line(one.why)}{result}")
    return lines


def _show(
    invocation: Invocation,
    project: Project,
    definition: Definition,
    name: str,
    *,
    is_made: bool = False,
) -> None:
    """Print what the run called *name* is made of."""
    from sequencer.cli.tables import columns  # noqa: PLC0415 - `--help` needs none
    from sequencer.model.route import Route  # noqa: PLC0415

    resolved = enumerate(definition.workflow.steps)
    steps = [_described(project, step, index) for index, step in resolved]
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
    invocation.echo(f"procedure  {_explained(chosen)[0]}")
    _show_team(invocation, definition)
    graph = definition.workflow.graph
    if graph is not None:
        _show_tasks(invocation, graph, steps)
        return
    rows = [
        tuple(map(one_line, (str(n), step["step"], step["prompt"], step["agent"], _marks(step))))
        for n, step in enumerate(steps)
    ]
    invocation.echo(columns(("N", "STEP", "PROMPT", "AGENT", ""), rows, right={0}))
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


def _show_tasks(invocation: Invocation, graph: Graph, steps: list[dict[str, Any]]) -> None:
    """Print the tasks of a team."""
    from sequencer.cli.tables import columns  # noqa: PLC0415 - `--help` needs none

    rows = []
    for step in steps:
        task = graph.by_id[step["step"]].task
        role, before = (task.role or "", ", ".join(task.blocked_by)) if task else ("", "")
        row = (step["step"], graph.by_id[step["step"]].label, role, step["agent"], before)
        rows.append(tuple(map(one_line, (*row, _marks(step)))))
    invocation.echo(columns(("TASK", "SUBJECT", "ROLE", "AGENT", "BLOCKED BY", ""), rows))


def _described(project: Project, step: Step, index: int) -> dict[str, Any]:
    """Return what a person or a program asks for about a resolved step."""
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
