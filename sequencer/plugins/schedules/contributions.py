"""The options that schedules add to commands."""

from __future__ import annotations

import click

from sequencer.cli.contributions import Contribution

ALL = Contribution(
    "all",
    "sequencer.plugins.schedules.every_run:tick_all",
    takes=("is_all", "at_most"),
    options=(
        click.option(
            "--all",
            "is_all",
            is_flag=True,
            help="The due step of any run; each has its turn before one has another.",
        ),
        click.option(
            "--at-most",
            type=click.IntRange(1, 100),
            metavar="N",
            help="With --all: at most N runs at the same time; default 1.",
        ),
    ),
    flags=("is_all",),
    needs="is_all",
)
