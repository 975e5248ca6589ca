"""`log`: the step logs of the run, and following the newest of them."""

from __future__ import annotations

import click

from sequencer.cli import completion
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb

DEFAULT_LOGS = 3
DEFAULT_LINES = 40


@verb("log")
@click.argument("steps", nargs=-1, metavar="[STEP]...", shell_complete=completion.steps)
@click.option("-f", "--follow", is_flag=True, help="Stay, and show what is written.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=DEFAULT_LOGS,
    show_default=True,
    metavar="N",
    help="How many logs, the newest; with -f one is shown before it follows.",
)
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=DEFAULT_LINES,
    show_default=True,
    metavar="L",
    help="Only the last L lines of each log; 0 shows all of it.",
)
@click.option("--path", is_flag=True, help="Print the paths of the logs instead.")
@pass_invocation
def log(
    invocation: Invocation,
    /,
    *,
    steps: tuple[str, ...],
    follow: bool,
    count: int,
    lines: int,
    path: bool,
) -> None:
    """Show the newest step logs, oldest of them first.

    STEP is the name of a step or the number of an iteration. -f goes on with the log that
    is being written, and with the next when a step begins; Ctrl-C ends it.

    \b
    Examples:
      sequencer log
      sequencer log -f
      sequencer log supervisor -n 1 --lines 0
      sequencer log 12 13 --path
    """
    from sequencer.cli.step_logs import Asked, follow_logs, show_logs  # noqa: PLC0415 - `--help`

    if follow and (path or invocation.is_json):
        option = "--path" if path else "--json"
        raise click.UsageError(f"-f shows what is written as it comes; it has no {option}")
    project, run = invocation.project(), invocation.run()
    asked = Asked(project, run, steps, count=count, lines=lines)
    if follow:
        follow_logs(invocation, asked)
    else:
        show_logs(invocation, asked, only_paths=path)
