"""Words for tools: what stands behind them, and what can't be had together."""

from __future__ import annotations

from importlib import import_module
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from sequencer.executors.claude import ClaudeExecutor, ClaudeOptions
from sequencer.executors.codex import CodexExecutor, CodexOptions
from sequencer.executors.gemini import GeminiExecutor, GeminiOptions
from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.opencode import OpencodeExecutor, OpencodeOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.project_tools import TOOLS
from sequencer.executors.protocol import (
    HasPermissions,
    Objection,
    Permissions,
    ValidatesSteps,
)
from sequencer.executors.tool_words import (
    CLAUDE,
    CODEX,
    GEMINI,
    MESSAGES,
    OPENCODE,
    ClientTools,
    Table,
    tool_objections,
    writing_objection,
)
from sequencer.model.step import Step, ToolName
from sequencer.project.agents import EXECUTORS, PROVIDERS

TABLES = {
    "claude": CLAUDE,
    "codex": CODEX,
    "gemini": GEMINI,
    "anthropic": MESSAGES,
    "opencode": OPENCODE,
}
WORDS: tuple[ToolName, ...] = get_args(ToolName)


def step(**fields: Any) -> Step:
    return Step(name="main", **fields)


def objected(kind: str, entry: dict[str, Any] | None = None, **fields: Any) -> list[Objection]:
    """Return what the executor of *kind* has against a step with *fields*."""
    made: tuple[Any, Any] = {
        "claude": (ClaudeExecutor, ClaudeOptions),
        "codex": (CodexExecutor, CodexOptions),
        "gemini": (GeminiExecutor, GeminiOptions),
        "anthropic": (MessagesExecutor, MessagesOptions),
        "opencode": (OpencodeExecutor, OpencodeOptions),
    }[kind]
    options = made[1].model_validate(entry or {})
    built = made[0]("mine", options, ProcessCore())
    assert isinstance(built, ValidatesSteps)
    return built.objections(step(**fields))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_word_has_a_row(table: Table) -> None:
    assert set(table) == set(WORDS)


def test_the_words_of_our_own_tools_are_their_names() -> None:
    assert {word for word in WORDS if MESSAGES[word].granted} == set(TOOLS)
    own = [word for word in WORDS if word in TOOLS]
    assert all(MESSAGES[word] == ClientTools((word,), (word,)) for word in own)


MISSING = [
    (kind, word) for kind, table in TABLES.items() for word in WORDS if not table[word].granted
]


def test_tools_missing_from_each_client_are_listed() -> None:
    assert {kind: [w for k, w in MISSING if k == kind] for kind in TABLES} == {
        "claude": [],
        "codex": ["webfetch", "todoread"],
        "gemini": ["todoread"],
        "anthropic": ["list", "webfetch", "websearch", "task", "todoread", "todowrite"],
        "opencode": ["todoread"],
    }


ALL_OFF = dict.fromkeys(WORDS, False)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("more", [{}, {"single_turn": True}, {"disallow_all_tools": True}])
def test_everything_may_be_taken_away(kind: str, more: dict[str, Any]) -> None:
    assert objected(kind, tools=ALL_OFF, **more) == []


@pytest.mark.parametrize("kind", ["claude", "anthropic", "opencode"])
@pytest.mark.parametrize("switch", ["single_turn", "disallow_all_tools"])
def test_a_tool_cannot_be_granted_where_all_are_taken_away(kind: str, switch: str) -> None:
    fields: dict[str, Any] = {"tools": {"read": True, "bash": False}, switch: True}
    (objection,) = objected(kind, **fields)
    assert objection.reason == f"tools: read: true, but {switch} takes all tools away"
    assert objection.hint == f"leave {switch} or read out"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"tools": {"bash": True}, "allowed_tools": ["Bash(git *)", "Read"]},
            "tools: bash: true, but allowed_tools does not name Bash as a whole",
        ),
        (
            {"tools": {"bash": False}, "allowed_tools": ["Bash(git *)", "Read"]},
            "tools: bash: false, but allowed_tools names Bash(git *)",
        ),
        (
            {"tools": {"webfetch": True}, "disallowed_tools": ["Web*"]},
            "tools: webfetch: true, but disallowed_tools takes WebFetch away",
        ),
        (
            {"tools": {"task": True}, "disallowed_tools": ["Agent"]},
            "tools: task: true, but disallowed_tools takes Agent away",
        ),
        (
            {"tools": {"list": True, "glob": False}},
            "tools: list: true, but glob: false takes Glob away",
        ),
    ],
)
def test_contradictory_settings_are_refused(fields: dict[str, Any], reason: str) -> None:
    assert [each.reason for each in tool_objections(step(**fields), CLAUDE, "mine")] == [reason]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": {"bash": True}, "allowed_tools": ["Bash", "Bash(git *)"]},
        {"tools": {"bash": False}, "allowed_tools": ["Read"]},
        {"tools": {"task": True}, "allowed_tools": ["Agent"]},
        # A part of it stays away, which is what such a rule is for.
        {"tools": {"bash": True}, "disallowed_tools": ["Bash(rm *)"]},
        {"tools": {"bash": False}, "disallowed_tools": ["Bash"]},
    ],
)
def test_repeated_equal_settings_are_accepted(fields: dict[str, Any]) -> None:
    assert tool_objections(step(**fields), CLAUDE, "mine") == []


