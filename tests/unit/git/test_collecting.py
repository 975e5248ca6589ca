"""What a step has left: the agent's commits, and what is committed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import WorkTreeRefused
from sequencer.model.head import Work
from sequencer.settings.schema import WorkOptions
from tests.unit.git.clones import (
    DOCS,
    SECRET,
    claim,
    clone,
    commit,
    everything,
    git,
    head,
    pair,
    porcelain,
    said,
    tree_of,
    write,
)


def test_a_run_learns_its_branch_where_nothing_moves(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here)
    one.carrier.ready(head())
    learned = one.carrier.collect(claim(), "main", head())
    work = Work(branch="main", commit=said(here, "rev-parse", "HEAD"))
    assert (learned, one.carrier.cargo) == (work, None)
    named = clone(here, work=WorkOptions(branch="main"))
    assert named.carrier.collect(claim(), "main", head()) is None


def test_the_agents_commits_move_without_a_process_of_their_own(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here)
    one.carrier.ready(head())
    old = said(here, "rev-parse", "HEAD")
    for number in range(3):
        new = commit(here, {"a": str(number)})
    started = one.started
    collected = one.carrier.collect(claim(), "main", head())
    assert collected is not None
    assert one.carrier.cargo is not None
    assert (one.carrier.cargo.old, one.carrier.cargo.new) == (old, new)
    assert collected == Work(branch="main", commit=new)
    assert one.started - started == 1


def test_nothing_is_committed_that_is_not_declared(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here)
    one.carrier.ready(head())
    write(here, {"docs/a": "1"})
    before = everything(here)
    there = head(Work(branch="main", commit=said(here, "rev-parse", "HEAD")))
    assert one.carrier.collect(claim(), "main", there) is None
    assert everything(here) == before
    told = one.carrier.take_notices()
    assert len(told) == 1
    assert "'docs/a': in no commit" in told[0]
    assert one.carrier.take_notices() == []


def test_declared_paths_are_committed_behind_the_agents(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS, run="nightly")
    one.carrier.ready(head())
    agents = commit(here, {"code.py": "1"})
    write(here, {"docs/a.md": "1"})
    after = one.push(head(step_index=4), token=9)
    assert after.work is not None
    assert said(bare, "rev-parse", "main", "main^") == f"{after.work.commit}\n{agents}"
    assert said(bare, "log", "-1", "--format=%B", "main").split("\n") == [
        *("main: iteration 5 (run nightly)", ""),
        *("Run: nightly", "Step: main", "Iteration: 5", "Token: 9"),
    ]
    assert porcelain(here) == []


def test_what_could_not_be_committed_is_told(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    one.carrier.ready(head())
    write(here, {"docs/fine.md": "1", "docs/key.md": SECRET, "else": "1"})
    write(here, {f"docs/.env{number:02}": "x" for number in range(20)})
    assert one.carrier.collect(claim(), "main", head()) is not None
    told = one.carrier.take_notices()
    assert "not committed: 'docs/.env00' has a name under which secrets are kept" in told
    assert any("11 more" in line for line in told)
    assert any("'docs/.env00'" in line and "in no commit" in line for line in told)
    assert "docs/key.md" not in tree_of(here)
    assert SECRET.encode() not in b"".join(
        git(here, "cat-file", "--batch-all-objects", "--batch", "--unordered").splitlines()
    )


@pytest.mark.parametrize("left", ["another branch", "a detached HEAD", "a merge", "old history"])
def test_what_an_agent_may_not_leave(tmp_path: Path, left: str) -> None:
    _, here, _ = pair(tmp_path, {"a": "1"})
    commit(here, {"a": "2"})
    git(here, "push", "-q", "origin", "main")
    one = clone(here, commit=DOCS)
    one.carrier.ready(head())
    commit(here, {"a": "3"})
    write(here, {"docs/a": "1"})
    if left == "another branch":
        git(here, "switch", "-q", "-c", "mine")
    elif left == "a detached HEAD":
        git(here, "switch", "-q", "--detach")
    elif left == "a merge":
        write(here / ".git", {"MERGE_HEAD": said(here, "rev-parse", "HEAD^") + "\n"})
    else:
        git(here, "reset", "-q", "--hard", "HEAD~2")
        write(here, {"docs/a": "1"})
        commit(here, {"b": "1"})
    before = everything(here)
    with pytest.raises(WorkTreeRefused) as refused:
        one.carrier.collect(claim(), "main", head())
    told = {
        "another branch": "branch mine is checked out",
        "a detached HEAD": "HEAD is detached",
        "a merge": "a merge is under way",
        "old history": "its history was rewritten",
    }
    assert told[left] in refused.value.message
    assert everything(here) == before


def test_the_next_step_needs_no_fetch_to_know_what_was_moved(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    state = head()
    one.carrier.ready(state)
    for number in range(3):
        write(here, {"docs/a": str(number)})
        commit(here, {"code": str(number)})
        state = one.push(state, token=number)
        started = one.started
        one.carrier.ready(state)
        one.carrier.arrive(state)
        assert one.started - started == 1


def test_two_processes_in_one_clone(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, other = clone(here, commit=DOCS), clone(here, commit=DOCS)
    state = head()
    for number in range(4):
        at = (one, other)[number % 2]
        at.carrier.ready(state)
        at.carrier.arrive(state)
        write(here, {"docs/a": str(number)})
        state = at.push(state, token=number)
        at.carrier.leave(state)
    assert said(here, "rev-list", "--count", "HEAD") == "5"


def test_somebody_commits_while_the_paths_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    one.carrier.ready(head())
    write(here, {"docs/a": "1"})
    times = iter([1])
    real = one.carrier._selector.select

    def select(status: object) -> object:
        found = real(status)  # type: ignore[arg-type]
        if next(times, None):
            commit(here, {"beside": "1"})
        return found

    monkeypatch.setattr(one.carrier._selector, "select", select)
    collected = one.carrier.collect(claim(), "main", head())
    assert collected is not None
    assert {"beside", "docs/a"} < set(tree_of(here))
    assert said(here, "rev-list", "--count", "HEAD") == "3"
    assert porcelain(here) == []
