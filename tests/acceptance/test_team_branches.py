"""What becomes of branches while people work in the repository too: real processes, real git."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.cli_process import launched, until
from tests.acceptance.team_projects import accepted, events, git, make_project

ONE: dict[str, Any] = {"id": "one", "subject": "One", "role": "implementer"}
OTHER: dict[str, Any] = {"id": "other", "subject": "Other"}


def started(project: Path) -> subprocess.Popen[str]:
    return launched(project, "run", stderr=subprocess.PIPE, text=True)


def ended(worker: subprocess.Popen[str]) -> str:
    """Return what *worker* has told when it ends."""
    try:
        return worker.communicate(timeout=60)[1]
    finally:
        worker.kill()
        worker.wait()


def is_at_work(project: Path, task: str) -> bool:
    return any((project / "seen").glob(f"{task}-*.pid"))


def team_branches(project: Path) -> list[str]:
    told = git(project, "branch", "--list", "sequencer-team/*", "--format=%(refname:short)")
    return told.split()


def test_a_switch_to_another_branch_brings_it_nothing_of_the_first(tmp_path: Path) -> None:
    plan = {"one": {"until": "go", "writes": {"a.txt": "a"}}}
    project = make_project(tmp_path, [ONE], plan, is_repository=True)
    git(project, "branch", "release")
    (project / "unreleased").write_text("z")
    git(project, "add", "unreleased")
    git(project, "commit", "-q", "-m", "unreleased")
    worker = started(project)
    try:
        until(lambda: is_at_work(project, "one"), 60)
        git(project, "checkout", "-q", "release")
        (project / "go").touch()
    finally:
        told = ended(worker)
    assert worker.returncode == 1
    assert "release, not main" in told
    assert git(project, "ls-tree", "--name-only", "release").split() == [
        *(".gitignore", "shared.txt")
    ]
    (branch,) = team_branches(project)
    (why,) = (json.dumps(one) for one in events(project) if one["event"] == "failed")
    assert f"go back with 'git switch main', then 'git merge {branch}'" in why
    git(project, "switch", "-q", "main")
    git(project, "merge", "-q", branch)
    assert (project / "a.txt").read_text() == "a"


def test_a_branch_that_a_person_merges_under_way_is_gone_at_the_end(tmp_path: Path) -> None:
    plan = {"one": {"exit": 1, "writes": {"a.txt": "a"}}, "other": {"until": "go"}}
    project = make_project(tmp_path, [ONE, OTHER], plan, is_repository=True)
    worker = started(project)
    try:
        until(lambda: is_at_work(project, "other") and bool(team_branches(project)), 60)
        until(lambda: len(git(project, "worktree", "list").splitlines()) == 1, 60)
        (branch,) = team_branches(project)
        assert git(project, "show", f"{branch}:a.txt") == "a"
        git(project, "merge", "-q", branch)
        (project / "go").touch()
    finally:
        told = ended(worker)
    assert worker.returncode == 1, told
    assert accepted(project) == ["other"]
    assert team_branches(project) == []
    assert (project / "a.txt").read_text() == "a"
