"""A step's subagents in the real ``claude`` program: what reaches the model, and who answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sequencer import OutcomeStatus
from tests.acceptance.test_real_claude import MODEL, Desk, desk

__all__ = ["desk"]

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(120)]

AGENTS = {
    "scout": {
        "description": "SCOUT-DESCRIPTION: looks around",
        "prompt": "MARK-SCOUT: you look and write nothing.",
        "tools": ["Read"],
        "model": "haiku",
    }
}


def tools(body: dict[str, Any]) -> set[str]:
    return {tool["name"] for tool in body.get("tools") or []}


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"tools": {"task": True}},
        {"allowed_tools": ["Read", "Task"]},
        {"allowed_tools": ["Read", "Agent(scout)"]},
    ],
)
def test_subagents_are_described_to_the_model_with_the_tool(
    desk: Desk, step: dict[str, Any]
) -> None:
    outcome = desk.ask({"text": "x"}, step={"agents": AGENTS, **step})
    assert outcome.status is OutcomeStatus.OK, outcome.error
    body = desk.model.bodies("/messages")[-1]
    assert tools(body) & {"Agent", "Task"}
    assert "scout: SCOUT-DESCRIPTION" in json.dumps(body)


def test_without_subagents_the_model_sees_none(desk: Desk) -> None:
    desk.ask({"text": "x"})
    assert "SCOUT" not in json.dumps(desk.model.bodies("/messages"))


def test_without_the_tool_the_model_sees_no_subagents(desk: Desk) -> None:
    # Why such a step is refused before anything starts: the program says nothing.
    outcome = desk.ask({"text": "x"}, step={"agents": AGENTS, "allowed_tools": ["Read"]})
    assert outcome.status is OutcomeStatus.OK
    assert "SCOUT" not in json.dumps(desk.model.bodies("/messages")[-1])


def test_a_subagent_uses_its_own_prompt_tools_and_model_and_is_charged(desk: Desk) -> None:
    script = json.dumps([{"text": "SCOUTED", "model_usage": {"input_tokens": 50_000}}])
    call = {
        "description": "look",
        "prompt": f"Look around. <<fake {script}>>",
        "subagent_type": "scout",
    }
    outcome = desk.ask({"tool": "Agent", "input": call}, {"text": "end"}, step={"agents": AGENTS})
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "end"), outcome.error
    bodies = [body for body in desk.model.bodies("/messages") if body.get("tools")]
    (scout,) = [body for body in bodies if "MARK-SCOUT" in json.dumps(body.get("system"))]
    assert tools(scout) == {"Read"}
    assert "haiku" in scout["model"]
    others = [body for body in bodies if body is not scout]
    assert {body["model"] for body in others} == {MODEL}
    assert "SCOUTED" in json.dumps(others[-1]["messages"])
    assert outcome.usage.input_tokens >= 50_000
