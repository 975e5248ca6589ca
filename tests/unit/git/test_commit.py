"""Commits of chosen paths, the index beside them, and what a kill leaves of both."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.errors import WorkTreeRefused
from sequencer.plugins.git.code import commit as committing
from sequencer.plugins.git.code.commit import CHANGED, DRAFT, Committer, RefMoved, is_abandoned_lock
from sequencer.plugins.git.code.selection import Selection
from sequencer.project.schema import CommitOptions
from tests.unit.git.clones import (
    claim,
    clone,
    commit,
    everything,
    git,
    head,
    pair,
    porcelain,
    repository,
    said,
    tree_at,
    tree_of,
    write,
)
from tests.unit.git.committed import MAIN, chosen, committed


def test_every_kind_of_change_is_committed(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"changed": "1", "gone": "1", "script": "1", "same": "1"})
    write(folder, {"changed": "2", "deep/new": "3"})
    (folder / "gone").unlink()
    (folder / "script").chmod(0o755)
    (folder / "link").symlink_to("same")
    before = said(folder, "rev-parse", "HEAD")
    written = committed(folder)
    assert said(folder, "rev-parse", "HEAD", "HEAD^").split() == [written.commit, before]
    assert tree_of(folder) == {
        ".gitignore": "100644 *.tmp\nignored/\n",
        "README.md": "100644 read me\n",
        "changed": "100644 2",
        "deep/new": "100644 3",
        "link": "120000 same",
        "same": "100644 1",
        "script": "100755 1",
    }
    assert porcelain(folder) == []
    assert said(folder, "fsck", "--strict", "--no-dangling") == ""


def test_a_failing_filter_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {".gitattributes": "*.x filter=broken\n"})
    git(folder, "config", "filter.broken.clean", "false")
    git(folder, "config", "filter.broken.required", "true")
    write(folder, {"a.x": "1"})
    before = everything(folder)
    with pytest.raises(WorkTreeRefused, match="can't be committed"):
        committed(folder)
    assert everything(folder) == before


def test_a_branch_moved_in_between_fails_the_commit(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    tree = tree_at(folder)
    write(folder, {"a": "1"})
    selection, parent = chosen(tree, "a"), said(folder, "rev-parse", "HEAD")
    theirs = commit(folder, {"b": "1"})
    before = everything(folder)
    with pytest.raises(RefMoved):
        Committer(tree).commit(selection, parent, MAIN, "x\n")
    assert everything(folder) == before
    assert said(folder, "rev-parse", "HEAD") == theirs


def test_a_file_that_was_changed_in_between_is_left_out(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"back": "1"})
    tree = tree_at(folder)
    write(folder, {"a": "1", "b": "1", "c": "1"})
    (folder / "back").unlink()
    selection = chosen(tree)
    write(folder, {"a": "22", "back": "1"})
    (folder / "c").unlink()
    written = Committer(tree).commit(selection, said(folder, "rev-parse", "HEAD"), MAIN, "x\n")
    assert [one.path for one in written.selection.chosen] == ["b"]
    assert {one.path: one.reason for one in written.selection.skipped} == dict.fromkeys(
        ("a", "back", "c"), CHANGED
    )
    assert set(tree_of(folder)) == {".gitignore", "README.md", "b", "back"}


def test_the_index_has_the_times_of_committed_files(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"changed": "1", "gone": "1"})
    # A copy's files have other times.
    git(folder, "update-index", "--refresh")
    write(folder, {"changed": "2", "new": "2"})
    (folder / "gone").unlink()
    (folder / "link").symlink_to("new")
    committed(folder)
    # Plumbing compares times and never looks into the files.
    assert said(folder, "diff-files", "--name-only") == ""
    assert said(folder, "diff-index", "--cached", "--name-only", "HEAD") == ""


def test_the_index_holds_the_committed_content_despite_later_writes(
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


def test_a_commit_waits_for_a_locked_index(tmp_path: Path) -> None:
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


KILLED = """\
import os, signal, sys
from pathlib import Path
from sequencer.plugins.git.code.commit import Committer
from tests.unit.git.clones import said, tree_at
from tests.unit.git.committed import MAIN, chosen
folder, verb, when, *paths = sys.argv[1:]
folder, is_behind = Path(folder), when == "behind"
tree = tree_at(folder)
selection, parent, real = chosen(tree, *paths), said(folder, "rev-parse", "HEAD"), tree.git.run
def run(*argv, **rest):
    if argv[0] == verb and not is_behind:
        os.kill(os.getpid(), signal.SIGKILL)
    done = real(*argv, **rest)
    if argv[0] == verb:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
tree.git.run = run
Committer(tree).commit(selection, parent, MAIN, "a step\\n\\nToken: 1\\n")
"""
BEFORE_THE_REF = [("update-index", "before"), ("update-index", "behind"), ("fast-import", "before")]
MOMENTS = [*BEFORE_THE_REF, ("fast-import", "behind")]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "ENDED_S", 0.2)


def killed(folder: Path, verb: str, when: str, *paths: str) -> None:
    """Commit *paths* in a process that is killed before or behind git's *verb*."""
    argv = [sys.executable, "-c", KILLED, str(folder), verb, when, *paths]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (folder / ".git" / "index.lock").exists()


