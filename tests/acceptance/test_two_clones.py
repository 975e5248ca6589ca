"""Two clones of one repository take turns with `store.kind: git`, as the commands show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, head, until
from tests.acceptance.two_clones import IDENTITY, code, configuration, ended, shared_project, start
from tests.clones import git


def events(clone: Path) -> list[tuple[str, int]]:
    assert cli(clone, "sync", "--fetch", timeout_s=60.0, **IDENTITY).returncode == 0
    told = cli(clone, "history", "--json", timeout_s=60.0, **IDENTITY).stdout.splitlines()
    return [(fact["event"], fact["step_index"]) for fact in map(json.loads, told)]


def work(clone: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    done = cli(clone, *arguments, timeout_s=60.0, **IDENTITY, **variables)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_two_terminals_in_two_clones_need_each_others_code(tmp_path: Path) -> None:
    """With a review every third cycle, and each step on top of the commits of all before it."""
    steps = 8
    shared = shared_project(
        tmp_path, configuration().replace("cadence}", "cadence, review_every_n: 3}")
    )
    sides = [
        start(tmp_path / clone, "run", "--mode", "sync", "--position", position, *limit)
        for clone, position in (("a", "supervisor"), ("b", "main"))
        for limit in [("--max-steps", str(steps // 2))]
    ]
    for side in sides:
        status, said = ended(side, 300)
        assert status == 0, said
    assert code(shared) == list(range(steps))
    tree = git(shared.bare, "log", "--format=%s", "main").splitlines()
    assert tree[:steps] == [f"step {index}" for index in reversed(range(steps))]
    facts = events(tmp_path / "a")
    assert [index for event, index in facts if event == "succeeded"] == list(range(steps))
    assert events(tmp_path / "b") == facts
    journals = [(tmp_path / name / "sync" / "journal.jsonl").read_bytes() for name in "ab"]
    assert journals[0] == journals[1]
    for name in "ab":
        assert git(tmp_path / name, "status", "--porcelain") == ""
    newest = head(tmp_path / "b")["work"]
    assert newest == {"branch": "main", "commit": git(shared.bare, "rev-parse", "main")}
    # The state is on a branch of its own, two commits a step at most, and the first.
    assert int(git(shared.bare, "rev-list", "--count", "sequencer/default")) <= 2 * steps + 1
    assert git(shared.bare, "ls-tree", "--name-only", "main", "sync") == ""


@pytest.mark.slow
def test_a_step_moves_nothing_if_a_person_moved_its_branch(tmp_path: Path) -> None:
    shared = shared_project(tmp_path)
    (tmp_path / "hold").touch()
    side = start(tmp_path / "a", "run", "--max-steps", "1")
    until((tmp_path / "running").exists)
    first = shared.clone("first")
    git(first, "commit", "-q", "--allow-empty", "-m", "a person's")
    git(first, "push", "-q", "origin", "HEAD:main")
    theirs = git(shared.bare, "rev-parse", "main")
    (tmp_path / "hold").unlink()
    status, said = ended(side)
    assert status == 3, said
    assert "main was moved on the remote by someone else while the step ran" in said
    assert "sequencer-kept/default/0-1" in said
    assert git(shared.bare, "rev-parse", "main") == theirs
    assert git(shared.bare, "show", "sequencer-kept/default/0-1:code.txt") == "0"
    now = head(tmp_path / "a")
    assert (now["step_index"], now["status"], now["failures_in_row"]) == (0, "failed", 1)
    # The next attempt begins on what that person has pushed, without what was not accepted.
    status, said = work(tmp_path / "a", "run", "--max-steps", "1")
    assert status == 0, said
    assert code(shared) == [0]
    assert git(shared.bare, "rev-parse", "main^") == theirs


@pytest.mark.slow
def test_a_rejected_push_fails_the_step_and_preserves_its_work(tmp_path: Path) -> None:
    shared = shared_project(tmp_path, configuration("limits: {max_failures_in_row: 2}\n"))
    hook = shared.bare / "hooks" / "update"
    hook.write_text(
        '#!/bin/sh\ntest "$1" != refs/heads/main || { echo "main is protected"; exit 1; }\n'
    )
    hook.chmod(0o755)
    status, said = work(tmp_path / "a", "run", "--max-steps", "1")
    assert status == 3, said
    assert "main does not accept pushes" in said
    assert git(shared.bare, "show", "sequencer-kept/default/0-1:code.txt") == "0"
    now = head(tmp_path / "a")
    assert (now["status"], now["failures_in_row"], now["claims"]) == ("failed", 1, [])
    assert code(shared) == []


@pytest.mark.slow
def test_an_agent_may_push_what_it_has_committed(tmp_path: Path) -> None:
    shared = shared_project(tmp_path, configuration("commit: {paths: [docs/]}\n"))
    agent = (tmp_path / "first" / "agent.py").read_text()
    pushing = 'subprocess.run(["git", "push", "-q", "origin", "HEAD:main"], check=True)\n'
    (tmp_path / "a" / "agent.py").write_text(agent + pushing)
    git(tmp_path / "a", "commit", "-qam", "an agent that pushes")
    status, said = work(tmp_path / "a", "run", "--max-steps", "2", NOTES="docs/plan.md")
    assert status == 0, said
    assert code(shared) == [0, 1]
    assert git(shared.bare, "show", "main:docs/plan.md") == "1"


def test_a_process_that_lost_its_step_moves_nothing_and_keeps_its_work(tmp_path: Path) -> None:
    shared = shared_project(tmp_path)
    (tmp_path / "hold").touch()
    loser = start(tmp_path / "a", "run", "--max-steps", "1")
    until((tmp_path / "running").exists)
    status, said = work(tmp_path / "b", "takeover", "--force")
    assert status == 0, said
    (tmp_path / "hold").unlink()
    status, said = ended(loser)
    assert status == 3, said
    assert code(shared) == []
    assert git(shared.bare, "show", "sequencer-kept/default/0-1:code.txt") == "0"
    assert head(tmp_path / "b")["step_index"] == 0


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda clone: (clone / "README.md").write_text("mine\n"), "README.md"),
        (lambda clone: (clone / "new.py").touch(), "new.py"),
        (lambda clone: git(clone, "checkout", "-q", "--detach"), "HEAD is detached"),
        (lambda clone: (clone / ".git" / "MERGE_HEAD").write_text("0" * 40 + "\n"), "a merge"),
    ],
    ids=["changed", "new", "detached", "merging"],
)
def test_a_work_tree_in_a_bad_state_starts_no_step(
    tmp_path: Path, spoil: object, words: str
) -> None:
    shared_project(tmp_path)
    clone = tmp_path / "a"
    spoil(clone)  # type: ignore[operator]
    status, said = work(clone, "run", "--max-steps", "1")
    assert status == 3, said
    assert words in said
    assert not (tmp_path / "running").exists(), "no agent was started"
    assert [event for event, _ in events(clone)] == ["initialised"]


@pytest.mark.slow
def test_declared_paths_travel_with_the_step(tmp_path: Path) -> None:
    extra = "commit: {paths: [docs/], report_extensions: [.png]}\n"
    shared = shared_project(tmp_path, configuration(extra))
    clone = tmp_path / "a"
    notes = "docs/plan.md plot.png .env"
    (clone / ".git" / "info" / "exclude").write_text(".env\n")
    status, said = work(clone, "run", "--max-steps", "1", NOTES=notes)
    assert status == 0, said
    assert git(shared.bare, "show", "main:docs/plan.md") == "0"
    assert ".env" not in git(shared.bare, "ls-tree", "-r", "--name-only", "main")
    message = git(shared.bare, "log", "-1", "--format=%B", "main")
    assert message.splitlines()[0] == "supervisor: iteration 1 (run default)"
    assert {"Run: default", "Step: supervisor", "Iteration: 1", "Token: 1"} <= set(
        message.splitlines()
    )
    status, said = work(tmp_path / "b", "run", "--max-steps", "1")
    assert status == 0, said
    assert (tmp_path / "b" / "docs" / "plan.md").read_text() == "0\n"


@pytest.mark.slow
def test_an_unreachable_remote_is_reported_and_waited_for(tmp_path: Path) -> None:
    text = configuration().replace("retry_for_s: 0", "retry_for_s: 30")
    shared = shared_project(tmp_path, text)
    (tmp_path / "hold").touch()
    side = start(tmp_path / "a", "run", "--max-steps", "1")
    until((tmp_path / "running").exists)
    away = shared.bare.with_name("away.git")
    shared.bare.rename(away)
    (tmp_path / "hold").unlink()
    log = side.stdout
    assert log is not None
    said = ""
    while "next try in" not in said:
        said += log.readline()
    away.rename(shared.bare)
    status, rest = ended(side)
    assert status == 0, said + rest
    assert "the remote is back" in rest
    assert "can't be reached" in said
    assert code(shared) == [0]


def test_a_remote_unreachable_at_the_start_is_a_failure(tmp_path: Path) -> None:
    shared = shared_project(tmp_path)
    shared.bare.rename(tmp_path / "away.git")
    for arguments in (("run", "--max-steps", "1"), ("tick",), ("stop",)):
        status, said = work(tmp_path / "a", *arguments)
        assert status == 3, said
        assert "remote 'origin' can't be reached" in said
        assert "Traceback" not in said
    assert not (tmp_path / "running").exists()
    status, said = work(tmp_path / "a", "status")
    assert status == 0, "what is known here can be looked at"
    assert "is not known here; 'sequencer sync --fetch' looks there" in said


@pytest.mark.slow
def test_ticks_of_two_clones_take_turns(tmp_path: Path) -> None:
    shared = shared_project(tmp_path)
    for index in range(4):
        status, said = work(tmp_path / "ab"[index % 2], "tick")
        assert status == 0, said
    assert code(shared) == [0, 1, 2, 3]


@pytest.mark.slow
def test_code_can_be_left_alone(tmp_path: Path) -> None:
    shared = shared_project(tmp_path, configuration(work=", work: {branch: none}"))
    (tmp_path / "a" / "README.md").write_text("mine, and in nobody's way\n")
    status, said = work(tmp_path / "a", "run", "--max-steps", "1")
    assert status == 0, said
    assert code(shared) == []
    assert head(tmp_path / "a")["work"] is None
    assert head(tmp_path / "a")["step_index"] == 1


@pytest.mark.slow
def test_a_tick_that_leaves_a_dirty_file_warns_that_no_step_can_start(tmp_path: Path) -> None:
    shared_project(tmp_path)
    clone = tmp_path / "a"
    tick = ("tick", "--log=logs/tick.log")
    status, said = work(clone, *tick, NOTES="junk/report.txt")
    assert status == 0
    assert "branch main has uncommitted changes (1 changed path): 'junk/report.txt'" in said
    assert "commit them, put them away ('git stash -u'), or have git ignore them" in said
    # The next one says the same with its exit code, so a person is told once.
    status, said = work(clone, *tick)
    assert (status, said) == (3, "")
    (clone / "junk" / "report.txt").unlink()
    status, said = work(clone, *tick)
    assert (status, said) == (0, "")


@pytest.mark.slow
def test_a_folder_in_commit_paths_means_what_is_in_it(tmp_path: Path) -> None:
    shared = shared_project(tmp_path, configuration("commit: {paths: [work]}\n"))
    status, said = work(tmp_path / "a", "tick", NOTES="work/deep/note.txt")
    assert status == 0
    assert "not committed" not in said
    assert git(shared.bare, "show", "main:work/deep/note.txt") == "0"
