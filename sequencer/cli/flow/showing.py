"""`show` for flowcharts: the nodes as a run has them, drawings, and what a chart says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sequencer.assembly.flows import open_flow, run_name_of
from sequencer.cli.context import Invocation
from sequencer.cli.flow import table
from sequencer.cli.views.looking import look
from sequencer.cli.views.text import columns_of
from sequencer.documents.file import read_bytes
from sequencer.documents.reader import decode
from sequencer.engine.flow.view import FlowView, view_of
from sequencer.engine.run import Run
from sequencer.errors import ConfigurationError, DefinitionChanged, UsageRefused
from sequencer.project import Project
from sequencer.workflows.flowfile.markdown import MAX_CHARS, split
from sequencer.workflows.flowfile.problems import Findings
from sequencer.workflows.flowfile.reader import FlowFile
from sequencer.workflows.mermaid.chart import Chart
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError
from sequencer.workflows.teams.lists import TaskList

MARKDOWN = ".md"


def show_chart(
    invocation: Invocation, path: Path, name: str | None, draw: Mapping[str, Any]
) -> int:
    """Print what the chart in *path* says, whether it could be run or not.

    Raises:
        ChartError: it is no flowchart, and nobody asked for JSON.
        UsageRefused: something else was asked for besides.
    """
    if name is not None or any(draw.values()):
        raise UsageRefused("shows what one file says, and draws nothing", where="--chart")
    try:
        chart = _chart(invocation.own_file(path))
    except ChartError as error:
        if not invocation.is_json:
            raise
        invocation.print_json({"invalid": True, "error": str(error)})
        return error.exit_code
    if invocation.is_json:
        invocation.print_json(chart.as_json())
        return 0
    for line in _words(chart):
        invocation.echo(line)
    return 0


def _chart(path: Path) -> Chart:
    text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    if path.suffix.lower() != MARKDOWN:
        return read_chart(text, file=path)
    findings = Findings(path)
    parts = split(text, findings)
    if parts.chart is None:
        findings.ensure_none()
        raise ConfigurationError("there is no flowchart in it", where=str(path))
    return read_chart(parts.chart.text, file=path, first_line=parts.chart.line)


def _words(chart: Chart) -> list[str]:
    from sequencer.cli.views.text import one_line  # noqa: PLC0415 - a few lines only

    lines = [f"flowchart {chart.direction}"]
    lines += [f"  node {n.id}  {n.shape or 'plain'}  {n.label!r}" for n in chart.nodes]
    for edge in chart.edges:
        label = f"  {edge.label!r}" if edge.label else ""
        kind = f"{edge.stroke} {edge.type} {edge.length}"
        lines.append(f"  edge {edge.source} -> {edge.target}  {kind}{label}")
    groups = chart.subgraphs
    lines += [f"  subgraph {one.id}  {one.title!r}: {', '.join(one.nodes)}" for one in groups]
    return list(map(one_line, lines))


def show_flow(
    invocation: Invocation, project: Project, asked: str, draw: Mapping[str, Any]
) -> None:
    """Show the flowchart *asked* as its run has it, in each way that was asked for.

    Raises:
        ConfigurationError: see `flows.open_flow`; or a drawing's extra is missing.
    """
    flow = open_flow(project, asked)
    for warning in flow.warnings:
        invocation.say(f"warning: {warning}")
    _present(invocation, _view(invocation, project, asked, flow), flow.mermaid, draw)


def show_run(invocation: Invocation, run: Run, draw: Mapping[str, Any]) -> None:
    """Show the graph that *run* has, with what was added to it, in each way that was asked for.

    Raises:
        SequencerError: see `look`; or a drawing's extra is missing.
    """
    title = run.workflow_for(run.head).name
    _present(invocation, look(run, title), None, draw)


def _present(
    invocation: Invocation, view: FlowView, mermaid: str | None, draw: Mapping[str, Any]
) -> None:
    if not any(draw.values()):
        if invocation.is_json:
            invocation.print_json(table.as_json(view))
        else:
            invocation.echo(table.table(view, datetime.now(UTC), columns_of(sys.stdout)))
        return
    if invocation.is_json:
        raise UsageRefused("a drawing is no JSON", where="--json", hint="leave it out")
    _draw(invocation, mermaid, view, draw)


def _view(
    invocation: Invocation, project: Project, asked: str, flow: FlowFile | TaskList
) -> FlowView:
    """Return the flow with the states of its run, or as it was never begun.

    Raises:
        StateRefused: the run's files can't be read; nodes must not look as if never begun.
    """
    name = run_name_of(project, asked, flow.workflow, invocation.run_name)
    run = project.run(name)
    try:
        head = run.head
        if head is not None and head.workflow_name == flow.workflow.name:
            return look(run, flow.title)
    except (DefinitionChanged, ConfigurationError) as error:
        invocation.say(f"warning: the run's states are not shown: {error.message}")
    return view_of(flow.title, flow.graph, None, None, ())


def _draw(
    invocation: Invocation, mermaid: str | None, view: FlowView, draw: Mapping[str, Any]
) -> None:
    if draw["mermaid"]:
        from sequencer.cli.views.mermaid import charted, classed  # noqa: PLC0415 - as the others

        drawn = charted(view) if mermaid is None else classed(mermaid, view)
        invocation.echo(drawn.rstrip(), is_verbatim=True)
    if draw["diagram"]:
        from sequencer.cli.views.diagram import print_diagram  # noqa: PLC0415

        print_diagram(view, sys.stdout)
    for option in ("svg", "png"):
        path: Path | None = draw[option]
        if path is not None:
            from sequencer.cli.flow import picture  # noqa: PLC0415
            from sequencer.cli.svg import save  # noqa: PLC0415

            data = picture.svg(view).encode() if option == "svg" else picture.png(view)
            save(path, data)
            invocation.say(f"{path} was written")
