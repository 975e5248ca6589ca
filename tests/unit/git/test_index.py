"""The user's index: it learns of what was committed, and of nothing else."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from sequencer.git.commit import Committer
from tests.unit.git.clones import (
    git,
    porcelain,
    repository,
    said,
    tree_at,
    tree_of,
    write,
)
from tests.unit.git.committed import MAIN, chosen, committed


def index_of(folder: Path) -> dict[str, str]:
    """Return each entry of the index, with its flags, as git tells it."""
    lines = git(folder, "ls-files", "--stage", "-v", "-z").split(b"\0")
    return {os.fsdecode(line.split(b"\t")[1]): os.fsdecode(line) for line in lines if line}


def test_the_rest_of_the_index_stays_byte_for_byte(tmp_path: Path) -> None:
    names = ("staged", "both", "hidden", "skipped", "mine", "untouched")
    folder = repository(tmp_path / "r", dict.fromkeys(names, "1"))
    git(folder, "update-index", "--assume-unchanged", "hidden")
    git(folder, "update-index", "--skip-worktree", "skipped")
    write(folder, {"staged": "2", "both": "2", "added": "2", "announced": "2"})
    git(folder, "add", "staged", "both", "added")
    git(folder, "add", "-N", "announced")
    git(folder, "rm", "-q", "--cached", "untouched")
    write(folder, {"both": "3", "mine": "2", "also mine": "2"})
    before, head = index_of(folder), said(folder, "rev-parse", "HEAD")
    staged = git(folder, "diff", "--cached", "--binary")
    written = committed(folder)
    assert [one.path for one in written.selection.chosen] == ["also mine", "mine"]
    after = index_of(folder)
    assert {n: line for n, line in after.items() if "mine" not in n} == {
        n: line for n, line in before.items() if n != "mine"
    }
    assert git(folder, "diff", "--cached", "--binary") == staged
    assert said(folder, "diff", "--name-only", head, "HEAD").split("\n") == ["also mine", "mine"]
    assert porcelain(folder) == [
        *("A  added", " A announced", "MM both", "M  staged", "D  untouched", "?? untouched"),
    ]


def test_what_was_written_right_after_it_was_staged_is_not_taken_for_staged(
    tmp_path: Path,
) -> None:
    folder = repository(tmp_path / "r", {"both": "1"})
    # As if all of it had happened within one tick of the file system's clock.
    git(folder, "config", "core.trustCtime", "false")
    git(folder, "config", "core.checkStat", "minimal")
    tick = 1_700_000_000 * 10**9
    write(folder, {"both": "2"})
    os.utime(folder / "both", ns=(tick, tick))
    git(folder, "add", "both")
    write(folder, {"both": "3", "mine": "1"})
    for path in (folder / "both", folder / ".git" / "index"):
        os.utime(path, ns=(tick, tick))
    committed(folder)
    assert "mine" in tree_of(folder)
    assert porcelain(folder) == ["MM both"]
    assert git(folder, "show", ":both") == b"2"


def test_the_index_knows_the_files_times(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"changed": "1", "gone": "1"})
    write(folder, {"changed": "2", "new": "2"})
    (folder / "gone").unlink()
    (folder / "link").symlink_to("new")
    committed(folder)
    # Plumbing compares times and never looks into the files.
    assert said(folder, "diff-files", "--name-only") == ""
    assert said(folder, "diff-index", "--cached", "--name-only", "HEAD") == ""


def test_the_index_holds_what_was_committed_whatever_is_there_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository(tmp_path / "r", {"a": "1"})
    write(folder, {"a": "22", "b": "22"})
    tree = tree_at(folder)
    selection, real = chosen(tree), tree.git.run

    def run(*argv: str, **rest: object) -> object:
        if "--stdin" in argv and "update-index" in argv:
            write(folder, {"a": "333"})
        return real(*argv, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tree.git, "run", run)
    Committer(tree).commit(selection, said(folder, "rev-parse", "HEAD"), MAIN, "x\n")
    assert tree_of(folder)["a"] == "100644 22"
    assert porcelain(folder) == [" M a"]


def test_an_index_that_somebody_has_locked_is_waited_for(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {"a": "1"})
    lock = folder / ".git" / "index.lock"
    lock.touch()
    timer = threading.Timer(0.3, lock.unlink)
    timer.start()
    began = time.monotonic()
    committed(folder)
    timer.join()
    assert time.monotonic() - began >= 0.25
    assert "a" in tree_of(folder)
    assert not lock.exists()


@pytest.mark.parametrize("setting", ["core.splitIndex", "index.sparse", "core.untrackedCache"])
def test_other_kinds_of_index(tmp_path: Path, setting: str) -> None:
    folder = repository(tmp_path / "r", {"a": "1", "b": "1"})
    git(folder, "config", setting, "true")
    git(folder, "update-index", "--refresh")
    git(folder, "status")
    write(folder, {"a": "2", "c": "2", "b": "2"})
    git(folder, "add", "b")
    committed(folder)
    assert set(tree_of(folder)) == {".gitignore", "README.md", "a", "b", "c"}
    assert tree_of(folder)["b"] == "100644 1"
    assert porcelain(folder) == ["M  b"]
