"""A team in a run's worktree: tasks are merged there, and at the end all into the checkout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, until
from tests.acceptance.team_projects import accepted, git, make_project, told
from tests.acceptance.test_teams import DIAMOND, WRITERS, Task, killed, started, wide


def made(folder: Path, tasks: list[Task], plan: dict[str, Any], **settings: Any) -> Path:
    return make_project(folder, tasks, plan, is_repository=True, worktree=True, **settings)


def worktree(project: Path) -> Path:
    [note] = (project / "sync" / "worktrees").glob("run-*.json")
    return note.with_suffix("")


def merges(folder: Path) -> list[str]:
    return git(folder, "log", "--merges", "--first-parent", "--format=%s").splitlines()


def nothing_is_left(project: Path) -> bool:
    trees = git(project, "worktree", "list").splitlines()
    branches = git(project, "branch", "--format=%(refname:short)")
    return len(trees) == 1 and branches == "main" and git(project, "status", "--porcelain") == ""


@pytest.mark.slow
def test_tasks_are_merged_into_it_and_the_end_into_the_checkout(tmp_path: Path) -> None:
    plan: dict[str, Any] = {
        "one": {"writes": {"a.txt": "a"}, "seconds": 0.4},
        "two": {"writes": {"b.txt": "b"}},
    }
    project = made(tmp_path, WRITERS, plan)
    ran = cli(project, "run", "--max-steps", "2")
    assert ran.returncode == 0, ran.stderr
    assert "the run works in sync/worktrees/" in ran.stderr
    here = worktree(project)
    assert merges(here) == ["Merge task two: Two", "Merge task one: One"], "as listed"
    assert (here / "a.txt").read_text() + (here / "b.txt").read_text() == "ab"
    assert not (project / "a.txt").exists()
    assert not (project / "b.txt").exists()
    git(project, "commit", "-q", "--allow-empty", "-m", "meanwhile")
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    assert merges(project) == ["Merge run default: team"]
    assert (project / "a.txt").read_text() + (project / "b.txt").read_text() == "ab"
    assert accepted(project) == ["two", "one", "sum"] or accepted(project) == ["one", "two", "sum"]
    assert nothing_is_left(project)


@pytest.mark.slow
def test_a_conflict_there_is_solved_there(tmp_path: Path) -> None:
    plan: dict[str, Any] = {
        "one": {"writes": {"shared.txt": "one\n"}, "seconds": 0.4},
        "two": {"writes": {"shared.txt": "two\n", "own.txt": "2"}},
    }
    project = made(tmp_path, WRITERS, plan)
    ran = cli(project, "run")
    assert ran.returncode == 1
    here = worktree(project)
    assert "none of it is in the run's worktree" in ran.stderr
    assert f"git -C sync/worktrees/{here.name} merge sequencer-team/" in ran.stderr
    assert (here / "shared.txt").read_text() == "one\n"
    branch = git(project, "branch", "--list", "sequencer-team/*", "--format=%(refname:short)")
    assert git(project, "show", f"{branch}:shared.txt") == "two"
    assert git(project, "status", "--porcelain") == ""
    assert "'sequencer skip two --as-done'" in ran.stderr
    git(here, "merge", "-q", "-X", "theirs", branch)
    assert cli(project, "skip", "two", "--as-done").returncode == 0
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    assert accepted(project) == ["one", "sum"], "two was done by hand"
    assert len(told(project, "two")) == 1, "no agent is paid once more"
    assert (project / "shared.txt").read_text() == "two\n"
    assert (project / "own.txt").read_text() == "2"
    assert nothing_is_left(project)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_processes_share_the_worktree_even_if_one_is_killed(tmp_path: Path) -> None:
    tasks, plan = wide(4)
    project = made(tmp_path, tasks, plan, size=4, run={"max_parallel": 2})
    workers = [started(project) for _ in range(2)]
    try:
        until(lambda: len(list((project / "seen").glob("w*.pid"))) == 4, 60)
        orphans = killed(workers[0])
        (project / "go").touch()
        assert workers[1].wait(90) == 0, (project / "agent.errors").read_text()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert not [one for one in orphans if one.is_running()]
    assert sorted(accepted(project)) == sorted([*(f"w{n}" for n in range(4)), "sum"])
    assert merges(project) == ["Merge run default: team"]
    assert [(project / f"w{n}.txt").read_text() for n in range(4)] == list("0123")
    assert nothing_is_left(project)


def test_a_task_cannot_run_code_through_the_runs_worktree(tmp_path: Path) -> None:
    """Git finds the repository of a folder by a file in it, which any agent can write."""
    hostile = tmp_path / "hostile"
    git(tmp_path, "init", "-q", str(hostile))
    hook = hostile / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    hook.chmod(0o755)
    for name in ("post-merge", "reference-transaction"):
        (hook.parent / name).write_bytes(hook.read_bytes())
        (hook.parent / name).chmod(0o755)
    git(hostile, "config", "core.fsmonitor", f"touch {tmp_path}/PWNED")
    tasks: list[Task] = [{**WRITERS[0], "id": name} for name in ("one", "two")]
    tasks[1]["blocked_by"] = ["one"]
    plan: dict[str, Any] = {"one": {"writes": {"a.txt": "a"}}, "two": {"writes": {"b.txt": "b"}}}
    project = made(tmp_path / "p", tasks, plan)
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    here = worktree(project)
    plan["two"]["writes"][str(here / ".git")] = f"gitdir: {hostile}/.git\n"
    (project / "agent.json").write_text(json.dumps(plan))
    ran = cli(project, "run")
    assert not (tmp_path / "PWNED").exists()
    # Nothing is lost, and the repository of the project has it all.
    branches = git(project, "for-each-ref", "--format=%(refname)", "refs/heads").splitlines()
    found = [one for one in branches if "b.txt" in git(project, "ls-tree", "--name-only", one)]
    assert found, ran.stderr
    assert not git(hostile, "for-each-ref")


@pytest.mark.slow
def test_a_graph_continues_in_the_worktree_after_a_failed_task(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"left": {"exit": 3, "writes": {"half.txt": "half"}}}
    tasks = [{**one, "role": "implementer"} for one in DIAMOND]
    project = made(tmp_path, tasks, plan)
    assert cli(project, "run").returncode == 1
    assert not (project / "half.txt").exists()
    here = worktree(project)
    (project / "agent.json").write_text("{}")
    assert cli(project, "retry").returncode == 0
    assert cli(project, "run").returncode == 0
    assert sorted(accepted(project)) == ["left", "plan", "right", "sum"]
    assert len(told(project, "left")) == 2
    assert not here.exists()
    assert not (project / "half.txt").exists(), "what has failed is on a branch of its own"


def refs(project: Path) -> list[str]:
    """Return what was set aside of attempts."""
    form = ("--format=%(refname) %(contents:subject)", "refs/sequencer/attempts")
    return [one for one in git(project, "for-each-ref", *form).splitlines() if "Failed" in one]


@pytest.mark.slow
def test_changes_of_a_failed_task_are_set_aside(tmp_path: Path) -> None:
    task: Task = {"id": "one", "subject": "One", "role": "implementer", "worktree": False}
    plan: dict[str, Any] = {"one": {"writes": {"half.txt": "h", "shared.txt": "half"}, "exit": 1}}
    project = made(tmp_path, [task], plan)
    assert cli(project, "run").returncode == 1
    assert [one.split()[0] for one in refs(project)] == ["refs/sequencer/attempts/default/1"]
    (project / "agent.json").write_text(json.dumps({"one": {"writes": {"whole.txt": "w"}}}))
    assert cli(project, "retry").returncode == 0
    assert cli(project, "run").returncode == 0
    assert (project / "whole.txt").read_text() == "w"
    assert (project / "shared.txt").read_text() == "as it was\n"
    assert not (project / "half.txt").exists()
    assert "Your last attempt failed" in told(project, "one")[1]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("on_write", ["warn", "fail"])
def test_changes_by_a_read_only_task_are_not_merged(tmp_path: Path, on_write: str) -> None:
    task: Task = {"id": "look", "subject": "Look", "role": "researcher"}
    plan: dict[str, Any] = {"look": {"writes": {"stray.txt": "s", "shared.txt": "changed"}}}
    project = made(tmp_path, [task], plan, teams={"on_write": on_write})
    ran = cli(project, "run")
    assert "a task that only reads has changed files" in ran.stderr
    if on_write == "fail":
        assert ran.returncode == 1
        (project / "agent.json").write_text("{}")
        assert cli(project, "retry").returncode == 0
        ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    assert len(refs(project)) == 1
    assert (project / "shared.txt").read_text() == "as it was\n"
    assert not (project / "stray.txt").exists()


CHAIN: list[Task] = [
    {"id": name, "subject": name, "role": "implementer", "blocked_by": before}
    for name, before in (("a", []), ("b", ["a"]), ("c", ["b"]))
]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("how", ["its folder", "all of them", "by git"])
def test_accepted_tasks_stay_if_the_worktree_is_removed(tmp_path: Path, how: str) -> None:
    plan: dict[str, Any] = {name: {"writes": {f"{name}.txt": name}} for name in "abc"}
    project = made(tmp_path, CHAIN, plan)
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    here = worktree(project)
    if how == "by git":
        git(project, "worktree", "remove", "--force", str(here))
    else:
        shutil.rmtree(here if how == "its folder" else here.parent)
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    assert "the worktree of the run was gone, and is made again from branch" in ran.stderr
    assert [(project / f"{name}.txt").read_text() for name in "abc"] == ["a", "b", "c"]
    assert accepted(project) == ["a", "b", "c"]
    assert nothing_is_left(project)


@pytest.mark.slow
def test_a_task_that_removes_the_worktree_loses_nothing(tmp_path: Path) -> None:
    script = "import os, shutil, glob\n"
    script += "for one in glob.glob('../run-*[0-9a-f]'):\n    shutil.rmtree(one)\n"
    plan: dict[str, Any] = {name: {"writes": {f"{name}.txt": name}} for name in "abc"}
    project = made(tmp_path, CHAIN, plan)
    (project / "agent.py").write_text(
        (project / "agent.py")
        .read_text()
        .replace(
            "raise SystemExit", f"if plan.get('removes'):\n    exec({script!r})\nraise SystemExit"
        )
    )
    (project / "agent.json").write_text(json.dumps({**plan, "b": {**plan["b"], "removes": True}}))
    ran = cli(project, "run")
    assert ran.returncode not in (0, 70), ran.stderr
    assert "its folder is gone" in ran.stderr
    assert accepted(project) == ["a"]
    (project / "agent.json").write_text(json.dumps(plan))
    assert cli(project, "retry").returncode == 0
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    assert [(project / f"{name}.txt").read_text() for name in "abc"] == ["a", "b", "c"]
    assert accepted(project) == ["a", "b", "c"]


def test_a_link_in_place_of_the_worktree_is_refused(tmp_path: Path) -> None:
    plan: dict[str, Any] = {name: {"writes": {f"{name}.txt": name}} for name in "abc"}
    project = made(tmp_path, CHAIN, plan)
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    here = worktree(project)
    here.rename(project / "sync" / "moved")
    here.symlink_to(project)
    ran = cli(project, "run")
    assert ran.returncode == 3
    assert "something else is in its place" in ran.stderr
    assert git(project, "status", "--porcelain") == ""
    here.unlink()
    (project / "sync" / "moved").rename(here)
    assert cli(project, "run").returncode == 0
    assert accepted(project) == ["a", "b", "c"]
    assert nothing_is_left(project)


@pytest.mark.slow
def test_on_the_wrong_branch_no_worktree_is_created(tmp_path: Path) -> None:
    project = made(tmp_path, CHAIN, {}, store={"work": {"branch": "work"}})
    ran = cli(project, "run")
    assert ran.returncode == 3
    assert "main is checked out, but steps run only on branch work" in ran.stderr
    assert git(project, "branch", "--format=%(refname:short)") == "main"
    git(project, "switch", "-q", "-c", "work")
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
