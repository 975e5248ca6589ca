"""The layer for `continue_session`: it continues the conversation of the step before."""

from __future__ import annotations

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.engine.records import find_continued_session
from sequencer.model.outcome import SessionFault


def continue_conversation(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Continue the agent's conversation; if it is lost, start a new one in the same attempt."""
    session = attempt.session = find_continued_session(attempt)
    proceed(attempt)
    if session is None:
        return
    attempt.session, lost_outcome = None, attempt.outcome
    if lost_outcome.session_fault is not SessionFault.LOST or attempt.cancellation.is_set():
        attempt.outcome = lost_outcome.replace(session_steps=session.steps + 1)
        return
    # Not a failure: a lost conversation says nothing about the step.
    reason = performer.redact((lost_outcome.error or "no reason given").partition("\n")[0])
    attempt.write_notice(f"the conversation can't be continued, a new one starts: {reason}")
    budget, attempt.budget = (
        attempt.budget,
        attempt.budget.compute_rest(attempt.step, lost_outcome.usage),
    )
    with attempt.use_separate_result():
        proceed(attempt)
    attempt.budget, usage = budget, attempt.outcome.usage.plus(lost_outcome.usage)
    attempt.outcome = attempt.outcome.replace(usage=usage, session_fault=SessionFault.LOST)