def settled(folder: Path) -> None:
    committer = Committer(tree_at(folder))
    assert committer.has_abandoned_lock()
    assert is_abandoned_lock(folder / ".git" / "index.lock")
    committer.finish_interrupted_commit()
    assert not committer.has_abandoned_lock()
    left = {path.name for path in (folder / ".git").iterdir()}
    assert not {name for name in left if name.endswith(".lock") or name.startswith(DRAFT)}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(("verb", "when"), MOMENTS)
def test_an_interrupted_commit_leaves_no_extra_staged_changes(
    tmp_path: Path, verb: str, when: str
) -> None:
    folder = repository(tmp_path / "r", {"a": "1", "gone": "1", "mine": "1"})
    write(folder, {"a": "2", "new": "2", "mine": "2"})
    git(folder, "add", "mine")
    staged = git(folder, "diff", "--cached", "--binary")
    write(folder, {"mine": "3"})
    (folder / "gone").unlink()
    killed(folder, verb, when)
    settled(folder)
    assert git(folder, "diff", "--cached", "--binary") == staged
    is_moved = (verb, when) not in BEFORE_THE_REF
    rest = ["MM mine"] if is_moved else [" M a", " D gone", "MM mine", "?? new"]
    assert porcelain(folder) == rest
    committed(folder, "a", "new", "gone")
    assert porcelain(folder) == ["MM mine"]
    assert tree_of(folder).keys() == {".gitignore", "README.md", "a", "mine", "new"}
    assert tree_of(folder)["mine"] == "100644 1"


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(("verb", "when"), MOMENTS)
def test_the_next_attempt_commits_what_it_does(tmp_path: Path, verb: str, when: str) -> None:
    """Once its work was accepted without what it had written, as "staged by somebody"."""
    _, here, _ = pair(tmp_path, {"notes": "0\n"})
    one = clone(here, commit=CommitOptions(paths=("notes",)))
    one.carrier.ensure_ready(head())
    one.carrier.enter(head())
    write(here, {"notes": "0\n1\n"})
    killed(here, verb, when, "notes")
    one.carrier.ensure_ready(head())
    one.carrier.enter(head())
    write(here, {"notes": "0\n1\n2\n"})
    assert one.carrier.collect(claim(token=2), "main", head()) is not None
    assert said(here, "show", "HEAD:notes") == "0\n1\n2"
    assert porcelain(here) == []


def test_a_git_that_has_outlived_its_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "ENDED_S", 0.6)
    folder = repository(tmp_path / "r", {"a": "1"})
    write(folder, {"a": "2"})
    killed(folder, "update-index", "before")
    os.utime(folder / ".git" / "index.lock")
    began = time.monotonic()
    settled(folder)
    assert 0.4 < time.monotonic() - began < 5


def _empty(lock: Path) -> None:
    lock.write_bytes(b"")


def _an_index(lock: Path) -> None:
    lock.write_bytes((lock.parent / "index").read_bytes())


def _link(lock: Path) -> None:
    lock.symlink_to("index")


def _folder(lock: Path) -> None:
    lock.mkdir()


def _nobodys(lock: Path) -> None:
    lock.write_text('{"owner": {"pid": "x"}}')


def _long(lock: Path) -> None:
    lock.write_text("[" * 200_000)


@pytest.mark.parametrize("make", [_empty, _an_index, _link, _folder, _nobodys, _long])
def test_locks_of_others_are_not_removed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = repository(tmp_path / "r", {"a": "1"})
    make(folder / ".git" / "index.lock")
    before = everything(folder)
    committer = Committer(tree_at(folder))
    assert not committer.has_abandoned_lock()
    committer.finish_interrupted_commit()
    assert everything(folder) == before
    assert os.path.lexists(folder / ".git" / "index.lock")


def test_a_lock_whose_owner_cannot_be_recorded_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = repository(tmp_path / "r", {"a": "1"})
    write(folder, {"a": "2"})
    before = everything(folder)
    monkeypatch.setattr("json.dump", full)
    with pytest.raises(WorkTreeRefused, match="No space left"):
        committed(folder)
    assert everything(folder) == before


def test_the_lock_of_a_live_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "LOCK_WAIT_S", 0.1)
    folder = repository(tmp_path / "r", {"a": "1"})
    write(folder, {"a": "2"})
    tree = tree_at(folder)
    real, seen = tree.git.run, []

    def run(*argv: str, **rest: object) -> object:
        if argv[0] == "fast-import":
            other = Committer(tree_at(folder))
            seen.append(other.has_abandoned_lock())
            other.finish_interrupted_commit()
            with pytest.raises(WorkTreeRefused, match="locked by another git process"):
                committed(folder)
        return real(*argv, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tree.git, "run", run)
    Committer(tree).commit(chosen(tree), said(folder, "rev-parse", "HEAD"), MAIN, "x\n")
    assert seen == [False]
    assert tree_of(folder)["a"] == "100644 2"
    assert porcelain(folder) == []


def test_nothing_chosen_is_nothing_done(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    before = everything(folder)
    head = said(folder, "rev-parse", "HEAD")
    tree = tree_at(folder)
    assert Committer(tree).commit(Selection(), head, MAIN, "x").commit == head
    assert everything(folder) == before
