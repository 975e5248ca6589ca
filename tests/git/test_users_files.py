"""State moves, and nothing that belongs to the user of a clone is touched by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clones import Shared, git
from tests.contract import store_cases as cases
from tests.git.snapshots import snapshot
from tests.git.tables import table
from tests.git.turns import accepted_in, run_files, turns, unsound


def commit(clone: Path, name: str, text: str) -> None:
    """Commit a file as a person does."""
    (clone / name).write_text(text)
    git(clone, "add", name)
    git(clone, "commit", "-q", "-m", name)


def clean(clone: Path) -> None:
    commit(clone, "own", "not pushed\n")


def dirty(clone: Path) -> None:
    (clone / "README.md").write_text("changed\n")
    (clone / "untracked").write_text("new\n")
    (clone / "staged").write_text("staged\n")
    git(clone, "add", "staged")
    (clone / "staged").write_text("and changed again\n")
    git(clone, "add", "-N", "untracked")


def detached(clone: Path) -> None:
    git(clone, "checkout", "-q", "--detach")


def stashed(clone: Path) -> None:
    (clone / "README.md").write_text("to be stashed\n")
    git(clone, "stash")


def _two_sides(clone: Path) -> None:
    git(clone, "checkout", "-q", "-b", "side")
    commit(clone, "README.md", "side\n")
    git(clone, "checkout", "-q", "main")
    commit(clone, "README.md", "main\n")


def in_a_merge(clone: Path) -> None:
    _two_sides(clone)
    git(clone, "merge", "side", check=False)
    assert git(clone, "ls-files", "--unmerged")


def in_a_rebase(clone: Path) -> None:
    _two_sides(clone)
    git(clone, "rebase", "side", check=False)
    assert (clone / ".git" / "rebase-merge").is_dir()


def locked(clone: Path) -> None:
    """Somebody's git is at work on the index."""
    (clone / ".git" / "index.lock").touch()


def on_an_unborn_branch(clone: Path) -> None:
    git(clone, "checkout", "-q", "--orphan", "new")


def with_hooks(clone: Path) -> None:
    """Hooks that would say no, and settings that would do more than was asked for."""
    git(clone, "tag", "-a", "-m", "x", "mine")
    (clone / ".git" / "hooks").mkdir(exist_ok=True)
    for name in ("pre-push", "reference-transaction", "post-checkout", "pre-auto-gc"):
        hook = clone / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch '{clone}'/hooked\nexit 1\n")
        hook.chmod(0o755)
    git(clone, "config", "gc.auto", "1")
    git(clone, "config", "push.followTags", "true")
    git(clone, "config", "fetch.prune", "true")
    git(clone, "config", "remote.origin.mirror", "false")
    git(clone, "config", "remote.origin.push", "refs/heads/*:refs/heads/*")
    git(clone, "config", "fetch.writeCommitGraph", "true")
    git(clone, "config", "transfer.fsckObjects", "true")
    git(clone, "config", "core.logAllRefUpdates", "always")


MADE: tuple[Callable[[Path], None], ...] = (
    *(clean, dirty, detached, stashed, in_a_merge, in_a_rebase),
    *(locked, on_an_unborn_branch, with_hooks),
)
STATES = {made.__name__: made for made in MADE}


@pytest.mark.parametrize("state", table(STATES, "dirty"))
def test_a_clone_is_left_byte_for_byte(state: str, shared: Shared) -> None:
    clone = shared.clone("ours")
    STATES[state](clone)
    before = snapshot(clone)
    turns(shared.store("ours"), shared.store("theirs"))
    after = snapshot(clone)
    for what, content in before.items():
        assert after[what] == content, what
    assert len(accepted_in(shared.store("theirs"))) == 3
    branches = git(shared.bare, "for-each-ref", "--format=%(refname)").split()
    assert set(branches) <= {
        "refs/heads/main",
        "refs/heads/sequencer/default",
        "refs/heads/sequencer-beats/default",
    }
    assert git(shared.bare, "rev-parse", "main") == git(shared.clone("first"), "rev-parse", "main")


