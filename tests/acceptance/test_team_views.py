"""A team as people see it: on a terminal, in a log, at rest, and where it posts to."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, launched
from tests.terminal_width import count_columns
from tests.unit.cli.flow.terminals import terminal

AGENT = """
import os, pathlib, time
name = os.environ["SEQUENCER_STEP"]
# That a task has started is posted only while it runs.
posted = pathlib.Path("sync/runs/parser/activity.jsonl")
while name == "plan" and not (posted.exists() and "plan: started" in posted.read_text()):
    time.sleep(0.02)
print(f"{name} looks around")
print(f"{name} has said it")
"""
TASKS = """
workflows:
  parser:
    size: 2
    tasks:
      - {id: plan, subject: Read and plan, description: d, role: researcher}
      - {id: build, subject: Build it, description: d, role: implementer, blocked_by: [plan]}
      - {id: log, subject: Write the changelog, description: d, blocked_by: [plan]}
      - {id: sum, subject: Sum it up, description: d, role: summarizer, blocked_by: [build, log]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    agents = {"work": {"kind": "command", "argv": [sys.executable, "agent.py"]}}
    lines = [
        "agent: {default: work}",
        f"agents: {json.dumps(agents)}",
        "activity: {sinks: {file: {kind: jsonl}}}",
    ]
    (tmp_path / "orchestration.yaml").write_text("\n".join(lines) + TASKS)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    """Return the words of the table's lines, the head's first."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("TASK "))
    return [line.split() for line in lines[first : first + 5]]


def activities(project: Path) -> list[dict[str, Any]]:
    text = (project / "sync" / "runs" / "parser" / "activity.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def seen_on_terminal(folder: Path, columns: int, *arguments: str) -> str:
    """Return what ``sequencer ARGUMENTS`` prints on a terminal so wide."""
    with terminal(columns, 24) as screen:
        ran = launched(folder, *arguments, stdout=screen.stream)
        try:
            deadline = time.monotonic() + 60
            while ran.poll() is None and time.monotonic() < deadline:
                screen.read(0.05)
            screen.drain()
        finally:
            ran.kill()
            ran.wait()
        return screen.raw.decode().replace("\r\n", "\n")


@pytest.mark.slow
def test_a_team_is_shown_from_start_to_end(project: Path) -> None:
    before = cli(project, "plan", "parser")
    assert [row[0] for row in rows(before.stdout)] == ["TASK", "plan", "build", "log", "sum"]
    assert rows(before.stdout)[4][-2:] == ["build,", "log"]
    ran = cli(project, "run", "parser")
    assert ran.returncode == 0, ran.stderr
    told = [line.partition(" ")[2] for line in ran.stderr.splitlines() if line[2:3] == ":"]
    assert "start plan: Read and plan (researcher)" in told
    assert "start log: Write the changelog" in "\n".join(told)
    assert rows(ran.stderr)[1][-5:] == ["plan", "has", "said", "it", "-"]
    assert told[-1].startswith("completed · 4 done")
    after = cli(project, "plan", "parser")
    assert [row[0] for row in rows(after.stdout)] == ["TASK", "plan", "build", "log", "sum"]
    assert "sum has said it" in after.stdout
    status = json.loads(cli(project, "--run", "parser", "status", "--json").stdout)
    by_id = {node["id"]: node for node in status["nodes"]}
    assert (by_id["build"]["role"], by_id["build"]["blocked_by"]) == ("implementer", [])
    assert by_id["sum"]["tokens"] == 0


@pytest.mark.slow
def test_a_team_posts_the_result_of_each_task(project: Path) -> None:
    assert cli(project, "run", "parser").returncode == 0
    told = activities(project)
    results = [one for one in told if "key" in one]
    steps = [one["step"] for one in results]
    assert steps[0] == "plan"
    assert sorted(steps[1:3]) == ["build", "log"]
    assert steps[3:] == ["sum", ""]
    assert results[0]["title"] == "succeeded: Read and plan (researcher)"
    assert (results[-1]["type"], results[-1]["title"]) == ("response", "the run is complete")
    assert results[-1]["body"].endswith("sum has said it")
    began = [one for one in told if one.get("action") == "plan: started"]
    assert [one["parameter"] for one in began] == ["Read and plan (researcher)"]
    assert told.index(began[0]) < told.index(results[0])


@pytest.mark.slow
def test_a_failed_task_is_reported_and_the_rest_is_done(project: Path) -> None:
    (project / "agent.py").write_text(
        AGENT + "if name == 'build':\n    print('conflict in x.py', flush=True)\n    exit(3)\n"
    )
    ran = cli(project, "run", "parser")
    assert ran.returncode == 1
    found = {row[0]: row for row in rows(cli(project, "plan", "parser").stdout)}
    assert "failed" in found["build"]
    assert "done" in found["log"]
    assert found["sum"][-1] == "build"
    kinds = {one["step"]: one["type"] for one in activities(project) if "key" in one}
    assert (kinds["build"], kinds["log"]) == ("error", "response")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("columns", [60, 100])
def test_on_a_terminal_nothing_is_wrapped(project: Path, columns: int) -> None:
    assert cli(project, "run", "parser").returncode == 0
    text = seen_on_terminal(project, columns, "plan", "parser")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(rows(text)) == 5
    assert all(count_columns(line) <= columns for line in lines), lines
    assert ("ROLE" in lines[0]) is (columns == 100)
