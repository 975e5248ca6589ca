"""`tell`: a message to a task of a team."""

from __future__ import annotations

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import one_line
from sequencer.errors import TransitionRefused


@verb("tell")
@click.argument("task")
@click.argument("text")
@pass_invocation
def tell(invocation: Invocation, task: str, text: str) -> None:
    """Send a message to a task of a team, from outside or from another task.

    It stands in the prompt of the task's next attempt. TEXT - reads it from standard input.
    A task that runs goes on without it. If it needs no other attempt, the tasks that wait
    for it read the message in its place.

    \b
    Examples:
      sequencer tell implement "The API is frozen, change the client only"
      git diff | sequencer --run big-refactoring tell verify -
    """
    from sequencer.cli.gates import decider, hidden  # noqa: PLC0415 - `--help` needs none
    from sequencer.cli.requests import said  # noqa: PLC0415
    from sequencer.model.net.marking import FlowStatus  # noqa: PLC0415

    run = invocation.run()
    head = run.head
    if head is None:
        raise TransitionRefused(
            "tell: the run was never begun, so nobody would read it",
            hint="'sequencer run' begins it; 'sequencer runs' lists the others, --run names one",
        )
    if head.flow is None:
        raise TransitionRefused(
            "tell: the run is no team's, so it has no tasks",
            hint="'sequencer runs' lists the runs, --run names one",
        )
    if head.flow.status != FlowStatus.RUNNING:
        raise TransitionRefused(f"tell: the run has ended as {head.flow.status}")
    after = run.flow.tell(task, hidden(invocation, said(text)), by=decider())
    runs = any(claim.step == task for claim in after.claims)
    if invocation.is_json:
        invocation.print_json({"task": task, "is_running": runs, "revision": after.revision})
        return
    when = "it reads it when it begins"
    if runs:
        when = (
            "it runs now and does not hear it; another attempt at it will, or else the tasks "
            "that wait for it"
        )
    invocation.say(f"told {one_line(task)}: {when}")
