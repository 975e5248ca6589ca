"""`next`: which steps come next, from the workflow and an index alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sequencer.cli import completion
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.tables import columns
from sequencer.errors import DefinitionChanged, UsageRefused

if TYPE_CHECKING:
    from sequencer.engine.run import Run
    from sequencer.model.head import Head
    from sequencer.model.workflow import Workflow
    from sequencer.resolution.resolver import Description

MAX_COUNT = 1_000_000


def _why_none(run: Run) -> str:
    head = run.head
    if head is not None and head.flow is not None and head.status != "complete":
        return "no node can start now: 'sequencer status' shows what it waits for"
    return "no step is left: the run is complete"


def table(steps: list[Description], room: int | None = None) -> str:
    """Return *steps* as people read them, in *room* columns."""
    head = ("STEP_INDEX", "ITERATION", "CYCLE", "POSITION", "STEP", "PROMPT", "")
    rows = [
        (
            str(step["step_index"]),
            str(step["iteration"]),
            str(step["cycle_index"]),
            step["position"],
            step["step"],
            step["prompt"],
            "review" if step["review"] else "",
        )
        for step in steps
    ]
    return columns(head, rows, right={0, 1, 2}, room=room, goes=(2, 1))


@verb("next")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, MAX_COUNT),
    default=10,
    show_default=True,
    metavar="N",
    help="How many steps to show.",
)
@click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=completion.workflows,
    help="Another workflow than the run's.",
)
@click.option(
    "--review-every",
    type=click.IntRange(-(2**31), 2**31 - 1),
    metavar="N",
    help="A review every N cycles; 0 is never.",
)
@click.option(
    "--step-index",
    type=click.IntRange(0, 2**63 - 1 - MAX_COUNT),
    metavar="I",
    help="Begin at this step_index instead of where the run is.",
)
@pass_invocation
def next_(
    invocation: Invocation,
    count: int,
    workflow: str | None,
    review_every: int | None,
    step_index: int | None,
) -> None:
    """Show which steps come next, without running or changing anything.

    Of a flowchart or a team it shows what may start now, which can be several at once.
    With --workflow or --review-every it answers "what if": from the run's place, unless
    --step-index names another, and without asking what the run was begun with.

    \b
    Examples:
      sequencer next
      sequencer next --count 12 --workflow review_cadence --review-every 2
      sequencer next --step-index 1000000000000 --json
    """
    from sequencer.settings.sources import Given  # noqa: PLC0415 - `--help` needs none

    given: dict[tuple[str | int, ...], Given] = {
        ("workflow", "name"): Given("--workflow", workflow),
        ("workflow", "review_every_n"): Given("--review-every", review_every),
    }
    flags = {key: value for key, value in given.items() if value.value is not None}
    invocation.project(flags, may_be_none=workflow is not None)
    run = invocation.run()
    view = run.view()
    chosen = run.workflow_for(view.head)
    if chosen.graph is not None and step_index is not None:
        raise UsageRefused(
            "is for cycles and procedures: which nodes of a graph come next depends on their ends",
            where="--step-index",
            hint="'sequencer simulate' shows a whole graph",
        )
    if chosen.graph is not None:
        _show_nodes(invocation, run, chosen, count)
        return
    if step_index is None and (workflow is not None or review_every is not None):
        step_index = view.head.step_index if view.head is not None else 0
    if step_index is None and view.head is not None:
        _tell_of_changes(invocation, view.head, chosen)
    steps = run.next(count, step_index)
    if invocation.is_json:
        invocation.print_json(steps)
    elif steps:
        invocation.echo(table(steps, invocation.room))
    else:
        invocation.say(_why_none(run))


def _tell_of_changes(invocation: Invocation, head: Head, workflow: Workflow) -> None:
    """Say that the steps are those behind an `adopt`, where the run was begun differently."""
    from sequencer.engine.agreement import ensure_definition  # noqa: PLC0415 - as above

    try:
        ensure_definition(head, workflow)
    except DefinitionChanged as error:
        invocation.notices(
            [f"{error.message}; no step runs, and below are the steps after 'adopt'"]
        )
        invocation.say(f"  {error.hint}")


def _show_nodes(invocation: Invocation, run: Run, workflow: Workflow, count: int) -> None:
    from sequencer.cli.flow import upcoming  # noqa: PLC0415 - few runs are of graphs

    found = upcoming.nodes(invocation.project(), run, workflow, count)
    if invocation.is_json:
        invocation.print_json(found)
    elif found:
        is_team = workflow.graph is not None and workflow.graph.is_team
        invocation.echo(upcoming.table(found, is_team=is_team, room=invocation.room))
    else:
        invocation.say(_why_none(run))
