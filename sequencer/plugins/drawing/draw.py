"""Draws a workflow for the command line, in each requested form."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sequencer.cli.context import Invocation
from sequencer.errors import UsageRefused
from sequencer.history.view import FlowView
from sequencer.model.workflow import Workflow
from sequencer.plugins.drawing.diagram import print_diagram
from sequencer.plugins.drawing.mermaid import (
    add_state_classes,
    format_view_chart,
    format_workflow_chart,
)
from sequencer.plugins.drawing.pictures import flow_svg, write_picture
from sequencer.workflows.finding import GraphFile


def draw_graph(
    invocation: Invocation, view: FlowView, source: GraphFile | None, given: Mapping[str, Any]
) -> None:
    """Draw *view*; *source* is what its author drew."""
    chart = None if source is None else source.chart
    if given["mermaid"]:
        text = (
            add_state_classes(source.mermaid, view)
            if source and source.chart
            else format_view_chart(view)
        )
        invocation.echo(text.rstrip(), is_verbatim=True)
    if given["diagram"]:
        print_diagram(view, sys.stdout, chart)
    if given["svg"] or given["png"]:
        write_picture(invocation, flow_svg(view, chart), given["svg"], given["png"])


def draw_sequence(
    invocation: Invocation, workflow: Workflow, given: Mapping[str, Any], hint: str
) -> None:
    """Draw *workflow*, whose steps follow each other, as a chart.

    Raises:
        UsageRefused: the requested drawing needs a graph; *hint* says what to do.
    """
    for name in ("diagram", "svg", "png"):
        if given[name]:
            raise UsageRefused(
                "works only with a flowchart or a team", where=f"--{name}", hint=hint
            )
    invocation.echo(format_workflow_chart(workflow), is_verbatim=True)
