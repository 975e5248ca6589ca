"""Commits that a kill has cut off: what follows takes nothing of them for the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.errors import WorkTreeRefused
from sequencer.git import commit as committing
from sequencer.git.commit import DRAFT, Committer, is_cut_off
from sequencer.settings.schema import CommitOptions
from tests.unit.git.clones import (
    claim,
    clone,
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

KILLED = """\
import os, signal, sys
from pathlib import Path
from sequencer.git.commit import Committer
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
    assert committer.is_cut_off()
    assert is_cut_off(folder / ".git" / "index.lock")
    committer.settle()
    assert not committer.is_cut_off()
    left = {path.name for path in (folder / ".git").iterdir()}
    assert not {name for name in left if name.endswith(".lock") or name.startswith(DRAFT)}


@pytest.mark.parametrize(("verb", "when"), MOMENTS)
def test_what_was_cut_off_is_nobodys_staged_change(tmp_path: Path, verb: str, when: str) -> None:
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


@pytest.mark.parametrize(("verb", "when"), MOMENTS)
def test_the_next_attempt_commits_what_it_does(tmp_path: Path, verb: str, when: str) -> None:
    """Once its work was accepted without what it had written, as "staged by somebody"."""
    _, here, _ = pair(tmp_path, {"notes": "0\n"})
    one = clone(here, commit=CommitOptions(paths=("notes",)))
    one.carrier.ready(head())
    one.carrier.arrive(head())
    write(here, {"notes": "0\n1\n"})
    killed(here, verb, when, "notes")
    one.carrier.ready(head())
    one.carrier.arrive(head())
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
def test_locks_of_others_stay(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = repository(tmp_path / "r", {"a": "1"})
    make(folder / ".git" / "index.lock")
    before = everything(folder)
    committer = Committer(tree_at(folder))
    assert not committer.is_cut_off()
    committer.settle()
    assert everything(folder) == before
    assert os.path.lexists(folder / ".git" / "index.lock")


def test_the_lock_of_somebody_alive_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "LOCK_WAIT_S", 0.1)
    folder = repository(tmp_path / "r", {"a": "1"})
    write(folder, {"a": "2"})
    tree = tree_at(folder)
    real, seen = tree.git.run, []

    def run(*argv: str, **rest: object) -> object:
        if argv[0] == "fast-import":
            other = Committer(tree_at(folder))
            seen.append(other.is_cut_off())
            other.settle()
            with pytest.raises(WorkTreeRefused, match="locked by somebody else"):
                committed(folder)
        return real(*argv, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tree.git, "run", run)
    Committer(tree).commit(chosen(tree), said(folder, "rev-parse", "HEAD"), MAIN, "x\n")
    assert seen == [False]
    assert tree_of(folder)["a"] == "100644 2"
    assert porcelain(folder) == []
