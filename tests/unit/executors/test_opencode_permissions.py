"""Which permissions an attempt with opencode gets, in general and for its own agent."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.executors.opencode import general, of_the_agent
from sequencer.model.step import Step


def step(**tools: bool) -> Step:
    return Step.model_validate({"name": "main", "tools": tools})


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
