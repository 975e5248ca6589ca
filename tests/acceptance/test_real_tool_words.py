"""What a step's tools, model and temperature do to the real programs, before a fake model.

The programs are found as in `test_real_claude` and `test_npm_clients`. What counts is what
the model is offered, and what then runs without anybody to ask.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer import OutcomeStatus
from tests.acceptance import test_npm_clients as npm
from tests.acceptance import test_real_claude as wheel
from tests.fake_model_server import FakeModel, fake_model

pytestmark = pytest.mark.timeout(180)


def offered(body: dict[str, Any]) -> set[str]:
    """Return the names of the tools that a request offers, in any client's protocol."""
    names = set()
    for tool in body.get("tools") or []:
        declared = tool.get("functionDeclarations") or [tool.get("function") or tool]
        names |= {each.get("name") or each.get("type") for each in declared}
    return names


def asked(model: FakeModel) -> list[dict[str, Any]]:
    """Return the requests that offer tools; the others are for a title."""
    return [body for body in model.bodies() if body.get("tools")]


# --- claude


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[wheel.Desk]:
    program = wheel.claude_program()
    with fake_model() as model:
        made = wheel.Desk(model, tmp_path, program)
        yield made
        made.cancellation.close()


def claude_tools(desk: wheel.Desk, step: dict[str, Any]) -> set[str]:
    """Return all tools of a session, also those that are told to the model later."""
    heard = desk.home / "heard.jsonl"
    program = desk.home / "claude"
    words = f'{shlex.quote(wheel.claude_program())} "$@" | tee {shlex.quote(str(heard))}'
    program.write_text(f"#!/bin/sh\n{words}\n")
    program.chmod(0o700)
    outcome = desk.ask({"text": "x"}, entry={"program": str(program)}, step=step)
    assert outcome.status is OutcomeStatus.OK, outcome.error
    events = [json.loads(line) for line in heard.read_text().splitlines()]
    return next(set(event["tools"]) for event in events if event.get("subtype") == "init")


BEHIND_WORDS = [
    ("read", {"Read"}),
    ("write", {"Write"}),
    ("edit", {"Edit", "NotebookEdit"}),
    ("bash", {"Bash", "Monitor"}),
    ("webfetch", {"WebFetch"}),
    ("websearch", {"WebSearch"}),
    ("task", {"Task", "Agent", "Workflow"}),
    ("todoread", {"TaskGet", "TaskList"}),
    ("todowrite", {"TaskCreate", "TaskUpdate"}),
]


@pytest.mark.wheel
def test_claude_loses_tools_that_a_word_disables(claude: wheel.Desk) -> None:
    before = claude_tools(claude, {"tools": {"glob": True, "grep": True, "list": True}})
    assert {"Glob", "Grep"} <= before
    words = dict.fromkeys([word for word, _ in BEHIND_WORDS], False)
    after = claude_tools(claude, {"tools": {**words, "glob": True, "grep": False}})
    for _, names in BEHIND_WORDS:
        assert names & before, "the test asks for a tool that this version has not"
        assert not names & after
    assert "Glob" in after
    assert "Grep" not in after


@pytest.mark.wheel
@pytest.mark.parametrize("entry", [{}, {"tools": ["Read"]}])
def test_claude_uses_granted_tools_without_asking(
    claude: wheel.Desk, entry: dict[str, Any]
) -> None:
    target = claude.folder / "new.txt"
    refused = claude.ask(wheel.write_turn(target), {"text": "I could not."}, entry=entry)
    assert not target.exists()
    turn = wheel.write_turn(target)
    step = {"tools": {"write": True, "bash": False}, "provider": "anthropic"}
    outcome = claude.ask(turn, {"text": "done"}, entry=entry, step=step)
    assert (outcome.status, outcome.denials) == (OutcomeStatus.OK, ())
    assert target.read_text() == "by claude\n"
    assert refused.output == "I could not."
    last = offered(claude.model.bodies("/messages")[-1])
    assert "Write" in last
    assert "Bash" not in last


@pytest.mark.wheel
def test_claudes_subagents_lose_disabled_tools_too(claude: wheel.Desk) -> None:
    ask = {"description": "d", "prompt": "look", "subagent_type": "general-purpose"}
    step = {"tools": {"bash": False, "write": False}}
    claude.ask({"tool": "Agent", "input": ask}, {"text": "x"}, step=step)
    requests = asked(claude.model)
    assert len(requests) == 3, "the lead's two and the subagent's"
    assert not any(offered(body) & {"Bash", "Write"} for body in requests)


# --- codex, gemini, opencode


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[npm.Desk]:
    with fake_model() as model:
        made = npm.Desk(request.param, model, tmp_path)
        yield made
        made.cancellation.close()


codex = pytest.mark.parametrize("desk", ["codex"], indirect=True)
gemini = pytest.mark.parametrize("desk", ["gemini"], indirect=True)
opencode = pytest.mark.parametrize("desk", ["opencode"], indirect=True)


@pytest.mark.clients
@codex
def test_tool_words_switch_codex_features(desk: npm.Desk) -> None:
    on = {"bash": True, "task": True, "websearch": True, "todowrite": True, "read": True}
    off = dict.fromkeys(on, False) | {"webfetch": False}
    for words in (on, off):
        outcome = desk.ask({"text": "x"}, step={"tools": words, "provider": "openai"})
        assert outcome.status is OutcomeStatus.OK, outcome.error
    first, second = (offered(body) for body in asked(desk.model))
    switched = {"exec_command", "write_stdin", "multi_agent_v1", "web_search", "update_plan"}
    assert switched <= first
    assert not switched & second


