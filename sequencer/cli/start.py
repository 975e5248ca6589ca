"""`start` and `route`: from a request to the run of a procedure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli import completion
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.sanitise import one_line
from sequencer.errors import UsageRefused

if TYPE_CHECKING:
    from sequencer.assembly import Project
    from sequencer.model.definition import Definition
    from sequencer.model.request import Request
    from sequencer.model.route import Route
    from sequencer.model.step import Step

_TEXT = click.argument("text", required=False)
_FILE = click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="Read the request from a file; its first line is the title.",
)
_LABEL = click.option(
    "--label", "labels", multiple=True, metavar="L", help="A label of the request; repeatable."
)


@verb("start")
@_TEXT
@_FILE
@_LABEL
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
    from sequencer.cli.requests import Wanted, free_name  # noqa: PLC0415 - `--help` needs none

    project = _project(invocation, agent)
    request = _request(project, Wanted(text=text, file=file, **given))
    name = invocation.run_name or free_name(request.title, project.run_names())
    invocation.run_name = name
    definition = project.starter.define(request, procedure)
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
@_TEXT
@_FILE
@_LABEL
@click.option(
    "--procedure",
    metavar="P",
    shell_complete=completion.workflows,
    help="As 'start' would be told.",
)
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
    from sequencer.cli.requests import Wanted  # noqa: PLC0415 - `--help` needs no engine

    project = invocation.project()
    request = _request(project, Wanted(text=text, file=file, labels=labels))
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


def _request(project: Project, wanted: Any) -> Request:
    from sequencer.cli.requests import request_of  # noqa: PLC0415 - `--help` needs no engine

    if wanted.text is None and wanted.file is None:
        raise UsageRefused(
            "what is to be done?", where="sequencer start",
            hint="give a text, --file F, or - for standard input",
        )  # fmt: skip
    return request_of(wanted, project.settings.project_dir, project.redaction.hide_text)


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
                "procedure": definition.workflow.name,
                "classification": definition.route.get("classification"),
                "request": definition.request.model_dump(mode="json"),
                "route": definition.route,
                "steps": steps,
                "substitutions": definition.substitutions,
                "notes": list(definition.notes),
            }
        )
        return
    invocation.echo(f"run        {one_line(name)}{'' if is_made else '  (not made: --dry-run)'}")
    chosen = Route.model_validate(definition.route)
    invocation.echo(f"procedure  {_explained(chosen)[0]}")
    rows = [
        tuple(map(one_line, (str(n), step["step"], step["prompt"], step["agent"], _marks(step))))
        for n, step in enumerate(steps)
    ]
    invocation.echo(columns(("N", "STEP", "PROMPT", "AGENT", ""), rows, right={0}))
    for note in definition.notes:
        invocation.say(f"notice: {note}")


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