def test_all_problems_are_reported_at_once() -> None:
    found = objected("anthropic", tools={"task": True, "bash": True}, temperature=1.5)
    assert [each.reason for each in found] == [
        "tools: task: true: it has no such tool",
        "tools: bash: true, but agent 'mine' does not have it",
        "temperature 1.5 is more than the API takes",
    ]
    assert found[1].hint == "add it to agents.mine.tools"


@pytest.mark.parametrize(
    ("kind", "entry", "tools", "said"),
    [
        ("claude", {"disallowed_tools": ["Bash"]}, {"bash": True}, "agents.mine.disallowed_tools"),
        ("claude", {"permission_mode": "plan"}, {"edit": True}, "permission_mode is plan"),
        ("gemini", {"approval_mode": "plan"}, {"bash": True}, "approval_mode is plan"),
        ("codex", {"disallowed_tools": ["shell_tool"]}, {"bash": True}, "takes shell_tool away"),
        ("codex", {"disallowed_tools": ["shell_tool"]}, {"read": True}, "takes shell_tool away"),
        ("codex", {}, {"read": False}, "does that with its shell"),
        ("codex", {}, {"grep": False, "bash": True}, "does that with its shell"),
        ("codex", {}, {"glob": True, "bash": False}, "bash: false takes shell_tool away"),
        ("codex", {}, {"write": True}, "agents.mine.sandbox is read-only"),
        ("codex", {"sandbox": "workspace-write"}, {"write": True, "edit": False}, "one switch"),
        ("opencode", {}, {"write": True, "edit": False}, "one permission for both"),
        ("opencode", {"permission": {"bash": "deny"}}, {"bash": True}, "denies it"),
        ("opencode", {"permission": {"*": "deny"}}, {"read": True}, "denies it"),
        ("opencode", {"permission": {"edit": {"*": "ask"}}}, {"write": True}, "has rules for it"),
        ("opencode", {"disallowed_tools": ["b*"]}, {"bash": True}, "takes bash away"),
    ],
)
def test_a_step_does_not_get_what_the_entry_forbids(
    kind: str, entry: dict[str, Any], tools: dict[str, bool], said: str
) -> None:
    (objection,) = objected(kind, entry, tools=tools)
    assert said in objection.reason
    assert objection.hint


