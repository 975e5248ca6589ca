"""Steps run on the branch that they belong to, whatever a person checks out meanwhile."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, done, scripted_project
from tests.acceptance.two_clones import IDENTITY, configuration, shared_project
from tests.clones import git

IDLE = """\
import os, sys
sys.stdin.read()
sys.exit(os.path.exists("../fail"))
"""
"""An agent that commits nothing."""


def at(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli(clone, *arguments, timeout_s=60.0, **IDENTITY)


def test_a_run_in_files_runs_only_on_the_configured_branch(tmp_path: Path) -> None:
    folder = scripted_project(tmp_path)
    git(folder, "init", "-q", "-b", "main")
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text() + "store: {work: {branch: main}}\n")
    worked = cli(folder, "run", "--max-steps", "1")
    assert (worked.returncode, done(folder)) == (0, [0])
    assert "no effect" not in worked.stderr
    git(folder, "symbolic-ref", "HEAD", "refs/heads/other")
    for arguments in (("run",), ("tick",), ("run", "--mode", "sync")):
        refused = cli(folder, *arguments)
        assert refused.returncode == 3
        assert "other is checked out, but steps run only on branch main" in refused.stderr
        assert "'git switch main'" in refused.stderr
    checked = cli(folder, "check")
    assert checked.returncode != 0
    assert "other is checked out" in checked.stdout + checked.stderr
    assert cli(folder, "status").returncode == 0
    git(folder, "symbolic-ref", "HEAD", "refs/heads/main")
    assert cli(folder, "tick").returncode == 0
    assert done(folder) == [0, 1]


def test_without_git_there_is_no_branch_to_run_on(tmp_path: Path) -> None:
    folder = scripted_project(tmp_path)
    refused = cli(folder, "run", SEQUENCER_STORE__WORK__BRANCH="main")
    assert (refused.returncode, done(folder)) == (3, [])
    assert "there is no git repository" in refused.stderr


@pytest.mark.slow
def test_a_run_in_git_stays_on_the_branch_where_it_started(tmp_path: Path) -> None:
    shared = shared_project(tmp_path, configuration(workflow="standard"))
    here = shared.clone("a")
    (here / "agent.py").write_text(IDLE)
    git(here, "commit", "-qam", "an agent that commits nothing")
    git(here, "push", "-q", "origin", "main")
    (tmp_path / "fail").touch()
    # Its first step fails, so nobody but this clone knows where it began.
    assert at(here, "run", "--max-steps", "1").returncode == 1
    git(here, "switch", "-q", "-c", "other")
    refused = at(here, "run", "--max-steps", "1")
    assert refused.returncode == 3
    assert "branch other is checked out, but the run's code is on main" in refused.stderr
    git(here, "switch", "-q", "main")
    (tmp_path / "fail").unlink()
    worked = at(here, "run", "--max-steps", "1")
    assert worked.returncode == 0, worked.stderr
    state = json.loads((here / "sync" / "state.json").read_text())
    assert state["work"]["branch"] == "main"
    there = shared.clone("b")
    git(there, "pull", "-q", "--ff-only")
    git(there, "switch", "-q", "-c", "other")
    refused = at(there, "tick")
    assert refused.returncode == 3
    assert "the run's code is on main" in refused.stderr
    checked = at(there, "check")
    assert "'other' is checked out, but code is on 'main'" in checked.stdout + checked.stderr
    git(there, "switch", "-q", "main")
    assert at(there, "tick").returncode == 0
