"""What an agent has committed on another branch, or on none, is named until it is merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.clones import ENVIRONMENT, git

GIT: dict[str, Any] = dict(ENVIRONMENT)
COMMIT = (
    'echo "$SEQUENCER_STEP" > "$SEQUENCER_STEP.txt"; git add -A; git commit -qm "$SEQUENCER_STEP"'
)
BRANCH = f"git checkout -q -b feat/x; {COMMIT}; git checkout -q -"
DETACHED = f"git checkout -q --detach; {COMMIT}; git switch -q -"


def made(folder: Path, first: str, second: str, gate: str = "") -> Path:
    """Return a project whose run does *first* and *second* in a worktree of its own."""
    folder.mkdir()
    variables = [name for name in ENVIRONMENT if name.startswith("GIT_")]
    common = {"kind": "command", "free": True, "pass_env": variables}
    agents = {
        name: {**common, "argv": ["sh", "-c", f"cat > /dev/null; {act}"]}
        for name, act in (("a", first), ("b", second))
    }
    steps = [{"name": "one", "text": "x", "agent": "a"}, {"name": "two", "text": "x", "agent": "b"}]
    if gate:
        steps[0]["requires_approval"] = True  # type: ignore[assignment]
    settings = {
        "agent": "a",
        "agents": agents,
        "worktree": True,
        "workflow": "p",
        "workflows": {"p": {"kind": "procedure", "steps": steps}},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(settings))
    (folder / ".gitignore").write_text("sync/\nlogs/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return folder


def left(folder: Path) -> list[str]:
    told = git(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads/sequencer-run/")
    return [name for name in told.split() if ".left" in name]


def said(folder: Path, *words: str) -> str:
    done = cli(folder, *words, **GIT)
    return done.stdout + done.stderr


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("leaves", [BRANCH, DETACHED], ids=["on a branch", "detached"])
def test_stranded_commits_are_saved_and_listed_until_merged(tmp_path: Path, leaves: str) -> None:
    folder = made(tmp_path / "p", leaves, COMMIT)
    done = cli(folder, "run", **GIT)
    assert done.returncode == 0, done.stderr
    (branch,) = left(folder)
    assert f"1 commit of an agent is merged nowhere: branch {branch}" in done.stderr
    assert done.stderr.count("merged nowhere") == 1
    # Before the second step, not at the end of a night.
    assert done.stderr.index("merged nowhere") < done.stderr.index("[2] two: b with")
    assert ("also on feat/x" in done.stderr) == (leaves == BRANCH)
    assert not (folder / "one.txt").exists()
    assert (folder / "two.txt").exists()
    for command in ("status", "check"):
        assert f"git merge {branch}" in said(folder, command)
    git(folder, "merge", "-q", "-m", "both", branch)
    assert (folder / "one.txt").exists()
    for command in ("status", "check"):
        assert "merged nowhere" not in said(folder, command)


@pytest.mark.slow
def test_dropped_commits_are_not_mentioned_again(tmp_path: Path) -> None:
    folder = made(tmp_path / "p", BRANCH, "true", gate="approve")
    assert cli(folder, "run", **GIT).returncode == 4
    assert cli(folder, "answer", "approve", **GIT).returncode == 0
    done = cli(folder, "run", **GIT)
    assert done.returncode == 0, done.stderr
    (branch,) = left(folder)
    git(folder, "branch", "-q", "-D", branch)
    assert "merged nowhere" not in said(folder, "status") + said(folder, "check")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "act",
    [
        COMMIT,
        f"git checkout -q -b feat/x; {COMMIT}",
        f"git checkout -q -b feat/x; {COMMIT}; git checkout -q -; git merge -q feat/x",
        f"{COMMIT}; git commit -q --amend -m again",
        f"{COMMIT}; git reset -q --hard HEAD~1",
        "git checkout -q -b feat/x; git checkout -q -",
    ],
)
def test_merged_or_undone_commits_are_not_stranded(tmp_path: Path, act: str) -> None:
    folder = made(tmp_path / "p", act, COMMIT)
    done = cli(folder, "run", **GIT)
    assert done.returncode == 0, done.stderr
    assert "merged nowhere" not in done.stderr
    assert left(folder) == []


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("go", ["checkout -q -b feat/x", "checkout -q --detach"])
def test_the_run_branch_follows_an_agent_that_switched_branches(tmp_path: Path, go: str) -> None:
    tips = "git for-each-ref --format='%(objectname)' refs/heads/sequencer-run/"
    follows = f'test "$({tips})" = "$(git rev-parse HEAD)"'
    folder = made(tmp_path / "p", f"git {go}; {COMMIT}", follows)
    done = cli(folder, "run", **GIT)
    assert done.returncode == 0, done.stderr
    where = "on no branch" if "detach" in go else "on branch feat/x"
    assert done.stderr.count(f"an agent has committed {where}; branch sequencer-run/") == 1
    assert (folder / "one.txt").exists()


@pytest.mark.slow
def test_a_branch_continued_from_elsewhere_loses_no_commit(tmp_path: Path) -> None:
    other = (
        f"{COMMIT}; git checkout -q -b feat/x HEAD~1; echo y > y.txt; git add -A; git commit -qm y"
    )
    folder = made(tmp_path / "p", other, "true")
    done = cli(folder, "run", **GIT)
    assert done.returncode == 0, done.stderr
    (branch,) = left(folder)
    assert (folder / "y.txt").exists()
    assert "one.txt" in git(folder, "show", "--name-only", branch)
