"""A client that nothing ends if it hangs is a warning, wherever its run could get a limit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sequencer.project.agent_checks import MAX_STEPS, check_time_limits
from sequencer.project.diagnostics import Level
from sequencer.project.project import open_project
from tests.unit.cli.calling import call

STEPS: list[dict[str, Any]] = [
    {"name": "build", "text": "Build."},
    {"name": "look", "text": "Look."},
]
HINT = "for example step_defaults: {timeout_s: 7200, idle_timeout_s: 900}"


def warned(folder: Path, settings: dict[str, Any]) -> list[tuple[str, str]]:
    (folder / "orchestration.yaml").write_text(
        json.dumps({"agent": "claude", "steps": STEPS} | settings), encoding="utf-8"
    )
    project = open_project(folder)
    found = list(check_time_limits(project, project.run(None).workflow_for(None)))
    assert all(one.level is Level.WARNING and one.hint == HINT for one in found)
    return [(str(one.where), one.message.partition(":")[0]) for one in found]


@pytest.mark.parametrize(
    "settings",
    [
        {"step_defaults": {"timeout_s": 60}},
        {"step_defaults": {"idle_timeout_s": 60}},
        {"limits": {"seconds": 600}},
        {"run": {"step_timeout_s": 60}},
        # What a program of your own waits for is your own to limit.
        {"agent": "own", "agents": {"own": {"kind": "command", "argv": ["cat"]}}},
        {"agent": "rehearsal"},
    ],
)
def test_one_limit_is_enough(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert warned(tmp_path, settings) == []


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode"])
def test_a_client_without_a_limit_is_named_with_its_steps(tmp_path: Path, agent: str) -> None:
    assert warned(tmp_path, {"agent": agent}) == [
        (f"agent {agent}", "no time limit in build, look")
    ]
    some = [{**STEPS[0], "timeout_s": 60}, STEPS[1]]
    assert warned(tmp_path, {"agent": agent, "steps": some}) == [
        (f"agent {agent}", "no time limit in look")
    ]
    many = [{"name": f"s{number}", "text": "x"} for number in range(MAX_STEPS + 2)]
    assert warned(tmp_path, {"agent": agent, "steps": many}) == [
        (f"agent {agent}", "no time limit in s0, s1, s2, s3 and 2 more")
    ]


def test_a_flow_has_its_own_limit(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text("agent: claude\n")
    (tmp_path / "flows").mkdir()
    chart = "```mermaid\nflowchart TD\n a[A] --> b[B]\n```\n\n### a\nDo.\n\n### b\nDo.\n"
    for head, expected in (("", 1), ("timeout: 60000\n", 0)):
        (tmp_path / "flows" / "f.md").write_text(f"---\nid: f\n{head}---\n\n{chart}")
        said = call(tmp_path, "check").out
        assert said.count("no time limit in a, b: if the client hangs") == expected, said


def test_a_configuration_of_init_has_limits(tmp_path: Path) -> None:
    assert call(tmp_path, "init").code == 0
    config = tmp_path / "orchestration.yaml"
    text = config.read_text(encoding="utf-8")
    for agent in ("claude", "codex", "gemini", "opencode"):
        config.write_text(re.sub("(?m)^agent: .*", f"agent: {agent}", text), encoding="utf-8")
        said = call(tmp_path, "check").out
        assert "no time limit" not in said
        assert f"agent {agent}" in said
