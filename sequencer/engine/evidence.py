"""What the facts of an attempt are worth: the one place that judges them, for all executors."""

from __future__ import annotations

from sequencer.model.evidence import Evidence, TurnEnd
from sequencer.model.outcome import Outcome, OutcomeStatus


def judge_turn(outcome: Outcome) -> Outcome:
    """Return *outcome*, failed if its agent's last turn did not end by itself.

    A turn that ended for an unknown reason counts if it has said something and left no tool
    call open. What an executor knows to do about it is in the ``error`` of its outcome.
    """
    shown = outcome.evidence
    if shown is None or not outcome.is_accepted or not _is_cut_off(shown):
        return outcome
    reason = f"its client says {shown.reason!r}" if shown.reason else "its client gives no reason"
    if shown.open_calls:
        calls = "1 tool call" if shown.open_calls == 1 else f"{shown.open_calls} tool calls"
        reason += f", and {calls} got no result"
    if outcome.denials:
        reason += f"; a tool call was refused before: {outcome.denials[-1]}"
    advice = outcome.error or "try again, or make the step smaller"
    error = f"the agent's turn was cut off: {reason}\n{advice}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error)


def _is_cut_off(shown: Evidence) -> bool:
    if shown.turn_end is TurnEnd.UNKNOWN:
        return bool(shown.open_calls) or not shown.has_text
    return shown.turn_end is TurnEnd.CUT_OFF
