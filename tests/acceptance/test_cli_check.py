from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, scripted_project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scripted_project(tmp_path)


def test_a_sound_project(folder: Path) -> None:
    cli(folder, "run", "--max-steps", "3")
    checked = cli(folder, "check")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "nothing is wrong\n", "")


def test_everything_at_once_with_file_and_line(folder: Path) -> None:
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
    assert [(finding["level"], finding["area"]) for finding in found] == [("error", "state")]


def test_from_a_sub_folder_the_same_is_found(folder: Path) -> None:
    (folder / "prompts" / "main.md").unlink()
    assert cli(folder / "prompts", "check").stdout == cli(folder, "check").stdout


def test_settings_show_flags_of_the_environment_and_the_file(folder: Path) -> None:
    shown = cli(folder, "check", "--settings", SEQUENCER_LOGS_DIR="elsewhere")
    assert shown.returncode == 0
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert lines["logs_dir"].split()[1:] == ["elsewhere", "SEQUENCER_LOGS_DIR"]
    assert lines["workflow.name"].endswith("orchestration.yaml:1")
    assert lines["prompts_dir"].endswith("default")


def test_outside_of_any_project_that_is_the_finding(tmp_path: Path) -> None:
    checked = cli(tmp_path, "check", "--json")
    assert checked.returncode == 2
    said = [finding["message"] for finding in json.loads(checked.stdout)["findings"]]
    assert len(said) == 1
    assert said[0].startswith("there is no project here: ")
