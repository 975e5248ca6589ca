"""`start` and `plan --request`: create the run of a request, or show the run that it would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from msgspec.structs import asdict, replace

from sequencer.cli import run_work
from sequencer.cli.context import Invocation
from sequencer.cli.contributions import draw_sequence
from sequencer.cli.options import (
    MAX_COST,
    REHEARSE,
    pass_invocation,
    verb,
    with_options,
)
from sequencer.cli.show import show_view
from sequencer.cli.views.states import sanitize_text
from sequencer.cli.views.tables import format_purposes, format_table
from sequencer.cli.views.text import one_line
from sequencer.engine.invocation_budget import Mode
from sequencer.errors import ConfigurationError, UsageRefused, run_option
from sequencer.history.story import Story
from sequencer.history.view import build_view
from sequencer.model.graph.graph import Graph
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import Usage, format_cost
from sequencer.model.request import Definition, Request, Route
from sequencer.model.step import Step
from sequencer.plugins.requests.cli_requests import REQUEST, read_request
from sequencer.plugins.requests.issues import find_free_name
from sequencer.plugins.requests.project_requests import build_starter
from sequencer.plugins.requests.section import get_routing_settings
from sequencer.plugins.requests.starting import RequestedTeam, Starter, describe_lost_cost
from sequencer.plugins.teams import scoring
from sequencer.plugins.teams.scoring import TeamChoice
from sequencer.plugins.teams.section import get_team_options
from sequencer.project.project import Project
from sequencer.store.identity import is_inside_agent

_START_OPTIONS = with_options(
    MAX_COST,
    click.option("--no-run", is_flag=True,
                 help="Only make the run; 'run' or 'tick' runs its steps later."),
    REHEARSE,
)  # fmt: skip


_FIRST = ("--file", "--label", "--procedure", "--team", "--max-cost", "--no-run")


@verb("start", has_secrets=True, first=_FIRST)
@click.argument("text", required=False)
@REQUEST
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
    **given: Any,
) -> int:
    """Make a run from a request, and work on it until it ends or asks a person.

    TEXT is the request, with the title on its first line, or an issue of GitHub or Linear as
    JSON; - reads it from standard input. Labels, or an agent that classifies the request, choose
    the procedure; 'sequencer plan --request' shows all of this before you start. The run keeps
    the steps as they are now. Its name is made from the title, unless --run gives one;
    'sequencer --run NAME run' continues it.

    \b
    Examples:
      sequencer start "Debug login timeout" --label bug
      sequencer start --file issue.md --procedure full-development --no-run
      gh issue view 7 --json title,body,labels,comments | sequencer start -
    """
    project = invocation.project({"agent": agent}, rehearses=rehearse)
    project.ensure_may_act()
    request = read_request(invocation, project, "start", **given)
    name = _choose_run_name(invocation, project, request)
    starter = build_starter(project)
    with _report_lost_cost(invocation, starter):
        definition = starter.define(request, procedure, _to_wanted_team(team, team_size))
        if not no_run:
            # A run that starts immediately needs its agents now.
            starter.ensure_installed(definition)
        project.run(name, definition).commands.start(definition)
    if no_run or not invocation.is_json:
        _show_definition(invocation, project, definition, name)
    if no_run and not invocation.is_json:
        line = f"sequencer {run_option(name)}run"
        invocation.notify(f"to continue: {line} (a timer's next tick does, too)")
    return 0 if no_run else _work(invocation, project, definition, max_cost)


@contextmanager
def _report_lost_cost(invocation: Invocation, starter: Starter) -> Iterator[None]:
    """Report the cost of the classification if no run is created."""
    try:
        yield
    except BaseException:
        invocation.show_notices(filter(None, [describe_lost_cost(starter.paid)]))
        raise


def _choose_run_name(invocation: Invocation, project: Project, request: Request) -> str:
    """Return the name for the run of *request*, and set it as the run of *invocation*.

    Raises:
        UsageRefused: ``--run default`` was given.
    """
    if invocation.means_default:
        raise UsageRefused(
            "the default run can't be made from a request; it uses the workflow of the project",
            where="--run default",
            hint="give another name, or leave --run out; then the name is made from the title",
        )
    name = invocation.run_name or find_free_name(request.title, project.run_names())
    invocation.run_name = name
    return name


def _to_wanted_team(team: bool | None, size: int | None) -> RequestedTeam:
    """Return the options about a team as a value."""
    if team is False and size is not None:
        raise UsageRefused("--team-size and --no-team can't be used together")
    return RequestedTeam(team, size)


def _work(
    invocation: Invocation, project: Project, definition: Definition, max_cost: float | None
) -> int:
    """Work on the new run until it ends or waits."""
    defaults = project.settings.run
    # No step limit: a procedure ends by itself, and its loops and hooks have their own limits.
    limits = InvocationLimits(
        max_steps=None,
        max_cost_usd=max_cost or defaults.max_cost_usd,
        step_timeout_s=defaults.step_timeout_s,
    )
    plan = run_work.Plan(Mode.COMBINED, limits).subtract_usage(definition.usage, Usage())
    if plan.limits.max_cost_usd == 0:
        cost = format_cost(definition.usage)
        invocation.show_notices(
            [f"classifying the request cost {cost}, which is all of --max-cost"]
        )
    return run_work.work(invocation, project, plan)


def _ensure_drawable(invocation: Invocation, draw: Mapping[str, bool]) -> None:
    """Check that at most one kind of drawing is chosen, and not together with JSON."""
    names = [f"--{name}" for name, is_asked in draw.items() if is_asked]
    if len(names) > 1:
        raise UsageRefused(f"{' and '.join(names)} can't be used together")
    if names and invocation.is_json:
        raise UsageRefused("can't be used with a drawing", where="--json", hint="leave it out")


def plan_request(
    invocation: Invocation,
    *,
    procedure: str | None,
    agent: str | None,
    team: bool | None,
    team_size: int | None,
    mermaid: bool = False,
    diagram: bool = False,
    **given: Any,
) -> None:
    """Show the run that `start` would create for a request, and why; nothing is created.

    If an agent calls it, the rules classify: it may call this often, and questions cost money.
    """
    draw = {"mermaid": mermaid, "diagram": diagram}
    _ensure_drawable(invocation, draw)
    wanted_team = _to_wanted_team(team, team_size)
    project = invocation.project({"agent": agent})
    starter = _make_planning_starter(invocation, project)
    request = read_request(invocation, project, "plan", **given)
    with _report_lost_cost(invocation, starter):
        route = starter.route(request, procedure)
    if cost := format_cost(route.usage):
        invocation.notify(f"classifying the request by {one_line(route.asked or '')}: {cost}")
    choice = starter.choose_team(request, route, wanted_team)
    if any(draw.values()):
        to_draw = starter.build_definition(request, route, choice)
        _draw(invocation, to_draw, _choose_run_name(invocation, project, request), draw)
        return
    definition: Definition | None = None
    try:
        definition = starter.build_definition(request, route, choice)
    except ConfigurationError as error:
        # The route is useful even on a machine that can't start the run.
        invocation.notify(f"notice: its steps can't be shown: {error}")
    if invocation.is_json:
        kind = scoring.find_classification(request, route, get_routing_settings(project.settings))
        facts = {"request": request.model_dump(mode="json"), **route.model_dump(mode="json")}
        facts |= {"team": None if choice is None else _team_json(project, choice)}
        steps = {"steps": None} if definition is None else _definition_json(project, definition)
        invocation.print_json({**steps, **facts, "classification": kind})
        return
    invocation.echo("\n".join(explain_route(route)))
    if definition is not None and definition.workflow.description:
        invocation.echo(one_line(definition.workflow.description))
    _show_score(invocation, choice)
    if definition is not None:
        invocation.echo("")
        _show_work(invocation, project, definition)


def _make_planning_starter(invocation: Invocation, project: Project) -> Starter:
    """Return the starter; if an agent is the caller, it asks no model."""
    starter = build_starter(project)
    if starter.questions is None or not is_inside_agent():
        return starter
    invocation.show_notices(["an agent asks, so keyword rules classify the request"])
    return replace(starter, questions=None)


def _show_score(invocation: Invocation, choice: TeamChoice | None) -> None:
    """Print whether a team would work on it, and the points of each reason."""
    if choice is None or _HAS_NO_TEAMS in choice.why:
        return
    invocation.echo(f"team: {'yes' if choice.uses_team else 'no'}  ({choice.why})")
    invocation.echo(
        f"score: {choice.score.score} of 100, for a team of {_compute_team_size(choice)}"
    )
    rows = [
        (f"{reason.points:+d}" if reason.points else "0", one_line(reason.text))
        for reason in choice.score.reasons
    ]
    invocation.echo(
        format_table(("POINTS", "FOR"), rows, right={0}, max_width=invocation.max_width)
    )


_HAS_NO_TEAMS = "teams.enabled"
"""Part of the reason if the project has not enabled teams."""


def _compute_team_size(choice: TeamChoice) -> int:
    """Return the number of members for the score, up to the maximum."""
    return min(choice.size, choice.score.team_size)


def _team_json(project: Project, choice: TeamChoice) -> dict[str, Any]:
    return {
        "uses_team": choice.uses_team,
        "why": choice.why,
        "size": _compute_team_size(choice),
        "score": choice.score.score,
        "threshold": get_team_options(project.settings).threshold,
        "reasons": [asdict(reason) for reason in choice.score.reasons],
    }


def explain_route(chosen: Route) -> list[str]:
    """Return lines that explain the choice of the procedure."""
    lines = [f"{one_line(chosen.procedure)}  ({one_line(chosen.reason)})"]
    for candidate in chosen.considered:
        result = f" -> {one_line(candidate.result)}" if candidate.result else ""
        lines.append(f"  {candidate.source:<15} {one_line(candidate.why)}{result}")
    return lines


def _show_definition(
    invocation: Invocation, project: Project, definition: Definition, name: str
) -> None:
    """Print the parts of the new run called *name*."""
    route = definition.route
    if invocation.is_json:
        kinds = {key: route.get(key) for key in ("procedure", "classification")}
        facts = {
            **_definition_json(project, definition),
            "route": route,
            "team": definition.assignment,
        }
        invocation.print_json({"run": name, **kinds, **facts})
        return
    invocation.echo(f"run        {one_line(name)}")
    invocation.echo(f"procedure  {explain_route(Route.model_validate(route))[0]}")
    if description := one_line(definition.workflow.description):
        invocation.echo(f"           {description}")
    _show_team(invocation, definition)
    _show_work(invocation, project, definition)


def _definition_json(project: Project, definition: Definition) -> dict[str, Any]:
    """Return the JSON of the request and its steps, for programs."""
    return {
        "request": definition.request.model_dump(mode="json"),
        "steps": _describe_steps(project, definition),
        "substitutions": definition.substitutions,
        "notes": list(definition.notes),
    }


def _describe_steps(project: Project, definition: Definition) -> list[dict[str, Any]]:
    graph = definition.workflow.graph
    numbered_steps = enumerate(definition.workflow.steps)
    return [_describe_step(project, step, index, graph) for index, step in numbered_steps]


def _show_work(invocation: Invocation, project: Project, definition: Definition) -> None:
    """Print the steps or tasks, and notes about changes to them."""
    show = _show_tasks if definition.workflow.graph else _show_steps
    show(invocation, _describe_steps(project, definition))
    for note in definition.notes:
        invocation.notify(f"notice: {note}")


def _draw(
    invocation: Invocation, definition: Definition, name: str, draw: Mapping[str, bool]
) -> None:
    """Draw the run, and print nothing else on standard output, so that it can go to a file."""
    if graph := definition.workflow.graph:
        show_view(invocation, build_view(name, graph, None, None, Story()), None, draw)
    else:
        hint = "--mermaid draws the procedure; --team lets a team work on it"
        draw_sequence(invocation, definition.workflow, draw, hint)


def _show_team(invocation: Invocation, definition: Definition) -> None:
    """Print whether a team works on it and why, unless teams are not enabled."""
    team = definition.assignment or {}
    if team.get("uses_team"):
        score = f"score {team['score']}: {', '.join(team['reasons'])}"
        invocation.echo(f"team       {team['size']} at once  ({one_line(team['why'])}; {score})")
    elif team and _HAS_NO_TEAMS not in team["why"]:
        invocation.echo(f"team       none  ({one_line(team['why'])})")


def _show_steps(invocation: Invocation, steps: list[dict[str, Any]]) -> None:
    """Print the steps of a procedure, and their descriptions."""
    keys = ("step", "prompt", "agent")
    rows = [
        tuple(map(one_line, (str(number), *(step[key] for key in keys), _format_marks(step))))
        for number, step in enumerate(steps)
    ]
    head = ("N", "STEP", "PROMPT", "AGENT", "")
    invocation.echo(format_table(head, rows, right={0}, max_width=invocation.max_width))
    if text := format_purposes((step["step"], step.get("description", "")) for step in steps):
        invocation.echo(f"\n{text}")


def _show_tasks(invocation: Invocation, steps: list[dict[str, Any]]) -> None:
    """Print the tasks of a team; a narrow terminal gets only the start of each subject."""
    keys = ("step", "subject", "role", "agent")
    rows = [
        [
            sanitize_text(cell)
            for cell in (
                *(step[key] for key in keys),
                ", ".join(step["blocked_by"]),
                _format_marks(step),
            )
        ]
        for step in steps
    ]
    head = ("TASK", "SUBJECT", "ROLE", "AGENT", "BLOCKED BY", "")
    # If space is short, the marks go first: agent and order are more important.
    invocation.echo(
        format_table(head, rows, max_width=invocation.max_width, goes=(5,), whole={1}, prose={1})
    )


def _describe_step(project: Project, step: Step, index: int, graph: Graph | None) -> dict[str, Any]:
    """Return the fields of a resolved step, or of a team's task, for people and programs."""
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


def _format_marks(step: dict[str, Any]) -> str:
    """Return the special properties of a step, in a few words."""
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
