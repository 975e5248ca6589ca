"""`plan WORKFLOW` and `plan --list`: list the workflows, or show what one of them does."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sequencer.cli.context import Invocation
from sequencer.cli.contributions import draw_graph, draw_sequence
from sequencer.cli.views.facts import read_view
from sequencer.cli.views.nodes import node_table, nodes_json
from sequencer.cli.views.tables import format_purposes, format_table
from sequencer.cli.views.text import fit_names, one_line, terminal_width
from sequencer.engine.run import Run
from sequencer.errors import ConfigurationError, DefinitionChanged, UnknownName, UsageRefused
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import find_config
from sequencer.files.yamlfile import decode
from sequencer.history.story import Story
from sequencer.history.view import FlowView, build_view
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.project.agents import choose_agent, resolve_auto
from sequencer.project.flows import (
    choose_run_name,
    find_flow_file,
    list_project_flows,
    load_current_graph,
    open_flow,
)
from sequencer.project.project import Project
from sequencer.workflows.finding import MAX_CHARS, GraphFile, ensure_within
from sequencer.workflows.flowfile.markdown import split
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.mermaid.chart import Chart
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError
from sequencer.workflows.registry import with_defaults

REVIEW, BUILT_IN = "review", "built in"
MAX_STEPS_COLUMNS = 100
"""Widest column of steps in the list of workflows; a team may have a thousand tasks."""


def plan_workflow(invocation: Invocation, name: str | None, **draw: Any) -> None:
    """Show the steps of the workflow *name*, each with its agent and why that agent was chosen.

    For a flowchart or a team (a file, or its name), show every node and its state in the run;
    *draw* has the ways to draw it. Without a *name*, show the graph of the run that ``--run``
    names, otherwise list the workflows.
    """
    project = invocation.project(may_be_none=name is not None)
    if name is None:
        if _print_run_graph(invocation, draw):
            return
        if any(draw.values()):
            raise UsageRefused(
                "there is nothing to draw: the run's workflow is neither a flowchart nor a team",
                hint="name a workflow: 'sequencer plan WORKFLOW'",
            )
        _print_workflows(invocation, project)
        return
    if _is_flow(project, name):
        show_flow(invocation, project, name, draw)
        return
    _show_steps(invocation, project, name, draw)


def plan_list(invocation: Invocation, /, **draw: Any) -> None:
    """List the workflows, or the nodes of the run that ``--run`` names."""
    plan_workflow(invocation, None, **draw)


def _print_run_graph(invocation: Invocation, draw: dict[str, Any]) -> bool:
    """Show the graph of the selected run; return False if there is none to show."""
    if invocation.run_name is None and not any(draw.values()):
        return False
    run = invocation.run()
    head = run.head
    if head is None or not (head.flow or run.workflow_for(head).nodes):
        return False
    show_run(invocation, run, draw)
    return True


def _is_flow(project: Project, name: str) -> bool:
    """Return whether *name* is a flowchart or a task list, and not a list of steps.

    Raises:
        UnknownName: it is none of them.
        ConfigurationError: several files have the name.
    """
    registry = project.settings.registry
    if name in registry.names:
        return name in registry.flows or name in registry.lists
    try:
        find_flow_file(project, name)
    except UnknownName as error:
        known_names = {*registry.names, *error.known}
        raise UnknownName("workflow", name, known_names, where="sequencer plan") from None
    return True


def _show_steps(
    invocation: Invocation, project: Project, name: str, draw: Mapping[str, Any]
) -> None:
    settings = project.settings
    workflow = settings.registry.get(name, where="sequencer plan")
    if name == settings.workflow.name:
        workflow = settings.default_workflow()
    if any(draw.values()):
        _ensure_no_json(invocation)
        draw_sequence(invocation, workflow, draw, "--mermaid draws this workflow")
        return
    rows = list(_describe_steps(project, workflow))
    if invocation.is_json:
        invocation.print_json({**_summarize_workflow(project, workflow), "steps": rows})
        return
    invocation.echo(one_line(_describe_workflow(workflow)))
    if workflow.description:
        invocation.echo(one_line(workflow.description))
    invocation.echo("")
    cells = [
        tuple(
            one_line(str(row[key]))
            for key in ("place", "name", "prompt", "agent", "chosen_by", "limits")
        )
        for row in rows
    ]
    header = ("PLACE", "STEP", "PROMPT", "AGENT", "CHOSEN BY", "LIMITS")
    invocation.echo(format_table(header, cells, max_width=invocation.max_width, goes=(4, 5)))
    if table := format_purposes((row["name"], row["description"]) for row in rows):
        invocation.echo(f"\n{table}")


def _print_workflows(invocation: Invocation, project: Project) -> None:
    settings = project.settings
    entries = []
    for name in settings.registry.names:
        is_chosen = name == settings.workflow.name
        try:
            workflow = settings.default_workflow() if is_chosen else settings.registry.get(name)
        except ConfigurationError as error:
            # A flowchart that can't be read must not hide the others.
            invocation.notify(f"warning: {name}: {error}")
            continue
        entries.append(_summarize_workflow(project, workflow))
    entries += _unconfigured_flows(invocation, project)
    if invocation.is_json:
        invocation.print_json(entries)
        return
    shown_entries = [
        entry for entry in entries if entry["is_chosen"] or entry["source"] != BUILT_IN
    ]
    rows = [
        (
            f"{one_line(entry['name'])}{' *' if entry['is_chosen'] else ''}",
            entry["kind"],
            one_line(fit_names(entry["step_names"], MAX_STEPS_COLUMNS)),
            one_line(_format_review(entry)),
            entry["source"],
        )
        for entry in shown_entries
    ]
    header = ("WORKFLOW", "KIND", "STEPS", "REVIEW", "FROM")
    invocation.echo(format_table(header, rows, max_width=invocation.max_width))
    if table := format_purposes(
        ((entry["name"], entry["description"]) for entry in shown_entries), "WORKFLOW"
    ):
        invocation.echo(f"\n{table}")
    names = ", ".join(entry["name"] for entry in entries if entry not in shown_entries)
    invocation.echo(f"\nbuilt in: {names}")
    invocation.notify(
        "* is what 'sequencer run' starts with; 'sequencer plan NAME' shows its steps"
    )


def _unconfigured_flows(invocation: Invocation, project: Project) -> Iterator[dict[str, Any]]:
    """Yield the flowcharts in the project's folders that have no name in orchestration.yaml."""
    configured_paths = set(project.settings.registry.flows.values())
    for path in list_project_flows(project):
        if path in configured_paths:
            continue
        relative_path = path.relative_to(project.settings.project_dir)
        try:
            workflow = project.settings.registry.load(path).workflow
        except ConfigurationError as error:
            invocation.notify(f"warning: {relative_path}: {error}")
            continue
        yield {
            **_summarize_workflow(project, workflow),
            "source": str(relative_path),
            "is_chosen": False,
        }


