"""The options that drawings add to commands; importing this module draws nothing."""

from __future__ import annotations

import click

from sequencer.cli.contributions import PNG, SVG, WIDTH, Contribution, Renderer

_HERE = "sequencer.plugins.drawing"
GANTT = Contribution(
    "gantt",
    f"{_HERE}.cli_gantt:report_gantt",
    takes=("gantt", "svg", "png", "width"),
    options=(
        click.option("--gantt", is_flag=True, help="Show who worked when (the default)."),
        SVG,
        PNG,
        WIDTH,
    ),
    shared=("svg", "png", "width"),
    flags=("gantt",),
)
RENDERER = Renderer(
    names=("diagram", "mermaid", "svg", "png"),
    options=(
        click.option("--diagram", is_flag=True, help="Draw a flow in the terminal."),
        click.option("--mermaid", is_flag=True, help="Draw it as a Mermaid chart."),
        SVG,
        PNG,
    ),
    graph=f"{_HERE}.draw:draw_graph",
    sequence=f"{_HERE}.draw:draw_sequence",
)
