"""The order of the decider's questions, and what a sequence answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sequencer.engine.decide import (
    End,
    Move,
    RecordExpired,
    Seen,
    SequenceSeen,
    TakeClaims,
    Wait,
    next_move,
)
from sequencer.engine.invocation_budget import Mode, SequenceBudget
from sequencer.errors import Interrupted, StepFailed
from sequencer.model.head import Head, Status
from sequencer.model.kind import fresh_head
from sequencer.model.limits import InvocationLimits, RunLimits, format_utc_ms
from sequencer.model.outcome import Usage
from sequencer.model.sequence.sequence_kind import SequenceKind
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)
EXPIRED = RecordExpired("nobody decided")
OTHERS = Wait("others", is_for_others=True)
CYCLE = Workflow("w", (Step(name="a"), Step(name="b")))
HEAD = fresh_head(CYCLE, "r", at=format_utc_ms(NOW), name=None, has_definition=False)


class Answers(Seen):
    """A run that answers as a test says."""

    def __init__(self, said: str, **more: Any) -> None:
        """*said* has a word for each question that is answered with yes."""
        super().__init__(HEAD, NOW, **more)
        self._said = said.split()

    @property
    def is_over(self) -> bool:
        return "over" in self._said

    def describe_end(self) -> str:
        if "bad" in self._said:
            raise StepFailed("it ended badly")
        return "the end"

    def find_expired(self) -> RecordExpired | None:
        return EXPIRED if "expired" in self._said else None

    def may_claim(self) -> bool:
        return "claim" in self._said

    def find_due_time(self) -> datetime | None:
        return LATER

    def find_end_reason(self) -> str | None:
        return "a limit" if "limit" in self._said else None

    def make_wait(self) -> Wait:
        return OTHERS


@pytest.mark.parametrize(
    ("said", "more", "move"),
    [
        ("over expired claim limit", {}, End("the end")),
        ("over", {"is_stopped": True}, End("the end")),
        ("over expired claim", {"running": [1]}, Wait()),
        ("expired claim limit", {}, EXPIRED),
        ("expired", {"running": [1], "is_stopped": True}, EXPIRED),
        ("claim limit", {}, TakeClaims()),
        ("claim", {"running": [1]}, TakeClaims()),
        ("claim", {"running": [1], "tried_at": NOW}, Wait(until=LATER)),
        ("claim", {"running": [1], "is_stopped": True}, Wait(until=LATER)),
        ("limit", {"running": [1]}, Wait(until=LATER)),
        ("claim limit", {"tried_at": NOW}, End("a limit")),
        ("limit", {}, End("a limit")),
        ("claim", {"tried_at": NOW}, OTHERS),
        ("", {}, OTHERS),
    ],
)
def test_the_questions_are_decided_in_order(said: str, more: dict[str, Any], move: Move) -> None:
    assert next_move(Answers(said, **more)) == move


@pytest.mark.parametrize("said", ["", "claim", "limit", "claim limit"])
def test_a_process_that_is_asked_to_stop_claims_nothing(said: str) -> None:
    end = next_move(Answers(said, is_stopped=True))
    assert isinstance(end, End)
    assert isinstance(end.error, Interrupted)


def test_stopping_the_wait_for_a_run_on_hold_reports_how_to_continue() -> None:
    seen = Answers("", is_stopped=True)
    seen.head = HEAD.replace(status=Status.PAUSED)
    end = next_move(seen)
    assert isinstance(end, End)
    assert isinstance(end.error, Interrupted)
    assert end.error.hint == "the run is paused; 'sequencer resume' lets it continue"


def test_a_bad_end_is_an_error() -> None:
    end = next_move(Answers("over bad"))
    assert isinstance(end, End)
    assert isinstance(end.error, StepFailed)


def decided(
    head: Head, *, positions: tuple[str, ...] = (), steps: int = 0, mode: Mode = Mode.SYNC
) -> Move:
    """Return the next move of a process that has done so many *steps* of at most 1."""
    limits = InvocationLimits(max_steps=1)
    budget = SequenceBudget(CYCLE, mode, limits, RunLimits(), HEAD, positions=positions)
    budget.summary.usage = Usage(steps=steps)
    return next_move(SequenceSeen(head, NOW, SequenceKind(CYCLE), budget))


def test_a_sequence_waits_for_a_due_time_or_another_position() -> None:
    assert decided(HEAD) == TakeClaims()
    due = format_utc_ms(LATER)
    wait = decided(HEAD.replace(not_before=due, not_before_reason="usage limit"))
    assert isinstance(wait, Wait)
    assert (wait.until, wait.date, wait.is_for_others) == (LATER, due, False)
    wait = decided(HEAD, positions=("b",))
    assert isinstance(wait, Wait)
    assert wait.is_for_others
    assert "is not at a position of this process" in wait.message


def test_a_pause_is_reported_before_a_limit_reached_with_it() -> None:
    limit = decided(HEAD, steps=1, mode=Mode.COMBINED)
    assert limit == End("1 step is done (--max-steps)")
    paused = decided(HEAD.replace(status=Status.PAUSED), steps=1, mode=Mode.COMBINED)
    assert isinstance(paused, End)
    assert "is paused" in paused.reason


def test_a_process_at_its_step_limit_does_not_wait_out_a_pause() -> None:
    paused = HEAD.replace(status=Status.PAUSED)
    assert decided(paused, steps=1) == End("1 step is done (--max-steps)")
    # One that may do more waits.
    assert isinstance(decided(paused), Wait)


def test_a_failure_in_another_process_is_not_retried() -> None:
    failed = HEAD.replace(status=Status.FAILED, failures_in_row=1)
    end = decided(failed)
    assert isinstance(end, End)
    assert isinstance(end.error, StepFailed)
    # One that is tried again by itself is waited for.
    assert isinstance(decided(failed.replace(not_before=format_utc_ms(LATER))), Wait)


def test_a_failure_at_a_limit_in_another_process_needs_a_retry_command() -> None:
    end = decided(HEAD.replace(status=Status.FAILED, failures_in_row=5))
    assert isinstance(end, End)
    assert isinstance(end.error, StepFailed)
    assert "'sequencer retry'" in str(end.error.hint)
    assert "start again" not in str(end.error.hint)
