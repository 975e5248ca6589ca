"""A team of real ``claude`` programs, on a model server of the loopback address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.cli_process import cli, head
from tests.acceptance.team_projects import accepted, events, git
from tests.acceptance.test_real_claude_run import make_project, script
from tests.fake_model_server import fake_model

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(300)]


Task = dict[str, Any]
WRITING = script(
    {"tool": "Bash", "input": {"command": "printf done > $SEQUENCER_STEP.txt; pwd"}},
    {"text": "it is written"},
)
"""It writes a file of the folder in which the program works, called as its task."""


def verdict(*, is_pass: bool, reason: str) -> str:
    answer = {"pass": is_pass, "reason": reason}
    return script({"tool": "StructuredOutput", "input": answer}, {"text": "judged"})


def as_team(project: Path, tasks: list[dict[str, Any]], **settings: Any) -> None:
    """Let *project*, which has one real agent, be a repository whose workflow is a team's."""
    path = project / "orchestration.yaml"
    written = yaml.safe_load(path.read_text())
    written["agents"]["claude"]["allowed_tools"] = ["Bash", "Read"]
    written |= {
        "workflow": {"name": "team"},
        "workflows": {"team": {"size": 3, "tasks": tasks}},
        **settings,
    }
    path.write_text(yaml.safe_dump(written))
    (project / ".gitignore").write_text("/sync/\n/logs/\n")
    git(project, "init", "-q", "-b", "main")
    git(project, "config", "user.name", "t")
    git(project, "config", "user.email", "t@example.org")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "base")


def test_teammates_work_in_parallel_in_their_own_trees(tmp_path: Path) -> None:
    answer = {
        "sub_issues": [
            {"id": "api", "title": "API", "description": "Build it"},
            {"id": "page", "title": "Page", "description": "Draw it"},
        ]
    }
    lead = script({"tool": "StructuredOutput", "input": answer}, {"text": "cut"})
    tasks: list[Task] = [
        {"id": "look", "subject": "Look", "role": "researcher", "text": script({"text": "FOUND"})},
        {
            "id": "lead",
            "subject": "Cut it",
            "role": "lead",
            "adds": "sub-issues",
            "blocked_by": ["look"],
            "text": lead,
        },
        {"id": "sum", "subject": "Sum", "blocked_by": ["lead"], "text": script({"text": "SUMMED"})},
    ]
    # Verifications of sub-issues judge by a prompt of the project's own.
    judging = verdict(is_pass=True, reason="both files are there")
    with fake_model() as model:
        project = make_project(tmp_path, model.url)
        (project / "prompts/subroutines").mkdir()
        (project / "prompts/subroutines/verifications.md").write_text(judging)
        (project / "prompts/write.md").write_text(WRITING)
        as_team(project, tasks, teams={"roles": {"implementer": {"prompt": "write.md"}}})
        ran = cli(project, "run", timeout_s=280)
        bodies = model.bodies("/messages")
    assert ran.returncode == 0, ran.stderr
    order = accepted(project)
    assert order[:2] == ["look", "lead"]
    assert sorted(order[2:-1]) == ["impl-api", "impl-page", "verify-api", "verify-page"]
    assert order[-1] == "sum"
    assert [(project / f"impl-{n}.txt").read_text() for n in ("api", "page")] == ["done"] * 2
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "branch", "--format=%(refname:short)") == "main"
    outputs = {
        one["step"]: one["outcome"] for one in events(project) if one["event"] == "succeeded"
    }
    assert outputs["impl-api"]["left"]["merged"]
    assert outputs["sum"]["output"] == "SUMMED"
    assert head(project)["usage"]["cost_usd"] > 0
    said = json.dumps(bodies)
    assert "FOUND" in said
    offered = {tool["name"] for body in bodies if "Look" in str(body) for tool in body["tools"]}
    assert "Read" in offered
