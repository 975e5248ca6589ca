"""Whoever makes a run's folder tells git to ignore it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clones import git
from tests.unit.cli.calling import CONFIGURATION, call, project


def repository(folder: Path, configuration: str = CONFIGURATION) -> Path:
    project(folder, configuration)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.mark.parametrize("run", [(), ("--run", "night")], ids=["default", "named"])
def test_no_file_of_a_run_is_committed_stashed_or_cleaned_away(
    tmp_path: Path, run: tuple[str, ...]
) -> None:
    folder = repository(tmp_path / "p")
    assert call(folder, *run, "run", "--max-steps", "2").code == 0
    assert git(folder, "status", "--porcelain") == ""
    git(folder, "add", "-A")
    git(folder, "stash", "-q", "--include-untracked", check=False)
    for _ in range(2):
        git(folder, "clean", "-q", "-f", "-d")
    assert call(folder, *run, "run", "--max-steps", "1").code == 0
    for part in ("sync", "logs"):
        assert "*\n" in (folder / part / ".gitignore").read_text()


def test_an_existing_gitignore_and_an_existing_folder_stay_unchanged(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (folder / "sync").mkdir()
    (folder / "logs").mkdir()
    (folder / "logs" / ".gitignore").write_text("*.tmp\n")
    assert call(folder, "run", "--max-steps", "1").code == 0
    assert not (folder / "sync" / ".gitignore").exists()
    assert (folder / "logs" / ".gitignore").read_text() == "*.tmp\n"


def test_the_project_itself_is_never_hidden(tmp_path: Path) -> None:
    configuration = CONFIGURATION + "state_file: run/state.json\nprompts_dir: run/prompts\n"
    folder = project(tmp_path / "p", configuration)
    (folder / "prompts").rename(tmp_path / "prompts")
    assert not (folder / "run").exists()
    (folder / "run").mkdir()
    (tmp_path / "prompts").rename(folder / "run" / "prompts")
    assert call(folder, "run", "--max-steps", "1").code == 0
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    assert not (folder / "run" / ".gitignore").exists()
