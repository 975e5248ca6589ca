"""Code that moves with the state: before a step, at its claim, after it, and if it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import RemoteUnreachable, WorkTreeRefused
from sequencer.git.tree import SHOWN_PATHS
from sequencer.model.head import Work
from sequencer.settings.schema import WorkOptions
from tests.unit.git.clones import (
    SECRET,
    Clone,
    claim,
    clone,
    commit,
    everything,
    git,
    head,
    pair,
    porcelain,
    said,
    write,
)


def refusal(one: Clone, work: Work | None = None) -> WorkTreeRefused:
    """Return why no step may begin, after a look that nothing was changed by it."""
    before = everything(one.folder)
    with pytest.raises(WorkTreeRefused) as refused:
        one.carrier.ready(head(work))
    assert everything(one.folder) == before
    assert refused.value.exit_code == 3
    assert refused.value.hint
    return refused.value


def test_to_be_ready_costs_one_process(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here)
    one.carrier.ready(head())
    started = one.started
    one.carrier.ready(head())
    one.carrier.arrive(head())
    assert one.started - started == 1


def test_a_dirty_tree_is_told_path_by_path(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path, {"a": "1"})
    write(here, {"a": "2", **{f"new {number:02}": "x" for number in range(12)}})
    refused = refusal(clone(here))
    assert "branch main has 13 changed paths" in refused.message
    assert "'a', 'new 00'" in refused.message
    assert f"and {13 - SHOWN_PATHS} more" in refused.message
    assert "store.work.tolerated" in str(refused.hint)
    assert refused.where == f"work tree {here}"


def test_secrets_in_names_are_not_told(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    write(here, {f"{SECRET}.txt": "x"})
    assert SECRET not in refusal(clone(here)).message


def test_names_of_branches_are_quoted_for_the_shell(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    work = Work(branch="x;touch$IFS/tmp/y", commit="a" * 40)
    hint = str(refusal(clone(here), work=work).hint)
    assert "git switch 'x;touch$IFS/tmp/y'" in hint
    git(here, "switch", "-q", "--detach")
    assert "git switch 'x;touch$IFS/tmp/y'" in str(refusal(clone(here), work=work).hint)


@pytest.mark.parametrize("name", ["-f", "a..b", "a b", "x\nrm -rf"])
def test_what_is_no_name_of_a_branch(tmp_path: Path, name: str) -> None:
    _, here, _ = pair(tmp_path)
    refused = refusal(clone(here), work=Work(branch=name, commit="a" * 40))
    assert "no such name of a branch" in refused.message
    assert "git switch" not in str(refused.hint)


def test_a_branch_without_a_commit(tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    git(tmp_path, "clone", "-q", str(bare), "here")
    assert "has no commit yet" in refusal(clone(tmp_path / "here")).message


@pytest.mark.parametrize("verb", ["merge", "cherry-pick", "rebase"])
def test_what_somebody_has_begun(tmp_path: Path, verb: str) -> None:
    _, here, _ = pair(tmp_path, {"a": "1"})
    git(here, "switch", "-q", "-c", "other")
    commit(here, {"a": "2"})
    git(here, "switch", "-q", "main")
    commit(here, {"a": "3"})
    git(here, "-c", f"alias.try=!git {verb} other >/dev/null 2>&1 || true", "try")
    refused = refusal(clone(here))
    # A rebase detaches HEAD, and git lets nobody switch before it is over.
    where = "" if verb == "rebase" else " on branch main"
    assert refused.message.endswith(f"a {verb} is under way{where}")
    assert refused.hint == "end it or abort it, then start again"


def test_a_history_that_has_diverged(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    commit(there, {"theirs": "1"})
    commit(there, {"theirs": "2"})
    git(there, "push", "-q", "origin", "main")
    commit(here, {"mine": "1"})
    refused = refusal(clone(here))
    assert "1 commits are here alone, 2 on 'origin' alone" in refused.message
    assert "git rebase origin/main" in str(refused.hint)


def test_commits_of_a_person_go_along_with_the_next_step(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    mine = commit(here, {"mine": "1"})
    one = clone(here)
    one.carrier.ready(head())
    one.carrier.arrive(head())
    after = one.push(head())
    assert after.work == Work(branch="main", commit=mine)
    assert said(bare, "rev-parse", "main") == mine


def test_a_remote_without_the_branch_gets_it(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    git(here, "switch", "-q", "-c", "feature/x")
    one = clone(here)
    one.carrier.ready(head())
    one.carrier.arrive(head())
    collected = one.carrier.collect(claim(), "main", head())
    assert collected is not None
    assert one.carrier.cargo is not None
    assert (one.carrier.cargo.ref, one.carrier.cargo.old) == ("refs/heads/feature/x", None)
    one.push(head())
    assert said(bare, "rev-parse", "feature/x") == said(here, "rev-parse", "HEAD")


def test_a_remote_that_does_not_answer(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    bare.rename(tmp_path / "moved away")
    with pytest.raises(RemoteUnreachable):
        clone(here).carrier.ready(head())


def test_a_step_begins_on_the_newest_code(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    one, other = clone(here), clone(there)
    state = head()
    for number in range(4):
        at, beside = (one, other) if number % 2 else (other, one)
        at.carrier.ready(state)
        at.carrier.arrive(state)
        assert not (at.folder / f"{number}").exists()
        commit(at.folder, {f"{number}": "x"})
        state = at.push(state, token=number)
        assert state.work is not None
        assert said(beside.folder, "rev-parse", "HEAD") != state.work.commit
    one.carrier.ready(state)
    one.carrier.arrive(state)
    assert sorted(path.name for path in here.glob("[0-9]")) == ["0", "1", "2", "3"]
    assert porcelain(here) == []
    assert said(here, "rev-list", "--count", "HEAD") == "5"


def test_the_code_of_the_state_is_fetched_if_it_is_not_here(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    one = clone(here)
    one.carrier.ready(head())
    new = commit(there, {"a": "1"})
    git(there, "push", "-q", "origin", "main")
    one.remote.tips(["refs/heads/main"])  # from now on the configuration is known
    started = one.started
    one.carrier.arrive(head(Work(branch="main", commit=new)))
    assert said(here, "rev-parse", "HEAD") == new
    # One fetch, one look whether all of it is here, and one fast-forward.
    assert one.started - started == 3


def test_a_branch_that_was_moved_back(tmp_path: Path) -> None:
    bare, here, there = pair(tmp_path)
    first = said(there, "rev-parse", "HEAD")
    gone = commit(there, {"a": "1"})
    git(bare, "update-ref", "refs/heads/main", first)
    before = everything(here)
    with pytest.raises(WorkTreeRefused, match=rf"was moved back.*{gone[:12]}") as refused:
        clone(here).carrier.arrive(head(Work(branch="main", commit=gone)))
    assert everything(here) == before
    assert f"'git push origin {gone}:refs/heads/main'" in str(refused.value.hint)
    assert "rewind" not in str(refused.value.hint)


def test_a_branch_that_is_gone(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    git(bare, "update-ref", "-d", "refs/heads/main")
    with pytest.raises(WorkTreeRefused, match="is gone"):
        clone(here).carrier.arrive(head(Work(branch="main", commit="a" * 40)))


def test_what_is_tolerated_is_not_overwritten(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path, {"notes": "1"})
    new = commit(there, {"notes": "theirs"})
    git(there, "push", "-q", "origin", "main")
    write(here, {"notes": "mine"})
    one = clone(here, work=WorkOptions(tolerated=("notes",)))
    one.carrier.ready(head())
    before = everything(here)
    with pytest.raises(WorkTreeRefused, match=r"can't be fast-forwarded.*notes") as refused:
        one.carrier.arrive(head(Work(branch="main", commit=new)))
    assert "out of the way" in str(refused.value.hint)
    assert everything(here) == before


def test_a_history_that_diverges_behind_the_claim(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    one = clone(here)
    commit(here, {"mine": "1"})
    one.carrier.ready(head())
    new = commit(there, {"theirs": "1"})
    git(there, "push", "-q", "origin", "main")
    before = everything(here)
    with pytest.raises(WorkTreeRefused, match="has diverged"):
        one.carrier.arrive(head(Work(branch="main", commit=new)))
    assert everything(here) == before