def _format_review(entry: dict[str, Any]) -> str:
    step, cycles = entry["review_step"], entry["review_every"]
    rhythm = f"every {cycles} cycles" if cycles else "(never: N is not set)"
    return "-" if step is None else f"{step} {rhythm}"


def _summarize_workflow(project: Project, workflow: Workflow) -> dict[str, Any]:
    settings = project.settings
    source = "orchestration.yaml" if workflow.name in settings.workflows else BUILT_IN
    return {
        "name": workflow.name,
        "kind": workflow.kind,
        "description": workflow.description,
        "step_names": [step.name for step in workflow.steps],
        "review_step": workflow.review.step.name if workflow.review else None,
        "review_every": workflow.review_every,
        "source": str(settings.registry.flows.get(workflow.name) or source),
        "is_chosen": workflow.name == settings.workflow.name,
        "digest": workflow.digest(),
    }


def _describe_workflow(workflow: Workflow) -> str:
    count = len(workflow.steps)
    orders = {
        "cycle": f"a cycle of {count} steps, without end",
        "procedure": f"a procedure of {count} steps, once from the first to the last",
    }
    # A package has kinds of its own.
    order = orders.get(workflow.kind, f"{count} steps in the order of its kind {workflow.kind!r}")
    text = f"{workflow.name}: {order}"
    if workflow.review is None:
        return text
    if not workflow.review_every:
        return f"{text}; it has a review step, but never reviews: review_every_n is not set"
    cycles = (
        "every cycle"
        if workflow.review_every == 1
        else (f"every cycle of {workflow.review_every}, the last of them,")
    )
    return f"{text}; {cycles} is a review, by {workflow.review.step.name!r} at each position"


