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
from sequencer.model.transitions import (
    Event,
    Fact,
    Place,
    Transition,
    at_rest,
    changed,
    held_claim,
    without_claim,
)

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
    number = round_of(head)
    is_fix = place.stage == "fix"
    following = number if is_fix else number + 1
    loop = Loop(
        stage="fix" if is_fix else "verify",
        round=following,
        reason=reason[:MAX_REASON_CHARS],
        exhausted=exhausted(head),
    )
    return _stays(
        head, token, Event.INVALID, outcome, place=place, loop=loop, at=at, record=record, steps=0
    )


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
    return _stays(
        head, token, Event.FIXED, outcome, place=place, loop=loop, at=at, record=record, steps=1
    )


def again(
    head: Head,
    token: int,
    outcome: Outcome,
    *,
    at: str,
    record: Mapping[str, Any],
) -> Transition:
    """Record an attempt that was not accepted and not failed either; the step comes again.

    The attempts are counted on, which is what bounds them.

    Raises:
        StaleClaim: see `transitions.held_claim`.
    """
    held = held_claim(head, token)
    new = changed(
        head,
        at,
        claims=without_claim(head, token),
        usage=head.usage.plus(outcome.usage, steps=0),
    )
    fact = Fact(Event.INVALID, held.step, held.step_index, token, held.attempt, outcome=record)
    return Transition(at_rest(new), (fact,))


def _stays(
    head: Head,
    token: int,
    event: Event,
    outcome: Outcome,
    *,
    place: Place,
    loop: Loop,
    at: str,
    record: Mapping[str, Any],
    steps: int,
) -> Transition:
    held = held_claim(head, token)
    new = changed(
        head,
        at,
        claims=without_claim(head, token),
        usage=head.usage.plus(outcome.usage, steps=steps),
        last_prompt=outcome.prompt or head.last_prompt,
        expected_step=place.step,
        failures_in_row=0,
        attempt=0,
        loop=loop,
    )
    fact = Fact(event, held.step, held.step_index, token, held.attempt, outcome=record)
    return Transition(at_rest(new), (fact,))
