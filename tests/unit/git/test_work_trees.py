"""Work trees of one repository, each with a run of its own branch or with the same one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import RemoteUnreachable, StorageFailed
from sequencer.git.objects import CommitDraft, Objects
from sequencer.git.own_settings import EVERYTHING
from sequencer.git.process import Git, GitFailed
from sequencer.git.remote import Remote
from sequencer.git.store import LOCAL, GitOptions, GitStore
from tests.clones import Shared, git
from tests.contract import store_cases as cases


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path)
    yield made
    made.close()


def linked(shared: Shared, name: str) -> Path:
    """Return a work tree that hangs on the repository of the clone "a"."""
    path = shared.folder / name
    git(shared.clone("a"), "worktree", "add", "-q", "-b", name, str(path))
    return path


def store_of(tree: Path) -> GitStore:
    return GitStore(tree / "sync" / "state.json", tree, None, GitOptions(), allowed=EVERYTHING)


def local_refs(tree: Path) -> dict[str, str]:
    told = git(tree, "for-each-ref", "--format=%(refname) %(objectname)", LOCAL)
    return dict(line.split(" ") for line in told.splitlines())


def test_each_work_tree_has_refs_of_its_own(shared: Shared) -> None:
    main, other = shared.clone("a"), linked(shared, "b")
    first, second = store_of(main), store_of(other)
    cases.begin(first)
    tip = first.branch.tip()
    assert second.bring(), "what another work tree has written is followed like anybody's"
    assert local_refs(main) == {f"{LOCAL}sequencer/default/draft": tip}
    assert local_refs(other) == {f"{LOCAL}sequencer/default/state": tip}
    held = cases.claim(second)
    assert local_refs(main) == {f"{LOCAL}sequencer/default/draft": tip}, "not moved by the other"
    second.beat(held, 1)
    assert local_refs(other)[f"{LOCAL}sequencer/default/beats-draft"]
    assert git(main, "branch", "--list", "*sequencer*") == ""
    first.close()
    second.close()


def test_nothing_of_it_is_taken_away_by_gc(shared: Shared) -> None:
    main, other = shared.clone("a"), linked(shared, "b")
    commits = []
    for tree in (main, other):
        objects = Objects(Git(tree))
        commits.append(objects.write(CommitDraft("x", None, {"a": b"1"}, 5), f"{LOCAL}x/draft"))
        objects.close()
    git(main, "pack-refs", "--all")
    git(main, "gc", "-q", "--prune=now")
    for tree, commit in zip((main, other), commits, strict=True):
        objects = Objects(Git(tree))
        assert objects.resolve(f"{LOCAL}x/draft") == commit
        assert objects.read(f"{commit}:a", "blob") == b"1"
        objects.close()


# --- what is in the way in a repository ------------------------------------------------


def locked(tree: Path, ref: str) -> Path:
    """Lock *ref* as another git would that is at work; it is none of the program's own."""
    path = tree / ".git" / f"{ref}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_lock_that_stays_is_not_the_remotes_fault(shared: Shared) -> None:
    clone = shared.clone("a")
    lock, began = locked(clone, "refs/x/main"), time.monotonic()
    with pytest.raises(StorageFailed, match="can't keep what was fetched") as failed:
        Remote(Git(clone, allowed=EVERYTHING), "origin").fetch({"refs/heads/main": "refs/x/main"})
    assert not isinstance(failed.value, RemoteUnreachable)
    assert "cannot lock ref" in failed.value.message
    assert failed.value.where == str(clone)
    assert time.monotonic() - began < 30
    assert lock.exists(), "it is nobody's to remove"


@pytest.mark.parametrize(
    ("stderr", "is_local"),
    [
        ("fatal: write error: No space left on device\nfatal: fetch-pack: invalid output", True),
        ("error: unable to create temporary file: Permission denied", True),
        ("error: insufficient permission for adding an object to repository database", True),
        ("remote: fatal: write error: No space left on device", False),
        ("remote: error: cannot lock ref 'refs/heads/x'", False),
        ("ssh: connect to host x port 22: Connection refused", False),
        ("fatal: early EOF", False),
    ],
)
def test_whose_fault_it_is_is_told_by_gits_words(stderr: str, *, is_local: bool) -> None:
    assert GitFailed(("fetch",), 128, stderr).is_local is is_local
