"""What an attempt has changed: in a repository, and in a folder without git."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.engine.tree_state import (
    CONTENT_BYTES,
    Deadline,
    FolderTree,
    TreeChanges,
    TreeState,
    TreeUnknown,
    file_mark,
    watch_tree,
)
from sequencer.plugins.git.code.attempt_changes import GitTree
from tests.unit.git.clones import commit, repository, said, write

FILES = {"a.txt": "a\n", "docs/b.md": "b\n", ".gitignore": "ignored/\n"}


def state(folder: Path) -> TreeState:
    return watch_tree(folder, [folder / "sync", folder / "logs"]).read_state(Deadline.from_now(20))


def changed(folder: Path, act: Callable[[], object]) -> TreeChanges:
    before = state(folder)
    act()
    tree = watch_tree(folder, [folder / "sync", folder / "logs"])
    return tree.compare_states(before, state(folder), Deadline.from_now(20))


def put(folder: Path, **files: str) -> Callable[[], None]:
    return lambda: write(folder, files)


def branch_and_back(folder: Path) -> None:
    """Commit on another branch, and come back as if nothing had been."""
    was = said(folder, "branch", "--show-current")
    said(folder, "switch", "-q", "-c", "aside")
    commit(folder, {"c.txt": "c"})
    said(folder, "switch", "-q", was)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda folder: folder, TreeChanges(0, 0)),
        (lambda folder: (folder / "a.txt").touch(), TreeChanges(0, 0)),
        (lambda folder: write(folder, {"a.txt": "a\n"}), TreeChanges(0, 0)),
        (lambda folder: write(folder, {"a.txt": "other"}), TreeChanges(1, 0)),
        (lambda folder: write(folder, {"new file.txt": ""}), TreeChanges(1, 0)),
        (lambda folder: (folder / "a.txt").unlink(), TreeChanges(1, 0)),
        (lambda folder: (folder / "a.txt").chmod(0o755), TreeChanges(1, 0)),
        (lambda folder: os.mkfifo(folder / "pipe"), TreeChanges(0, 0)),
        (lambda folder: (folder / "link").symlink_to("/etc/passwd"), TreeChanges(1, 0)),
        (lambda folder: commit(folder, {"a.txt": "other"}), TreeChanges(1, 1)),
        (branch_and_back, TreeChanges(0, 1)),
        (lambda folder: commit(folder, {"sync/x": "x", "logs/x": "x"}), TreeChanges(0, 0)),
        (lambda folder: commit(folder, {"sync/x": "x", "a.txt": "x"}), TreeChanges(1, 1)),
        # What nobody asked for does not count.
        (lambda folder: write(folder, {"ignored/x": "x", "sync/x": "x"}), TreeChanges(0, 0)),
        (lambda folder: write(folder, {"logs/x": "x"}), TreeChanges(0, 0)),
        (lambda folder: said(folder, "switch", "-q", "-c", "other"), TreeChanges(0, 0)),
    ],
)
def test_changes_are_counted_with_git(
    tmp_path: Path, act: Callable[[Path], object], found: TreeChanges
) -> None:
    folder = repository(tmp_path / "r", FILES)
    assert isinstance(watch_tree(folder, ()), GitTree)
    assert changed(folder, lambda: act(folder)) == found


def test_files_that_were_already_dirty_are_not_counted(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", FILES)
    write(folder, {"a.txt": "mine", "new.txt": "mine"})
    assert changed(folder, lambda: None) == TreeChanges(0, 0)
    assert changed(folder, put(folder, **{"a.txt": "yours"})) == TreeChanges(1, 0)
    assert state(folder).digest != changed_digest(folder)


def changed_digest(folder: Path) -> str:
    write(folder, {"new.txt": "yours"})
    return state(folder).digest


def test_a_first_commit_is_a_change(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    said(folder, "init", "-q")
    write(folder, {"a.txt": "a"})
    assert changed(folder, lambda: commit(folder, {"a.txt": "a"})).commits == 1


def test_changes_are_counted_without_a_reflog(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", FILES)
    said(folder, "config", "core.logAllRefUpdates", "false")
    shutil.rmtree(folder / ".git" / "logs", ignore_errors=True)
    assert changed(folder, lambda: commit(folder, {"a.txt": "b"})) == TreeChanges(1, 1)


def test_a_linked_work_tree_counts_only_its_own_changes(tmp_path: Path) -> None:
    folder, linked = repository(tmp_path / "r", FILES), tmp_path / "linked"
    said(folder, "worktree", "add", "-q", "-b", "other", str(linked))
    assert changed(linked, lambda: commit(folder, {"a.txt": "b"})) == TreeChanges(0, 0)
    assert changed(linked, lambda: commit(linked, {"a.txt": "c"})) == TreeChanges(1, 1)


def test_a_folder_that_git_ignores_is_looked_at_without_git(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", FILES) / "ignored"
    folder.mkdir()
    assert isinstance(watch_tree(folder, ()), FolderTree)
    assert changed(folder, put(folder, x="x")) == TreeChanges(1, 0)


def test_changes_outside_of_a_subfolder_are_counted_too(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", FILES)
    assert changed(folder / "docs", put(folder, **{"a.txt": "other"})) == TreeChanges(1, 0)


# --- without git -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "files"),
    [
        (lambda folder: folder, 0),
        (lambda folder: write(folder, {"new.txt": "x", "deep/er/new.txt": "x"}), 2),
        (lambda folder: write(folder, {"a.txt": "other"}), 1),
        (lambda folder: (folder / "a.txt").unlink(), 1),
        (lambda folder: write(folder, {"sync/x": "x", "logs/x": "x", ".git/x": "x"}), 0),
    ],
)
def test_changes_are_counted_without_git(
    tmp_path: Path, act: Callable[[Path], object], files: int
) -> None:
    write(tmp_path, {"a.txt": "a", "docs/b.md": "b"})
    if not files:
        (tmp_path / ".git").mkdir()
    tree = FolderTree(tmp_path, frozenset({str(tmp_path / "sync"), str(tmp_path / "logs")}))
    before = tree.read_state(Deadline.from_now(20))
    act(tmp_path)
    assert (
        tree.compare_states(
            before, tree.read_state(Deadline.from_now(20)), Deadline.from_now(20)
        ).files
        == files
    )


@pytest.mark.parametrize("has_git", [True, False])
def test_the_newest_change_is_known(tmp_path: Path, has_git: bool) -> None:
    folder = repository(tmp_path / "r", FILES) if has_git else tmp_path
    write(folder, {"a.txt": "before"})
    later = time.time() + 0.05
    while time.time() < later:
        pass
    assert state(folder).newest < later - 0.02
    write(folder, {"a.txt": "after"})
    assert state(folder).newest >= later - 0.02
    # A date that a program has set is not believed.
    os.utime(folder / "a.txt", (0, 0))
    assert state(folder).newest >= later - 0.02


@pytest.mark.parametrize("has_git", [True, False])
def test_reading_the_tree_times_out_as_unknown(tmp_path: Path, has_git: bool) -> None:
    folder = repository(tmp_path / "r", FILES) if has_git else tmp_path
    write(folder, {"new.txt": "x"})
    with pytest.raises(TreeUnknown, match="too long"):
        watch_tree(folder, ()).read_state(Deadline.from_now(-1))


def test_a_repository_that_git_can_t_read_is_unknown(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", FILES)
    tree = watch_tree(folder, ())
    (folder / ".git" / "HEAD").write_text("nonsense")
    with pytest.raises(TreeUnknown):
        tree.read_state(Deadline.from_now(20))


def test_a_large_file_is_compared_by_its_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (CONTENT_BYTES + 1))
    was = file_mark(str(path), path.lstat())
    assert file_mark(str(path), path.lstat()) == was
    os.utime(path, (1, 1))
    assert file_mark(str(path), path.lstat()) != was
