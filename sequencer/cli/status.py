"""`status`: where the run stands, once or live."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
from msgspec.structs import replace

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.nodes import Frame
from sequencer.cli.views.standing import Snapshot, take
from sequencer.cli.views.text import columns_of, one_line
from sequencer.engine.run import Run

RECHECK_S = 60.0
AGE_S = 1.0
"""How often a live view counts the seconds of a step that runs."""
END = "Ctrl-C ends this view; the run goes on"


@verb("status")
@click.option("--watch", is_flag=True, help="Stay, and show each change as it happens.")
@pass_invocation
def status(invocation: Invocation, watch: bool) -> None:
    """Show where the run stands: next step, who runs it, what was used, what is in the way.

    --watch sleeps until the run changes. On a terminal it redraws, elsewhere it prints a
    line a change, or with --json an object a change. It ends with the run: when the run is
    complete, stopped, at a limit, or has failed too often. Ctrl-C ends it as well.

    \b
    Examples:
      sequencer status
      sequencer status --json | jq .next.step
      sequencer --run nightly status --watch
    """
    run = invocation.run()
    if watch:
        _watch(invocation, run)
        return
    snapshot = next(_looks(invocation, run))
    if invocation.is_json:
        invocation.print_json(snapshot.as_json())
    else:
        invocation.echo(snapshot.text(columns_of(sys.stdout)))
    invocation.notices(snapshot.notices)


def _looks(invocation: Invocation, run: Run) -> Iterator[Snapshot]:
    """Yield again and again where *run* stands, with what its activity sinks have not taken."""
    project = invocation.project()
    logs = project.logs(run.name, lambda _: None)
    while True:
        snapshot = take(run, logs)
        if snapshot.head is not None:
            snapshot = replace(snapshot, posts=project.pending_posts(run, snapshot.head))
        yield snapshot


def _watch(invocation: Invocation, run: Run) -> None:
    is_live = (
        not invocation.is_json
        and sys.stdout is not None
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
    )
    try:
        if is_live:
            _watch_live(invocation, run)
        else:
            _watch_lines(invocation, run)
    except KeyboardInterrupt:
        # To look on until Ctrl-C is what was asked for.
        return


def _watch_lines(invocation: Invocation, run: Run) -> None:
    """Print a line for every change; a change back within a millisecond may be missed."""
    shown: Any = None

    def show(snapshot: Snapshot) -> None:
        nonlocal shown
        facts = snapshot.as_json()
        if facts == shown:
            return
        shown = facts
        if invocation.is_json:
            invocation.print_json(facts)
        else:
            invocation.echo(snapshot.line())
        invocation.notices(snapshot.notices)

    _follow(invocation, run, show, lambda _: RECHECK_S)


def _watch_live(invocation: Invocation, run: Run) -> None:
    from datetime import UTC, datetime  # noqa: PLC0415 - only where there is a terminal

    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    frame = Frame(sys.stdout)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(snapshot: Snapshot) -> None:
            console.size = frame.measure()
            frame.erase_astray()
            above = [*snapshot.lines(), *(f"notice: {one_line(n)}" for n in snapshot.notices)]
            text = frame.drawn(
                snapshot.graph_view,
                snapshot.heard,
                datetime.now(UTC),
                above=[(line, "") for line in above],
                below=[(END, "dim")],
            )
            live.update(text, refresh=True)

        _follow(invocation, run, show, lambda snapshot: AGE_S if snapshot.busy else RECHECK_S)


def _follow(
    invocation: Invocation,
    run: Run,
    show: Callable[[Snapshot], None],
    pause_s: Callable[[Snapshot], float],
) -> None:
    """Show the run now and after every change, until nothing starts without a person."""
    for snapshot in _looks(invocation, run):
        show(snapshot)
        if (end := snapshot.end) is not None:
            invocation.say(f"nothing more will start by itself: {end}")
            return
        head = snapshot.head
        claim = head.claims[0] if head is not None and head.claims else None
        revision = head.revision if head is not None else 0
        # A holder that is gone wakes at once, again and again; only a live one is waited on.
        run.store.wait(revision, pause_s(snapshot), claim=claim if snapshot.busy else None)
