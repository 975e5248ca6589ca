"""`clean`: frees the disk of what is no longer needed."""

from __future__ import annotations

import time

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.runs import name_of
from sequencer.cli.views.tables import columns
from sequencer.cli.views.text import file_size, one_line, plural
from sequencer.project.cleaning import Unneeded, lost_records, unneeded

DAY_S = 24 * 60 * 60
DAYS = 30


@verb("clean")
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(min=0),
    metavar="DAYS",
    default=DAYS,
    show_default=True,
    help="Only what last changed at least this many days ago.",
)
@click.option(
    "--logs", "only_logs", is_flag=True, help="Remove only step logs, and keep every run."
)
@click.option("--yes", is_flag=True, help="Remove them; without --yes, they are only shown.")
@pass_invocation
def clean(invocation: Invocation, *, days: int, only_logs: bool, yes: bool) -> None:
    """Show which old step logs and ended runs can go; --yes removes them.

    A named run goes when it is complete, its results are posted and it has neither worktrees
    nor a schedule; its history and costs go with it. A run that may continue loses only old
    logs, never the newest 100. Your own records about runs and projects that are gone go, too.
    With --run, only that run is cleaned.

    \b
    Examples:
      sequencer clean
      sequencer clean --older-than 7 --logs --yes
    """  # fmt: skip
    meant = None if invocation.run_name is None else invocation.run().name
    before = time.time() - days * DAY_S
    found = [
        one
        for one in unneeded(invocation.project(), before, only_logs=only_logs)
        if meant is None or (one.run is not None and one.run.name == meant)
    ]
    found += [] if meant is not None or only_logs else lost_records(before)
    gone = [one for one in found if yes and one.remove()]
    if invocation.is_json:
        invocation.print_json([_fact(one, one in gone) for one in found])
        return
    if not found:
        invocation.echo(f"nothing is older than {plural(days, 'day')}")
        return
    rows = [(_what(one), _whose(one), str(one.size.files), file_size(one.size.bytes))
            for one in found]  # fmt: skip
    invocation.echo(columns(("WHAT", "RUN", "FILES", "SIZE"), rows, right={2, 3}))
    size = file_size(sum(one.size.bytes for one in (gone if yes else found)))
    if not yes:
        invocation.say(f"{size} in all; add --yes to remove it")
        return
    invocation.say(f"{size} removed")
    for one in found:
        if one not in gone:
            invocation.say(f"notice: run {_whose(one)} has changed in the meantime and was kept")


def _what(one: Unneeded) -> str:
    if one.run is None:
        return "rest of a removal" if one.folder is not None else "records of what is gone"
    return "step logs" if one.folder is None else "ended run"


def _whose(one: Unneeded) -> str:
    return "" if one.run is None else one_line(name_of(one.run))


def _fact(one: Unneeded, is_gone: bool) -> dict[str, object]:
    return {
        "what": _what(one),
        "run": None if one.run is None else one.run.name,
        "files": one.size.files,
        "bytes": one.size.bytes,
        "removed": is_gone,
    }
