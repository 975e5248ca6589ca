"""The layer for `agent.fallback`: other agents replace one that is not available."""

from __future__ import annotations

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.engine.records import drop_comment_tools
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import PUT_OFF


def fall_back(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Let other agents perform the step while its own is not available.

    If none of them is available either, the outcome is the one of the agent that is available
    again first.
    """
    if (instead := attempt.prepared.instead) is not None:
        words = _log_replacement(performer, attempt, instead)
        attempt.prepared = replace(attempt.prepared, note=words)
    first, budget = attempt.prepared, attempt.budget
    proceed(attempt)
    tries = [(attempt.outcome, first)]
    unfit = _log_unfit_fallbacks(performer, attempt) if tries[0][0].status in PUT_OFF else None
    while (last := tries[-1][0]).status in PUT_OFF:
        prepared = tries[-1][1]
        other = performer.agents.choose_fallback(prepared.step, prepared.agent, last.not_before)
        if other is None:
            soonest, of_soonest = min(tries, key=lambda attempted: attempted[0].not_before or "")
            note = "; ".join(filter(None, (of_soonest.note, unfit))) or None
            attempt.outcome = soonest.replace(usage=last.usage)
            attempt.prepared = replace(of_soonest, note=note)
            break
        name, executor = other
        why = (last.error or "its usage limit is reached").partition("\n")[0]
        note = _log_replacement(performer, attempt, f"{name} instead of {prepared.agent}: {why}")
        step = drop_comment_tools(prepared.step, executor, performer.comment_tools)
        prepared = replace(prepared, step=step, agent=name, executor=executor, note=note)
        attempt.prepared, attempt.budget = prepared, budget.subtract(last.usage)
        with attempt.use_separate_result():
            proceed(attempt)
        usage = attempt.outcome.usage.plus(last.usage)
        attempt.outcome = attempt.outcome.replace(usage=usage)
        tries.append((attempt.outcome, prepared))
    attempt.budget = budget


def _log_replacement(performer: Performer, attempt: Attempt, instead: str) -> str:
    """Write to the log of *attempt* which agent replaces another; return the note for history."""
    text = performer.redact(instead)
    attempt.listener.write(f"[fallback] {text}\n".encode(), Piece.NOTICE)
    return "; ".join(filter(None, (attempt.prepared.note, text)))


def _log_unfit_fallbacks(performer: Performer, attempt: Attempt) -> str | None:
    """Return and log which agents should replace the agent of *attempt* and can't; None: none."""
    prepared = attempt.prepared
    unfit = performer.agents.list_unfit_fallbacks(prepared.step, prepared.agent)
    texts = [performer.redact(f"{name} can't stand in: {why.message}") for name, why in unfit]
    for text in texts:
        attempt.listener.write(f"[fallback] {text}\n".encode(), Piece.NOTICE)
    return "; ".join(texts) or None
