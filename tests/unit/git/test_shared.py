"""The checkout of a team: its commit, its locks, what moves it and what is in the way."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sequencer.errors import WorkTreeRefused
from sequencer.git import checkout as shared
from sequencer.git.checkout import MERGE_LOCK, REPOSITORY_LOCK, Checkout
from sequencer.git.process import Git
from tests.unit.git.clones import ENVIRONMENT, commit, git, said, write
from tests.unit.git.teams import folders, project


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n"})


def checkout_at(folder: Path) -> Checkout:
    return Checkout(folders(folder), Git(folder, ENVIRONMENT))


def test_its_commit_is_the_present_one(here: Path, tmp_path: Path) -> None:
    checkout = checkout_at(here)
    assert checkout.commit() == said(here, "rev-parse", "HEAD")
    assert checkout.commit() != commit(here, {"a": "2"}) == checkout.commit()
    git(tmp_path, "init", "-q", "unborn")
    assert checkout_at(tmp_path / "unborn").commit() is None


def test_what_one_commit_has_of_another(here: Path) -> None:
    checkout = checkout_at(here)
    first = checkout.commit()
    second = commit(here, {"a": "2"})
    assert first is not None
    assert checkout.contains(second, first)
    assert checkout.contains(first, first)
    assert not checkout.contains(first, second)


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


def test_a_lock_that_is_never_free_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "LOCK_WAIT_S", 0.05)
    checkout = checkout_at(here)
    with (
        checkout.merge_lock(),
        pytest.raises(WorkTreeRefused, match="is kept locked by"),
        checkout.merge_lock(),
    ):
        pytest.fail("both hold it")


def test_an_error_inside_gives_the_lock_back(here: Path) -> None:
    checkout = checkout_at(here)
    with pytest.raises(KeyError), checkout.merge_lock():
        raise KeyError
    with checkout.merge_lock():
        pass


def test_who_commits_is_the_user_or_the_program(here: Path) -> None:
    assert set(checkout_at(here).identity.values()) == {"sequencer", "sequencer@localhost"}
    git(here, "config", "user.name", "Me")
    # Half of an identity is none.
    assert len(checkout_at(here).identity) == 4
    git(here, "config", "user.email", "me@example.org")
    assert checkout_at(here).identity == {}


def test_moving_forward_brings_files_and_branch(here: Path) -> None:
    first = said(here, "rev-parse", "HEAD")
    second = commit(here, {"a": "2\n", "b": "b\n"})
    git(here, "reset", "-q", "--hard", first)
    checkout = checkout_at(here)
    assert checkout.move_to(second) is None
    assert (here / "b").read_text() == "b\n"
    assert said(here, "rev-parse", "main") == second
    back = checkout.move_to(first)
    assert back is None
    assert said(here, "rev-parse", "main") == second


def test_histories_that_have_parted_are_not_moved_over(here: Path) -> None:
    side = commit(here, {"b": "b\n"})
    git(here, "reset", "-q", "--hard", "HEAD~1")
    mine = commit(here, {"c": "c\n"})
    failed = checkout_at(here).move_to(side)
    assert failed is not None
    assert said(here, "rev-parse", "main") == mine


def test_a_git_that_never_ends_is_not_waited_for_for_ever(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "INDEX_WAIT_S", 0.1)
    second = commit(here, {"b": "b\n"})
    git(here, "reset", "-q", "--hard", "HEAD~1")
    (here / ".git/index.lock").touch()
    failed = checkout_at(here).move_to(second)
    assert failed is not None
    assert "index.lock" in failed.stderr
    assert (here / ".git/index.lock").exists()
    assert not (here / "b").exists()


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


def test_tracked_changes_leave_out_what_git_does_not_know(here: Path) -> None:
    write(here, {"a": "2\n", "new": "n\n"})
    assert [entry.path for entry in checkout_at(here).tracked_changes().entries] == ["a"]