def _describe_steps(project: Project, workflow: Workflow) -> Iterator[dict[str, Any]]:
    """Yield one row for each step, then the rows of the review step.

    The review has one row, or one for each agent if the positions where it runs have several.
    """
    for index, step in enumerate(workflow.steps):
        yield _describe_step(project, step, str(index), step.name)
    if workflow.review is None:
        return
    step = workflow.review.step
    review_rows: dict[tuple[str, str], dict[str, Any]] = {}
    for position in workflow.steps:
        row = _describe_step(project, step, REVIEW, position.name)
        choice = (row["agent"], row["chosen_by"])
        review_rows.setdefault(choice, {**row, "positions": []})["positions"].append(position.name)
    for row in review_rows.values():
        if len(review_rows) > 1:
            row["place"] = f"{REVIEW} at {', '.join(row['positions'])}"
        yield row


def _describe_step(project: Project, step: Step, place: str, position: str) -> dict[str, Any]:
    """Return the row of *step* with the label *place*, and the agent that runs it at *position*."""
    full_step = with_defaults(step, project.settings.step_defaults)
    choice = choose_agent(project.settings, full_step, position, project.agents.overrides)
    agent = choice.name
    if agent == "auto" and "auto" not in project.settings.agents:
        try:
            agent = f"auto: {resolve_auto(shutil.which, project.agents.environment)}"
        except ConfigurationError:
            agent = "auto: none found"
    return {
        "place": place,
        "name": step.name,
        "description": step.description,
        "prompt": step.prompt_name,
        "agent": agent,
        "chosen_by": choice.source,
        "limits": _format_limits(full_step),
    }


def _format_limits(step: Step) -> str:
    words = []
    for field, unit in (
        ("timeout_s", " s"),
        ("idle_timeout_s", " s idle"),
        ("max_turns", " turns"),
        ("max_cost_usd", " USD"),
    ):
        value = getattr(step, field)
        if value is not None:
            words.append(f"{value:g}{unit}")
    if step.single_turn:
        words.append("single turn")
    if step.requires_approval:
        words.append("gate")
    if step.validation is not None:
        fixer = step.validation.fixer
        words.append(
            f"{step.validation.max_attempts} judgments"
            + (f", {fixer.name!r} between them" if fixer is not None else "")
        )
    if step.retry is not None and step.retry.max_attempts > 1:
        words.append(f"{step.retry.max_attempts} tries")
    return ", ".join(words) or "-"


MARKDOWN = ".md"


def plan_chart(invocation: Invocation, chart: Path) -> int:
    """Print the nodes and edges of the file *chart*, even if it could not be run.

    Raises:
        ChartError: the file is not a flowchart. With ``--json``, the error is printed instead.
    """
    try:
        flow = _load_chart(ensure_safe_path(invocation, chart))
    except ChartError as error:
        if not invocation.is_json:
            raise
        invocation.print_json({"invalid": True, "error": str(error)})
        return error.exit_code
    if invocation.is_json:
        invocation.print_json(flow.as_json())
        return 0
    for line in _format_chart(flow):
        invocation.echo(line)
    return 0


def ensure_safe_path(invocation: Invocation, path: Path) -> Path:
    """Return *path*, which a person has named. It need not be in a project.

    Raises:
        UnsafePath: a link inside the project's folder leads to a file outside of it.
    """
    folder = Path.cwd()
    config = find_config(folder, invocation.config)
    ensure_within(folder / path, config.parent if config else folder)
    return path


