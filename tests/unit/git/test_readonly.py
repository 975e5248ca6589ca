"""Changes of the shared checkout during a task that only reads, and what is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.git import checkout as readonly
from sequencer.git.checkout import CheckoutWatch, PlaceResult
from sequencer.git.places import GitWorkplaces, SharedPlace
from tests.unit.git.clones import commit, git, write
from tests.unit.git.teams import (
    RUN_ID,
    at_once,
    checkout_at,
    project,
    users,
    worked,
    workplaces,
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n", "b": "b\n"})


def changes(folder: Path, work: Callable[[Path], object]) -> tuple[str, ...]:
    """Return what is found to have changed by *work*."""
    watch = CheckoutWatch(checkout_at(folder))
    before = watch.look()
    work(folder)
    return watch.changes_between(before, watch.look())


def relinks(at: Path) -> None:
    (at / "link").unlink()
    (at / "link").symlink_to("b")


WRITES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "an edit": (lambda at: write(at, {"a": "x"}), ("a (modified)",)),
    "a new file": (lambda at: write(at, {"n/x y": "x"}), ("n/x y (added)",)),
    "a removed file": (lambda at: (at / "a").unlink(), ("a (deleted)",)),
    "a mode": (lambda at: (at / "a").chmod(0o755), ("a (modified)",)),
    "an edit of what was dirty": (lambda at: write(at, {"dirty": "2"}), ("dirty (added)",)),
    "an edit put back": (lambda at: git(at, "checkout", "b"), ("b (as in the commit)",)),
    "a link elsewhere": (
        relinks,
        ("link (added)",),
    ),
    "a staged file": (lambda at: git(at, "add", "dirty"), ("dirty (modified-and-staged)",)),
    "a stash": (lambda at: git(at, "stash"), ("b (as in the commit)",)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_found_and_named(here: Path, name: str) -> None:
    work, wanted = WRITES[name]
    write(here, {"b": "the user's\n", "dirty": "1"})
    (here / "link").symlink_to("a")
    assert changes(here, work) == wanted


QUIET: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "a touch": lambda at: os.utime(at / "b", (1, 1)),
    "the same again": lambda at: write(at, {"b": "the user's\n", "dirty": "1"}),
    "what git ignores": lambda at: write(at, {"x.tmp": "x", "ignored/x": "x"}),
    "files of the run": lambda at: write(at, {"sync/state.json": "{}", "logs/x": "x"}),
    "a new branch": lambda at: git(at, "branch", "mine"),
    "a branch of a task": lambda at: git(
        at, "branch", "-f", "sequencer-team/default/x-1", "HEAD~1"
    ),
    "a look by git": lambda at: git(at, "status"),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_no_write_is_not_found(here: Path, name: str) -> None:
    git(here, "branch", "sequencer-team/default/x-1")
    commit(here, {"c": "c\n"})
    write(here, {"b": "the user's\n", "dirty": "1"})
    assert changes(here, QUIET[name]) == ()


def test_merges_of_other_tasks_are_no_writes(here: Path) -> None:
    write(here, {"b": "the user's\n"})
    places = workplaces(here)

    def merges(at: Path) -> None:
        worked(places, lambda there: write(there, {"a": "1"}), "one", 1)
        worked(places, lambda there: write(there, {"n": "1"}), "two", 2)
        assert (at / "n").exists()

    assert changes(here, merges) == ()


@pytest.mark.parametrize("with_merge", [False, True])
def test_a_commit_of_its_own_is_found(here: Path, with_merge: bool) -> None:
    def commits(at: Path) -> None:
        if with_merge:
            worked(workplaces(here), lambda there: write(there, {"n": "1"}))
        commit(at, {"a": "2"})

    (found,) = changes(here, commits)
    assert found.startswith("branch 'main' (moved to ")


def test_a_branch_that_was_moved_back_or_switched_or_removed_is_found(here: Path) -> None:
    commit(here, {"a": "2"})
    git(here, "branch", "side", "HEAD~1")
    git(here, "branch", "gone", "HEAD~1")
    (back,) = changes(here, lambda at: git(at, "reset", "-q", "--hard", "HEAD~1"))
    assert back.startswith("branch 'main' (moved to ")
    (moved,) = changes(here, lambda at: git(at, "branch", "-f", "side", "ORIG_HEAD"))
    assert moved.startswith("branch 'side' (moved to ")
    assert changes(here, lambda at: git(at, "branch", "-D", "gone")) == ("branch 'gone' (removed)",)
    assert changes(here, lambda at: git(at, "checkout", "-q", "-b", "new")) == (
        "branch 'new' (checked out)",
    )
    assert changes(here, lambda at: git(at, "checkout", "-q", "--detach")) == ("HEAD",)


def test_a_look_takes_two_processes_and_writes_nothing(here: Path) -> None:
    checkout = checkout_at(here)
    watch = CheckoutWatch(checkout)
    watch.look()
    before, started = users(here), checkout.git.started
    write(here, {"b": "the user's\n"})
    watch.look()
    assert checkout.git.started - started == 2
    git(here, "checkout", "b")
    after = users(here)
    assert {n: after[n] for n in after if n != ".git/index"} == {
        n: before[n] for n in before if n != ".git/index"
    }


def test_large_files_are_known_by_their_times(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readonly, "MAX_HASHED_BYTES", 10)
    write(here, {"big": "x" * 100, "small": "x"})
    assert changes(here, lambda at: write(at, {"big": "y" * 100})) == ("big (added)",)
    assert changes(here, lambda at: write(at, {"small": "y"})) == ("small (added)",)


def test_a_fifo_is_not_waited_for(here: Path) -> None:
    os.mkfifo(here / "fifo")
    assert changes(here, lambda at: write(at, {"a": "x"})) == ("a (modified)",)


def test_more_files_than_can_be_watched_are_told_and_make_no_false_alarm(here: Path) -> None:
    write(here, {f"f{number}": "x" for number in range(10)})
    watch = CheckoutWatch(checkout_at(here), max_files=5)
    before = watch.look()
    assert before.is_partial
    assert "only 20,000 files are watched" in before.notices[0]
    write(here, {"f0": "changed"})
    (here / "f1").unlink()
    assert watch.changes_between(before, watch.look()) == ("f0 (added)",)


# --- without a repository -----------------------------------------------------------------


def test_without_a_repository_sizes_and_times_are_looked_at(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1", "gone": "1", "deep/b": "1", "sync/state.json": "{}"})

    def work(at: Path) -> None:
        write(at, {"a": "two", "new": "1", "sync/state.json": "{1}", "logs/x": "x"})
        write(at, {"sync/worktrees/x": "x", ".git/x": "x"})
        (at / "gone").unlink()

    assert changes(tmp_path, work) == ("a (changed)", "gone (removed)", "new (added)")
    assert changes(tmp_path, lambda _: None) == ()


def test_a_walk_is_bounded(tmp_path: Path) -> None:
    write(tmp_path, {f"f{number}": "x" for number in range(10)})
    look = CheckoutWatch(checkout_at(tmp_path), max_files=4).look()
    assert (len(look.files), look.is_partial) == (4, True)


# --- as a workplace ------------------------------------------------------------------------


def reading(places: GitWorkplaces, token: int = 1) -> SharedPlace:
    place = places.place("research", token, run_id=RUN_ID, writes=False, has_own=True)
    assert isinstance(place, SharedPlace)
    return place


def test_a_task_that_reads_shares_the_checkout_and_its_writes_are_told(here: Path) -> None:
    place = reading(workplaces(here))
    assert (place.cwd, place.branch, place.notices) == (here, None, ())
    write(here, {"a": "written"})
    left = place.end(is_accepted=True, wait_for_turn=at_once)
    assert (left.result, left.error is not None) == (PlaceResult.SHARED, False)
    assert (left.written, left.writers) == (("a (modified)",), ())


def test_who_else_works_in_the_checkout_is_named_with_a_write(here: Path) -> None:
    places = workplaces(here)
    earlier = places.place("earlier", 1, run_id=RUN_ID, writes=True, has_own=False)
    gone = places.place("gone", 2, run_id=RUN_ID, writes=True, has_own=False)
    gone.end(is_accepted=True, wait_for_turn=at_once)
    place, quiet = reading(places, 3), reading(places, 4)
    assert quiet.end(is_accepted=True, wait_for_turn=at_once).writers == ()
    places.place("later", 5, run_id=RUN_ID, writes=True, has_own=False)
    write(here, {"a": "written"})
    assert place.end(is_accepted=True, wait_for_turn=at_once).writers == ("earlier", "later")
    left = earlier.end(is_accepted=True, wait_for_turn=at_once)
    assert (left.result, left.written) == (PlaceResult.SHARED, ())
