"""Where a work tree is, what is dirty in it, and what its history holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import WorkTreeRefused
from sequencer.git.tree import Patterns
from tests.unit.git.clones import (
    commit,
    everything,
    git,
    pair,
    repository,
    said,
    tree_at,
    write,
)


def test_a_bare_repository_has_no_work_tree(tmp_path: Path) -> None:
    bare, _, _ = pair(tmp_path)
    with pytest.raises(WorkTreeRefused, match="no work tree"):
        tree_at(bare).status()


def test_what_the_run_writes_is_no_dirt(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {"sync/state.json": "{}", "sync/runs/a/b": "x", "logs/main/x.log": "x"})
    write(folder, {"synced": "x", "logs.txt": "x", "deep/sync/x": "x"})
    tree = tree_at(folder)
    dirt = tree.dirt(tree.status(), Patterns([]))
    assert [entry.path for entry in dirt] == ["deep/sync/x", "logs.txt", "synced"]


def test_names_with_stars_are_no_patterns(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    state = folder / "s*" / "state.json"
    tree = tree_at(folder, state=state, logs=folder / "[l]")
    assert tree.is_own("s*/state.json")
    assert tree.is_own("[l]/x")
    assert not tree.is_own("sx/state.json")
    assert not tree.is_own("l/x")


@pytest.mark.parametrize("name", ["state.json", "progress.json"])
def test_a_run_in_the_projects_own_folder(tmp_path: Path, name: str) -> None:
    folder = repository(tmp_path / "r")
    tree = tree_at(folder, state=folder / name, logs=folder)
    own = [
        name,
        f"{name}.lock",
        "journal.jsonl",
        "journal-000001.jsonl",
        "beats/1",
        "results/0-1/x",
    ]
    own += ["flow.json", "runs/a/state.json", "turnstile-0.lock", "remote.json", "activity/x.json"]
    assert [path for path in own if not tree.is_own(path)] == []
    others = ["main.py", "journal.md", "deep/state.json", "states.json", "results.md", "logs/x"]
    assert [path for path in others if tree.is_own(path)] == []


def test_a_run_outside_of_the_repository(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    tree = tree_at(folder, state=tmp_path / "elsewhere" / "state.json", logs=tmp_path / "l")
    assert not tree.is_own("elsewhere/state.json")
    assert not tree.is_own("README.md")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("MERGE_HEAD", "a merge"),
        ("CHERRY_PICK_HEAD", "a cherry-pick"),
        ("REVERT_HEAD", "a revert"),
        ("rebase-merge/x", "a rebase"),
        ("rebase-apply/x", "a rebase"),
    ],
)
def test_what_is_under_way(tmp_path: Path, name: str, told: str) -> None:
    folder = repository(tmp_path / "r")
    assert tree_at(folder).under_way() is None
    write(folder / ".git", {name: "x"})
    assert tree_at(folder).under_way() == told


def test_what_a_history_holds_needs_no_process(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    first = said(folder, "rev-parse", "HEAD")
    git(folder, "switch", "-q", "-c", "side")
    side = commit(folder, {"side": "1"})
    git(folder, "switch", "-q", "main")
    other = commit(folder, {"other": "1"})
    git(folder, "merge", "-q", "--no-edit", "side")
    merged = said(folder, "rev-parse", "HEAD")
    tree = tree_at(folder)
    started = tree.git.started
    assert all(tree.contains(merged, commit) for commit in (merged, other, side, first))
    assert not tree.contains(first, merged)
    assert not tree.contains(side, other)
    assert tree.git.started == started


def test_a_long_history_is_asked_of_git(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    first = said(folder, "rev-parse", "HEAD")
    stream = b"".join(
        b"commit refs/heads/main\ncommitter A <a@b> 1700000000 +0000\ndata 1\nx\n%s\n"
        % (b"from refs/heads/main^0\n" if number == 0 else b"")
        for number in range(600)
    )
    git(folder, "fast-import", "--quiet", "--force", stdin=stream)
    tip = said(folder, "rev-parse", "main")
    tree = tree_at(folder)
    assert tree.contains(tip, first)
    started = tree.git.started
    assert tree.contains(tip, first)
    assert tree.git.started == started
    assert not tree.contains(first, tip)
    assert not tree.contains(tip, "0" * 40)


def test_a_shallow_clone(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    second = commit(here, {"a": "1"})
    third = commit(here, {"a": "2"})
    git(here, "push", "-q", "origin", "main")
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{bare}", "shallow")
    tree = tree_at(tmp_path / "shallow")
    assert tree.contains(third, second)
    assert not tree.contains(second, third)


def test_how_far_apart(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    git(folder, "branch", "other")
    commit(folder, {"a": "1"})
    mine = commit(folder, {"a": "2"})
    git(folder, "switch", "-q", "other")
    theirs = commit(folder, {"b": "1"})
    assert tree_at(folder).apart(mine, theirs) == (2, 1)
    with pytest.raises(WorkTreeRefused, match="can't be compared"):
        tree_at(folder).apart(mine, "0" * 40)


def test_no_hook_of_the_user_runs(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    new = commit(there, {"a": "1"})
    git(there, "push", "-q", "origin", "main")
    git(here, "fetch", "-q")
    for name in ("post-merge", "post-checkout", "reference-transaction", "post-index-change"):
        hook = here / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
        hook.chmod(0o755)
    assert tree_at(here).forward(new) is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["changed by a person", "untracked"])
def test_forward_overwrites_nothing(tmp_path: Path, text: str) -> None:
    _, here, there = pair(tmp_path, {"a": "1"})
    name = "a" if text == "changed by a person" else "b"
    new = commit(there, {name: "theirs"})
    git(there, "push", "-q", "origin", "main")
    git(here, "fetch", "-q")
    write(here, {name: text})
    git(here, "config", "merge.autoStash", "true")
    before = everything(here)
    obstacle = tree_at(here).forward(new)
    assert obstacle is not None
    assert name in obstacle.reason
    assert "out of the way" in obstacle.hint
    assert everything(here) == before


def test_forward_never_merges(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    new = commit(there, {"a": "1"})
    git(there, "push", "-q", "origin", "main")
    commit(here, {"b": "1"})
    git(here, "fetch", "-q")
    git(here, "config", "merge.ff", "false")
    before = everything(here)
    assert tree_at(here).forward(new) is not None
    assert everything(here) == before


def test_a_lock_of_the_index_is_named(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    new = commit(there, {"a": "1"})
    git(there, "push", "-q", "origin", "main")
    git(here, "fetch", "-q")
    lock = here / ".git" / "index.lock"
    lock.touch()
    obstacle = tree_at(here).forward(new)
    assert obstacle is not None
    assert f"'rm {lock}'" in obstacle.hint
    lock.unlink()
    assert tree_at(here).forward(new) is None


def test_another_obstacle_is_gits_to_explain(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    obstacle = tree_at(here).forward("0" * 40)
    assert obstacle is not None
    assert "git merge --ff-only 000000000000" in obstacle.hint
