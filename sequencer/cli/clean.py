"""`clean`: remove old step logs, ended runs and records that are no longer needed."""

from __future__ import annotations

import time

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.runs import get_run_name
from sequencer.cli.views.tables import format_table
from sequencer.cli.views.text import file_size, one_line, pluralize
from sequencer.project.cleaning import Removable, find_removable, lost_records

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
    run_name = None if invocation.run_name is None else invocation.run().name
    cutoff_s = time.time() - days * DAY_S
    items = [
        item
        for item in find_removable(invocation.project(), cutoff_s, only_logs=only_logs)
        if run_name is None or (item.run is not None and item.run.name == run_name)
    ]
    items += [] if run_name is not None or only_logs else lost_records(cutoff_s)
    removed_items = [item for item in items if yes and item.remove()]
    if invocation.is_json:
        invocation.print_json([_item_json(item, item in removed_items) for item in items])
        return
    if not items:
        invocation.echo(f"nothing is older than {pluralize(days, 'day')}")
        return
    rows = [
        (_get_item_kind(item), _format_run(item), str(item.size.files), file_size(item.size.bytes))
        for item in items
    ]
    invocation.echo(format_table(("WHAT", "RUN", "FILES", "SIZE"), rows, right={2, 3}))
    size = file_size(sum(item.size.bytes for item in (removed_items if yes else items)))
    if not yes:
        invocation.notify(f"{size} in all; add --yes to remove it")
        return
    invocation.notify(f"{size} removed")
    for item in items:
        if item not in removed_items:
            invocation.notify(
                f"notice: run {_format_run(item)} has changed in the meantime and was kept"
            )


def _get_item_kind(item: Removable) -> str:
    if item.run is None:
        return "rest of a removal" if item.folder is not None else "records of what is gone"
    return "step logs" if item.folder is None else "ended run"


def _format_run(item: Removable) -> str:
    return "" if item.run is None else one_line(get_run_name(item.run))


def _item_json(item: Removable, is_removed: bool) -> dict[str, object]:
    return {
        "what": _get_item_kind(item),
        "run": None if item.run is None else item.run.name,
        "files": item.size.files,
        "bytes": item.size.bytes,
        "removed": is_removed,
    }
