from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from sequencer.model.due import (
    DEFAULT_PAUSE_S,
    JITTER_S,
    SHORTEST_PAUSE_S,
    bounded,
    limit_end,
    outage_end,
    retry_at,
)
from sequencer.model.head import Status
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.standing import Readiness, parse_time, standing
from sequencer.model.step import Retry, Step
from tests.contract.store_cases import WORKFLOW, make_claim, new_head

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = RunLimits(max_steps=10)
LATER, EARLIER = "2026-01-01T00:00:01Z", "2025-12-31T23:59:59Z"


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        ({}, Readiness.READY),
        ({"status": Status.FAILED, "failures_in_row": 1}, Readiness.READY),
        ({"status": Status.RUNNING}, Readiness.READY),
        ({"claims": (make_claim(),)}, Readiness.HELD),
        ({"claims": (make_claim(),), "exit": True}, Readiness.HELD),
        ({"exit": True}, Readiness.STOPPED),
        ({"status": Status.PAUSED}, Readiness.PAUSED),
        ({"pause_requested": True}, Readiness.PAUSED),
        ({"status": Status.WAITING_APPROVAL}, Readiness.PERSON),
        ({"usage": Usage(steps=10)}, Readiness.LIMIT),
        ({"failures_in_row": 3}, Readiness.REFUSED),
        ({"attempt": 20}, Readiness.REFUSED),
        ({"not_before": LATER}, Readiness.NOT_YET),
        ({"not_before": EARLIER}, Readiness.READY),
        ({"not_before": "tomorrow"}, Readiness.READY),
        ({"not_before": LATER, "not_before_since": EARLIER}, Readiness.NOT_YET),
        # A clock that was corrected by seconds, and one that was years ahead.
        ({"not_before": LATER, "not_before_since": "2026-01-01T00:00:59Z"}, Readiness.NOT_YET),
        ({"not_before": LATER, "not_before_since": "2026-01-01T00:01:01Z"}, Readiness.READY),
        ({"not_before": "2036-01-01", "not_before_since": "2035-12-31"}, Readiness.READY),
        ({"not_before": LATER, "not_before_since": "some day"}, Readiness.NOT_YET),
        ({"not_before": LATER, "exit": True}, Readiness.STOPPED),
        ({"status": Status.COMPLETE, "exit": True}, Readiness.COMPLETE),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, dict) else str(value),
)
def test_what_may_happen_next(update: dict[str, Any], kind: Readiness) -> None:
    here = standing(new_head(**update), WORKFLOW, LIMITS, NOW)
    assert here.kind is kind
    assert here.message
    assert here.is_final == (kind in (Readiness.STOPPED, Readiness.COMPLETE, Readiness.LIMIT))
    assert (here.until is not None) == (kind is Readiness.NOT_YET)
    assert (here.claim is not None) == (kind is Readiness.HELD)


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_time("2026-01-01T00:00:00Z") == NOW
    assert parse_time("2026-01-01T00:00:00") == NOW
    assert parse_time("2026-01-01T02:00:00+02:00") == NOW
    assert parse_time("") is None
    assert parse_time("soon") is None


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (None, DEFAULT_PAUSE_S),
        ("soon", DEFAULT_PAUSE_S),
        ("2025-12-31T23:00:00Z", SHORTEST_PAUSE_S),
        (EARLIER, 9),
        (LATER, 11),
        ("2026-01-01T05:00:00Z", 5 * 3600 + 10),
        ("2026-01-01T05:00:00+05:00", 10),
        ("9999-12-31T23:59:59Z", 32 * 86_400 + 10),
    ],
)
def test_the_end_of_a_usage_limit(told: str | None, seconds: float) -> None:
    outcome = Outcome(status=OutcomeStatus.LIMITED, not_before=told)
    expected = NOW + timedelta(seconds=seconds)
    end = limit_end(outcome, 1, NOW.astimezone(timezone(timedelta(hours=3))), 0.0)
    assert end.endswith("Z")
    assert parse_time(end) == expected
    late = limit_end(outcome, 1, NOW, 1.0)
    assert parse_time(late) == expected + timedelta(seconds=JITTER_S)


def test_pauses_grow_with_each_limit_in_a_row() -> None:
    told = Outcome(status=OutcomeStatus.LIMITED, not_before=LATER)
    ends = [parse_time(limit_end(told, n, NOW, 0.0)) for n in range(1, 21)]
    pauses = [(end - NOW).total_seconds() for end in ends if end is not None]
    assert pauses[:8] == [11, 60, 120, 240, 480, 960, 1920, 3600]
    assert set(pauses[8:]) == {3600}
    # What a client tells is believed where it is later.
    told = Outcome(status=OutcomeStatus.LIMITED, not_before="2026-01-01T05:00:00Z")
    assert parse_time(limit_end(told, 9, NOW, 0.0)) == NOW + timedelta(seconds=18_010)


def test_pauses_of_an_outage_grow_to_a_quarter_of_an_hour() -> None:
    ends = [parse_time(outage_end(n, NOW, 0.0)) for n in range(1, 21)]
    pauses = [(end - NOW).total_seconds() for end in ends if end is not None]
    assert pauses[:7] == [30, 60, 120, 240, 480, 900, 900]
    assert set(pauses[7:]) == {900}
    late = parse_time(outage_end(3, NOW, 1.0))
    assert late == NOW + timedelta(seconds=150), "many that wait don't come back at once"


def test_the_last_attempt_that_meets_a_limit_has_failed() -> None:
    limited = Outcome(status=OutcomeStatus.LIMITED, error="slow down", not_before=LATER)
    assert bounded(limited, 2, 3) is limited
    failed = bounded(limited, 3, 3)
    assert (failed.status, failed.not_before) == (OutcomeStatus.FAILED, None)
    assert failed.error is not None
    assert "limits.max_attempts: 3" in failed.error
    assert "slow down" in failed.error
    accepted = Outcome(status=OutcomeStatus.OK)
    assert bounded(accepted, 3, 3) is accepted


def test_a_retry_is_due_after_its_delay() -> None:
    retry = Retry(max_attempts=3, backoff="linear", initial_delay_s=2)
    step = Step(name="a", retry=retry)
    assert retry_at(step, 1, NOW) == "2026-01-01T00:00:02.000Z"
    assert retry_at(step, 2, NOW) == "2026-01-01T00:00:04.000Z"
    assert retry_at(step, 3, NOW) is None
    assert retry_at(Step(name="a"), 1, NOW) is None
