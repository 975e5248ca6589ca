"""When an attempt that is not accepted is tried again, and how long a conversation goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sequencer.model.head import Session
from sequencer.model.limits import (
    compute_pause_end,
    find_renewal_reason,
    limit_attempts,
    parse_time,
    postpone_unexplained,
)
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import ContinuedSession, Step

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
UNEXPLAINED = Outcome(status=OutcomeStatus.FAILED, error="it ended", is_unexplained=True)


def pause_s(outcome: Outcome, attempt: int, jitter: float = 0.0) -> float:
    due = parse_time(compute_pause_end(outcome, attempt, NOW, jitter))
    assert due is not None
    return (due - NOW).total_seconds()


def test_an_unexplained_failure_fails_after_retries_in_1_and_5_minutes() -> None:
    first, second, third = (postpone_unexplained(UNEXPLAINED, attempt) for attempt in (1, 2, 3))
    assert (first.status, second.status) == (OutcomeStatus.UNAVAILABLE,) * 2
    assert (pause_s(first, 1), pause_s(second, 2)) == (60, 300)
    assert 60 <= pause_s(first, 1, 0.999) < 76
    assert third.status is OutcomeStatus.FAILED


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(status=OutcomeStatus.FAILED, error="401"),
        Outcome(status=OutcomeStatus.INTERRUPTED, is_unexplained=True),
        Outcome(status=OutcomeStatus.OK, is_unexplained=True),
        Outcome(status=OutcomeStatus.LIMITED, is_unexplained=True),
    ],
)
def test_other_outcomes_are_not_postponed(outcome: Outcome) -> None:
    assert postpone_unexplained(outcome, 1) is outcome


def test_an_unexplained_failure_fails_when_no_attempt_remains() -> None:
    outcome = limit_attempts(postpone_unexplained(UNEXPLAINED, 1), 1, 1)
    assert outcome.status is OutcomeStatus.FAILED
    assert "it ended" in (outcome.error or "")


def test_a_service_that_is_down_has_its_own_pauses() -> None:
    down = Outcome(status=OutcomeStatus.UNAVAILABLE)
    assert [pause_s(down, attempt) for attempt in (1, 2, 3)] == [30, 60, 120]


def session(**more: object) -> Session:
    return Session.model_validate({"executor": "claude", "id": "s", **more})


def used(ago_s: float) -> str:
    return (NOW - timedelta(seconds=ago_s)).isoformat()


@pytest.mark.parametrize(
    ("limits", "kept", "why"),
    [
        (True, session(steps=99, context_tokens=10**6, used_at=used(10**6)), None),
        ({"max_steps": 3}, session(steps=2), None),
        ({"max_steps": 3}, session(steps=3), "the last one had 3 steps"),
        ({"max_context": 100}, session(context_tokens=100), None),
        ({"max_context": 100}, session(), None),
        ({"max_context": 1000}, session(context_tokens=1001), "has grown to 1,001 tokens"),
        ({"max_idle_s": 3600}, session(used_at=used(3600)), None),
        ({"max_idle_s": 3600}, session(), None),
        ({"max_idle_s": 3600}, session(used_at="once"), None),
        ({"max_idle_s": 3600}, session(used_at=used(3660)), "was used 1 h 1 min ago"),
        # A clock that was set back.
        ({"max_idle_s": 3600}, session(used_at=used(-9999)), None),
    ],
)
def test_a_conversation_continues_within_its_limits(
    limits: object, kept: Session, why: str | None
) -> None:
    goes_on = ContinuedSession.model_validate(limits) if isinstance(limits, dict) else True
    found = find_renewal_reason(kept, Step(name="a", continue_session=goes_on), NOW)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize("text", ["true", "True", "yes", "on"])
def test_continue_session_may_be_written_as_text(text: str) -> None:
    assert Step.model_validate({"name": "a", "continue_session": text}).continue_session is True
    written = {"max_steps": "3", "max_idle_s": "60"}
    step = Step.model_validate({"name": "a", "continue_session": written})
    assert step.continue_session == ContinuedSession(max_steps=3, max_idle_s=60)
    assert Step.model_validate(step.model_dump(mode="json")) == step


def test_a_session_written_by_an_earlier_version_is_still_read() -> None:
    assert session() == Session(executor="claude", id="s", steps=1)
