"""`tick`: run the step that is due, for cron and timers."""

from __future__ import annotations

from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.contributions import (
    collect_options,
    contribution_arguments,
    contributions_to,
    find_contribution,
    select_own_options,
)
from sequencer.cli.options import pass_invocation, verb, with_options
from sequencer.cli.run import OPTIONS, perform
from sequencer.cli.unattended import OPTION

_LOG = click.option(
    OPTION,
    # `unattended.find_log_path` has already read it from the arguments.
    expose_value=False,
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="For timers: write all messages to PATH, with the time; print only what changed for you.",
)


@verb(
    "tick",
    has_secrets=True,
    first=("--all", "--position", "--max-cost", "--agent", "--log"),
    **contribution_arguments("tick"),
)
@with_options(*collect_options(contributions_to("tick")))
@OPTIONS
@_LOG
@pass_invocation
def tick(invocation: Invocation, /, **given: Any) -> int:
    """Run the step that is due, if any, and never wait: for cron and systemd timers.

    Exit code 0 also means that nothing was due; 75 means that another process runs the step.
    'sequencer schedule install' installs a timer that calls this.

    With --all the runs wait in a line: scheduled runs that are due, then requests, then cycles.
    In each round, every run that can move does one step; 'status --all' shows the line.

    \b
    Examples:
      sequencer tick
      sequencer tick --quiet --max-cost 2
      sequencer --run nightly tick --json
      sequencer tick --all --at-most 2
    """
    if (contribution := find_contribution("tick", given)) is not None:
        return contribution(invocation, given) or 0
    return perform(invocation, is_tick=True, **select_own_options("tick", given))
