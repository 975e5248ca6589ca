"""Work trees: patterns of paths, what git says is dirty, and moving forward."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from sequencer.errors import WorkTreeRefused
from sequencer.plugins.git.code.tree import (
    STATUS,
    Change,
    Divergence,
    Patterns,
    StatusEntry,
    TreeStatus,
    parse_status,
)
from tests.unit.git.clones import commit, everything, git, pair, repository, said, tree_at, write


@pytest.mark.parametrize(
    ("pattern", "path", "means"),
    [
        ("input.md", "input.md", True),
        ("input.md", "docs/input.md", False),
        ("input.md", "input.md/x", True),
        ("*.md", "a.md", True),
        ("*.md", ".a.md", True),
        ("*.md", "docs/a.md", False),
        ("**/*.md", "a.md", True),
        ("**/*.md", "a/b/c.md", True),
        ("plans/**/*.md", "plans/a.md", True),
        ("plans/**/*.md", "plans/x/y/a.md", True),
        ("plans/**/*.md", "other/plans/a.md", False),
        ("plans/**", "plans/x/y", True),
        ("plans/**", "plans", False),
        ("plans/", "plans/x/y", True),
        ("plans/", "plans", False),
        ("plans/", "planss/x", False),
        ("plans", "plans/x", True),
        ("plans", "planss/x", False),
        ("a/plans", "plans/x", False),
        ("pla*s", "plans/x", False),
        ("./plans/*", "plans/x", True),
        ("plans//x", "plans/x", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a*c", "a/b/c", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("[", "[", True),
        ("a.c", "abc", False),
        ("A.md", "a.md", False),
        ("**", "any/thing", True),
        ("**/**/x", "x", True),
        ("a/**/**/x", "a/x", True),
        ("a/**/b/**/c", "a/b/1/2/c", True),
        ("a/**/b/**/c", "a/1/2/c", False),
        ("we\nird*", "we\nird name", True),
        ("nested", "nested/", True),
        ("caf\udce9", "caf\udce9", True),
    ],
)
def test_patterns_match_paths(pattern: str, path: str, means: bool) -> None:
    assert (Patterns([pattern]).match(path) == pattern) is means


LETTERS = st.characters(exclude_characters="/\0*?[]", codec="utf-8")
names = st.text(LETTERS, min_size=1)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=5)


def seen(folder: Path) -> TreeStatus:
    return parse_status(git(folder, *STATUS))


def entries(folder: Path) -> dict[str, StatusEntry]:
    return {entry.path: entry for entry in seen(folder).entries}


def test_a_rename_in_the_git_status_is_parsed() -> None:
    oid = "a" * 40
    line = f"2 R. N... 100644 100644 100644 {oid} {oid} R100 new name\0old name\0? x\0"
    found = {entry.path: entry for entry in parse_status(line.encode()).entries}
    assert list(found) == ["new name", "old name", "x"]
    assert found["new name"].is_staged
    assert found["old name"].is_staged
    assert found["old name"].change is Change.DELETED


def test_a_merge_with_conflicts(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"a file": "1\n"})
    git(folder, "branch", "other")
    commit(folder, {"a file": "2\n"})
    git(folder, "switch", "-q", "other")
    commit(folder, {"a file": "3\n"})
    git(folder, "config", "merge.conflictStyle", "merge")
    # A merge with conflicts ends with 1.
    git(folder, "-c", "alias.try=!git merge -q main || true", "try")
    assert entries(folder)["a file"].is_unmerged


def test_a_bare_repository_has_no_work_tree(tmp_path: Path) -> None:
    bare, _, _ = pair(tmp_path)
    with pytest.raises(WorkTreeRefused, match="not in a git work tree"):
        tree_at(bare).read_status()


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
def test_an_operation_under_way_is_named(tmp_path: Path, name: str, told: str) -> None:
    folder = repository(tmp_path / "r")
    assert tree_at(folder).find_operation() is None
    write(folder / ".git", {name: "x"})
    assert tree_at(folder).find_operation() == told


def test_a_long_history_is_read_by_git(tmp_path: Path) -> None:
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


def test_divergence_counts_the_commits_on_each_side(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    git(folder, "branch", "other")
    commit(folder, {"a": "1"})
    mine = commit(folder, {"a": "2"})
    git(folder, "switch", "-q", "other")
    theirs = commit(folder, {"b": "1"})
    assert tree_at(folder).divergence(mine, theirs) == Divergence(2, 1)
    with pytest.raises(WorkTreeRefused, match="can't be compared"):
        tree_at(folder).divergence(mine, "0" * 40)


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
    obstacle = tree_at(here).fast_forward(new)
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
    assert tree_at(here).fast_forward(new) is not None
    assert everything(here) == before


def test_a_lock_of_the_index_is_named(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    new = commit(there, {"a": "1"})
    git(there, "push", "-q", "origin", "main")
    git(here, "fetch", "-q")
    lock = here / ".git" / "index.lock"
    lock.touch()
    obstacle = tree_at(here).fast_forward(new)
    assert obstacle is not None
    assert f"'rm {lock}'" in obstacle.hint
    lock.unlink()
    assert tree_at(here).fast_forward(new) is None
