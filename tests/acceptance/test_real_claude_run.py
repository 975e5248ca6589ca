"""Whole runs with the real claude program, through the command line and the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.cli_process import cli, head
from tests.acceptance.test_real_claude import MODEL, claude_program
from tests.fake_model_server import fake_model

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(240)]

STEPS = ("supervisor", "main", "reviewer")


def script(*turns: dict[str, Any]) -> str:
    return f"<<fake {json.dumps(turns)}>>"


def make_project(folder: Path, url: str, **entry: Any) -> Path:
    """Make a project whose only agent is the real program, with a home of its own."""
    project, home = folder / "project", folder / "home"
    (project / "prompts").mkdir(parents=True)
    home.mkdir()
    notes = project / "notes.txt"
    notes.write_text("start\n")
    for name in STEPS:
        edit = {"file_path": str(notes), "old_string": "start", "new_string": f"start {name}"}
        turns = (
            {"text": "I look first.", "tool": "Read", "input": {"file_path": str(notes)}},
            {"tool": "Edit", "input": edit},
            {"text": f"{name} is done."},
        )
        (project / "prompts" / f"{name}.md").write_text(f"You are {name}. {script(*turns)}\n")
    configuration = {
        "workflow": {"name": "review_cadence", "review_every_n": 2},
        "agent": {"default": "claude"},
        "agents": {
            "claude": {
                "program": claude_program(),
                "model": MODEL,
                "permission_mode": "acceptEdits",
                "env": {
                    "HOME": str(home),
                    "ANTHROPIC_API_KEY": "dummy-key-of-a-test",
                    "ANTHROPIC_BASE_URL": url,
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                    "CLAUDE_CODE_MAX_RETRIES": "0",
                    "DISABLE_AUTOUPDATER": "1",
                    "DISABLE_TELEMETRY": "1",
                },
                **entry,
            }
        },
    }
    (project / "orchestration.yaml").write_text(yaml.safe_dump(configuration))
    return project


def events(project: Path) -> list[dict[str, Any]]:
    shown = cli(project, "history", "--json")
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_four_steps_of_a_review_cadence(tmp_path: Path) -> None:
    with fake_model() as model:
        project = make_project(tmp_path, model.url)
        ran = cli(project, "run", "--max-steps", "4", timeout_s=100)
    assert ran.returncode == 0, ran.stderr
    order = ["supervisor", "main", "reviewer", "reviewer"]
    logs = sorted((project / "logs/local/steps").iterdir())
    assert [log.name for log in logs] == [
        f"iter-{number:05d}_{name}.log" for number, name in enumerate(order, 1)
    ]
    assert "reviewer is done." in logs[2].read_text()
    # The newest edit stands first, because each one puts its word behind "start".
    assert (project / "notes.txt").read_text() == f"start {' '.join(reversed(order))}\n"
    state = head(project)
    assert (state["step_index"], state["status"]) == (4, "waiting-next")
    assert state["usage"]["input_tokens"] > 0
    assert state["usage"]["cost_usd"] > 0
    accepted = [e for e in events(project) if e["event"] == "succeeded"]
    assert [e["step"] for e in accepted] == order
    assert [e["outcome"]["output"] for e in accepted] == [f"{name} is done." for name in order]
    assert sum(e["outcome"]["usage"]["cost_usd"] for e in accepted) == pytest.approx(
        state["usage"]["cost_usd"]
    )
    for path in (*(project / "sync").glob("*.json*"), *logs):
        assert b"dummy-key-of-a-test" not in path.read_bytes(), path


def test_missing_transcripts_cost_no_step(tmp_path: Path) -> None:
    """claude removes them after a while; a renamed folder or another machine does it at once."""
    with fake_model() as model:
        project = make_project(tmp_path, model.url)
        path = project / "orchestration.yaml"
        configuration = yaml.safe_load(path.read_text())
        del configuration["workflow"]
        configuration["steps"] = [
            {"name": name, "text": f"Say it. {script({'text': name})}", "continue_session": True}
            for name in ("one", "two", "three")
        ]
        path.write_text(yaml.safe_dump(configuration))
        assert cli(project, "run", "--max-steps", "2").returncode == 0
        shutil.rmtree(tmp_path / "home" / ".claude" / "projects")
        third = cli(project, "run", "--max-steps", "1")
        assert third.returncode == 0, third.stdout + third.stderr
        assert head(project)["step_index"] == 3
        log = cli(project, "log").stdout
    assert "[sequencer] the conversation can't be continued, a new one starts: claude: No" in log
    accepted = [one["outcome"] for one in events(project) if one["event"] == "succeeded"]
    first, second, last = (one["session"] for one in accepted)
    assert first == second != last
    assert head(project)["session"]["steps"] == 1
