"""An agent makes a branch and fails: the log of its step is found on whatever branch one is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, launched, until
from tests.clones import git

CASE = Path(__file__).parent / "cases" / "log-after-a-branch-switch"
REASON = "the reason is here"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(CASE / "orchestration.yaml", folder)
    (folder / ".gitignore").write_text("sync/\nlogs/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    assert cli(folder, "run", "--max-steps", "1").returncode == 1
    assert git(folder, "branch", "--show-current").strip() == "feat/x"
    return folder


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("branch", ["feat/x", "main", "other"])
def test_the_log_is_shown_on_any_branch(project: Path, branch: str) -> None:
    git(project, "checkout", "-q", "-B", branch)
    shown = cli(project, "log")
    assert (shown.returncode, REASON in shown.stdout) == (0, True)
    (path,) = cli(project, "log", "--path").stdout.split()
    assert REASON in (project / path).read_text()
    assert json.loads(cli(project, "log", "--json").stdout)["step"] == "one"
    assert REASON in cli(project, "log", "one", "-n", "1").stdout
    assert "hello" in cli(project, "log", "1", "--prompt").stdout


@pytest.mark.slow
def test_the_newest_log_is_shown_last_whatever_its_branch(project: Path) -> None:
    git(project, "checkout", "-q", "main")
    git(project, "branch", "-q", "-D", "feat/x")
    assert cli(project, "run", "--max-steps", "1").returncode == 1
    git(project, "checkout", "-q", "-b", "a")
    config = project / "orchestration.yaml"
    config.write_text(config.read_text().replace(REASON, "another reason"))
    git(project, "branch", "-q", "-D", "feat/x")
    assert cli(project, "run", "--max-steps", "1").returncode == 1
    paths = cli(project, "log", "--path").stdout.split()
    assert [Path(path).parts[-3] for path in paths] == ["main", "main", "a"]
    assert "another reason" in cli(project, "log", "-n", "1").stdout


def test_f_follows_a_log_that_is_written_on_another_branch(project: Path) -> None:
    git(project, "checkout", "-q", "main")
    git(project, "branch", "-q", "-D", "feat/x")
    out = project.parent / "followed"
    slow = "git checkout -q -b feat/x; touch ../switched; sleep 2; echo the end"
    config = project / "orchestration.yaml"
    config.write_text(
        f"agent: a\nagents: {{a: {{kind: command, argv: [sh, -c, '{slow}'], free: true}}}}\n"
        "steps: [{name: one, text: hello}]\n"
    )
    working = launched(project, "run", "--max-steps", "1")
    until((project.parent / "switched").exists)
    with out.open("wb") as file:
        following = launched(project, "log", "-f", stdout=file)
        try:
            until(lambda: b"the end" in out.read_bytes())
        finally:
            following.terminate()
            following.wait(10)
            assert working.wait(20) == 0
