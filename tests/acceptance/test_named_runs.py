"""A named run keeps what it was begun with; only an option asks it for something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, scripted_project

TEAM = """\
workflows:
  team: {steps: [supervisor, main], review: {every: 4, step: reviewer}}
"""
"""A workflow with a cadence of its own."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = scripted_project(tmp_path)
    for name in ("supervisor2", "main2"):
        (folder / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    return folder


def docs(folder: Path) -> dict[str, Any]:
    path = folder / "sync" / "runs" / "docs" / "state.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_a_named_run_keeps_its_workflow_despite_the_configured_one(folder: Path) -> None:
    begun = cli(folder, "run", "--run", "docs", "--workflow", "standard2", "--max-steps", "1")
    assert begun.returncode == 0, begun.stderr
    for arguments in (
        ("run", "--max-steps", "1"),
        ("tick",),
        ("stop", "--pause"),
        ("resume",),
        ("skip",),
    ):
        ended = cli(folder, "--run", "docs", *arguments)
        assert ended.returncode == 0, (arguments, ended.stderr)
        assert docs(folder)["workflow_name"] == "standard2"
    looked = cli(folder, "--run", "docs", "plan", "--count", "1", "--json")
    assert (looked.returncode, looked.stderr) == (0, "")
    assert json.loads(looked.stdout)[0]["prompt"] == "supervisor2.md"
    # Neither the file nor the environment is about this run.
    assert cli(folder, "tick", "--run", "docs", SEQUENCER_WORKFLOW__NAME="standard").returncode == 0
    assert cli(folder, "--run", "docs", "reset", "--yes").returncode == 0
    assert docs(folder)["workflow_name"] == "standard2"


@pytest.mark.slow
def test_a_named_run_keeps_its_cadence(folder: Path) -> None:
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text() + TEAM)
    options = ("--workflow", "team", "--review-every", "3")
    assert cli(folder, "run", "--run", "docs", *options, "--max-steps", "4").returncode == 0
    assert cli(folder, "run", "--run", "docs", "--max-steps", "1").returncode == 0
    found = json.loads(cli(folder, "--run", "docs", "status", "--json").stdout)
    assert found["next"]["step"] == "reviewer"
    assert found["params"] == {"review_every_n_cycles": 3}
    # The configured workflow could not have one.
    config.write_text(config.read_text().replace("name: review_cadence", "name: standard"))
    assert cli(folder, "--run", "docs", "adopt", "--review-every", "5").returncode == 0
    assert docs(folder)["params"] == {"review_every_n_cycles": 5}
    refused = cli(folder, "tick", "--review-every", "5")
    assert refused.returncode == 2
    assert "workflow 'standard' has no review step" in refused.stderr


@pytest.mark.slow
def test_a_conflicting_workflow_option_for_a_named_run_needs_adopt(folder: Path) -> None:
    begun = cli(folder, "run", "--run", "docs", "--workflow", "standard2", "--max-steps", "1")
    assert begun.returncode == 0, begun.stderr
    refused = cli(folder, "tick", "--run", "docs", "--workflow", "standard")
    assert refused.returncode == 3
    hint = "'sequencer --run docs adopt --workflow standard' continues"
    assert hint in refused.stderr
    nothing = cli(folder, "--run", "docs", "adopt")
    assert nothing.returncode == 3
    assert docs(folder)["workflow_name"] == "standard2"
    adopted = cli(folder, "--run", "docs", "adopt", "--workflow", "standard")
    assert adopted.returncode == 0
    assert "set the same in orchestration.yaml" not in adopted.stderr
    assert cli(folder, "tick", "--run", "docs").returncode == 0
    assert (docs(folder)["workflow_name"], docs(folder)["step_index"]) == ("standard", 2)
