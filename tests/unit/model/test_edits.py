"""An edit of state.json decides nothing: not a gate, not a limit, not a definition."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from sequencer.errors import EditRefused
from sequencer.model import edits
from sequencer.model.head import Gate, Head, Loop, Status, Work
from sequencer.model.outcome import Usage
from sequencer.model.transitions import Place
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
        ({"gate": GATE}, {"gate": GATE.replace(expires_at=AT)}, "answer"),
        ({"gate": GATE}, {"gate": GATE.replace(decision="feedback")}, "answer"),
        ({"gate": GATE, "status": "waiting-approval"}, {"status": "waiting-next"}, "answer"),
        ({"gate": GATE, "status": "waiting-approval"}, {"step_index": 2}, "answer"),
        ({"status": "paused"}, {"status": "waiting-next"}, "resume"),
        ({"status": "complete"}, {"status": "waiting-next"}, "rewind"),
        ({"exit": True}, {"exit": False}, "resume"),
        ({"pause_requested": True}, {"pause_requested": False}, "resume"),
        ({"failures_in_row": 3}, {"failures_in_row": 0}, "retry"),
        ({"attempt": 3}, {"attempt": 2}, "retry"),
        ({}, {"usage": USED.replace(cost_usd=0.0)}, "reset"),
        ({}, {"usage": USED.replace(steps=4)}, "reset"),
        ({"params": {"a": 1}}, {"params": {"a": 2}}, "adopt"),
        ({}, {"workflow_digest": "sha256:other"}, "adopt"),
        ({}, {"workflow_name": "other"}, "adopt"),
        ({"loop": Loop(stage="fix", round=3)}, {"loop": None}, "skip"),
        ({}, {"work": Work(branch="main", commit="0" * 40)}, "sync"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value,
)
def test_a_decision_in_the_file_is_refused(
    before: dict[str, Any], edit: dict[str, Any], command: str
) -> None:
    head = Head.model_validate({**new_head(**HEAD).model_dump(), **_plain(before)})
    edited = Head.model_validate({**head.model_dump(), **_plain(edit)})
    with pytest.raises(EditRefused, match="refused") as refused:
        edits.accept_edit(head, edited, at=AT)
    assert f"'sequencer {command}" in str(refused.value.hint)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v.model_dump() if hasattr(v, "model_dump") else v for k, v in fields.items()}


@pytest.mark.parametrize(
    "edit",
    [
        {"exit": True, "exit_reason": "enough"},
        {"step_index": 0},
        {"step_index": 7},
        {"failures_in_row": 2},
        {"status": "paused"},
        {"usage": {**USED.model_dump(), "cost_usd": 3.0}},
        {"not_before": "2027-01-31"},
        {"ticket": "ABC-1"},
    ],
    ids=",".join,
)
def test_what_stops_or_moves_a_run_stays_possible(edit: dict[str, Any]) -> None:
    head = new_head(**HEAD)
    edited = Head.model_validate({**head.model_dump(), **edit})
    assert edits.accept_edit(head, edited, at=AT).facts


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


@pytest.mark.parametrize("by_command", [False, True], ids=["file", "set"])
@pytest.mark.parametrize(("was", "stated"), list(product(Status, Status)))
def test_a_status_can_be_stated_where_that_is_what_it_does(
    was: Status, stated: Status, *, by_command: bool
) -> None:
    head = in_status(was)
    edited = head.replace(status=stated, ticket="ABC-1")
    if stated is not was and stated not in STATED.get(was, ()):
        with pytest.raises(EditRefused, match=rf"status went from {was} to {stated}\b") as refused:
            edits.accept_edit(head, edited, at=AT, by_command=by_command)
        assert "'sequencer " in str(refused.value.hint)
        return
    made = edits.accept_edit(head, edited, at=AT, by_command=by_command)
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
        ("running", {"step_index": 4, "status": "waiting-next"}, "waiting-next"),
        ("running", {"exit": True}, "running"),
        ("running", {"pause_requested": True}, "running"),
        ("waiting-next", {"pause_requested": True}, "paused"),
        ("waiting-approval", {"step_index": 0}, "waiting-next"),
        ("paused", {"step_index": 4}, "paused"),
        ("paused", {"failures_in_row": 2}, "paused"),
        ("failed", {"step_index": 4}, "failed"),
        ("complete", {"ticket": "ABC-1"}, "complete"),
    ],
)
def test_the_status_follows_what_was_edited(was: str, edit: dict[str, Any], becomes: str) -> None:
    head = in_status(Status(was))
    edited = Head.model_validate({**head.model_dump(), **edit})
    made = edits.accept_edit(head, edited, at=AT, by_command=True).head
    assert made.status == becomes
    assert made.pause_requested == (was == "running" and "pause_requested" in edit)


def test_a_complete_run_is_not_moved_by_an_edit() -> None:
    head = in_status(Status.COMPLETE)
    with pytest.raises(EditRefused, match="complete run") as refused:
        edits.edit_field(head, "step_index", 0, at=AT)
    assert refused.value.hint == "'sequencer rewind' or 'reset' decides"


@pytest.mark.parametrize("edit", [{"step_index": 4}, {"step_index": 4, "expected_step": "made up"}])
def test_another_step_index_expects_the_step_that_is_there(edit: dict[str, Any]) -> None:
    head = in_status(Status.WAITING_NEXT)

    def placed(moved: Head) -> Place:
        return Place(moved.step_index, f"step {moved.step_index}", "")

    made = edits.accept_edit(head, head.replace(**edit), at=AT, placed=placed)
    assert made.head.expected_step == "step 4"
    assert (made.facts[0].step, made.facts[0].step_index) == (head.expected_step, 1)


def test_a_person_may_still_set_what_counts_failures() -> None:
    head = new_head(failures_in_row=3)
    assert edits.edit_field(head, "failures_in_row", 0, at=AT).head.failures_in_row == 0


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("2026-11-22T20:55:12Z", "2026-11-22T20:55:12Z"),
        ("2026-11-22T20:55:13Z", AT),
        ("2126-01-01", AT),
        (None, None),
    ],
)
def test_an_edit_keeps_no_run_waiting_for_longer_than_a_day(
    written: str | None, kept: str | None
) -> None:
    head = new_head(**HEAD, not_before="2026-11-21T20:00:00Z", not_before_since=AT)
    edited = head.replace(not_before=written)
    new = edits.accept_edit(head, edited, at=AT).head
    assert (new.not_before, new.not_before_since) == (kept, None)
    # Who looks at it later compares with the clock, and keeps the time of the last change.
    seen = edits.accept_edit(head, edited, at=AT, now="2126-01-01T00:00:00Z").head
    assert seen.not_before == written


def test_a_person_waits_for_any_date_and_what_the_journal_has_stays() -> None:
    head = new_head(**HEAD)
    far = edits.edit_field(head, "not_before", "2126-01-01T00:00:00Z", at=AT).head
    assert far.not_before == "2126-01-01T00:00:00Z"
    edited = far.replace(last_prompt="another")
    assert edits.accept_edit(far, edited, at=AT).head.not_before == far.not_before
