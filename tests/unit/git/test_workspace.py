"""Code that moves with the state: ready, arrive, collect, keep."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sequencer.errors import RemoteUnreachable, StateRefused, WorkTreeRefused
from sequencer.model.head import Head, Work
from sequencer.plugins.git.code.tree import SHOWN_PATHS
from sequencer.project.schema import WorkOptions
from tests.unit.git.clones import (
    DOCS,
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
    tree_of,
    write,
)


def refusal(one: Clone, work: Work | None = None) -> WorkTreeRefused:
    """Return why no step may begin, after a look that nothing was changed by it."""
    before = everything(one.folder)
    with pytest.raises(WorkTreeRefused) as refused:
        one.carrier.ensure_ready(head(work))
    assert everything(one.folder) == before
    assert refused.value.exit_code == 3
    assert refused.value.hint
    return refused.value


def test_a_dirty_tree_is_reported_with_its_paths(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path, {"a": "1"})
    write(here, {"a": "2", **{f"new {number:02}": "x" for number in range(12)}})
    refused = refusal(clone(here))
    assert "branch main has uncommitted changes (13 changed paths)" in refused.message
    assert "'a', 'new 00'" in refused.message
    assert f"and {13 - SHOWN_PATHS} more" in refused.message
    assert "store.work.tolerated" in str(refused.hint)
    assert refused.where == f"work tree {here}"


def test_secrets_in_names_are_not_shown(tmp_path: Path) -> None:
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
def test_an_invalid_branch_name_is_refused(tmp_path: Path, name: str) -> None:
    _, here, _ = pair(tmp_path)
    refused = refusal(clone(here), work=Work(branch=name, commit="a" * 40))
    assert "does not allow that branch name" in refused.message
    assert "git switch" not in str(refused.hint)


def test_a_branch_without_a_commit(tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    git(tmp_path, "clone", "-q", str(bare), "here")
    assert "has no commit yet" in refusal(clone(tmp_path / "here")).message


def test_a_history_that_has_diverged(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    commit(there, {"theirs": "1"})
    commit(there, {"theirs": "2"})
    git(there, "push", "-q", "origin", "main")
    commit(here, {"mine": "1"})
    refused = refusal(clone(here))
    assert "1 commits are only here, 2 only on 'origin'" in refused.message
    assert "git rebase origin/main" in str(refused.hint)


def test_a_remote_without_the_branch_gets_it(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    git(here, "switch", "-q", "-c", "feature/x")
    one = clone(here)
    one.carrier.ensure_ready(head())
    one.carrier.enter(head())
    collected = one.carrier.collect(claim(), "main", head())
    assert collected is not None
    assert one.carrier.code_move is not None
    assert (one.carrier.code_move.ref, one.carrier.code_move.old) == ("refs/heads/feature/x", None)
    one.push(head())
    assert said(bare, "rev-parse", "feature/x") == said(here, "rev-parse", "HEAD")


def test_a_remote_that_does_not_answer(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    bare.rename(tmp_path / "moved away")
    with pytest.raises(RemoteUnreachable):
        clone(here).carrier.ensure_ready(head())


def test_the_code_of_the_state_is_fetched_if_it_is_not_here(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    one = clone(here)
    one.carrier.ensure_ready(head())
    new = commit(there, {"a": "1"})
    git(there, "push", "-q", "origin", "main")
    one.remote.list_tips(["refs/heads/main"])  # from now on the configuration is known
    started = one.started
    one.carrier.enter(head(Work(branch="main", commit=new)))
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
        clone(here).carrier.enter(head(Work(branch="main", commit=gone)))
    assert everything(here) == before
    assert f"'git push origin {gone}:refs/heads/main'" in str(refused.value.hint)
    assert "rewind" not in str(refused.value.hint)


def test_a_removed_branch_is_refused(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    git(bare, "update-ref", "-d", "refs/heads/main")
    with pytest.raises(WorkTreeRefused, match="is gone"):
        clone(here).carrier.enter(head(Work(branch="main", commit="a" * 40)))


def test_tolerated_changes_are_not_overwritten(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path, {"notes": "1"})
    new = commit(there, {"notes": "theirs"})
    git(there, "push", "-q", "origin", "main")
    write(here, {"notes": "mine"})
    one = clone(here, work=WorkOptions(tolerated=("notes",)))
    one.carrier.ensure_ready(head())
    before = everything(here)
    with pytest.raises(WorkTreeRefused, match=r"can't be fast-forwarded.*notes") as refused:
        one.carrier.enter(head(Work(branch="main", commit=new)))
    assert "out of the way" in str(refused.value.hint)
    assert everything(here) == before


def test_a_history_that_diverges_after_the_check_is_refused(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    one = clone(here)
    commit(here, {"mine": "1"})
    one.carrier.ensure_ready(head())
    new = commit(there, {"theirs": "1"})
    git(there, "push", "-q", "origin", "main")
    before = everything(here)
    with pytest.raises(WorkTreeRefused, match="has diverged"):
        one.carrier.enter(head(Work(branch="main", commit=new)))
    assert everything(here) == before


def test_files_that_could_not_be_committed_are_reported(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    one.carrier.ensure_ready(head())
    write(here, {"docs/fine.md": "1", "docs/key.md": SECRET, "else": "1"})
    write(here, {f"docs/.env{number:02}": "x" for number in range(20)})
    assert one.carrier.collect(claim(), "main", head()) is not None
    told = one.taken()
    assert "not committed: 'docs/.env00' has a name that is used for secrets" in told
    assert any("11 more" in line for line in told)
    assert any("'docs/.env00'" in line and "not committed, so" in line for line in told)
    assert "docs/key.md" not in tree_of(here)
    assert SECRET.encode() not in b"".join(
        git(here, "cat-file", "--batch-all-objects", "--batch", "--unordered").splitlines()
    )


@pytest.mark.parametrize("left", ["another branch", "a detached HEAD", "a merge", "old history"])
def test_an_agent_may_not_leave_another_branch_or_an_operation_under_way(
    tmp_path: Path, left: str
) -> None:
    _, here, _ = pair(tmp_path, {"a": "1"})
    commit(here, {"a": "2"})
    git(here, "push", "-q", "origin", "main")
    one = clone(here, commit=DOCS)
    one.carrier.ensure_ready(head())
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


def test_the_next_step_knows_moved_refs_without_a_fetch(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    state = head()
    one.carrier.ensure_ready(state)
    for number in range(3):
        write(here, {"docs/a": str(number)})
        commit(here, {"code": str(number)})
        state = one.push(state, token=number)
        started = one.started
        one.carrier.ensure_ready(state)
        one.carrier.enter(state)
        assert one.started - started == 1


def test_two_processes_in_one_clone(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, other = clone(here, commit=DOCS), clone(here, commit=DOCS)
    state = head()
    for number in range(4):
        at = (one, other)[number % 2]
        at.carrier.ensure_ready(state)
        at.carrier.enter(state)
        write(here, {"docs/a": str(number)})
        state = at.push(state, token=number)
        at.carrier.leave(state)
    assert said(here, "rev-list", "--count", "HEAD") == "5"


def test_a_commit_by_a_person_while_the_paths_are_read_is_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    one.carrier.ensure_ready(head())
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


def test_nothing_is_saved_without_work(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    write(here, {"else": "1"})
    assert one.carrier.keep(claim(), "main", head()) is None
    assert said(here, "for-each-ref", "refs/heads/sequencer-kept") == ""


def test_saved_work_is_never_overwritten(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    one.carrier.ensure_ready(head())
    names = []
    for number in range(3):
        write(here, {"docs/a": str(number)})
        names.append(one.carrier.keep(claim(0, 1), "main", head()))
    assert names == [f"sequencer-kept/default/0-1{end}" for end in ("", ".2", ".3")]
    for number, name in enumerate(names):
        assert tree_of(bare, str(name))["docs/a"] == f"100644 {number}"


def test_work_is_saved_even_if_the_remote_does_not_answer(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = clone(here)
    one.carrier.ensure_ready(head())
    commit(here, {"code": "1"})
    bare.rename(tmp_path / "moved away")
    name = one.carrier.keep(claim(), "main", head())
    assert said(here, "rev-parse", str(name)) == said(here, "rev-parse", "HEAD")
    assert one.taken() == [f"branch {name} exists only here: it could not be pushed"]


FILES = {"code/a": "1\n", "code/b": "2\n"}


def object_path(repository: Path, oid: str) -> Path:
    objects = repository if (repository / "objects").is_dir() else repository / ".git"
    return objects / "objects" / oid[:2] / oid[2:]


def two_commits(tmp_path: Path) -> tuple[Path, Clone, Head, list[str]]:
    """Return the remote, the clone that is behind, its state, and what it needs of objects."""
    bare, here, there = pair(tmp_path)
    first = commit(there, FILES)
    tip = commit(there, {"code/c": "3\n"})
    git(there, "push", "-q", "origin", "main")
    told = said(there, "rev-list", "--objects", "--no-object-names", f"{first}^..{tip}")
    work = Work(branch="main", commit=tip)
    return bare, clone(here), head(work, step_index=1), told.split()


def copied(bare: Path, here: Path, oids: list[str]) -> None:
    for oid in oids:
        to = object_path(here, oid)
        to.parent.mkdir(exist_ok=True)
        if not to.exists():
            shutil.copy(object_path(bare, oid), to)


@pytest.mark.parametrize("share", [1, 2, 4])
def test_objects_of_a_killed_fetch_are_fetched_completely(share: int, tmp_path: Path) -> None:
    """Of commits, trees and files in this order, as git unpacks them."""
    bare, one, state, oids = two_commits(tmp_path)
    copied(bare, one.folder, oids[:share])
    one.carrier.ensure_ready(state)
    one.carrier.enter(state)
    assert state.work is not None
    assert said(one.folder, "rev-parse", "HEAD") == state.work.commit
    assert porcelain(one.folder) == []
    assert (one.folder / "code/c").read_text() == "3\n"


def fetched(one: Clone) -> str:
    """Fetch what the run's code is at, and return the name of one of its files."""
    for remote, local in one.carrier.refs.items():
        git(one.folder, "fetch", "-q", "origin", f"+{remote}:{local}")
    return said(one.folder, "rev-parse", f"{one.carrier._local}:code/b")


def test_an_object_missing_below_a_ref_is_fetched_again(tmp_path: Path) -> None:
    _, one, state, _ = two_commits(tmp_path)
    blob = fetched(one)
    object_path(one.folder, blob).unlink()
    one.carrier.ensure_ready(state)
    one.carrier.enter(state)
    assert porcelain(one.folder) == []
    assert (one.folder / "code/b").read_text() == "2\n"


def test_code_that_is_incomplete_everywhere_is_refused_before_any_change(tmp_path: Path) -> None:
    bare, one, state, _ = two_commits(tmp_path)
    blob = fetched(one)
    for repository in (one.folder, bare):
        object_path(repository, blob).unlink()
    one.carrier.ensure_ready(state)
    before = everything(one.folder)
    with pytest.raises(StateRefused):
        one.carrier.enter(state)
    assert everything(one.folder) == before
