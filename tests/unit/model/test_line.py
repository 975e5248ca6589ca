"""What a line makes of decisions that no recorded run has made."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sequencer.model.head import Gate, Loop, Owner, Status
from sequencer.model.line.line import Line
from sequencer.model.line.order import place
from sequencer.model.step import Step
from sequencer.model.transitions import Event
from sequencer.model.workflow import Workflow

CHECK = Step.model_validate({"name": "check", "validation": {"fixer": {"name": "fix"}}})
LINE = Line(Workflow("w", (CHECK, Step(name="end")), kind="procedure"))
NOW = datetime(2026, 1, 2, tzinfo=UTC)
RUN = LINE.fresh("r", at=NOW)


@pytest.mark.parametrize(("verb", "event"), [("skip", Event.SKIPPED), ("stamp", Event.STAMPED)])
def test_after_a_fixer_that_was_passed_by_hand_the_judge_comes_again(
    verb: str, event: Event
) -> None:
    head = RUN.replace(loop=Loop(stage="fix", round=2), expected_step="fix")
    made = LINE.by_hand(head, verb, {}, at=NOW, by="me")
    assert made.facts[0].event is event
    assert (made.head.step_index, made.head.expected_step) == (0, "check")


@pytest.mark.parametrize(
    ("expires", "on_timeout", "status"),
    [
        ("2026-01-01T23:59:59Z", "approve", Status.IDLE),
        ("2026-01-01T23:59:59Z", "reject", Status.COMPLETE),
        ("2026-01-02T00:00:01Z", "reject", None),
        (None, "reject", None),
    ],
)
def test_a_gate_lapses_when_its_time_is_over(
    expires: str | None, on_timeout: str, status: Status | None
) -> None:
    gate = Gate.model_validate(
        {
            "step": "check",
            "step_index": 0,
            "token": 1,
            "opened_at": "2026-01-01T00:00:00Z",
            "expires_at": expires,
            "on_timeout": on_timeout,
        }
    )
    made = LINE.lapse(RUN.replace(gate=gate), at=NOW)
    assert (None if made is None else made.head.status) == status


def test_an_attempt_that_vanished_is_given_back() -> None:
    owner = Owner(host="h", boot_id="b", pid_ns="n", pid=1, pid_start=1, nonce="x")
    begun = LINE.begin(RUN, place(LINE.workflow, 0), owner, at=NOW, ttl_s=60).head
    made = LINE.expire(begun, begun.token, "its machine is gone", at=NOW)
    assert (made.head.claims, made.head.failures_in_row, made.head.attempt) == ((), 0, 1)
    assert made.facts[0].outcome == {"reason": "its machine is gone"}
