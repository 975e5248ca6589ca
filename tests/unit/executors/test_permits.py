"""What each client says that its agent may do, and when somebody has decided that."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.executors.claude import ClaudeExecutor, ClaudeOptions
from sequencer.executors.codex import CodexExecutor, CodexOptions
from sequencer.executors.gemini import GeminiExecutor, GeminiOptions
from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.opencode import OpencodeExecutor, OpencodeOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import Permits

MADE: dict[str, tuple[Any, Any]] = {
    "anthropic": (MessagesExecutor, MessagesOptions),
    "claude": (ClaudeExecutor, ClaudeOptions),
    "codex": (CodexExecutor, CodexOptions),
    "gemini": (GeminiExecutor, GeminiOptions),
    "opencode": (OpencodeExecutor, OpencodeOptions),
}


def permits(kind: str, entry: dict[str, Any]) -> Permits:
    executor, options = MADE[kind]
    with ProcessCore() as core:
        found: Permits = executor("a", options.model_validate(entry), core).permits()
    return found


@pytest.mark.parametrize("kind", MADE)
def test_nobody_has_decided_where_the_entry_says_nothing(kind: str) -> None:
    assert permits(kind, {}).to_edit
    assert permits(kind, {"model": "m"}).to_edit


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
def test_what_is_written_is_a_decision(kind: str, entry: dict[str, Any], says: str) -> None:
    assert permits(kind, entry) == Permits(says)


def test_what_is_taken_away_is_no_permission() -> None:
    found = permits("claude", {"disallowed_tools": ["WebFetch"]})
    assert found.to_edit
    assert "disallowed_tools WebFetch" in found.says
