from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sequencer.errors import EditRefused, TransitionRefused
from sequencer.model import command_rules as decisions
from sequencer.model import edits
from sequencer.model.head import Head, Status
from sequencer.model.outcome import Usage
from sequencer.model.transitions import StepRef, Transition
from sequencer.model.whole_numbers import MAX_COUNTER
from tests.contract.store_cases import make_claim, new_head

AT = "2026-01-01T00:00:00Z"
NEXT = StepRef(1, "main", "main.md")
END = StepRef(2, "", "", is_end=True)
Verb = Callable[[Head], Transition]

VERBS: dict[str, Verb] = {
    "stamp_ok": lambda head: decisions.stamp_ok(head, NEXT, "n", at=AT),
    "stamp_fail": lambda head: decisions.stamp_fail(head, "n", at=AT),
    "skip": lambda head: decisions.skip(head, NEXT, "n", at=AT),
    "rewind": lambda head: decisions.rewind(head, StepRef(0, "supervisor", ""), at=AT),
    "reset": lambda head: decisions.reset(head, new_head(run_id="two"), at=AT),
    "adopt": lambda head: decisions.adopt(head, "other", "sha256:x", {}, NEXT, at=AT),
    "retry": lambda head: decisions.retry(head, at=AT),
}


def held_head(**update: Any) -> Head:
    fields = {"status": Status.RUNNING, "claims": (make_claim(),), "token": 1, "attempt": 1}
    return new_head(**{**fields, **update})


def event(transition: Transition) -> str:
    return str(transition.facts[0].event)


@pytest.mark.parametrize("verb", VERBS)
def test_a_running_step_cannot_be_decided_by_hand(verb: str) -> None:
    head = held_head(failures_in_row=1)
    with pytest.raises(TransitionRefused, match=r"run by process 1 on far"):
        VERBS[verb](head)


@pytest.mark.parametrize("verb", ["stamp_ok", "stamp_fail", "skip"])
def test_a_complete_run_has_no_step_to_decide(verb: str) -> None:
    with pytest.raises(TransitionRefused, match="complete"):
        VERBS[verb](new_head(status=Status.COMPLETE))


def test_pause_and_resume() -> None:
    paused = decisions.pause(new_head(), at=AT).head
    assert paused.status == "paused"
    assert decisions.resume(paused, at=AT).head.status == "idle"
    asked = decisions.pause(held_head(), at=AT).head
    assert (asked.status, asked.pause_requested) == ("running", True)
    back = decisions.resume(asked, at=AT).head
    assert (back.status, back.pause_requested) == ("running", False)
    failed = decisions.pause(new_head(failures_in_row=1, status=Status.FAILED), at=AT).head
    assert decisions.resume(failed, at=AT).head.status == "failed"
    with pytest.raises(TransitionRefused, match="neither paused nor stopped"):
        decisions.resume(new_head(), at=AT)
    with pytest.raises(TransitionRefused, match="complete"):
        decisions.pause(new_head(status=Status.COMPLETE), at=AT)


@pytest.mark.parametrize("verb", ["stamp_ok", "stamp_fail", "skip", "rewind", "adopt", "retry"])
def test_a_pause_outlasts_every_change_by_hand_but_resume(verb: str) -> None:
    before = new_head(step_index=1, failures_in_row=1, status=Status.FAILED)
    paused = decisions.pause(before, at=AT).head
    changed = VERBS[verb](paused).head
    assert changed.status is Status.PAUSED
    assert decisions.resume(changed, at=AT).head.status == VERBS[verb](before).head.status


def test_a_paused_run_that_ends_by_hand_is_complete() -> None:
    paused = decisions.pause(new_head(step_index=1), at=AT).head
    assert decisions.skip(paused, END, None, at=AT).head.status is Status.COMPLETE


def test_retry_forgets_failures_and_dates() -> None:
    head = new_head(failures_in_row=3, attempt=3, status=Status.FAILED, not_before=AT)
    new = decisions.retry(head, at=AT).head
    assert (new.failures_in_row, new.attempt, new.not_before) == (0, 0, None)
    assert new.status == "idle"
    assert decisions.retry(new_head(not_before=AT), at=AT).head.not_before is None
    with pytest.raises(TransitionRefused, match="has not failed"):
        decisions.retry(new_head(), at=AT)


def test_rewind_goes_back_only() -> None:
    head = new_head(step_index=5, iteration=6, usage=Usage(steps=5))
    new = decisions.rewind(head, StepRef(2, "supervisor", ""), at=AT).head
    assert (new.step_index, new.iteration, new.usage.steps) == (2, 3, 5)
    with pytest.raises(TransitionRefused, match="is ahead of"):
        decisions.rewind(head, StepRef(6, "x", ""), at=AT)


def test_taking_over_by_force_drops_every_claim() -> None:
    transition = decisions.take_over_by_force(held_head(), at=AT)
    assert transition.head.claims == ()
    assert (transition.head.status, transition.head.token) == ("idle", 1)
    assert event(transition) == "taken-over"
    paused = decisions.take_over_by_force(held_head(pause_requested=True), at=AT).head
    assert (paused.status, paused.pause_requested) == ("paused", False)
    with pytest.raises(TransitionRefused, match="no process"):
        decisions.take_over_by_force(new_head(), at=AT)


def test_fields_that_can_be_set() -> None:
    head = new_head()
    assert edits.edit_field(head, "exit", value=True, at=AT).head.exit
    assert edits.edit_field(head, "note", [1], at=AT).head.model_dump()["note"] == [1]
    with pytest.raises(EditRefused, match="can't be set by hand"):
        edits.edit_field(head, "token", 9, at=AT)
    with pytest.raises(EditRefused, match="is too large"):
        edits.edit_field(head, "step_index", MAX_COUNTER, at=AT)
    for field, value in (("exit", "yes"), ("step_index", -1), ("step_index", 1.0)):
        with pytest.raises(EditRefused, match=f"^{field}: "):
            edits.edit_field(head, field, value, at=AT)


@pytest.mark.parametrize("text", ["tomorrow", "2027-13-30T00:00:00Z", "1795300000"])
def test_a_value_that_is_not_a_date_is_refused(text: str) -> None:
    with pytest.raises(EditRefused, match=r"not_before '.*' is not a date"):
        edits.edit_field(new_head(), "not_before", text, at=AT)
