"""`plan`: show what would run. The next steps are here; other modules show everything else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from sequencer.cli.context import Invocation
from sequencer.cli.contributions import (
    Contribution,
    choose_contribution,
    collect_options,
    contribution_arguments,
    contributions_to,
    renderers,
)
from sequencer.cli.options import (
    REVIEW_EVERY,
    WORKFLOW,
    complete_flows,
    pass_invocation,
    verb,
    with_options,
)
from sequencer.cli.views.facts import read_view
from sequencer.cli.views.states import format_state, sanitize_text
from sequencer.cli.views.tables import format_table
from sequencer.cli.views.text import cut
from sequencer.engine.run import Run
from sequencer.errors import DefinitionChanged, SequencerError
from sequencer.history.view import NodeState, NodeView
from sequencer.model.graph.graph import NodeKind
from sequencer.model.head import Head
from sequencer.model.sequence.order import Description, describe_node
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.project.agents import choose_agent
from sequencer.project.project import Project
from sequencer.workflows.registry import with_defaults

MAX_COUNT, DEFAULT_COUNT = 1_000_000, 10
_PATH = click.Path(path_type=Path)


def _describe_no_steps(run: Run) -> str:
    head = run.head
    if head is not None and head.begun_at and head.status != "complete":
        return "no node can start now: 'sequencer status' shows what the run waits for"
    return "no step is left: the run is complete"


def steps_table(steps: list[Description], max_width: int | None = None) -> str:
    """Return a table of *steps* for people, in *max_width* columns."""
    head = ("STEP_INDEX", "ITERATION", "CYCLE", "POSITION", "STEP", "PROMPT", "")
    rows = [
        (
            str(step.step_index),
            str(step.iteration),
            str(step.cycle_index),
            step.position,
            step.step,
            step.prompt,
            "review" if step.review else "",
        )
        for step in steps
    ]
    return format_table(head, rows, right={0, 1, 2}, max_width=max_width, goes=(2, 1))


_OPTIONS = with_options(
    click.argument("name", metavar="[WORKFLOW]", required=False, shell_complete=complete_flows),
    click.option("-n", "--count", type=click.IntRange(1, MAX_COUNT), metavar="N",
                 help=f"How many steps to show; default {DEFAULT_COUNT}."),
    click.option("--simulate", is_flag=True,
                 help="Replay a flow on a virtual clock, without an agent."),
    click.option("--list", "lists", is_flag=True,
                 help="List the workflows; with --run the nodes of that run."),
    WORKFLOW(help="Show the steps as if the run had this workflow."),
    REVIEW_EVERY,
    click.option("--step-index", type=click.IntRange(0, 2**63 - 1 - MAX_COUNT), metavar="I",
                 help="Start at this step_index instead of where the run is."),
    click.option("--script", type=_PATH, metavar="FILE.json",
                 help="What the nodes answer in a replay, and how long they take."),
    click.option("--chart", type=_PATH, metavar="FILE", help="Show what a Mermaid chart says."),
    *collect_options([*contributions_to("plan"), *renderers()]),
)  # fmt: skip


@verb(
    "plan",
    first=("--count", "--list", "--request", "--simulate", "--commit", "--diagram"),
    **contribution_arguments("plan", draws=True),
)
@_OPTIONS
@pass_invocation
def plan(invocation: Invocation, /, **given: Any) -> int | None:
    """Show what would run next; nothing is run or changed.

    With WORKFLOW, a name or a file, show its steps and who performs each; for a flow or a team,
    show every node with its state in the run. --request shows what 'start' would do with a
    request and why: the procedure, whether a team would work on it, and the steps. If an agent
    classifies requests, it is asked, and the cost is shown; inside an agent keyword rules decide.

    --workflow and --review-every answer "what if" for the next steps. A script for --simulate
    is a JSON object: nodes (by id: out, a list of answers, {"error": TEXT} for a failure; ms,
    how long; timeout), entry, onError, retry, maxIterations, timeout. Nodes that it leaves out
    take 10 ms, tasks 10 ms times their weight. A choice takes the first way that leads forward.
    --svg and --png need the extra 'picture'.

    \b
    Examples:
      sequencer plan
      sequencer plan --count 12 --workflow review_cadence --review-every 2
      sequencer plan review_cadence
      sequencer plan flows/review.md --simulate
      sequencer plan --request "Crash on save" --label bug
      sequencer plan --commit
    """
    contributions = _contributions()
    return choose_contribution(
        "plan", contributions, given, (contributions[-1], contributions[-2])
    )(invocation, given)


def _contributions() -> tuple[Contribution, ...]:
    """Return everything that `plan` can show; the last two contributions need no option."""
    renderer_names = tuple(name for renderer in renderers() for name in renderer.names)
    # Each has its own module, which takes longer to load than the next steps to show.
    return (
        *contributions_to("plan"),
        Contribution("chart", "sequencer.cli.show:plan_chart", ("chart",)),
        Contribution(
            "simulate",
            "sequencer.cli.simulate:plan_simulate",
            ("simulate", "name", "script"),
            shared=("name",),
            flags=("simulate",),
        ),
        Contribution(
            "list",
            "sequencer.cli.show:plan_list",
            ("lists", *renderer_names),
            shared=renderer_names,
            flags=("lists",),
        ),
        Contribution(
            "workflow",
            "sequencer.cli.show:plan_workflow",
            ("name", *renderer_names),
            shared=("name", *renderer_names),
        ),
        Contribution(
            "steps",
            "sequencer.cli.plan:plan_steps",
            ("count", "workflow", "review_every", "step_index"),
        ),
    )


def plan_steps(
    invocation: Invocation,
    count: int | None,
    workflow: str | None,
    review_every: int | None,
    step_index: int | None,
) -> None:
    """Show the steps that come next; for a flow or a team, the nodes that may start now."""
    options = {"workflow": workflow, "review_every": review_every}
    count = count or DEFAULT_COUNT
    invocation.project(options, may_be_none=workflow is not None)
    run = invocation.run()
    view = run.view()
    run_workflow = run.workflow_for(view.head)
    if step_index is not None:
        run.commands.kind.ensure_supported("step-index")
    if run_workflow.nodes:
        _show_nodes(invocation, run, run_workflow, count)
        return
    if step_index is None and (workflow is not None or review_every is not None):
        step_index = view.head.step_index if view.head is not None else 0
    if step_index is None and view.head is not None:
        _notify_if_changed(invocation, view.head, run_workflow)
    steps = run.next(count, step_index)
    if invocation.is_json:
        invocation.print_json(steps)
    elif steps:
        invocation.echo(steps_table(steps, invocation.max_width))
    else:
        invocation.notify(_describe_no_steps(run))


def _notify_if_changed(invocation: Invocation, head: Head, workflow: Workflow) -> None:
    """If the definition has changed, say that the steps shown are those after `adopt`."""
    try:
        ensure_definition(head, workflow)
    except DefinitionChanged as error:
        invocation.show_notices(
            [f"{error.message}; no step runs, and below are the steps after 'adopt'"]
        )
        invocation.notify(f"  {error.hint}")


def _show_nodes(invocation: Invocation, run: Run, workflow: Workflow, count: int) -> None:
    nodes = ready_nodes(invocation.project(), run, workflow, count)
    if invocation.is_json:
        invocation.print_json(nodes)
    elif nodes:
        invocation.echo(
            nodes_table(nodes, are_tasks=bool(workflow.tasks), max_width=invocation.max_width)
        )
    else:
        invocation.notify(_describe_no_steps(run))


MAX_SUBJECT_COLUMNS = 50
NOTHING = "-"


def ready_nodes(project: Project, run: Run, workflow: Workflow, count: int) -> list[dict[str, Any]]:
    """Return at most *count* nodes of *workflow*, a graph, that may start in *run*.

    If *run* is of another workflow, return the nodes that the graph starts with.

    Raises:
        SequencerError: as `Run.next` does.
    """
    head, graph = run.head, workflow.graph
    if graph and head is not None and head.workflow_name != workflow.name:
        steps = [describe_node(workflow, name, 0) for name in graph.entries[:count]]
        views = {node.id: NodeView(node) for node in graph.nodes}
    else:
        steps = run.next(count)
        views = (
            {view.node.id: view for view in read_view(run, workflow.name).nodes} if steps else {}
        )
        if head is not None and steps:
            workflow = run.kind.get_workflow(head)
    now = datetime.now(UTC)
    return [_describe_node(project, workflow, step, views[step.step], now) for step in steps]


def _describe_node(
    project: Project, workflow: Workflow, description: Description, view: NodeView, now: datetime
) -> dict[str, Any]:
    node, step = view.node, workflow.steps_by_name.get(description.step)
    has_started = view.state is not NodeState.PENDING
    return {
        **asdict(description),
        "label": node.label,
        "kind": str(node.kind),
        "role": node.task.role if node.task is not None else None,
        "agent": None if step is None else _find_agent(project, step),
        "state": format_state(view, now) if has_started else str(NodeState.READY),
    }


def _find_agent(project: Project, step: Step) -> str | None:
    full_step = with_defaults(step, project.settings.step_defaults)
    try:
        return choose_agent(project.settings, full_step, step.name, project.agents.overrides).name
    except SequencerError:
        # `check` reports what is wrong with the step's agent.
        return None


def nodes_table(
    nodes: Sequence[dict[str, Any]], *, are_tasks: bool, max_width: int | None = None
) -> str:
    """Return a table of *nodes* for people, in *max_width* columns."""
    subject = "SUBJECT" if are_tasks else "TITLE"
    head = ("TASK" if are_tasks else "NODE", "STATE", subject, "ROLE", "BY")
    rows = [
        (
            sanitize_text(node["step"]),
            node["state"],
            cut(sanitize_text(node["label"]), MAX_SUBJECT_COLUMNS) or NOTHING,
            node["role"] or NOTHING,
            _format_agent(node),
        )
        for node in nodes
    ]
    columns = [n for n in range(len(head)) if are_tasks or head[n] != "ROLE"]
    return format_table(
        [head[n] for n in columns], [[row[n] for n in columns] for row in rows], max_width=max_width
    )


def _format_agent(node: dict[str, Any]) -> str:
    if node["kind"] == NodeKind.HUMAN:
        return "a person"
    return sanitize_text(node["agent"] or "") or NOTHING
