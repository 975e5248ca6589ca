"""Verbs that hold a run and let it go on; none of them ends the step that runs."""

from __future__ import annotations

import click

from sequencer.cli.change import tell
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb


@verb("stop")
@click.option("--reason", metavar="TEXT", help="Kept in the state and shown to everybody.")
@pass_invocation
def stop(invocation: Invocation, reason: str | None) -> None:
    """End the run after the step that runs; every process that waits ends too.

    An agent or a person can do the same with "exit": true in state.json.

    \b
    Examples:
      sequencer stop --reason "release is out"
      sequencer resume                  undoes it
    """
    run = invocation.run()
    head = run.control.stop(reason)
    after = "; the step that runs is the last" if head.claims else ""
    tell(invocation, run, head, f"the run is stopped{after}")


@verb("pause")
@pass_invocation
def pause(invocation: Invocation) -> None:
    """Hold the run after the step that runs; processes that wait go on waiting.

    \b
    Examples:
      sequencer pause
      sequencer resume                  lets it go on
    """
    run = invocation.run()
    head = run.control.pause()
    after = " when the step that runs has ended" if head.claims else ""
    tell(invocation, run, head, f"the run is paused{after}")


@verb("resume")
@pass_invocation
def resume(invocation: Invocation) -> None:
    """Let a run go on that was paused or stopped.

    \b
    Example:
      sequencer resume && sequencer run
    """
    run = invocation.run()
    head = run.control.resume()
    tell(invocation, run, head, "the run goes on")
