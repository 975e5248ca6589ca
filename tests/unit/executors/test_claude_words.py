"""The arguments that claude gets for words that mean the same for every client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.claude import ClaudeOptions, claude_argv
from sequencer.model.step import Step
from tests.contract.executor_cases import request_for

NO_TOOLS = ["--tools=", "--strict-mcp-config"]


@pytest.mark.parametrize(
    ("entry", "step", "expected"),
    [
        ({}, {"provider": "anthropic", "model": "opus"}, ["--model=opus"]),
        ({}, {"text": "the prompt"}, []),
        ({}, {"tools": {}}, []),
        (
            {},
            {"tools": {"write": True, "read": False, "grep": True, "webfetch": False}},
            ["--allowedTools=Write,Grep", "--disallowedTools=Read,WebFetch"],
        ),
        (
            {"tools": ["Read"], "allowed_tools": ["Bash(git *)"], "disallowed_tools": ["LS"]},
            {"tools": {"read": True, "glob": True, "list": False}, "disallowed_tools": ["X"]},
            [
                "--tools=Read,Glob",
                "--allowedTools=Bash(git *),Read,Glob",
                "--disallowedTools=LS,X",
            ],
        ),
        # A list of the step names all that there is; a word takes no more than away.
        (
            {},
            {"tools": {"read": True, "write": False}, "allowed_tools": ["Read", "Bash(ls *)"]},
            [
                "--tools=Read,Bash",
                "--allowedTools=Read,Bash(ls *)",
                "--disallowedTools=Write",
            ],
        ),
        (
            {},
            {"tools": {"websearch": False}, "single_turn": True},
            [*NO_TOOLS, "--disallowedTools=WebSearch", "--max-turns=1"],
        ),
    ],
)
def test_words_add_to_the_entrys_lists(
    tmp_path: Path, entry: dict[str, Any], step: dict[str, Any], expected: list[str]
) -> None:
    request = request_for(tmp_path, step=Step(name="main", **step))
    options = ClaudeOptions.model_validate({"stream_text": False, **entry})
    argv = claude_argv(options, request)
    assert argv == ["claude", "-p", "--output-format=stream-json", "--verbose", *expected]
