"""`simulate` for teams: lists of tasks, wherever they are written, and the graph of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.acceptance.team_projects import accepted, events, make_project

TASKS: list[dict[str, Any]] = [
    {"id": "plan", "subject": "Plan it", "role": "researcher"},
    {"id": "build", "subject": "Build it", "blocked_by": ["plan"], "weight": 3},
    {"id": "check", "subject": "Check it", "role": "verifier", "blocked_by": ["build"]},
    {"id": "sum", "subject": "Sum it up", "role": "summarizer", "blocked_by": ["check"]},
]
NO = {"pass": False, "reason": "2 tests fail"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path, TASKS, size=1)


def lines(project: Path, *arguments: str) -> list[str]:
    ended = cli(project, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_list_in_the_configuration(project: Path) -> None:
    ended = cli(project, "plan", "--simulate", "team")
    assert ended.stdout.splitlines()[:4] == [
        *("0 start plan", "10 done plan", "10 start build", "40 done build"),
    ]
    assert ended.stderr.splitlines()[-1] == "completed after 8 events"
    assert not (project / "sync").exists()
    assert not (project / "seen").exists()


def test_the_script_can_answer_for_added_tasks_too(project: Path) -> None:
    script = {"nodes": {"check": {"out": [NO, {"pass": True}]}, "check-fix-1": {"ms": 200}}}
    (project / "s.json").write_text(json.dumps(script))
    done = json.loads(
        cli(project, "plan", "--simulate", "team", "--script", "s.json", "--json").stdout
    )
    assert done["status"] == "completed"
    assert "50 add check-fix-1 <- check" in done["trace"]
    assert "250 done check-fix-1" in done["trace"]
    for wrong in ("check-fix-2", "nobody"):
        (project / "s.json").write_text(json.dumps({"nodes": {wrong: {"ms": 1}}}))
        ended = cli(project, "plan", "--simulate", "team", "--script", "s.json")
        assert (ended.returncode, wrong in ended.stderr) == (2, True)


def test_the_run_matches_the_simulation(project: Path) -> None:
    script = {"nodes": {"check": {"out": [NO, {"pass": True}]}}}
    (project / "s.json").write_text(json.dumps(script))
    said = lines(project, "plan", "--simulate", "team", "--script", "s.json")
    plan = {"check": {"says": [NO, {"pass": True}]}}
    (project / "agent.json").write_text(json.dumps(plan))
    assert cli(project, "run").returncode == 0
    done = [line.rpartition(" ")[2] for line in said if " done " in line]
    assert accepted(project) == done == ["plan", "build", "check-fix-1", "check", "sum"]
    assert sum(fact["event"] == "invalid" for fact in events(project)) == 1


def test_a_list_in_a_file_of_its_own(project: Path) -> None:
    (project / "little.yaml").write_text(
        "tasks:\n  - {id: a, subject: A}\n  - {id: b, subject: B, blocked_by: [a]}\n"
    )
    found = lines(project, "plan", "--simulate", "little.yaml")
    assert found == ["0 start a", "10 done a", "10 start b", "20 done b"]


def test_a_list_that_can_not_be_run(project: Path) -> None:
    (project / "round.yaml").write_text(
        "tasks:\n  - {id: a, subject: A, blocked_by: [b]}\n"
        "  - {id: b, subject: B, blocked_by: [a]}\n"
    )
    ended = cli(project, "plan", "--simulate", "round.yaml", "--json")
    assert ended.returncode == 2
    said = json.loads(ended.stdout)
    assert said["status"] == "invalid"
    assert "a" in said["trace"][0]
    assert said["problems"][0].startswith("round.yaml:")
    plain = cli(project, "plan", "--simulate", "round.yaml")
    assert (plain.returncode, plain.stdout) == (2, "")
    assert "round.yaml:" in plain.stderr


@pytest.mark.slow
def test_the_simulated_graph_of_a_run_includes_tasks_added_by_a_lead(tmp_path: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {"id": "lead", "subject": "Share it out", "adds": "tasks"},
        {"id": "sum", "subject": "Sum it up", "blocked_by": ["lead"]},
    ]
    added = {"tasks": [{"id": "part", "subject": "A part", "description": "d"}]}
    project = make_project(tmp_path, tasks, {"lead": {"says": json.dumps(added)}}, size=1)
    whole = lines(project, "plan", "--simulate")
    assert whole == ["0 start lead", "10 done lead", "10 start sum", "20 done sum"]
    assert cli(project, "run").returncode == 0
    again = lines(project, "plan", "--simulate")
    assert again[2:] == [
        *("10 start part", "20 done part", "20 start sum <- lead+part", "30 done sum"),
    ]


def test_a_cycle_is_refused_and_plan_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text("agent: {default: rehearsal}\n")
    ended = cli(tmp_path, "plan", "--simulate")
    assert ended.returncode == 2
    assert "'standard' is neither a flowchart nor a team" in ended.stderr
    assert "sequencer plan" in ended.stderr
    unknown = cli(tmp_path, "--run", "nobody", "plan", "--simulate")
    assert (unknown.returncode, "unknown run 'nobody'" in unknown.stderr) == (2, True)


def test_script_keys_only_for_flowcharts_are_refused(project: Path) -> None:
    (project / "s.json").write_text('{"entry": "plan", "maxIterations": 2}')
    ended = cli(project, "plan", "--simulate", "team", "--script", "s.json")
    assert ended.returncode == 2
    assert "s.json: entry: is for the file of a flowchart" in ended.stderr
    assert "s.json: maxIterations: " in ended.stderr
