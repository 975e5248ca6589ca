"""Which permissions an attempt with opencode gets, in general and for its own agent."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.executors.opencode import (
    general,
    of_the_agent,
    permission_objections,
    permission_of,
)
from sequencer.model.step import Step

ASK: Any = {"edit": "ask", "bash": "ask"}


def step(**tools: bool) -> Step:
    return Step.model_validate({"name": "main", "tools": tools})


def test_tools_that_change_files_share_a_permission() -> None:
    assert {permission_of(name) for name in ("edit", "write", "patch", "multiedit")} == {"edit"}
    assert permission_of("mcp_*") == "mcp_*"


def test_what_is_taken_away_is_denied_to_everybody() -> None:
    assert general(ASK, ["write", "task"]) == {"bash": "ask", "edit": "deny", "task": "deny"}
    assert general({}, []) == {}
    assert general(ASK, []) == ASK


def test_what_is_granted_is_allowed_to_the_steps_agent() -> None:
    assert of_the_agent(ASK, {}, step(bash=True)) == {"edit": "ask", "bash": "allow"}
    # A name that is gone takes its permission along.
    assert of_the_agent(ASK, {"bash": False}, step(edit=True)) == {"edit": "allow"}
    assert of_the_agent(ASK, {}, step()) == ASK


@pytest.mark.parametrize(
    ("made", "last"),
    [
        (general({"bash": "allow", "*": "allow"}, ["bash"]), "bash"),
        (of_the_agent({"bash": "ask", "*": "ask"}, {}, step(bash=True)), "bash"),
    ],
)
def test_what_the_step_says_comes_last_because_the_last_rule_wins(
    made: dict[str, Any], last: str
) -> None:
    assert list(made)[-1] == last
    assert len(made) == 2


def test_leave_to_read_does_not_extend_to_secrets() -> None:
    read = of_the_agent({}, {}, step(read=True))["read"]
    assert isinstance(read, dict)
    assert list(read.items())[:2] == [("*", "allow"), ("*.env", "ask")]


def test_a_rule_of_the_entry_is_named_with_what_to_write() -> None:
    found = permission_objections({"edit": "deny", "bash": {"rm *": "deny"}}, step(write=True), "o")
    assert [tuple(each) for each in found] == [
        (
            "tools: write: true, but agents.o.permission denies it",
            "write allow for edit there, or leave write out",
        )
    ]
