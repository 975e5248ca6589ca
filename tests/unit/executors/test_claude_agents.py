"""Claude's own subagents in a step: the argument that it gets, and where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.assembly.agents import ensure_honoured
from sequencer.errors import ConfigurationError
from sequencer.executors.claude import ClaudeExecutor, ClaudeOptions, claude_argv, subagents_gone
from sequencer.executors.process import ProcessCore
from sequencer.model.fields import ValidationError
from sequencer.model.step import Step
from tests.contract.executor_cases import request_for

SCOUT = {"description": "looks around", "prompt": "You look.\nYou write nothing."}
BOTH = {
    "scout": {**SCOUT, "tools": ["Read", "Grep"], "model": "haiku"},
    "second-reader": {"description": "reads again", "prompt": "Größe “zählt”\x00\x1b[31m"},
}


def step_with(agents: dict[str, Any] = BOTH, **fields: Any) -> Step:
    return Step.model_validate({"name": "main", "agents": agents, **fields})


def argument(folder: Path, step: Step) -> str:
    made = claude_argv(ClaudeOptions(), request_for(folder, step=step))
    (found,) = [word for word in made if word.startswith("--agents")]
    return found


def test_what_no_argument_can_hold_is_refused(tmp_path: Path) -> None:
    many = {f"a{n}": {**SCOUT, "prompt": "x" * 60_000} for n in range(2)}
    with pytest.raises(ValueError, match="agents are longer than 100000 bytes"):
        claude_argv(ClaudeOptions(), request_for(tmp_path, step=step_with(many)))


@pytest.mark.parametrize(
    "agents",
    [
        {},
        {"": SCOUT},
        {"-p": SCOUT},
        {"a b": SCOUT},
        {"a\n": SCOUT},
        {"x" * 65: SCOUT},
        {"scout": {}},
        {"scout": {"description": "d"}},
        {"scout": {"prompt": "p"}},
        {"scout": {**SCOUT, "prompt": ""}},
        {"scout": {**SCOUT, "description": ""}},
        {"scout": {**SCOUT, "tools": [""]}},
        {"scout": {**SCOUT, "tools": "Read"}},
        {"scout": {**SCOUT, "model": "--opus"}},
        {"scout": {**SCOUT, "color": "red"}},
        {f"a{n}": SCOUT for n in range(101)},
    ],
)
def test_what_is_no_subagent_is_refused(agents: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step_with(agents)


NO_TOOL = [
    ({"single_turn": True}, {}, "single_turn"),
    ({"disallow_all_tools": True}, {}, "disallow_all_tools"),
    ({"tools": {"task": False}}, {}, "task: false"),
    ({"disallowed_tools": ["Task"]}, {}, "disallowed_tools takes"),
    ({"disallowed_tools": ["Ag*"]}, {}, "disallowed_tools takes"),
    ({}, {"disallowed_tools": ["Agent"]}, "agents.mine.disallowed_tools takes"),
    ({"allowed_tools": ["Read", "Bash(git *)"]}, {}, "allowed_tools does not name it"),
    ({"allowed_tools": []}, {}, "allowed_tools does not name it"),
    ({}, {"tools": ["Read"]}, "agents.mine.tools does not name it"),
]
HAS_TOOL = [
    ({}, {}),
    ({"tools": {"task": True}}, {"tools": ["Read"]}),
    ({"tools": {"bash": False}}, {}),
    ({"allowed_tools": ["Read", "Agent(scout)"]}, {}),
    ({"allowed_tools": ["Task"]}, {"tools": ["Read"]}),
    ({"disallowed_tools": ["Agent(other)", "Bash"]}, {}),
    ({}, {"tools": ["Read", "Agent"]}),
]


@pytest.mark.parametrize(("fields", "entry", "said"), NO_TOOL)
def test_subagents_that_nobody_can_start_are_refused(
    fields: dict[str, Any], entry: dict[str, Any], said: str
) -> None:
    with ProcessCore() as core:
        executor = ClaudeExecutor("mine", ClaudeOptions.model_validate(entry), core)
        with pytest.raises(ConfigurationError, match="agents, which nobody could start") as caught:
            ensure_honoured(step_with(**fields), "mine", executor)
        # The same fields without subagents are nobody's business.
        ensure_honoured(Step.model_validate({"name": "main", **fields}), "mine", executor)
    assert said in caught.value.message
    assert "leave the tool Agent to the agent" in str(caught.value.hint)


@pytest.mark.parametrize(("fields", "entry"), HAS_TOOL)
def test_subagents_that_can_be_started_are_honoured(
    fields: dict[str, Any], entry: dict[str, Any]
) -> None:
    options = ClaudeOptions.model_validate(entry)
    assert subagents_gone(step_with(**fields), options, "mine") is None
    with ProcessCore() as core:
        ensure_honoured(step_with(**fields), "mine", ClaudeExecutor("mine", options, core))
