"""What may be changed in state.json, and what `set` may: neither decides anything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest

from sequencer.errors import EditRefused, TransitionRefused
from sequencer.model import command_rules, edits
from sequencer.model.head import Gate, Head, Loop, Status, Work
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage
from sequencer.model.transitions import StepRef
from tests.contract.store_cases import make_claim, new_head

AT = "2026-11-21T20:55:12Z"
GATE = Gate(step="ask", step_index=0, token=1, opened_at=AT)
USED = Usage(steps=5, cost_usd=2.0, input_tokens=10, output_tokens=10, seconds=1.0)
HEAD: dict[str, Any] = {"step_index": 1, "iteration": 2, "usage": USED}


@pytest.mark.parametrize(
    ("before", "edit", "command"),
    [
        ({"gate": GATE, "status": "waiting-approval"}, {"gate": None}, "answer"),
        ({"gate": GATE}, {"gate": GATE.replace(on_timeout="approve")}, "answer"),
        ({"gate": GATE}, {"gate": GATE.replace(decision="feedback")}, "answer"),
        ({"gate": GATE, "status": "waiting-approval"}, {"step_index": 2}, "set step_index=N"),
        ({"status": "paused"}, {"status": "waiting-next"}, "stop --pause"),
        ({"exit": True}, {"exit": False}, "resume"),
        ({"pause_requested": True}, {"pause_requested": False}, "stop --pause"),
        ({"failures_in_row": 3}, {"failures_in_row": 0}, "retry"),
        ({"attempt": 3}, {"attempt": 2}, "retry"),
        ({}, {"usage": USED.replace(cost_usd=0.0)}, ""),
        ({"params": {"a": 1}}, {"params": {"a": 2}}, "adopt"),
        ({}, {"workflow_digest": "sha256:other"}, "adopt"),
        ({"loop": Loop(stage="fix", round=3)}, {"loop": None}, "skip"),
        ({}, {"work": Work(branch="main", commit="0" * 40)}, ""),
        ({}, {"step_index": 0}, "set step_index=N"),
        ({}, {"not_before": "2027-01-31"}, "set not_before=DATE"),
        ({}, {"exit_reason": "no end, only a reason"}, "stop --reason"),
        ({"exit": True}, {"exit": 1}, "resume"),
        ({"told": [{"to": "a", "token": 1}]}, {"told": []}, "tell"),
        ({"recent_costs": {"a": [1.0]}}, {"recent_costs": {"a": [9.0]}}, ""),
        ({"moved": {"where": "there"}}, {"moved": None}, "set moved=null"),
        ({}, {"expected_step": "other"}, "set step_index=N"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value,
)
def test_fields_with_a_command_cannot_be_changed_in_the_file(
    before: dict[str, Any], edit: dict[str, Any], command: str
) -> None:
    accepted = {**new_head(**HEAD).model_dump(mode="json"), **_plain(before)}
    made = edits.compute_edit(accepted, {**accepted, **_plain(edit)})
    assert made.content == accepted
    assert set(made.refused) == set(edit)
    (field,) = edit
    own = f"no command changes {field}, which only the program writes"
    hint = made.format_hint(None)
    assert hint.startswith(f"use 'sequencer {command}") if command else hint == own


def test_the_hint_separates_fields_with_and_without_a_command() -> None:
    refused = ("step_index", "usage", "expected_step", "token")
    assert edits.FileEdit({}, refused).format_hint("night") == (
        "use 'sequencer --run night set step_index=N'; "
        "no command changes usage, token, which only the program writes"
    )


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        for name, value in fields.items()
    }


@pytest.mark.parametrize(
    "edit",
    [
        {"exit": True, "exit_reason": "enough"},
        {"exit": True},
        {"ticket": "ABC-1"},
        {"ticket": {"id": 1}, "seen": True},
    ],
    ids=",".join,
)
def test_stopping_the_run_and_adding_notes_are_allowed_in_the_file(edit: dict[str, Any]) -> None:
    accepted = new_head(**HEAD).model_dump(mode="json")
    made = edits.compute_edit(accepted, {**accepted, **edit})
    assert (made.content, made.refused) == ({**accepted, **edit}, ())
    head = Head.model_validate(accepted)
    changed = edits.accept_file(head, Head.model_validate(made.content), at=AT)
    assert [fact.event for fact in changed.facts] == ["edited"]
    assert changed.facts[0].outcome == {"note": f"by hand: {', '.join(sorted(edit))}"}


def test_notes_can_be_removed() -> None:
    accepted = {**new_head(**HEAD).model_dump(mode="json"), "ticket": "ABC-1"}
    made = edits.compute_edit(accepted, {k: v for k, v in accepted.items() if k != "ticket"})
    assert ("ticket" in made.content, made.refused) == (False, ())


def test_a_stop_counts_even_if_other_changes_are_refused() -> None:
    accepted = {**new_head(**HEAD).model_dump(mode="json"), "ticket": "ABC-1"}
    content = {**accepted, "exit": True, "step_index": 7, "token": 9}
    del content["ticket"], content["usage"]
    made = edits.compute_edit(accepted, content)
    assert set(made.refused) == {"step_index", "token", "usage"}
    assert made.content["exit"] is True
    assert made.content["ticket"] == "ABC-1", "no notes from a file that may be damaged"
    assert (made.content["step_index"], made.content["usage"]) == (1, USED.model_dump(mode="json"))


IN: dict[Status, dict[str, Any]] = {
    Status.IDLE: {"step_index": 0, "usage": Usage()},
    Status.RUNNING: {"claims": (make_claim(step_index=1),), "token": 1, "attempt": 1},
    Status.WAITING_NEXT: {},
    Status.WAITING_APPROVAL: {"gate": GATE},
    Status.PAUSED: {},
    Status.FAILED: {"failures_in_row": 2, "attempt": 2},
    Status.COMPLETE: {},
}
"""Status -> what else is so in a run that has it."""
STATED = {
    Status.RUNNING: {Status.PAUSED},
    Status.IDLE: {Status.PAUSED, Status.COMPLETE},
    Status.WAITING_NEXT: {Status.PAUSED, Status.COMPLETE},
    Status.FAILED: {Status.PAUSED, Status.COMPLETE},
}
"""Status -> which other ones can be stated; from those that are missing here, none."""


def in_status(status: Status, **update: Any) -> Head:
    return new_head(**{**HEAD, **IN[status], "status": status, **update})


@pytest.mark.parametrize(("was", "stated"), list(product(Status, Status)))
def test_a_status_can_be_set_where_setting_it_has_that_effect(was: Status, stated: Status) -> None:
    head = in_status(was)
    if stated is not was and stated not in STATED.get(was, ()):
        with pytest.raises(EditRefused, match=rf"status went from {was} to {stated}\b") as refused:
            edits.edit_field(head, "status", stated, at=AT)
        assert "'sequencer " in str(refused.value.hint)
        return
    made = edits.edit_field(head, "status", stated, at=AT)
    # The step that runs ends before the run is held.
    is_asked = (was, stated) == (Status.RUNNING, Status.PAUSED)
    assert (made.head.status, made.head.pause_requested) == (was if is_asked else stated, is_asked)
    assert made.head.claims == head.claims
    ended = ["completed"] if stated is Status.COMPLETE and was is not stated else []
    assert [fact.event for fact in made.facts] == ["edited", *ended]


@pytest.mark.parametrize(
    ("was", "edit", "becomes"),
    [
        ("failed", {"failures_in_row": 0}, "waiting-next"),
        ("waiting-next", {"failures_in_row": 2}, "failed"),
        ("idle", {"step_index": 4}, "waiting-next"),
        ("running", {"step_index": 4}, "waiting-next"),
        ("running", {"exit": True}, "running"),
        ("waiting-approval", {"step_index": 0}, "waiting-next"),
        ("paused", {"step_index": 4}, "paused"),
        ("paused", {"failures_in_row": 2}, "paused"),
        ("failed", {"step_index": 4}, "waiting-next"),
        ("complete", {"ticket": "ABC-1"}, "complete"),
    ],
)
def test_the_status_follows_the_edited_field(was: str, edit: dict[str, Any], becomes: str) -> None:
    ((field, value),) = edit.items()
    made = edits.edit_field(in_status(Status(was)), field, value, at=AT).head
    assert (made.status, made.pause_requested) == (becomes, False)


def test_a_complete_run_is_not_moved_by_an_edit() -> None:
    head = in_status(Status.COMPLETE)
    with pytest.raises(EditRefused, match="complete run") as refused:
        edits.edit_field(head, "step_index", 0, at=AT)
    assert refused.value.hint == "'sequencer rewind' or 'reset' decides"


def test_an_edited_step_index_expects_the_step_at_that_index() -> None:
    head = in_status(Status.WAITING_NEXT)

    def placed(moved: Head) -> StepRef:
        return StepRef(moved.step_index, f"step {moved.step_index}", "")

    made = edits.edit_field(head, "step_index", 4, at=AT, locate=placed)
    assert made.head.expected_step == "step 4"
    assert (made.facts[0].step, made.facts[0].step_index) == (head.expected_step, 1)


@pytest.mark.parametrize("to", [0, 3])
def test_failures_and_a_retry_date_stay_with_the_step_that_an_edit_leaves(to: int) -> None:
    waits = {"not_before": AT, "not_before_reason": "retry", "not_before_since": AT}
    head = new_head(**HEAD, **waits, failures_in_row=3, attempt=4, status="failed")
    after = edits.edit_field(head, "step_index", to, at=AT).head
    assert (after.failures_in_row, after.attempt, after.status) == (0, 0, "waiting-next")
    assert (after.not_before, after.not_before_reason, after.not_before_since) == (None,) * 3


def test_a_person_may_still_set_the_failure_count() -> None:
    head = new_head(failures_in_row=3)
    assert edits.edit_field(head, "failures_in_row", 0, at=AT).head.failures_in_row == 0


def test_a_person_may_set_a_date_far_in_the_future() -> None:
    head = new_head(**HEAD, not_before="2026-11-21T20:00:00Z", not_before_since=AT)
    far = edits.edit_field(head, "not_before", "2126-01-01T00:00:00Z", at=AT).head
    assert (far.not_before, far.not_before_since) == ("2126-01-01T00:00:00Z", None)


@pytest.mark.parametrize(
    "date",
    [
        "2027-02-30T08:00:00Z",
        "2027-01-31T08:00:00+24:30",
        "9999-12-31T23:59:59-12:00",
        "9999-12-31",
        "0001-01-01T00:00:00+14:00",
        "0000-01-01",
    ],
)
def test_an_impossible_date_cannot_be_set(date: str) -> None:
    with pytest.raises(EditRefused, match="is not a date"):
        edits.edit_field(new_head(**HEAD), "not_before", date, at=AT)


@pytest.mark.parametrize(
    ("date", "is_future"),
    [("9999-12-31T23:59:59-12:00", True), ("0001-01-01T00:00:00+14:00", False)],
)
def test_a_date_at_the_end_of_the_calendar_can_be_read_in_every_zone(
    date: str, is_future: bool
) -> None:
    moment = parse_time(date)
    assert moment is not None
    for hours in (-23, 0, 23):
        zone = timezone(timedelta(hours=hours))
        assert (moment.astimezone(zone) > datetime.now(UTC)) is is_future


def test_the_reason_a_run_ended_cannot_be_changed() -> None:
    head = in_status(Status.COMPLETE, exit_reason="rejected at 'ask'")
    accepted = head.model_dump(mode="json")
    made = edits.compute_edit(accepted, {**accepted, "exit": True, "exit_reason": "approved"})
    assert made.refused == ("exit_reason",)
    with pytest.raises(EditRefused, match="how the run has ended"):
        edits.edit_field(head, "exit_reason", "approved", at=AT)
    stopped = command_rules.stop(head, "enough", at=AT).head
    assert stopped.exit_reason == "rejected at 'ask'"
    with pytest.raises(TransitionRefused, match="the run is complete"):
        command_rules.resume(stopped, at=AT)


def test_fields_owned_by_the_program_cannot_be_set() -> None:
    for field, value in (("recent_costs", 5), ("moved", {"where": "x"}), ("told", [])):
        with pytest.raises(EditRefused, match=f"{field} can't be set"):
            edits.edit_field(new_head(), field, value, at=AT)
    assert edits.edit_field(new_head(moved={"where": "x"}), "moved", None, at=AT).facts