@pytest.mark.parametrize(
    ("entry", "fields", "said"),
    [
        ({}, {"provider": "openai"}, "names no model of that provider"),
        ({"model": "anthropic/m"}, {"provider": "openai"}, "names no model of that provider"),
        ({}, {"temperature": 0.5}, "in the form provider/model"),
        ({}, {"temperature": 0.5, "model": "m1"}, "in the form provider/model"),
        ({}, {"temperature": 0.5, "model": "fake/"}, "in the form provider/model"),
    ],
)
def test_opencode_needs_the_full_name_of_a_model(
    entry: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    (objection,) = objected("opencode", entry, **fields)
    assert said in objection.reason
    for ample in ({"provider": "openai", "model": "m"}, {"model": "openai/m", "temperature": 2}):
        assert objected("opencode", entry, **ample) == []
    assert objected("opencode", {"model": "openai/m"}, provider="openai", temperature=0) == []


# --- whose models there are, and that the table of them agrees with the executors -------------

ANYBODYS = {"command", "opencode", "rehearsal", "scripted"}


def test_kinds_limited_to_one_provider_declare_it() -> None:
    told = {kind: provider for provider, kinds in PROVIDERS.items() for kind in kinds}
    assert told.keys() == EXECUTORS.keys() - ANYBODYS
    for kind, recipe in EXECUTORS.items():
        executor = getattr(import_module(recipe.module), recipe.executor)
        has = getattr(executor, "providers", None)
        assert has == ({told[kind]} if kind in told else None), kind


@pytest.mark.parametrize("kind", sorted(EXECUTORS.keys() - {"rehearsal", "scripted"}))
def test_executors_that_accept_only_some_values_can_validate_steps(kind: str) -> None:
    executor = getattr(import_module(EXECUTORS[kind].module), EXECUTORS[kind].executor)
    # What the protocol asks for is looked up by name, so a slip would switch the check off.
    assert isinstance(executor.__new__(executor), ValidatesSteps)


# --- what each client says that its agent may do, and when somebody has decided that ----------

MADE: dict[str, tuple[Any, Any]] = {
    "anthropic": (MessagesExecutor, MessagesOptions),
    "claude": (ClaudeExecutor, ClaudeOptions),
    "codex": (CodexExecutor, CodexOptions),
    "gemini": (GeminiExecutor, GeminiOptions),
    "opencode": (OpencodeExecutor, OpencodeOptions),
}


@pytest.mark.parametrize("kind", sorted(MADE))
def test_executors_that_ask_a_model_can_report_their_permissions(kind: str) -> None:
    # As above: a slip in a name would switch warnings of `check` off.
    assert isinstance(MADE[kind][0].__new__(MADE[kind][0]), HasPermissions)


def permissions(kind: str, entry: dict[str, Any]) -> Permissions:
    executor, options = MADE[kind]
    with ProcessCore() as core:
        found: Permissions = executor("a", options.model_validate(entry), core).permissions()
    return found


@pytest.mark.parametrize("kind", MADE)
def test_permissions_are_undecided_if_the_entry_sets_none(kind: str) -> None:
    assert permissions(kind, {}).to_edit
    assert permissions(kind, {"model": "m"}).to_edit


@pytest.mark.parametrize(
    ("kind", "entry", "says"),
    [
        ("claude", {"permission_mode": "plan"}, "permission_mode plan"),
        ("claude", {"allowed_tools": ["Read"]}, "allowed_tools Read"),
        ("claude", {"tools": []}, "tools none"),
        (
            "claude",
            {"permission_mode": "default", "disallowed_tools": ["Bash"]},
            "permission_mode default; disallowed_tools Bash",
        ),
        ("claude", {"extra_args": ['--settings={"k": "SECRET"}']}, "--settings"),
        ("codex", {"sandbox": "read-only"}, "sandbox read-only"),
        ("codex", {"extra_args": ["--full-auto"]}, "sandbox read-only; --full-auto"),
        ("gemini", {"approval_mode": "default"}, "approval_mode default"),
        ("opencode", {"permission": {}}, "as its own configuration says"),
        ("opencode", {"permission": {"edit": "deny"}}, 'permission {"edit": "deny"}'),
        ("anthropic", {"tools": ["read"]}, "tools read"),
    ],
)
def test_permissions_written_in_an_entry_are_a_decision(
    kind: str, entry: dict[str, Any], says: str
) -> None:
    assert replace(permissions(kind, entry), can_write=True) == Permissions(says)


def test_a_tool_taken_away_is_not_a_permission() -> None:
    found = permissions("claude", {"disallowed_tools": ["WebFetch"]})
    assert found.to_edit
    assert "disallowed_tools WebFetch" in found.summary


READS: dict[str, bool] = dict.fromkeys(("write", "edit", "bash"), False)


@pytest.mark.parametrize(
    ("kind", "entry", "step", "may_write"),
    [
        ("codex", {}, {}, False),
        ("codex", {"sandbox": "workspace-write"}, {}, True),
        ("codex", {"extra_args": ["--full-auto"]}, {}, True),
        (
            "codex",
            {"sandbox": "workspace-write"},
            {"tools": {"write": False, "edit": False}},
            False,
        ),
        ("gemini", {}, {}, False),
        ("gemini", {}, {"tools": {"edit": True}}, True),
        ("gemini", {"approval_mode": "auto_edit"}, {}, True),
        ("opencode", {}, {}, False),
        ("opencode", {"permission": {}}, {}, True),
        ("opencode", {"permission": {"edit": "deny", "bash": {"git *": "allow"}}}, {}, True),
        # claude's own settings may allow it.
        ("claude", {}, {}, True),
        ("claude", {"permission_mode": "plan"}, {}, False),
        ("claude", {"tools": ["Read", "Grep"]}, {}, False),
        ("claude", {"tools": ["Read", "Write"]}, {}, True),
        ("claude", {"permission_mode": "acceptEdits"}, {"tools": READS}, False),
        ("claude", {"permission_mode": "acceptEdits"}, {"single_turn": True}, False),
        ("claude", {"permission_mode": "acceptEdits"}, {"disallow_all_tools": True}, False),
        ("claude", {"permission_mode": "acceptEdits"}, {"tools": {"bash": False}}, True),
        ("claude", {"allowed_tools": ["Bash"]}, {"allowed_tools": ["Read", "Grep"]}, False),
        ("claude", {"allowed_tools": ["Bash"]}, {"allowed_tools": []}, False),
        ("claude", {}, {"allowed_tools": ["Read", "Bash(git *)"]}, True),
        ("opencode", {"permission": {}}, {"allowed_tools": ["read", "grep"]}, False),
        ("opencode", {"permission": {}}, {"allowed_tools": ["read", "edit"]}, True),
        ("anthropic", {}, {}, False),
        ("anthropic", {"tools": ["read", "edit"]}, {}, True),
    ],
)
def test_only_agents_that_can_change_files_may_be_expected_to(
    kind: str, entry: dict[str, Any], step: dict[str, Any], may_write: bool
) -> None:
    make, options = MADE[kind]
    with ProcessCore() as core:
        executor = make(kind, options.model_validate(entry), core)
        asked = Step(name="main", expects="change", **step)
        found = [*filter(None, (writing_objection(asked, executor), *executor.objections(asked)))]
    assert (not found) is may_write
    assert all("expects: change" in each.reason for each in found)
