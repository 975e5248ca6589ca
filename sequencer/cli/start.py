"""`start` and `route`: from a request to the run of a procedure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import complete_agents, complete_workflows, pass_invocation, verb
from sequencer.cli.requests import FILE, LABEL, PROCEDURE, TEXT, request_from
from sequencer.errors import UsageRefused

if TYPE_CHECKING:
    from sequencer.model.request import Definition, Request, Route
    from sequencer.project import Project


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
    shell_complete=complete_workflows,
    help="This procedure, whatever the request says.",
)
@click.option(
    "--agent",
    metavar="A",
    shell_complete=complete_agents,
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
@click.option(
    "--rehearse",
    is_flag=True,
    help="Let no agent run, whatever names one: each step says what it would ask, and counts "
    "as done.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be made; change nothing.")
@click.option("--mermaid", is_flag=True, help="Show it as a Mermaid chart.")
@click.option("--diagram", is_flag=True, help="Show a team's tasks as a drawing in the terminal.")
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
    rehearse: bool,
    dry_run: bool,
    mermaid: bool,
    diagram: bool,
    **given: tuple[str, ...],
) -> int:
    """Make a run of a request, and work on it until its end or until a person is asked.

    TEXT is the request, its first line the title, or an issue of GitHub or Linear as JSON; -
    reads it from standard input. Labels, or an agent that classifies it, choose the procedure;
    'sequencer route' explains the choice. The run keeps the steps as they are resolved here.
    Its name is made from the title unless --run gives one; 'sequencer --run NAME run' continues it.

    \b
    Examples:
      sequencer start "Debug login timeout" --label bug
      sequencer start --file issue.md --procedure full-development --no-run
      gh issue view 7 --json title,body,labels,comments | sequencer start -
      sequencer start --file issue.md --team --dry-run --mermaid
    """
    from sequencer.cli.start_view import Shape, show  # noqa: PLC0415
    from sequencer.engine.starting import WantedTeam  # noqa: PLC0415

    shape = Shape.of(invocation, mermaid=mermaid, diagram=diagram, shows=dry_run or no_run)
    project = _project(invocation, agent, acts=not dry_run, rehearses=rehearse)
    request = request_from(invocation, project, "start", text=text, file=file, **given)
    invocation.run_name = name = _name_of(invocation, project, request)
    if team is False and team_size is not None:
        raise UsageRefused("--team-size asks for a team, and --no-team for none")
    definition = project.starter.define(request, procedure, WantedTeam(team, team_size))
    if dry_run:
        show(invocation, project, definition, name, shape=shape)
        return 0
    _make(project, name, definition, will_work=not no_run)
    if not invocation.is_json or no_run:
        show(invocation, project, definition, name, is_made=True, shape=shape)
    return 0 if no_run else _work(invocation, project, max_cost)


def _name_of(invocation: Invocation, project: Project, request: Request) -> str:
    from sequencer.cli.requests import free_name  # noqa: PLC0415 - `--help` needs none

    return invocation.run_name or free_name(request.title, project.run_names())


def _make(project: Project, name: str, definition: Definition, *, will_work: bool) -> None:
    """Make the run; one that is to be worked on at once needs its agents."""
    if will_work:
        project.starter.ensure_installed(definition)
    project.run(name, definition).control.start(definition)


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
    request = request_from(invocation, project, "route", text=text, file=file, labels=labels)
    chosen = project.starter.route(request, procedure)
    if invocation.is_json:
        invocation.print_json({"request": request.model_dump(mode="json"), **_told(chosen)})
        return
    from sequencer.cli.start_view import explained  # noqa: PLC0415 - `--help` needs none

    for line in explained(chosen):
        invocation.echo(line)


def _project(invocation: Invocation, agent: str | None, *, acts: bool, rehearses: bool) -> Project:
    from sequencer.settings.sources import Given  # noqa: PLC0415 - pydantic; `--help` needs none

    flags: dict[tuple[str | int, ...], Given] = {}
    if agent is not None:
        flags["agent", "default"] = Given("--agent", agent)
    project = invocation.project(flags, rehearses=rehearses)
    if acts:
        project.ensure_may_act()
    return project


def _told(chosen: Route) -> dict[str, Any]:
    return chosen.model_dump(mode="json")
