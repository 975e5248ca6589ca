"""An edit of state.json decides nothing: not a gate, not a limit, not a definition."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.errors import EditRefused
from sequencer.model import decisions
from sequencer.model.head import Gate, Head, Loop, Status, Work
from sequencer.model.outcome import Usage
from tests.contract.store_cases import new_head

AT = "2026-11-21T20:55:12Z"
GATE = Gate(step="ask", step_index=0, token=1, opened_at=AT)
USED = Usage(steps=5, cost_usd=2.0, input_tokens=10, output_tokens=10, seconds=1.0)
HEAD: dict[str, Any] = {"step_index": 1, "iteration": 2, "usage": USED}


@pytest.mark.parametrize(
    ("before", "edit", "command"),
    [
        ({"gate": GATE, "status": "waiting-approval"}, {"gate": None}, "approve"),
        ({"gate": GATE}, {"gate": GATE.replace(on_timeout="approve")}, "approve"),
        ({"gate": GATE}, {"gate": GATE.replace(expires_at=AT)}, "approve"),
        ({"gate": GATE}, {"gate": GATE.replace(decision="feedback")}, "approve"),
        ({"gate": GATE, "status": "waiting-approval"}, {"status": "waiting-next"}, "approve"),
        ({"gate": GATE, "status": "waiting-approval"}, {"step_index": 2}, "approve"),
        ({"status": "paused"}, {"status": "waiting-next"}, "resume"),
        ({"status": "complete"}, {"status": "waiting-next"}, "rewind"),
        ({"exit": True}, {"exit": False}, "resume"),
        ({"pause_requested": True}, {"pause_requested": False}, "resume"),
        ({"failures_in_row": 3}, {"failures_in_row": 0}, "retry"),
        ({"attempt": 3}, {"attempt": 2}, "retry"),
        ({}, {"usage": USED.model_copy(update={"cost_usd": 0.0})}, "reset"),
        ({}, {"usage": USED.model_copy(update={"steps": 4})}, "reset"),
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
        decisions.accept_edit(head, edited, at=AT)
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
    assert decisions.accept_edit(head, edited, at=AT).facts


def test_back_from_a_gate_is_no_way_past_it() -> None:
    head = new_head(**HEAD, gate=GATE, status=Status.WAITING_APPROVAL)
    back = decisions.accept_edit(head, head.model_copy(update={"step_index": 0}), at=AT).head
    assert (back.step_index, back.gate) == (0, None)


def test_a_person_may_still_set_what_counts_failures() -> None:
    head = new_head(failures_in_row=3)
    assert decisions.edit_field(head, "failures_in_row", 0, at=AT).head.failures_in_row == 0