def test_the_snapshot_sees_what_it_should(shared: Shared) -> None:
    """The check itself notices a fault."""
    clone = shared.clone("ours")
    changes: list[Callable[[], object]] = [
        (clone / "README.md").touch,
        lambda: git(clone, "add", "-A"),
        lambda: git(clone, "commit", "-q", "--allow-empty", "-m", "x"),
        lambda: git(clone, "branch", "b"),
        lambda: git(clone, "tag", "t"),
        lambda: git(clone, "checkout", "-q", "b"),
        lambda: git(clone, "fetch", "-q", "origin", "+main:refs/remotes/origin/other"),
        lambda: git(clone, "config", "a.b", "c"),
        lambda: (clone / "README.md").chmod(0o755),
    ]
    (clone / "new").touch()
    for change in changes:
        before = snapshot(clone)
        change()
        assert snapshot(clone) != before


def tidy(folder: Path) -> None:
    """Throw away what no ref holds, and pack the rest."""
    git(folder, "reflog", "expire", "--expire=now", "--all")
    git(folder, "pack-refs", "--all", "--prune")
    git(folder, "repack", "-a", "-d", "-q")
    git(folder, "gc", "--prune=now", "-q")


@pytest.mark.slow
def test_repositories_may_be_garbage_collected_at_any_time(shared: Shared) -> None:
    ours, theirs = shared.store("ours"), shared.store("theirs")
    folders = [shared.bare, shared.clone("ours"), shared.clone("theirs")]
    cases.begin(ours)
    for number, store in enumerate((theirs, ours, theirs, ours)):
        tidy(folders[number % 3])
        token = cases.claim(store).token
        tidy(folders[(number + 1) % 3])
        cases.commit(store, token)
        tidy(folders[(number + 2) % 3])
    for store in (ours, theirs):
        store.pull()
        assert len(accepted_in(store)) == 4
    assert run_files(shared.clone("ours") / "sync") == run_files(shared.clone("theirs") / "sync")
    assert unsound(shared, ["ours", "theirs"]) == []


@pytest.mark.slow
def test_work_trees_of_one_repository_share_a_run_as_clones_do(shared: Shared) -> None:
    clone = shared.clone("ours")
    git(clone, "worktree", "add", "-q", "-b", "second", str(shared.folder / "second"))
    before = snapshot(clone), snapshot(shared.folder / "second")
    turns(shared.store("ours"), shared.store("second"))
    assert (snapshot(clone), snapshot(shared.folder / "second")) == before
    assert len(accepted_in(shared.store("second"))) == 3
    second = run_files(shared.folder / "second" / "sync")
    assert run_files(clone / "sync") == second


@pytest.mark.slow
def test_a_submodule_has_its_own_run(shared: Shared) -> None:
    outer = shared.clone("outer")
    allowed = ("-c", "protocol.file.allow=always")
    git(outer, *allowed, "submodule", "--quiet", "add", str(shared.bare), "inner")
    git(outer, "commit", "-q", "-m", "a submodule")
    before, inner = snapshot(outer), snapshot(outer / "inner")
    turns(shared.store("outer/inner"), shared.store("theirs"))
    assert snapshot(outer / "inner") == inner
    after = snapshot(outer)
    # The run's own folder lies in the work tree of the submodule, and is ignored there.
    work, old = after.pop("work"), before.pop("work")
    assert isinstance(work, dict)
    assert {name: told for name, told in work.items() if "inner/sync" not in name} == old
    assert after == before


SHALLOW = ("--depth 1", "--depth 1 --no-single-branch")


@pytest.mark.slow
@pytest.mark.parametrize("shallow", SHALLOW)
def test_a_shallow_clone_is_as_good_as_another(shallow: str, shared: Shared) -> None:
    theirs = shared.store("theirs")
    cases.begin(theirs)
    for _ in range(2):
        cases.commit(theirs, cases.claim(theirs).token)
    for name in ("one", "two"):
        commit(shared.clone("first"), name, "code\n")
    git(shared.clone("first"), "push", "-q", "origin", "main")
    git(shared.folder, "clone", "-q", *shallow.split(), f"file://{shared.bare}", "shallow")
    clone = shared.folder / "shallow"
    assert (clone / ".git" / "shallow").exists()
    boundary, before = (clone / ".git" / "shallow").read_bytes(), snapshot(clone)
    ours = shared.store("shallow")
    for _ in range(2):
        cases.commit(ours, cases.claim(ours).token)
        cases.commit(theirs, cases.claim(theirs).token)
    ours.pull()
    assert len(accepted_in(ours)) == 6
    assert snapshot(clone) == before
    assert (clone / ".git" / "shallow").read_bytes() == boundary
    assert run_files(clone / "sync") == run_files(shared.clone("theirs") / "sync")