@pytest.mark.clients
@codex
@pytest.mark.parametrize(("words", "is_read_only"), [({}, False), ({"write": False}, True)])
def test_the_sandbox_keeps_codex_from_writing(
    desk: npm.Desk, words: dict[str, bool], is_read_only: bool
) -> None:
    # Where a container has no rights for a sandbox the command fails, which is as good.
    desk.ask(desk.command("echo hi > ran.txt"), {"text": "x"}, step={"tools": words})
    assert (desk.folder / "ran.txt").exists() is not is_read_only


@pytest.mark.clients
@gemini
def test_gemini_is_not_offered_disabled_tools(desk: npm.Desk) -> None:
    words = dict.fromkeys(
        ("read", "write", "edit", "bash", "glob", "grep", "list", "webfetch", "websearch"), False
    )
    words |= {"task": False, "todowrite": False, "todoread": False}
    desk.ask({"text": "x"})
    outcome = desk.ask({"text": "x"}, step={"tools": words, "provider": "google"})
    assert outcome.status is OutcomeStatus.OK, outcome.error
    before, after = (offered(body) for body in desk.model.bodies("enerateContent"))
    assert {"run_shell_command", "write_file", "replace", "invoke_agent", "write_todos"} <= before
    assert after <= {"activate_skill", "enter_plan_mode", "update_topic"}


@pytest.mark.clients
@gemini
def test_gemini_uses_granted_tools_without_asking(desk: npm.Desk) -> None:
    entry = {"approval_mode": "default"}
    outcome = desk.ask(
        desk.command("echo hi > ran.txt"),
        {"text": "done"},
        entry=entry,
        step={"tools": {"bash": True, "webfetch": True, "todowrite": True}},
    )
    assert (outcome.status, outcome.denials) == (OutcomeStatus.OK, ())
    assert (desk.folder / "ran.txt").read_text() == "hi\n"
    names = offered(asked(desk.model)[-1])
    assert {"run_shell_command", "web_fetch", "write_todos"} <= names
    assert not names & {"write_file", "replace"}


@pytest.mark.clients
@gemini
def test_gemini_keeps_the_users_own_policies(desk: npm.Desk) -> None:
    policies = desk.home / ".gemini" / "policies"
    policies.mkdir(parents=True)
    rule = '[[rule]]\ntoolName = "run_shell_command"\ndecision = "deny"\npriority = 100\n'
    (policies / "own.toml").write_text(rule)
    desk.ask({"text": "x"}, step={"tools": {"bash": True, "glob": False}})
    names = offered(asked(desk.model)[-1])
    assert "read_file" in names
    assert not names & {"run_shell_command", "glob"}


@pytest.mark.clients
@opencode
def test_opencode_is_not_offered_disabled_tools(desk: npm.Desk) -> None:
    words = dict.fromkeys(
        ("read", "write", "bash", "glob", "grep", "list", "webfetch", "websearch", "task"), False
    )
    words |= {"todowrite": False, "todoread": False, "edit": False}
    outcome = desk.ask({"text": "x"}, step={"tools": words})
    assert outcome.status is OutcomeStatus.OK, outcome.error
    assert [offered(body) for body in asked(desk.model)] == [{"skill"}]


@pytest.mark.clients
@opencode
@pytest.mark.parametrize("key", ["tools", "disallowed_tools"])
def test_opencodes_subagents_lose_disabled_tools_too(desk: npm.Desk, key: str) -> None:
    ask = {"description": "d", "prompt": "look", "subagent_type": "general"}
    given = {"tools": {"bash": False, "write": False}, "disallowed_tools": ["bash", "write"]}
    desk.ask({"tool": "task", "input": ask}, {"text": "x"}, step={key: given[key]})
    requests = asked(desk.model)
    assert len(requests) == 3, "the lead's two and the subagent's"
    assert all("read" in offered(body) for body in requests)
    assert not any(offered(body) & {"bash", "write", "edit"} for body in requests)


@pytest.mark.clients
@opencode
@pytest.mark.parametrize("more", [{}, {"allowed_tools": ["read"]}])
def test_opencode_uses_granted_tools_without_asking(desk: npm.Desk, more: dict[str, Any]) -> None:
    # Its own default, which asks, and nobody is there to be asked.
    entry = {"permission": {"edit": "ask", "bash": "ask", "webfetch": "ask"}, **more}
    outcome = desk.ask(
        desk.command("echo hi > ran.txt"),
        {"text": "done"},
        entry=entry,
        step={"tools": {"bash": True, "websearch": True}},
    )
    assert (outcome.status, outcome.denials) == (OutcomeStatus.OK, ()), outcome.error
    assert (desk.folder / "ran.txt").read_text() == "hi\n"
    assert {"read", "bash", "websearch"} <= offered(asked(desk.model)[0])


@pytest.mark.clients
@opencode
def test_opencode_still_asks_before_it_reads_a_secret(desk: npm.Desk) -> None:
    (desk.folder / ".env").write_text("KEY=SECRET-VALUE\n")
    read = {"tool": "read", "input": {"filePath": str(desk.folder / ".env")}}
    desk.ask(read, {"text": "x"}, step={"tools": {"read": True, "list": True}})
    assert "SECRET-VALUE" not in json.dumps(desk.model.bodies())


@pytest.mark.clients
@opencode
def test_opencode_sends_the_temperature_and_the_providers_model(desk: npm.Desk) -> None:
    step = {"temperature": 0.25, "provider": "fake", "model": "m1"}
    outcome = desk.ask({"text": "x"}, entry={"model": "other/none"}, step=step)
    assert outcome.status is OutcomeStatus.OK, outcome.error
    (body,) = asked(desk.model)
    assert (body["model"], body["temperature"]) == ("m1", 0.25)
