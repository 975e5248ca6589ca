"""How the real claude ends its turns, and what the program makes of it: against a fake model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer import Outcome, ProcessCore
from sequencer.engine.evidence import judge_turn
from sequencer.model.evidence import Evidence, TurnEnd
from tests.acceptance.test_real_claude import Desk, claude_program
from tests.fake_model_server import fake_model

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(240)]

BASH = {"tool": "Bash", "input": {"command": "echo hi"}}
"""Runs without leave, because it only reads."""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    program = claude_program()
    with fake_model() as model, ProcessCore() as core:
        made = Desk(model, tmp_path, core, program)
        yield made
        made.cancellation.close()


def evidence(outcome: Outcome) -> Evidence:
    assert outcome.evidence is not None
    return outcome.evidence


def test_a_turn_with_tools_and_text_ends_cleanly(desk: Desk) -> None:
    outcome = desk.ask({"text": "I look.", **BASH}, BASH, BASH, {"text": "It is done."})
    shown = evidence(outcome)
    assert (shown.turn_end, shown.reason) == (TurnEnd.CLEAN, "end_turn")
    assert (shown.tool_calls, shown.open_calls, shown.repeated_calls) == (3, 0, 3)
    assert (shown.has_text, shown.ended_processes) == (True, 0)
    assert judge_turn(outcome).output == "It is done."


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
def test_a_success_in_the_middle_of_a_turn_is_not_believed(desk: Desk, reason: str) -> None:
    outcome = desk.ask({"text": "I have looked at one of three files", "stop_reason": reason})
    assert outcome.exit_code == 0
    assert (evidence(outcome).turn_end, evidence(outcome).reason) == (TurnEnd.CUT_OFF, reason)
    judged = judge_turn(outcome)
    assert not judged.is_accepted
    assert repr(reason) in str(judged.error)


@pytest.mark.parametrize("reason", ["max_tokens", "tool_use", "refusal"])
def test_an_error_reported_by_claude_is_a_failure(desk: Desk, reason: str) -> None:
    outcome = desk.ask(*[{"text": "half an ans", "stop_reason": reason}] * 5)
    assert outcome.exit_code == 1
    assert not outcome.is_accepted
    assert evidence(outcome).turn_end is TurnEnd.CUT_OFF


def test_an_unknown_stop_reason_counts_with_text(desk: Desk) -> None:
    outcome = desk.ask({"text": "Well.", "stop_reason": "brand_new"})
    assert (evidence(outcome).turn_end, evidence(outcome).reason) == (TurnEnd.UNKNOWN, "brand_new")
    assert judge_turn(outcome).is_accepted


def test_without_final_text_the_earlier_text_is_the_answer(desk: Desk) -> None:
    silent: dict[str, Any] = {"text": ""}
    outcome = desk.ask({"text": "I look.", **BASH}, silent, silent)
    shown = evidence(outcome)
    assert (outcome.output, shown.has_text, shown.tool_calls) == ("I look.", True, 1)


def test_without_any_text_only_its_tools_are_evidence(desk: Desk) -> None:
    outcome = desk.ask(BASH, {"thinking": "Hm."}, {"thinking": "Hm."})
    shown = evidence(outcome)
    assert (shown.turn_end, shown.has_text, shown.tool_calls) == (TurnEnd.CLEAN, False, 1)
    assert outcome.output == ""


def test_a_structured_answer_ends_with_a_tool_call_and_counts(desk: Desk) -> None:
    schema = {"type": "object", "properties": {"pass": {"type": "boolean"}}, "required": ["pass"]}
    turn = {"tool": "StructuredOutput", "input": {"pass": True}}
    step = {"output": {"format": "json", "schema": schema}}
    outcome = desk.ask(turn, {"text": "ok"}, step=step)
    assert outcome.structured == {"pass": True}
    assert evidence(outcome).turn_end is TurnEnd.CLEAN
    assert judge_turn(outcome).is_accepted
