"""The options that the web plug-in adds to commands; importing this loads no server."""

from __future__ import annotations

import click

from sequencer.cli.contributions import PNG, SVG, Contribution
from sequencer.cli.options import NewFile

PAGE = Contribution(
    "page",
    "sequencer.plugins.web.cli_report:report_page",
    takes=("html", "svg", "png"),
    options=(
        click.option("--html", type=NewFile(), metavar="FILE", help="Write a page into FILE."),
        SVG,
        PNG,
    ),
)
