"""The layer for `agent.fallback`: other agents replace one that is unavailable."""

from __future__ import annotations

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.engine.records import drop_comment_tools
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import PUT_OFF


def fall_back(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Let other agents perform the step while its own is unavailable.

    If all of them are unavailable too, the outcome is from the agent that will be available
    first.
    """
    if (replacement := attempt.prepared.instead) is not None:
        words = _log_replacement(performer, attempt, replacement)
        attempt.prepared = replace(attempt.prepared, note=words)
    first_step, budget = attempt.prepared, attempt.budget
    proceed(attempt)
    tries = [(attempt.outcome, first_step)]
    unfit_note = _log_unfit_fallbacks(performer, attempt) if tries[0][0].status in PUT_OFF else None
    while (last_outcome := tries[-1][0]).status in PUT_OFF:
        prepared_step = tries[-1][1]
        choice = performer.agents.choose_fallback(
            prepared_step.step, prepared_step.agent, last_outcome.not_before
        )
        if choice is None:
            soonest_outcome, soonest_step = min(
                tries, key=lambda attempt_pair: attempt_pair[0].not_before or ""
            )
            note = "; ".join(filter(None, (soonest_step.note, unfit_note))) or None
            attempt.outcome = soonest_outcome.replace(usage=last_outcome.usage)
            attempt.prepared = replace(soonest_step, note=note)
            break
        name, executor = choice
        reason = (last_outcome.error or "its usage limit is reached").partition("\n")[0]
        note = _log_replacement(
            performer, attempt, f"{name} instead of {prepared_step.agent}: {reason}"
        )
        step = drop_comment_tools(prepared_step.step, executor, performer.comment_tools)
        prepared_step = replace(prepared_step, step=step, agent=name, executor=executor, note=note)
        attempt.prepared, attempt.budget = prepared_step, budget.subtract(last_outcome.usage)
        with attempt.use_separate_result():
            proceed(attempt)
        usage = attempt.outcome.usage.plus(last_outcome.usage)
        attempt.outcome = attempt.outcome.replace(usage=usage)
        tries.append((attempt.outcome, prepared_step))
    attempt.budget = budget


def _log_replacement(performer: Performer, attempt: Attempt, replacement: str) -> str:
    """Write to the log of *attempt* which agent replaces another; return the note for history."""
    text = performer.redact(replacement)
    attempt.listener.write(f"[fallback] {text}\n".encode(), Piece.NOTICE)
    return "; ".join(filter(None, (attempt.prepared.note, text)))


def _log_unfit_fallbacks(performer: Performer, attempt: Attempt) -> str | None:
    """Log and return which fallbacks of the agent of *attempt* can't be used; None: none."""
    prepared_step = attempt.prepared
    objections = performer.agents.list_unfit_fallbacks(prepared_step.step, prepared_step.agent)
    texts = [
        performer.redact(f"{name} can't stand in: {objection.message}")
        for name, objection in objections
    ]
    for text in texts:
        attempt.listener.write(f"[fallback] {text}\n".encode(), Piece.NOTICE)
    return "; ".join(texts) or None
