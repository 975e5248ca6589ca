"""The plug-in for Claude Code: what it names is there, and the real program takes it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from sequencer import __version__
from tests import forked
from tests.acceptance.test_mcp import CHANGES, STATE_DISPLAYS
from tests.acceptance.test_real_claude import claude_program

PLUGIN = Path(__file__).parents[2] / "packaging" / "claude-code"
TOOL = "mcp__plugin_sequencer_sequencer__"
COMMANDS = {"status", "inbox", "answer"}


def test_the_plugin_has_this_version_and_names_only_tools_of_the_server() -> None:
    assert json.loads((PLUGIN / ".claude-plugin/plugin.json").read_text())["version"] == __version__
    allowed = set()
    for name in COMMANDS:
        text = (PLUGIN / "skills" / name / "SKILL.md").read_text()
        allowed |= set(re.findall(rf"{TOOL}(\w+)", text))
        named = set(re.findall(r"tool `(\w+)`", text))
        assert named
        assert named <= STATE_DISPLAYS | CHANGES
    # Only what changes nothing is allowed without a question to the person.
    assert allowed <= STATE_DISPLAYS
    # Only a person can use the command that decides.
    answer = (PLUGIN / "skills/answer/SKILL.md").read_text()
    assert "disable-model-invocation: true" in answer.split("---")[1]


@pytest.mark.wheel
def test_the_real_program_validates_the_plugin_and_connects_to_it(tmp_path: Path) -> None:
    program, home = claude_program(), tmp_path / "home"
    home.mkdir()
    (home / "bin").mkdir()
    script = home / "bin" / "sequencer"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m sequencer "$@"\n')
    script.chmod(0o755)
    environment = {
        "HOME": str(home),
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        # Otherwise it starts before its server has answered, on a busy machine.
        "MCP_CONNECT_TIMEOUT_MS": "60000",
        "MCP_CONNECTION_NONBLOCKING": "false",
    }

    def claude(*arguments: str) -> str:
        done = forked.run(
            [program, *arguments], cwd=home, env=environment, capture_output=True, text=True
        )
        return str(done.stdout)

    assert "Validation passed" in claude("plugin", "validate", "--strict", str(PLUGIN))
    told = ["--output-format", "stream-json", "--verbose"]
    first = claude("--plugin-dir", str(PLUGIN), "-p", "hi", *told).splitlines()[0]
    began = json.loads(first)
    assert [server["status"] for server in began["mcp_servers"]] == ["connected"]
    assert {name for name in began["tools"] if name.startswith(TOOL)} == {
        TOOL + name for name in STATE_DISPLAYS | CHANGES
    }
    assert {f"sequencer:{name}" for name in COMMANDS} <= set(began["slash_commands"])
