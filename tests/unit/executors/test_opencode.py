"""What opencode is given, and what is made of what it printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.opencode import (
    OpencodeExecutor,
    OpencodeOptions,
    OpencodeParser,
    build_agent_rules,
    build_general_rules,
    opencode_argv,
    opencode_configuration,
)
from sequencer.executors.process import ProcessCore
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.step import Step
from tests.contract.executor_cases import request_for
from tests.unit.executors.replay import RULES, replay

ASK = {"edit": "ask", "bash": "ask", "webfetch": "ask"}


def test_a_session_is_continued_by_its_id(tmp_path: Path) -> None:
    request = request_for(tmp_path, resume_session="ses_dffe")
    assert opencode_argv(OpencodeOptions(), request)[-1] == "--session=ses_dffe"
    with pytest.raises(ValueError, match="not a session id"):
        opencode_argv(OpencodeOptions(), request_for(tmp_path, resume_session="--yolo"))


@pytest.mark.parametrize(
    ("entry", "step", "agent"),
    [
        ({}, {"single_turn": True}, {"steps": 1, "tools": {"*": False}}),
        ({}, {"max_turns": 4}, {"steps": 4}),
        ({}, {"disallow_all_tools": True}, {"tools": {"*": False}}),
        (
            {"allowed_tools": ["read"]},
            {"disallow_all_tools": True, "allowed_tools": ["bash"], "max_turns": 4},
            {"steps": 4, "tools": {"*": False}},
        ),
        ({}, {"allowed_tools": ["read"]}, {"tools": {"*": False, "read": True}}),
        (
            {"allowed_tools": ["read", "bash"], "disallowed_tools": ["webfetch"]},
            {"disallowed_tools": ["bash"]},
            {"tools": {"*": False, "read": True, "bash": False, "webfetch": False}},
        ),
    ],
)
def test_step_fields_become_an_agents_configuration(
    tmp_path: Path, entry: dict[str, Any], step: dict[str, Any], agent: dict[str, Any]
) -> None:
    request = request_for(tmp_path, step=Step(name="main", **step))
    options = OpencodeOptions.model_validate({**entry, "permission": {}})
    made = opencode_configuration(options, request)
    assert made["agent"] == {"build": agent}
    # A subagent would have what only this agent has lost.
    gone = [*entry.get("disallowed_tools", ()), *step.get("disallowed_tools", ())]
    assert made.get("permission", {}) == dict.fromkeys(gone, "deny")


@pytest.mark.parametrize(
    ("entry", "tools", "agent", "general"),
    [
        ({}, {}, {"permission": ASK}, ASK),
        (
            {},
            {"bash": True, "todoread": False},
            {
                "tools": {"todoread": False},
                "permission": {"edit": "ask", "webfetch": "ask", "bash": "allow"},
            },
            {**ASK, "todoread": "deny"},
        ),
        (
            {"permission": {"edit": "allow"}},
            {"write": False},
            {"tools": {"write": False}},
            {"edit": "deny"},
        ),
        (
            {"permission": {}, "allowed_tools": ["read"]},
            {"write": True, "bash": False},
            {
                "tools": {"*": False, "read": True, "write": True, "bash": False},
                "permission": {"edit": "allow"},
            },
            {"bash": "deny"},
        ),
    ],
)
def test_words_for_tools_become_permissions(
    tmp_path: Path,
    entry: dict[str, Any],
    tools: dict[str, bool],
    agent: dict[str, Any],
    general: dict[str, Any],
) -> None:
    request = request_for(tmp_path, step=Step.model_validate({"name": "main", "tools": tools}))
    made = opencode_configuration(OpencodeOptions.model_validate(entry), request)
    assert made == {"permission": general, "agent": {"build": agent}}


@pytest.mark.parametrize(
    ("step", "model"),
    [
        ({"model": "own/deep/m2"}, {"own": "deep/m2"}),
        ({"model": "m2", "provider": "own"}, {"own": "m2"}),
        ({}, {"fake": "m1"}),
    ],
)
def test_a_temperature_is_set_for_the_agent_and_enabled_for_its_model(
    tmp_path: Path, step: dict[str, Any], model: dict[str, str]
) -> None:
    request = request_for(tmp_path, step=Step(name="main", temperature=0, **step))
    options = OpencodeOptions(model="fake/m1", permission={}, agent="plan")
    ((provider, name),) = model.items()
    assert opencode_configuration(options, request) == {
        "agent": {"plan": {"temperature": 0}},
        "provider": {provider: {"models": {name: {"temperature": True}}}},
    }


@pytest.mark.parametrize(
    ("tools", "expected"), [({"websearch": True}, "1"), ({"websearch": False}, None), ({}, None)]
)
def test_the_search_tool_is_enabled_by_a_variable(
    tmp_path: Path, tools: dict[str, bool], expected: str | None
) -> None:
    step = Step.model_validate({"name": "main", "tools": tools})
    executor = OpencodeExecutor("opencode", OpencodeOptions(), ProcessCore())
    environment = executor.build_call(request_for(tmp_path, step=step)).environment
    assert environment.get("OPENCODE_ENABLE_EXA") == expected


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ({"single_turn": True}, set()),
        ({"allowed_tools": ["read"]}, set()),
        ({"allowed_tools": ["read", "bash"]}, {"bash"}),
        ({"allowed_tools": ["write"]}, {"edit"}),
        ({"disallowed_tools": ["bash"]}, {"edit", "webfetch"}),
        ({"disallowed_tools": ["write"]}, {"bash", "webfetch"}),
        ({"allowed_tools": ["edit", "bash"], "disallowed_tools": ["bash"]}, {"edit"}),
        ({}, {"edit", "bash", "webfetch"}),
    ],
)
def test_a_permission_does_not_restore_a_tool_the_step_takes_away(
    tmp_path: Path, step: dict[str, Any], left: set[str]
) -> None:
    request = request_for(tmp_path, step=Step(name="main", **step))
    options = OpencodeOptions(permission={"edit": "allow", "bash": "allow", "webfetch": "ask"})
    agent = opencode_configuration(options, request)["agent"]["build"]
    assert set(agent.get("permission", {})) == left


def test_an_empty_permission_adds_no_configuration(tmp_path: Path) -> None:
    options = OpencodeOptions(permission={})
    assert opencode_configuration(options, request_for(tmp_path)) == {}


def test_the_configured_agent_gets_the_system_prompt(tmp_path: Path) -> None:
    options = OpencodeOptions(agent="plan", permission={"bash": {"git *": "allow", "*": "deny"}})
    made = opencode_configuration(options, request_for(tmp_path, system_prompt="S"))
    assert made["agent"]["plan"]["prompt"] == "S"
    assert made["permission"] == {"bash": {"git *": "allow", "*": "deny"}}


@pytest.mark.parametrize(
    "entry",
    [
        {"permission": {"bash": "yes"}},
        {"agent": "--x y"},
        {"env": {"OPENCODE_CONFIG_CONTENT": "{}"}},
    ],
)
def test_invalid_entries_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OpencodeOptions.model_validate(entry)


def test_a_step_ended_by_a_refusal_failed_despite_exit_code_0() -> None:
    outcome = replay("opencode-refused", OpencodeParser(RULES)).outcome
    assert outcome.exit_code == 0
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.denials == ('bash command="echo hi > f.txt" description="x"',)
    assert outcome.error is not None
    assert "permission:" in outcome.error


@pytest.mark.parametrize(
    ("name", "said"),
    [("opencode-400", "APIError: bad"), ("opencode-no-session", "Error: Session not found")],
)
def test_errors_are_failures_that_state_the_reason(name: str, said: str) -> None:
    outcome = replay(name, OpencodeParser(RULES)).outcome
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert said in outcome.error
    assert "\x1b" not in outcome.error


# --- which permissions an attempt with opencode gets, in general and for its own agent --------


def step(**tools: bool) -> Step:
    return Step.model_validate({"name": "main", "tools": tools})


@pytest.mark.parametrize(
    ("made", "last"),
    [
        (build_general_rules({"bash": "allow", "*": "allow"}, ["bash"]), "bash"),
        (build_agent_rules({"bash": "ask", "*": "ask"}, {}, step(bash=True)), "bash"),
    ],
)
def test_the_steps_rule_comes_last_because_the_last_rule_wins(
    made: dict[str, Any], last: str
) -> None:
    assert list(made)[-1] == last
    assert len(made) == 2


def test_permission_to_read_does_not_extend_to_secrets() -> None:
    read = build_agent_rules({}, {}, step(read=True))["read"]
    assert isinstance(read, dict)
    assert list(read.items())[:2] == [("*", "allow"), ("*.env", "ask")]
