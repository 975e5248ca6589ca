"""A commit of everything after each step, and a stash: no accepted step runs again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.clones import git

CASE = Path(__file__).parent / "cases" / "git-takes-the-run-back"
COMMITS = 'git add -A; git commit -qm "$SEQUENCER_STEP"'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[user]\nname = n\nemail = n@example.org\n")
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(CASE / "orchestration.yaml", folder)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return folder


def home(folder: Path) -> dict[str, Any]:
    return {"HOME": str(folder.parent / "home"), "XDG_STATE_HOME": str(folder.parent / "own")}


def ran(folder: Path) -> list[str]:
    return (folder.parent / "done.txt").read_text().split()


def test_folders_created_by_a_run_are_never_committed(project: Path) -> None:
    config = project / "orchestration.yaml"
    assert COMMITS in config.read_text()
    # With the run out of sight there is nothing to commit, at which git ends with 1.
    config.write_text(config.read_text().replace("commit -qm", "commit --allow-empty -qm"))
    git(project, "commit", "-q", "-a", "-m", "allow empty commits")
    assert cli(project, "run", **home(project)).returncode == 0
    assert git(project, "ls-files").split() == ["orchestration.yaml"]
    git(project, "stash", "-q", check=False)
    git(project, "reset", "-q", "--hard", "HEAD~2")
    assert cli(project, "run", **home(project)).returncode == 0
    assert ran(project) == ["plan", "build", "ship"]


@pytest.mark.parametrize(
    "words",
    [("stash", "-q"), ("checkout", "-q", "--", "."), ("reset", "-q", "--hard")],
    ids=" ".join,
)
def test_a_run_that_git_set_back_anyway_is_refused(project: Path, words: tuple[str, ...]) -> None:
    for name in ("sync", "logs"):
        (project / name).mkdir()  # a person's, or of an earlier version: nobody ignores it
    assert cli(project, "run", **home(project)).returncode == 0
    git(project, *words)
    for command in ("run", "tick"):
        again = cli(project, command, **home(project))
        assert again.returncode == 3, again.stderr
        assert "accepted steps may be missing" in again.stderr
        assert "token 3" in again.stderr
        assert "--accept-journal" in again.stderr
    assert ran(project) == ["plan", "build", "ship"]
    if words[0] == "stash":
        git(project, "checkout", "-q", "--", ".")
        git(project, "stash", "pop", "-q")
        assert cli(project, "run", **home(project)).returncode == 0
    assert ran(project) == ["plan", "build", "ship"]
