"""The checkout of a team: its commit, its locks, what moves it and what is in the way."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sequencer.git.checkout import MERGE_LOCK, REPOSITORY_LOCK, Checkout
from sequencer.git.process import Git
from tests.unit.git.clones import ENVIRONMENT, commit, git, said, write
from tests.unit.git.teams import folders, project


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n"})


def checkout_at(folder: Path) -> Checkout:
    return Checkout(folders(folder), Git(folder, ENVIRONMENT))


def test_all_worktrees_have_one_repository_and_each_its_own_lock_of_merges(
    here: Path, tmp_path: Path
) -> None:
    git(here, "worktree", "add", "-q", "--detach", str(tmp_path / "side"))
    one, other = checkout_at(here), checkout_at(tmp_path / "side")
    assert one.common_dir.resolve() == other.common_dir.resolve() == here / ".git"
    with one.merge_lock(), other.merge_lock(), other.repository_lock():
        pass
    assert (here / ".git" / REPOSITORY_LOCK).exists()
    assert (here / ".git/worktrees/side" / MERGE_LOCK).exists()


@pytest.mark.parametrize("kind", ["merge_lock", "repository_lock"])
def test_a_lock_keeps_threads_and_processes_out(here: Path, kind: str) -> None:
    checkout = checkout_at(here)

    def lock(of: Checkout) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = getattr(of, kind)()
        return found

    order: list[str] = []
    held, entered = threading.Event(), here / "entered"

    def other_thread() -> None:
        held.wait()
        with lock(checkout):
            order.append("thread")

    thread = threading.Thread(target=other_thread)
    pid = 0
    with lock(checkout):
        pid = os.fork()
        if pid == 0:
            try:
                with lock(checkout_at(here)):
                    entered.touch()
            finally:
                os._exit(0)
        thread.start()
        held.set()
        time.sleep(0.15)
        assert not entered.exists()
        order.append("holder")
    thread.join()
    os.waitpid(pid, 0)
    assert order == ["holder", "thread"]
    assert entered.exists()


def test_who_commits_is_the_user_or_the_program(here: Path) -> None:
    assert set(checkout_at(here).identity.values()) == {"sequencer", "sequencer@localhost"}
    git(here, "config", "user.name", "Me")
    # Half of an identity is none.
    assert len(checkout_at(here).identity) == 4
    git(here, "config", "user.email", "me@example.org")
    assert checkout_at(here).identity == {}


def test_what_is_in_the_way_is_named_whatever_git_calls_it(here: Path) -> None:
    first = said(here, "rev-parse", "HEAD")
    names = {
        *("a", "new\nline", "ignored/x", "was-file/below", "was-folder"),
        *("-dash", "free", "d/free"),
    }
    git(here, "rm", "-q", "a")
    write(here, {"ignored/x": "theirs\n"})
    git(here, "add", "--force", "ignored/x")
    second = commit(here, dict.fromkeys(names - {"a", "ignored/x"}, "theirs\n"))
    git(here, "reset", "-q", "--hard", first)
    mine = ("a", "new\nline", "ignored/x", "was-file", "was-folder/x", "-dash", "other")
    write(here, dict.fromkeys(mine, "mine\n"))
    found = checkout_at(here).in_the_way(first, second)
    assert set(found) == names - {"free", "d/free"}
    failed = checkout_at(here).move_to(second)
    assert failed is not None
    assert {(here / name).read_text() for name in mine} == {"mine\n"}
