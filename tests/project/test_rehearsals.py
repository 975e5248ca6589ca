"""`--rehearse` passes every shipped flow, workflow and procedure, and a team with a lead."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.documents import ROOT
from tests.unit.cli.calling import Called, call

FLOWS = sorted(p.stem for p in (ROOT / "examples" / "flows").glob("*.md") if p.stem != "README")
BUILTIN: dict[str, str] = {
    entry["name"]: entry["kind"]
    for entry in call(ROOT, "plan", "--list", "--json").json
    if entry["source"] == "built in"
}
TEAMS = sorted(yaml.safe_load((ROOT / "sequencer" / "builtin" / "teams.yaml").read_text()))
MAX_ANSWERS = 8


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project that nobody trusts: a rehearsal needs none of that."""
    monkeypatch.setenv("SEQUENCER_TRUST", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nobody"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "orchestration.yaml").write_text("agent: claude\n")
    return folder


def rehearsed(folder: Path, run: str, *first: str) -> Called:
    """Rehearse *run* to its end, a person answering with the first thing that there is to say."""
    called = call(folder, "--run", run, *first, "--rehearse")
    for _ in range(MAX_ANSWERS):
        if called.code != 4:
            break
        for asked in json.loads(call(folder, "--run", run, "inbox", "--json").out):
            said = call(folder, "--run", run, "answer", *answer_to(asked))
            assert said.code == 0, said.err
        called = call(folder, "--run", run, "run", "--rehearse")
    return called


def answer_to(asked: dict[str, Any]) -> tuple[str, ...]:
    if "node" not in asked:
        return ("approve",)
    values = [one["value"] for one in asked["options"]]
    return asked["node"], values[0] if values else "Whatever you think."


def test_the_expected_workflows_are_rehearsed() -> None:
    assert len(FLOWS) == 6
    assert len(BUILTIN) == 12
    assert len(TEAMS) == 3


@pytest.mark.parametrize("flow", FLOWS)
def test_every_shipped_flow_is_rehearsed_to_its_end(project: Path, flow: str) -> None:
    left = shutil.ignore_patterns("sync", "logs", "mended.txt")
    shutil.copytree(ROOT / "examples" / "flows", project, dirs_exist_ok=True, ignore=left)
    called = rehearsed(project, flow, "run", f"{flow}.md")
    assert called.code == 0, called.err
    assert "the run is completed after" in called.out
    assert not (project / "mended.txt").exists()


@pytest.mark.parametrize(
    "workflow", sorted(name for name, kind in BUILTIN.items() if kind == "cycle")
)
def test_every_built_in_cycle_is_rehearsed(project: Path, workflow: str) -> None:
    shutil.copytree(ROOT / "sequencer" / "builtin" / "prompts", project / "prompts")
    called = rehearsed(project, "r", "run", "--workflow", workflow, "--max-steps", "8")
    assert called.code == 0, called.err
    assert "8 rehearsed: no agent ran" in called.out


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in BUILTIN.items() if kind == "procedure")
)
def test_every_built_in_procedure_is_rehearsed_to_its_end(project: Path, name: str) -> None:
    called = rehearsed(project, "r", "start", "Fix the login", "--procedure", name)
    assert called.code == 0, called.err
    assert "the run is complete" in called.out


@pytest.mark.parametrize("name", TEAMS)
def test_every_built_in_team_is_rehearsed_to_its_end(project: Path, name: str) -> None:
    called = rehearsed(project, "r", "start", "Fix the login", "--procedure", name, "--team")
    assert called.code == 0, called.err
    assert "the run is completed" in called.out


def test_a_team_with_two_leads_grows_in_a_rehearsal(project: Path) -> None:
    (project / "list.yaml").write_text(
        "tasks:\n"
        "  - {id: cut, subject: Cut it, role: lead, adds: tasks}\n"
        "  - {id: divide, subject: Divide it, role: lead, adds: sub-issues}\n"
        "  - {id: judge, subject: Judge it, role: verifier, blocked_by: [cut, divide]}\n"
    )
    called = rehearsed(project, "r", "run", "list.yaml")
    assert called.code == 0, called.err
    tasks = json.loads(call(project, "--run", "r", "status", "--json").out)["nodes"]
    assert sorted(one["id"] for one in tasks[3:]) == ["cut-a", "impl-divide-a", "verify-divide-a"]
