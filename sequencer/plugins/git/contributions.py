"""The options that git adds to commands; importing this runs no git."""

from __future__ import annotations

import click

from sequencer.cli.contributions import Contribution

COMMIT = Contribution(
    "commit",
    "sequencer.plugins.git.cli_commit:plan_commit",
    takes=("commit",),
    options=(click.option("--commit", is_flag=True, help="Show what a step would commit now."),),
    flags=("commit",),
)
