"""The options that requests add to commands."""

from __future__ import annotations

import click

from sequencer.cli.contributions import Contribution
from sequencer.plugins.requests.cli_requests import REQUEST

REQUESTED = Contribution(
    "request",
    "sequencer.plugins.requests.cli_start:plan_request",
    takes=(
        "text", "file", "labels", "comments", "attachments", "procedure", "agent", "team",
        "team_size", "diagram", "mermaid",
    ),
    options=(
        click.option(
            "--request",
            "text",
            metavar="TEXT",
            help="Show what 'start' would do with this request and why; - is standard input.",
        ),
        REQUEST,
    ),
    shared=("diagram", "mermaid"),
)  # fmt: skip
