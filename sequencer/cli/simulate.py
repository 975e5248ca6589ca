"""`plan --simulate`: show what a flow would do, on a virtual clock and without an agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sequencer.cli.context import Invocation
from sequencer.cli.options import read_text
from sequencer.cli.run_work import count_agent_slots
from sequencer.cli.show import ensure_safe_path
from sequencer.cli.views.text import one_line
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.model.workflow import Workflow
from sequencer.project.flows import find_flow_file
from sequencer.project.task_graphs import TASK_GRAPHS
from sequencer.workflows.finding import GraphFile, find_format, read_markdown_text
from sequencer.workflows.flowfile.problems import FlowErrors, FlowProblem
from sequencer.workflows.flowfile.reader import load_flow
from sequencer.workflows.simulate import Replay, Script, apply_overrides, read_script
from sequencer.workflows.simulate import simulate as replay

INVALID = "invalid"


def plan_simulate(invocation: Invocation, name: str | None, script: Path | None) -> int:
    """Show what the flow *name* would do: every start, end, loop and failure, with its time.

    *name* is a workflow file, a task list, or a Mermaid chart (.mmd). Without it, the graph of the
    selected run is used.
    """
    answers = _load_script(script)
    path = _find_flow_file(invocation, name) if name else None
    try:
        flow = _load_flow(invocation, name, path, answers)
    except ConfigurationError as error:
        if path is None or not _is_about(error, path):
            raise
        return _report_invalid(invocation, error)
    warnings, replay_result = _replay(invocation, flow, answers)
    for warning in warnings:
        invocation.notify(f"warning: {warning}")
    if invocation.is_json:
        names = ("status", "trace", "state", "back", "iterations")
        invocation.print_json({name: getattr(replay_result, name) for name in names})
        return 0
    for line in replay_result.trace:
        invocation.echo(one_line(line))
    invocation.notify(f"{replay_result.status} after {len(replay_result.trace)} events")
    return 0


def _load_script(path: Path | None) -> Script:
    if path is None:
        return read_script({}, "--script")
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"is not JSON: {error}", where=str(path)) from None
    return read_script(content, str(path))


def _find_flow_file(invocation: Invocation, name: str) -> Path | None:
    """Return the file of the flow *name*; None: it is a task list in the configuration."""
    # A flowchart that exists as a file need not be in a project.
    path = Path(name)
    if path.is_file():
        return ensure_safe_path(invocation, path)
    project = invocation.project()
    return None if name in project.settings.registry.lists else find_flow_file(project, name)


def _load_flow(
    invocation: Invocation, name: str | None, path: Path | None, answers: Script
) -> GraphFile | Workflow:
    """Return the flow *name*, read from the file *path* if it has one.

    Raises:
        ConfigurationError: the flow can't be run.
    """
    if name is None:
        return _load_run_workflow(invocation)
    if path is None:
        return invocation.project().settings.registry.lists[name]
    if (file_format := find_format(path, page := read_markdown_text(path))) is not None:
        return file_format.load(path, invocation.project().settings.section, text=page)
    return load_flow(path, overrides=answers.overrides, text=page)


def _replay(
    invocation: Invocation, flow: GraphFile | Workflow, answers: Script
) -> tuple[Sequence[ConfigurationError], Replay]:
    """Return the warnings about *flow*, and its replay.

    Raises:
        ConfigurationError: the script does not fit the flow.
    """
    if isinstance(flow, Workflow):
        return (), _replay_workflow(invocation, flow, answers)
    if flow.workflow.tasks:
        return flow.warnings, _replay_workflow(invocation, flow.workflow, answers)
    answers.check(flow.graph)
    return flow.warnings, replay(flow.workflow, answers.parts)


def _load_run_workflow(invocation: Invocation) -> Workflow:
    """Return the workflow of the selected run, including the tasks that were added to it.

    Raises:
        UsageRefused: the workflow is not a graph.
    """
    run = invocation.run()
    head = run.head
    workflow = run.workflow_for(head)
    if not workflow.nodes:
        raise UsageRefused(
            f"the run's workflow {workflow.name!r} is neither a flowchart nor a team",
            hint="name a flow; 'sequencer plan' shows what a cycle or a procedure does",
        )
    return workflow if head is None else run.kind.get_workflow(head)


def _replay_workflow(invocation: Invocation, workflow: Workflow, answers: Script) -> Replay:
    """Apply the overrides of the script to *workflow*, which is a team's or a run's; replay it."""
    project = invocation.project()
    settings = project.settings
    definition = apply_overrides(
        workflow, answers.overrides, answers.where, count_agent_slots(project, workflow)
    )
    expander = TASK_GRAPHS.require().expander(settings) if workflow.tasks else None
    result = replay(definition, answers.parts, expander)
    if result.graph:
        # Checked after the replay, because the script may also answer for added tasks.
        answers.check(result.graph)
    return result


def _is_about(error: ConfigurationError, path: Path) -> bool:
    """Return whether *error* is about the flow in the file *path*."""
    is_in_file = all((part.where or "").startswith(str(path)) for part in error.each)
    return isinstance(error, (FlowErrors, FlowProblem)) or is_in_file


def _report_invalid(invocation: Invocation, error: ConfigurationError) -> int:
    if not invocation.is_json:
        raise error
    trace = [f"load error: {problem.message}" for problem in error.each]
    facts = {"status": INVALID, "trace": trace, "state": {}, "back": []}
    invocation.print_json({**facts, "problems": list(map(str, error.each))})
    return error.exit_code
