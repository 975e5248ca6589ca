"""Locks that a killed git has left: named, dated, and with who may still hold them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import StorageFailed, WorkTreeRefused
from sequencer.git import commit as committing
from sequencer.git import locks
from sequencer.git.own_settings import EVERYTHING
from sequencer.git.process import Git
from sequencer.git.remote import Remote
from tests.clones import Shared
from tests.unit.git.clones import repository, write
from tests.unit.git.committed import committed


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path / "shared")
    yield made
    made.close()


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A repository in which a git works: it waits for what it is to read."""
    folder = repository(tmp_path / "busy")
    argv = ["git", "cat-file", "--batch"]
    with subprocess.Popen(argv, cwd=folder, stdin=subprocess.PIPE) as process:
        yield folder, process.pid
        process.kill()


def left(path: Path, age_s: float = 7200.0) -> Path:
    """Leave a lock as a git does that was killed so long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    at = time.time() - age_s
    os.utime(path, (at, at))
    return path


def test_a_lock_is_told_with_its_age_and_the_command_that_removes_it(tmp_path: Path) -> None:
    folder = repository(tmp_path / "it's a folder")
    lock = locks.look(left(folder / ".git" / "index.lock"), folder / ".git")
    assert lock is not None
    assert lock.words == f"{lock.path} is there for 2 h, and no git works there"
    assert lock.workers == ()
    command = lock.hint.split(", '", 1)[1].removesuffix("'")
    subprocess.run(["sh", "-c", command], check=True)
    assert not lock.path.exists()
    assert locks.look(lock.path, folder) is None


def test_who_works_there_is_waited_for(at_work: tuple[Path, int]) -> None:
    folder, pid = at_work
    lock = locks.look(left(folder / ".git" / "index.lock", 5), folder / ".git")
    assert lock is not None
    assert lock.workers == (pid,)
    assert lock.words.endswith(f"is there for 5 s, and git (process {pid}) works there")
    assert lock.hint == f"wait until git (process {pid}) works no more"


def test_what_git_says_names_the_lock(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    git_dir, path = folder / ".git", left(folder / ".git" / "refs" / "heads" / "main.lock")
    said = f"fatal: cannot lock ref: Unable to create '{path}': File exists.\n\nAnother git"
    found = locks.in_the_way(said, git_dir)
    assert found is not None
    assert found.path == path
    relative = said.replace(str(path), "./refs/heads/main.lock")
    assert locks.in_the_way(relative, git_dir) is not None
    for other in ("", "fatal: no", said.replace(str(path), "/etc/passwd.lock")):
        assert locks.in_the_way(other, git_dir) is None
    path.unlink()
    assert locks.in_the_way(said, git_dir) is None


def test_those_that_are_stale(tmp_path: Path) -> None:
    git_dir = repository(tmp_path / "r") / ".git"
    names = ("index.lock", "packed-refs.lock", "refs/heads/a/b.lock", "HEAD.lock")
    for name in names:
        left(git_dir / name)
    left(git_dir / "config.lock", 5)
    left(git_dir / "objects" / "x.lock")
    found = [lock.path.relative_to(git_dir).as_posix() for lock in locks.stale(git_dir, git_dir)]
    assert found == sorted(names)


# --- where they are told -------------------------------------------------------------------------


def test_a_lock_on_the_index_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "LOCK_WAIT_S", 0.1)
    folder = repository(tmp_path / "r")
    write(folder, {"a": "1"})
    lock = left(folder / ".git" / "index.lock")
    with pytest.raises(WorkTreeRefused, match="is there for 2 h, and no git works") as refused:
        committed(folder)
    assert f"'rm {lock}'" in str(refused.value.hint)


def test_a_lock_in_the_way_of_a_fetch(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = shared.clone("ours")
    monkeypatch.setattr("sequencer.git.process._RACE_ATTEMPTS", 2)
    lock = left(clone / ".git" / "refs" / "mine" / "x.lock")
    with pytest.raises(StorageFailed, match="is there for 2 h, and no git works there") as failed:
        Remote(Git(clone, allowed=EVERYTHING), "origin").fetch({"refs/heads/main": "refs/mine/x"})
    assert f"'rm {lock}'" in str(failed.value.hint)


@pytest.mark.parametrize("where", ["sequencer", "sequencer-work"])
def test_one_of_our_own_refs_goes_by_itself(where: str, shared: Shared) -> None:
    clone, ref = shared.clone("ours"), f"refs/worktree/{where}/x"
    lock = left(clone / ".git" / f"{ref}.lock")
    assert Remote(Git(clone, allowed=EVERYTHING), "origin").fetch({"refs/heads/main": ref})
    assert not lock.exists()
