"""What a timer reports to a person about a tick.

`cli.unattended` decides when the report is sent.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from sequencer.cli.context import Invocation, hide_secrets
from sequencer.cli.unattended import DECISION, HOUR_S, TickNotice, make_news
from sequencer.cli.views.runs import Need, find_need
from sequencer.cli.views.text import age_s, one_line
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.run import Run
from sequencer.errors import (
    ClaimHeld,
    SequencerError,
    StepFailed,
    TooManyFailures,
    WaitsForPerson,
    format_command,
)
from sequencer.model.head import Head, Status
from sequencer.model.kind import ReadinessKind
from sequencer.project.agents import find_unlimited_clients


def announce_left_out(invocation: Invocation, text: str) -> None:
    """Say *text* about a scheduled date that started nothing; the next tick does not repeat it."""
    invocation.announce(f"notice: {text}", key=f"date of {invocation.run_name}: {text}")


def need_or_none(run: Run, head: Head | None) -> Need | None:
    """Return what keeps *run* from continuing by itself; None: nothing, or it can't be read."""
    with suppress(SequencerError):
        return None if head is None else find_need(run, head)
    return None


def news_at_end(
    invocation: Invocation, mode: Mode, summary: Summary, need: Need | None
) -> TickNotice:
    """Return the news about a tick that did not fail."""
    head = summary.head
    if mode is not Mode.TICK or head is None:
        return TickNotice()
    is_done = head.status is Status.COMPLETE
    if summary.obstacle is not None:
        invocation.obstacle, invocation.run_id = summary.obstacle, head.run_id
    news = _news_about(invocation, need)
    has_moved = is_done or bool(summary.usage.steps)
    waits = need is None or need.kind is ReadinessKind.NOT_YET
    return news._replace(has_moved=has_moved, is_waiting=waits and not has_moved)


def _news_about(invocation: Invocation, need: Need | None, prefix: str = "") -> TickNotice:
    """Return what a timer reports about *need*; empty for None."""
    if need is None:
        return TickNotice()
    return make_news(
        need, invocation.add_run_context(f"{prefix}{hide_secrets(need.text)}", need.format_lines())
    )


def explain(invocation: Invocation, run: Run, head: Head | None, error: SequencerError) -> None:
    """Set the news to what *error* means for a person: often that the next tick tries again."""
    if head is not None and isinstance(error, ClaimHeld):
        explain_held(invocation, run, head, error)
    if head is None or type(error) not in (StepFailed, TooManyFailures, WaitsForPerson):
        return
    need = need_or_none(run, head)
    if need is None and type(error) is not StepFailed:
        return
    if need is not None and not run.kind.has_one_place:
        # For a graph, the message of the error names the node.
        need = replace(need, text=one_line(error.message.partition("\n")[0]))
    prefix = "waiting: " if isinstance(error, WaitsForPerson) else "error: "
    invocation.news, invocation.explained = _news_about(invocation, need, prefix), error


def explain_held(invocation: Invocation, run: Run, head: Head, error: ClaimHeld) -> None:
    """Set the news if a step of *run* is held by an agent that no time limit ends.

    The step may be meant to take a long time, so it is reported only after an hour.
    """
    project = invocation.project()
    with suppress(SequencerError):
        unlimited_clients = find_unlimited_clients(
            project.settings, project.agents, run.workflow_for(head)
        )
        names = {name for steps in unlimited_clients.values() for name in steps}
        for claim in head.claims:
            if claim.step in names and (age_s(claim.claimed_at) or 0.0) > HOUR_S:
                text = f"step {claim.step!r} has been at work since {claim.claimed_at}, and no "
                text += "time limit ends it"
                watch, end = (
                    format_command(run.name, "log -f"),
                    format_command(run.name, "stop --now"),
                )
                commands = [
                    f"to do: {watch} shows what it does, and {end} ends it",
                    "set for example step_defaults: {timeout_s: 7200, idle_timeout_s: 900}",
                ]
                key = f"held {head.run_id} {claim.token}"
                invocation.news = TickNotice(
                    invocation.add_run_context(hide_secrets(text), commands), key, DECISION
                )
                invocation.explained = error