def _load_chart(path: Path) -> Chart:
    text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    if path.suffix.lower() != MARKDOWN:
        return read_chart(text, file=path)
    diagnostics = Diagnostics(path)
    parts = split(text, diagnostics)
    if parts.chart is None:
        diagnostics.ensure_none()
        raise ConfigurationError("the file has no flowchart", where=str(path))
    return read_chart(parts.chart.text, file=path, first_line=parts.chart.line)


def _format_chart(chart: Chart) -> list[str]:
    lines = [f"flowchart {chart.direction}"]
    lines += [f"  node {n.id}  {n.shape or 'plain'}  {n.label!r}" for n in chart.nodes]
    for edge in chart.edges:
        label = f"  {edge.label!r}" if edge.label else ""
        kind = f"{edge.stroke} {edge.type} {edge.length}"
        lines.append(f"  edge {edge.source} -> {edge.target}  {kind}{label}")
    lines += [f"  subgraph {g.id}  {g.title!r}: {', '.join(g.nodes)}" for g in chart.subgraphs]
    return list(map(one_line, lines))


def show_flow(
    invocation: Invocation, project: Project, asked: str, draw: Mapping[str, Any]
) -> None:
    """Show the flowchart *asked* with its states in the run, in each format that *draw* names.

    Raises:
        ConfigurationError: as `flows.open_flow` does; or the extra for a drawing is missing.
    """
    flow = open_flow(project, asked)
    for warning in flow.warnings:
        invocation.notify(f"warning: {warning}")
    show_view(invocation, _read_flow_view(invocation, project, asked, flow), flow, draw)


def show_run(invocation: Invocation, run: Run, draw: Mapping[str, Any]) -> None:
    """Show the graph of *run*, including added tasks, in each format that *draw* names.

    If the flowchart's file has not changed since the run started, its author's layout is used.

    Raises:
        SequencerError: as `look` does; or the extra for a drawing is missing.
    """
    current_graph, head = None, run.head
    name = head.workflow_name if head is not None else run.workflow.name
    # Show the run even if the file is no longer readable.
    with suppress(ConfigurationError, DefinitionChanged):
        workflow = run.workflow
        current_graph = load_current_graph(invocation.project(), run, workflow)
        if current_graph and current_graph.workflow.digest() != workflow.digest():
            current_graph = None
    show_view(invocation, read_view(run, name), current_graph, draw)


def show_view(
    invocation: Invocation, view: FlowView, source: GraphFile | None, draw: Mapping[str, Any]
) -> None:
    """Show *view* in each format that *draw* names; *source* has the layout of its author."""
    if not any(draw.values()):
        if invocation.is_json:
            invocation.print_json(nodes_json(view))
        else:
            invocation.echo(node_table(view, datetime.now(UTC), terminal_width(sys.stdout)))
        return
    _ensure_no_json(invocation)
    draw_graph(invocation, view, source, draw)


def _ensure_no_json(invocation: Invocation) -> None:
    if invocation.is_json:
        raise UsageRefused("can't be used with a drawing", where="--json", hint="leave it out")


def _read_flow_view(
    invocation: Invocation, project: Project, flow_name: str, flow: GraphFile
) -> FlowView:
    """Return the flow with the states of its run, or with all nodes not started.

    Raises:
        StateRefused: the run's files can't be read. Nodes must not look as if they never started.
    """
    name = choose_run_name(
        project,
        flow_name,
        flow.workflow,
        invocation.run_name,
        means_default=invocation.means_default,
    )
    run = project.run(name)
    try:
        head = run.head
        if head is not None and head.workflow_name == flow.workflow.name:
            # A person who names a file wants to see that file, not another definition of the run.
            ensure_definition(head, run.workflow_for(head))
            return read_view(run, flow.title)
    except (DefinitionChanged, ConfigurationError) as error:
        invocation.notify(f"warning: the run's states are not shown: {error.message}")
    return build_view(flow.title, flow.graph, None, None, Story())
