"""How the real claude ends its turns, and what the program makes of it: against a fake model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.acceptance.test_real_claude import Desk, desk

__all__ = ["desk"]

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(240)]

BASH = {"tool": "Bash", "input": {"command": "echo hi"}}
"""Runs without leave, because it only reads."""


def test_a_turn_with_tools_and_text_ends_cleanly(desk: Desk) -> None:
    outcome = desk.run({"text": "I look.", **BASH}, BASH, BASH, {"text": "It is done."})
    assert outcome["evidence"].pop("answer")
    # What is left out is as usual: a clean end, no open call, no process that was left running.
    assert outcome["evidence"] == {
        "reason": "end_turn",
        "has_text": True,
        "tool_calls": 3,
        "repeated_calls": 3,
    }
    assert (outcome["status"], outcome["output"]) == ("ok", "It is done.")


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
def test_a_success_in_the_middle_of_a_turn_is_not_believed(desk: Desk, reason: str) -> None:
    outcome = desk.run({"text": "I have looked at one of three files", "stop_reason": reason})
    assert (outcome["status"], outcome["exit_code"]) == ("failed", 0)
    shown = outcome["evidence"]
    assert (shown["turn_end"], shown["reason"]) == ("cut-off", reason)
    assert repr(reason) in outcome["error"]


@pytest.mark.parametrize("reason", ["max_tokens", "tool_use", "refusal"])
def test_an_error_reported_by_claude_is_a_failure(desk: Desk, reason: str) -> None:
    outcome = desk.ask(*[{"text": "half an ans", "stop_reason": reason}] * 5)
    assert outcome.exit_code == 1
    assert not outcome.is_accepted
    assert outcome.evidence is not None
    assert outcome.evidence.turn_end == "cut-off"


def test_an_unknown_stop_reason_counts_with_text(desk: Desk) -> None:
    outcome = desk.run({"text": "Well.", "stop_reason": "brand_new"})
    shown = outcome["evidence"]
    assert (shown["turn_end"], shown["reason"]) == ("unknown", "brand_new")
    assert outcome["status"] == "ok"


def test_without_final_text_the_earlier_text_is_the_answer(desk: Desk) -> None:
    silent: dict[str, Any] = {"text": ""}
    outcome = desk.ask({"text": "I look.", **BASH}, silent, silent)
    shown = outcome.evidence
    assert shown is not None
    assert (outcome.output, shown.has_text, shown.tool_calls) == ("I look.", True, 1)


def test_without_any_text_only_its_tools_are_evidence(desk: Desk) -> None:
    outcome = desk.ask(BASH, {"thinking": "Hm."}, {"thinking": "Hm."})
    shown = outcome.evidence
    assert shown is not None
    assert (shown.turn_end, shown.has_text, shown.tool_calls) == ("clean", False, 1)
    assert outcome.output == ""


def test_a_structured_answer_ends_with_a_tool_call_and_counts(desk: Desk) -> None:
    schema = {"type": "object", "properties": {"pass": {"type": "boolean"}}, "required": ["pass"]}
    turn = {"tool": "StructuredOutput", "input": {"pass": True}}
    step = {"output": {"format": "json", "schema": schema}}
    assert desk.ask(turn, {"text": "ok"}, step=step).structured == {"pass": True}
    outcome = desk.run(turn, {"text": "ok"}, step=step)
    assert (outcome["status"], json.loads(outcome["output"])) == ("ok", {"pass": True})
    assert "turn_end" not in outcome["evidence"], "it ended cleanly"
