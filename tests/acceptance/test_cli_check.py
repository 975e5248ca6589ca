from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, scripted_project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scripted_project(tmp_path)


@pytest.mark.slow
def test_all_findings_are_reported_at_once_with_file_and_line(folder: Path) -> None:
    cli(folder, "run", "--max-steps", "3")
    (folder / "sync" / "journal.jsonl").write_text("gone\n")
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text() + "limts: {}\nlimits: {max_steps: none}\n")
    checked = cli(folder, "check")
    assert checked.returncode == 2
    assert "orchestration.yaml:5:" in checked.stdout
    assert "orchestration.yaml:6:" in checked.stdout
    assert "did you mean 'limits'" in checked.stdout
    assert "sequencer repair" in checked.stdout


def test_the_exit_code_tells_configuration_from_state(folder: Path) -> None:
    cli(folder, "run", "--max-steps", "3")
    (folder / "prompts" / "main.md").unlink()
    assert cli(folder, "check").returncode == 2
    (folder / "prompts" / "main.md").write_text("# main\n")
    (folder / "sync" / "journal.jsonl").unlink()
    checked = cli(folder, "check", "--json")
    assert checked.returncode == 3
    found = json.loads(checked.stdout)["findings"]
    # What else there is, is a notice about this machine.
    wrong = [(one["level"], one["area"]) for one in found if one["level"] != "notice"]
    assert wrong == [("error", "state")]


def test_outside_a_project_the_only_finding_is_the_missing_project(tmp_path: Path) -> None:
    checked = cli(tmp_path, "check", "--json")
    assert checked.returncode == 2
    said = [finding["message"] for finding in json.loads(checked.stdout)["findings"]]
    assert len(said) == 1
    assert said[0].startswith("there is no project here: ")
