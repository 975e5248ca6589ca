"""The rounds of a step that judges: "no", its fixer, and the step again.

step_index stays until the judgement is "yes". Each "no" and each fix is a record of its
own, so that a crash anywhere repeats one attempt and not the whole loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sequencer.model.head import Head, Loop
from sequencer.model.outcome import Outcome
from sequencer.model.step import Validation
from sequencer.model.transitions import Event, Place, Transition, ended

MAX_REASON_CHARS = 600
"""Of a reason in the head; the journal's record of the attempt has the whole answer."""


def round_of(head: Head) -> int:
    """Return which judgement the run of *head* is at, from 1."""
    return head.loop.round if head.loop else 1


def exhausted(head: Head) -> int:
    """Return how often all rounds of the present step have said "no" by now."""
    return head.loop.exhausted if head.loop else 0


def is_exhausted(head: Head, validation: Validation) -> bool:
    """Return whether another "no" would be the last one allowed."""
    return round_of(head) >= validation.max_attempts


def judged_no(
    head: Head,
    token: int,
    outcome: Outcome,
    place: Place,
    reason: str,
    *,
    at: str,
    record: Mapping[str, Any],
) -> Transition:
    """Record a "no"; *place* is what comes next, the fixer or the step itself.

    Raises:
        StaleClaim: see `transitions.held_claim`.
    """
    is_fix, number = place.stage == "fix", round_of(head)
    loop = Loop(
        stage="fix" if is_fix else "verify",
        round=number if is_fix else number + 1,
        reason=reason[:MAX_REASON_CHARS],
        exhausted=exhausted(head),
    )
    after = _after(head, outcome, place, loop)
    return ended(head, token, Event.INVALID, outcome.usage, at=at, record=record, **after)


def fixed(
    head: Head,
    token: int,
    outcome: Outcome,
    place: Place,
    *,
    at: str,
    record: Mapping[str, Any],
) -> Transition:
    """Accept the fixer's attempt; the step that judges, at *place*, comes again.

    Raises:
        StaleClaim: see `transitions.held_claim`.
    """
    reason = head.loop.reason if head.loop else ""
    loop = Loop(stage="verify", round=round_of(head) + 1, reason=reason, exhausted=exhausted(head))
    after = _after(head, outcome, place, loop)
    return ended(head, token, Event.FIXED, outcome.usage, at=at, record=record, steps=1, **after)


def _after(head: Head, outcome: Outcome, place: Place, loop: Loop) -> dict[str, Any]:
    """Return the fields of the head that stays at its step, and goes to *place* in *loop*."""
    return {
        "last_prompt": outcome.prompt or head.last_prompt,
        "expected_step": place.step,
        "failures_in_row": 0,
        "attempt": 0,
        "loop": loop,
    }
