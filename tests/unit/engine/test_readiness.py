from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from sequencer.model.head import Head, Status
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.limits import (
    DEFAULT_PAUSE_S,
    JITTER_S,
    SHORTEST_PAUSE_S,
    RunLimits,
    limit_attempts,
    limit_end,
    parse_time,
)
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.sequence_kind import SequenceKind
from tests.contract.store_cases import WORKFLOW, make_claim, new_head

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = RunLimits(steps=10)
LATER, EARLIER = "2026-01-01T00:00:01Z", "2025-12-31T23:59:59Z"


def check(head: Head) -> Readiness:
    return SequenceKind(WORKFLOW).check_readiness(head, LIMITS, at=NOW)


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        ({}, ReadinessKind.READY),
        ({"status": Status.FAILED, "failures_in_row": 1}, ReadinessKind.READY),
        ({"status": Status.RUNNING}, ReadinessKind.READY),
        ({"claims": (make_claim(),)}, ReadinessKind.HELD),
        ({"claims": (make_claim(),), "exit": True}, ReadinessKind.HELD),
        ({"exit": True}, ReadinessKind.STOPPED),
        ({"status": Status.PAUSED}, ReadinessKind.PAUSED),
        ({"pause_requested": True}, ReadinessKind.PAUSED),
        ({"status": Status.WAITING_APPROVAL}, ReadinessKind.PERSON),
        ({"usage": Usage(steps=10)}, ReadinessKind.LIMIT),
        ({"failures_in_row": 3}, ReadinessKind.REFUSED),
        ({"attempt": 20}, ReadinessKind.REFUSED),
        ({"not_before": LATER}, ReadinessKind.NOT_YET),
        ({"not_before": EARLIER}, ReadinessKind.READY),
        ({"not_before": "tomorrow"}, ReadinessKind.READY),
        ({"not_before": LATER, "not_before_since": EARLIER}, ReadinessKind.NOT_YET),
        # A clock that was corrected by seconds, and one that was years ahead.
        ({"not_before": LATER, "not_before_since": "2026-01-01T00:00:59Z"}, ReadinessKind.NOT_YET),
        ({"not_before": LATER, "not_before_since": "2026-01-01T00:01:01Z"}, ReadinessKind.READY),
        ({"not_before": "2036-01-01", "not_before_since": "2035-12-31"}, ReadinessKind.READY),
        ({"not_before": LATER, "not_before_since": "some day"}, ReadinessKind.NOT_YET),
        ({"not_before": LATER, "exit": True}, ReadinessKind.STOPPED),
        ({"status": Status.COMPLETE, "exit": True}, ReadinessKind.COMPLETE),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, dict) else str(value),
)
def test_readiness_follows_from_the_head(update: dict[str, Any], kind: ReadinessKind) -> None:
    here = check(new_head(**update))
    assert here.kind is kind
    assert here.message
    assert here.is_final == (
        kind in (ReadinessKind.STOPPED, ReadinessKind.COMPLETE, ReadinessKind.LIMIT)
    )
    assert (here.until is not None) == (kind is ReadinessKind.NOT_YET)
    assert (here.claim is not None) == (kind is ReadinessKind.HELD)


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
def test_a_usage_limit_ends_at_its_reset_or_after_a_pause(told: str | None, seconds: float) -> None:
    outcome = Outcome(status=OutcomeStatus.LIMITED, not_before=told)
    expected = NOW + timedelta(seconds=seconds)
    end = limit_end(outcome, 1, NOW.astimezone(timezone(timedelta(hours=3))), 0.0)
    assert end.endswith("Z")
    assert parse_time(end) == expected
    late = limit_end(outcome, 1, NOW, 1.0)
    assert parse_time(late) == expected + timedelta(seconds=JITTER_S)


def test_the_last_attempt_that_meets_a_limit_fails() -> None:
    limited = Outcome(status=OutcomeStatus.LIMITED, error="slow down", not_before=LATER)
    assert limit_attempts(limited, 2, 3) is limited
    failed = limit_attempts(limited, 3, 3)
    assert (failed.status, failed.not_before) == (OutcomeStatus.FAILED, None)
    assert failed.error is not None
    assert "limits.attempts: 3" in failed.error
    assert "slow down" in failed.error
    accepted = Outcome(status=OutcomeStatus.OK)
    assert limit_attempts(accepted, 3, 3) is accepted
