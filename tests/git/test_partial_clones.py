"""Clones that lack objects or history: they work, or say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.two_clones import code, configuration, ended, none_left, shared_project, start
from tests.clones import Shared, git


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    shared = shared_project(tmp_path, configuration(workflow="standard"))
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        git(shared.bare, "config", key, "true")
    a = shared.clone("a")
    for number in range(3):
        (a / "old.txt").write_text(f"{number}\n")
        git(a, "add", "old.txt")
        git(a, "commit", "-qm", f"old {number}")
    git(a, "push", "-q", "origin", "main")
    assert run(a, 2)[0] == 0
    return shared


def run(clone: Path, steps: int) -> tuple[int, str]:
    with none_left() as started:
        started.append(start(clone, "run", "--max-steps", str(steps)))
        return ended(started[0])


def cloned(shared: Shared, name: str, *options: str) -> Path:
    git(shared.folder, "clone", "-q", *options, f"file://{shared.bare}", name)
    return shared.folder / name


def commits_besides(shared: Shared, count: int) -> None:
    """Let somebody push *count* commits that no step has made."""
    somebody = cloned(shared, f"somebody-{count}")
    for number in range(count):
        (somebody / "theirs.txt").write_text(f"{number}\n")
        git(somebody, "add", "theirs.txt")
        git(somebody, "commit", "-qm", f"theirs {number}")
    git(somebody, "push", "-q", "origin", "main")


def missing(clone: Path) -> list[str]:
    told = git(clone, "rev-list", "--objects", "--missing=print", "HEAD")
    return [line for line in told.splitlines() if line.startswith("?")]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["blob:none", "tree:0"])
def test_a_partial_clone_works(shared: Shared, what: str) -> None:
    partial = cloned(shared, "partial", f"--filter={what}")
    assert missing(partial), "a check of the check"
    status, said = run(partial, 2)
    assert status == 0, said
    # Somebody else goes on, and then it does once more: what is new is fetched.
    assert run(shared.clone("a"), 1)[0] == 0
    status, said = run(partial, 1)
    assert status == 0, said
    assert code(shared) == [0, 1, 2, 3, 4, 5]
    assert missing(partial), "it stays partial"


@pytest.mark.slow
def test_a_shallow_clone_of_the_states_commit_works(shared: Shared) -> None:
    shallow = cloned(shared, "shallow", "--depth=1")
    assert run(shallow, 2)[0] == 0
    assert run(shared.clone("a"), 1)[0] == 0
    assert run(shallow, 1)[0] == 0
    assert code(shared) == [0, 1, 2, 3, 4, 5]
    assert (shallow / ".git" / "shallow").exists()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_a_shallow_clone_that_starts_after_the_states_commit_works(
    shared: Shared, count: int
) -> None:
    commits_besides(shared, count)
    shallow = cloned(shared, "shallow", "--depth=1")
    status, said = run(shallow, 2)
    assert status == 0, said
    assert code(shared) == [0, 1, 2, 3]
    assert git(shared.bare, "ls-tree", "--name-only", "main", "theirs.txt") == "theirs.txt"


@pytest.mark.slow
def test_a_history_that_is_too_short_is_reported(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits_besides(shared, 3)
    shallow = cloned(shared, "shallow", "--depth=1")
    # Where the remote does not have it either, no history is long enough.
    first = git(shared.bare, "rev-list", "--max-parents=0", "main")
    git(shared.bare, "update-ref", "refs/heads/main", first)
    monkeypatch.setenv("GIT_TERMINAL_PROMPT", "0")
    status, said = run(shallow, 1)
    assert status == 3
    assert "this clone is shallow: its history of branch main ends before commit" in said
    assert "git fetch --unshallow origin" in said
    assert "reset" not in said
