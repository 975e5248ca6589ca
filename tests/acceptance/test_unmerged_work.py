"""Work of a run's worktree that nobody has merged is named until it is merged or dropped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli
from tests.acceptance.wrong_clock import DAY_S, Later, mover
from tests.clones import git
from tests.unit.cli.calling import Called, call, project
from tests.web.conftest import Client, words

CONFIGURATION = """\
agent: hand
agents:
  hand: {kind: command, argv: [sh, -c, "cat > /dev/null; echo agent >> notes.txt"], free: true}
worktree: true
workflow: letter
workflows:
  letter: {kind: procedure, steps: [{name: write, text: "Write."}, {name: look, text: "Look."}]}
"""
SCHEDULED = CONFIGURATION + 'schedules: {night: {workflow: letter, at: "0 2 * * *"}}\n'
NOT_MERGED = "1 commit of run 'night' is not merged into main: branch sequencer-run/night/run-"
SKIPPED = "skipped: yesterday's work is not merged"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return in_git(tmp_path / "p", SCHEDULED)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Return what moves the clock that many seconds after now."""
    return mover(monkeypatch)


def in_git(folder: Path, text: str) -> Path:
    """Return a project with *text* as its settings, committed on main."""
    folder = project(folder, text)
    (folder / ".gitignore").write_text("sync/\nlogs/\n")
    (folder / "notes.txt").write_text("start\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return folder


def tick(folder: Path) -> Called:
    return call(folder, "--run", "night", "tick")


def conflict(folder: Path) -> None:
    """Commit by hand what the run's work does not fit with."""
    (folder / "notes.txt").write_text("a person's\n")
    git(folder, "commit", "-q", "-am", "by hand")


def branches(folder: Path) -> list[str]:
    form = "--format=%(refname:lstrip=2)"
    return git(folder, "for-each-ref", form, "refs/heads/sequencer-run/").split()


@pytest.fixture
def branch(folder: Path, later: Later) -> str:
    """Return the branch of a night that is complete, and in conflict with a person's commit."""
    assert tick(folder).code == 0  # notes since when it waits
    later(DAY_S)
    assert tick(folder).code == 0
    conflict(folder)
    refused = tick(folder)
    later(0)
    assert (refused.code, "can't be merged: conflicts in 'notes.txt'" in refused.err) == (3, True)
    (found,) = branches(folder)
    return found


def listed(folder: Path, branch: str) -> list[str]:
    """Return the commands that name *branch* as not merged, with what to type."""
    merge, drop = f"git merge {branch}", f"git branch -D {branch}"
    views = (["inbox"], ["status", "--all"], ["--run", "night", "status"], ["check"])
    shown = {" ".join(words): call(folder, *words) for words in views}
    for name, told in shown.items():
        is_named = NOT_MERGED in told.out
        assert (merge in told.out, drop in told.out) == (is_named, is_named), name
    return [name for name, told in shown.items() if NOT_MERGED in told.out]


ALL = ["inbox", "status --all", "--run night status", "check"]


def test_it_is_listed_until_a_person_merges_it(folder: Path, branch: str) -> None:
    assert listed(folder, branch) == ALL
    rows = call(folder, "inbox", "--json").json
    assert [(row["run"], row["branch"]) for row in rows] == [("night", branch)]
    (facts,) = call(folder, "status", "--all", "--json").json
    assert facts["unmerged"][0]["commands"][0] == f"git merge {branch}"
    assert call(folder, "--run", "night", "status", "--json").json["unmerged"] == facts["unmerged"]
    said = call(folder, "--run", "night", "status").out
    assert said.endswith(f"\nnext: git merge {branch} (its work is not merged)\n")
    git(folder, "merge", "-q", "-s", "ours", "-m", "both", branch)
    assert listed(folder, branch) == []
    assert call(folder, "inbox").out == "no run waits for a decision\n"
    assert "\nnext: sequencer --run night report" in call(folder, "--run", "night", "status").out
    assert tick(folder).code == 0


@pytest.mark.slow
def test_it_is_listed_until_a_person_drops_it(folder: Path, branch: str) -> None:
    git(folder, "branch", "-q", "-D", branch)
    assert listed(folder, branch) == []
    assert tick(folder).code == 0


def test_each_start_reports_the_same_until_it_is_merged(folder: Path, branch: str) -> None:
    first, again = tick(folder), tick(folder)
    assert (first.code, first.err) == (3, again.err)
    assert f"merge it by hand with 'git merge {branch}'" in first.err


@pytest.mark.slow
def test_a_timer_reports_a_conflict_once(folder: Path, later: Later) -> None:
    assert tick(folder).code == 0
    later(DAY_S)
    assert tick(folder).code == 0
    conflict(folder)
    logged = ("--run", "night", "tick", "--log", "logs/tick.log")
    told = [call(folder, *logged).err for _ in range(3)]
    assert ["can't be merged: conflicts in 'notes.txt'" in text for text in told] == [
        *(True, False, False)
    ]
    (branch,) = branches(folder)
    git(folder, "branch", "-q", "-D", branch)
    later(2 * DAY_S)
    assert call(folder, *logged).err == ""


@pytest.mark.slow
def test_work_counts_as_merged_once_its_base_branch_has_it(folder: Path, branch: str) -> None:
    git(folder, "merge", "-q", "-s", "ours", "-m", "both", branch)
    git(folder, "checkout", "-q", "-b", "topic", "HEAD^")
    assert listed(folder, branch) == []
    git(folder, "branch", "-q", "-f", "main", "HEAD")
    assert listed(folder, branch) == ALL


def test_a_schedule_does_not_start_over_it(folder: Path, branch: str, later: Later) -> None:
    before = call(folder, "--run", "night", "history", "--json").out
    for days in (2, 2, 3):
        later(days * DAY_S)
        told = tick(folder)
        assert (told.code, f"{SKIPPED}: can't be merged" in told.err) == (3, True), told
        assert f"'git merge {branch}'" in told.err
    assert call(folder, "--run", "night", "history", "--json").out == before
    status = call(folder, "--run", "night", "status").out
    assert f"not merged  {NOT_MERGED}" in status
    assert "02:00: yesterday's work is not merged\n" in status
    (listed,) = call(folder, "status", "--all", "--json").json
    assert listed["left_out"]["reason"] == "yesterday's work is not merged"
    git(folder, "merge", "-q", "-s", "ours", "-m", "both", branch)
    told = tick(folder)
    # The date is over; the next one starts the run.
    assert (told.code, "complete after 2 steps; it starts at" in told.out) == (0, True), told
    later(4 * DAY_S)
    assert tick(folder).code == 0
    assert branches(folder) != [branch]


@pytest.mark.slow
def test_an_interrupted_merge_is_completed_before_the_next_date(folder: Path, later: Later) -> None:
    assert tick(folder).code == 0
    later(DAY_S)
    assert tick(folder).code == 0
    assert call(folder, "--run", "night", "skip", "--as-done").code == 0
    assert "git -C " in call(folder, "inbox").out
    later(3 * DAY_S)
    for _ in range(3):
        assert tick(folder).code == 0
    assert (folder / "notes.txt").read_text() == "start\nagent\nagent\nagent\n"


@pytest.mark.slow
def test_unmerged_work_of_a_reset_run_is_listed(folder: Path, later: Later) -> None:
    assert tick(folder).code == 0
    later(DAY_S)
    assert tick(folder).code == 0
    assert "not merged" not in call(folder, "inbox").out
    assert call(folder, "--run", "night", "reset", "--yes").code == 0
    assert "work of run 'night' is not merged into main: " in call(folder, "inbox").out
    assert tick(folder).code == 0
    before, now = branches(folder)
    before = next(
        one for one in (before, now) if git(folder, "log", "-1", "--format=%s", one) != "start"
    )
    assert listed(folder, before) == ALL


@pytest.mark.slow
def test_unmerged_work_of_a_removed_run_is_listed(folder: Path, branch: str) -> None:
    shutil.rmtree(folder / "sync")
    told = call(folder, "inbox").out
    assert "1 commit of run 'night', which was removed, is not merged: branch" in told
    assert call(folder, "status", "--all").out.count(f"git merge {branch}") == 1
    assert f"git merge {branch}" in call(folder, "check").out


@pytest.mark.slow
def test_clean_keeps_a_run_whose_work_is_not_merged(folder: Path, branch: str) -> None:
    (folder / "orchestration.yaml").write_text(CONFIGURATION)

    def ended() -> list[str]:
        found = call(folder, "clean", "--older-than", "0", "--json").json
        return [one["run"] for one in found if one["what"] == "ended run"]

    assert ended() == []
    git(folder, "merge", "-q", "-s", "ours", "-m", "both", branch)
    assert ended() == ["night"]


def test_the_web_pages_name_unmerged_work_until_it_is_merged(folder: Path, branch: str) -> None:
    with Client([folder]) as client:
        for address in ("/", "/p/p/night"):
            page = words(client.get(address).text)
            assert f"{NOT_MERGED}{branch.rpartition('-')[2]}" in page, address
            assert f"git merge {branch}" in page
            assert f"git branch -D {branch}" in page
        assert "complete not merged" in words(client.get("/runs").text)
    git(folder, "merge", "-q", "-s", "ours", "-m", "both", branch)
    # A server that is asked again at once answers from what it has just found out.
    with Client([folder]) as client:
        assert "Nothing waits for you." in words(client.get("/").text)
        assert "not merged" not in words(client.get("/runs").text)
    git(folder, "reset", "-q", "--hard", "HEAD^")
    shutil.rmtree(folder / "sync")
    with Client([folder]) as client:
        assert "which was removed, is not merged" in words(client.get("/").text)


def test_a_project_without_worktrees_never_calls_git(tmp_path: Path) -> None:
    program = tmp_path / "programs" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\nexit 1\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    for name, text in (
        ("without", CONFIGURATION.replace("worktree: true\n", "")),
        ("p", SCHEDULED),
    ):
        folder = in_git(tmp_path / name, text)
        assert call(folder, "run").code == 0
        assert not (tmp_path / "asked").exists()
        for command in (["status"], ["status", "--all"], ["inbox"]):
            assert cli(folder, *command, PATH=path).returncode == 0
    # The one with a worktree has asked.
    assert (tmp_path / "asked").exists()


# --- the commands that are named, as they are typed -------------------------------------


def commands(folder: Path) -> tuple[str, str]:
    """Return the commands that merge and drop the only work that is not merged."""
    (row,) = [one for one in call(folder, "inbox", "--json").json if "unmerged" in one]
    merge, drop = row["commands"]
    return merge, drop


def typed(folder: Path, text: str) -> None:
    subprocess.run(["sh", "-ec", text], cwd=folder, check=True, capture_output=True)


def begun(folder: Path) -> Path:
    """Do one step, which commits, start the run over, and return its old worktree."""
    text = SCHEDULED.replace(
        "echo agent >> notes.txt", "echo agent >> notes.txt; git commit -qam x"
    )
    (folder / "orchestration.yaml").write_text(text)
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "commit", "-q", "-am", "settings")
    assert call(folder, "trust", "--yes").code == 0
    assert call(folder, "run", "--max-steps", "1").code == 0
    assert call(folder, "reset", "--yes").code == 0
    (found,) = (folder / "sync" / "worktrees").glob("run-*[0-9a-f]")
    return found


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("is_removed", [False, True])
def test_the_drop_command_works_while_a_worktree_has_the_branch(
    folder: Path, is_removed: bool
) -> None:
    tree = begun(folder)
    if is_removed:
        shutil.rmtree(tree)
    typed(folder, commands(folder)[1])
    assert branches(folder) == []
    assert not tree.exists()
    assert call(folder, "inbox", "--json").json == []


def test_no_command_runs_code_an_agent_put_in_place_of_the_repository(folder: Path) -> None:
    tree = begun(folder)
    (tree / ".git").unlink()
    git(tree, "init", "-q")
    git(tree, "config", "core.fsmonitor", f"touch {folder}/PWNED; false")
    (tree / "new.txt").write_text("x")
    merge, drop = commands(folder)
    assert "-C" not in merge
    typed(folder, merge)
    assert git(folder, "show", "HEAD:notes.txt") == "start\nagent"
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    typed(folder, drop)
    assert branches(folder) == []
    assert not (folder / "PWNED").exists()


def test_it_is_merged_into_the_branch_that_it_came_from(folder: Path) -> None:
    begun(folder)
    git(folder, "switch", "-q", "-c", "elsewhere", "HEAD~1")
    merge, _ = commands(folder)
    assert merge.startswith("git switch main; git merge sequencer-run/default/run-")
    typed(folder, merge)
    assert git(folder, "show", "main:notes.txt") == "start\nagent"
    assert git(folder, "show", "elsewhere:notes.txt") == "start"
