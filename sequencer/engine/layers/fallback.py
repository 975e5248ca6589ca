"""Other agents, while one can't be had (`agent.fallback`)."""

from __future__ import annotations

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.engine.records import without_comments
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import PUT_OFF


def fall_back(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Let other agents perform the step while its own can't be had.

    Where none of them can be had either, the outcome is of the one that can be soonest.
    """
    if (instead := attempt.prepared.instead) is not None:
        attempt.prepared = replace(attempt.prepared, note=_told(performer, attempt, instead))
    first, budget = attempt.prepared, attempt.budget
    proceed(attempt)
    ended = [(attempt.outcome, first)]
    unfit = _unfit(performer, attempt) if ended[0][0].status in PUT_OFF else None
    while (last := ended[-1][0]).status in PUT_OFF:
        now = ended[-1][1]
        other = performer.agents.instead(now.step, now.agent, last.not_before)
        if other is None:
            soonest, of = min(ended, key=lambda each: each[0].not_before or "")
            note = "; ".join(filter(None, (of.note, unfit))) or None
            attempt.outcome = soonest.replace(usage=last.usage)
            attempt.prepared = replace(of, note=note)
            break
        why = (last.error or "its usage limit is reached").partition("\n")[0]
        note = _told(performer, attempt, f"{other[0]} instead of {now.agent}: {why}")
        step = without_comments(now.step, other[1], performer.comment_tools)
        now = replace(now, step=step, agent=other[0], executor=other[1], note=note)
        attempt.prepared, attempt.budget = now, budget.after(last.usage)
        with attempt.with_own_result():
            proceed(attempt)
        usage = attempt.outcome.usage.plus(last.usage)
        attempt.outcome = attempt.outcome.replace(usage=usage)
        ended.append((attempt.outcome, now))
    attempt.budget = budget


def _told(performer: Performer, attempt: Attempt, instead: str) -> str:
    """Tell the log of *attempt* who performs it *instead*; return all that history tells of it."""
    text = performer.redact(instead)
    attempt.listener.write(f"[fallback] {text}\n".encode(), Piece.NOTICE)
    return "; ".join(filter(None, (attempt.prepared.note, text)))


def _unfit(performer: Performer, attempt: Attempt) -> str | None:
    """Return who is to stand in for the agent of *attempt* and can't, and tell the log."""
    prepared = attempt.prepared
    unfit = performer.agents.unfit(prepared.step, prepared.agent)
    told = [performer.redact(f"{name} can't stand in: {why.message}") for name, why in unfit]
    for text in told:
        attempt.listener.write(f"[fallback] {text}\n".encode(), Piece.NOTICE)
    return "; ".join(told) or None
