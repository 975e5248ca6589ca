"""The shared checkout: its locks, and looks for changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.plugins.git.code import checkout as readonly
from sequencer.plugins.git.code.checkout import CheckoutWatch, FolderResult
from sequencer.plugins.git.code.task_folders import SharedTaskFolder, TaskFolders
from tests.unit.git.clones import commit, git, said, write
from tests.unit.git.teams import at_once, checkout_at, placed, project, worked, workplaces


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n"})


def test_files_in_the_way_are_named_whatever_git_calls_them(here: Path) -> None:
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
    found = checkout_at(here).find_overwritten_files(first, second)
    assert set(found) == names - {"free", "d/free"}
    failed = checkout_at(here).move_to(second)
    assert failed is not None
    assert {(here / name).read_text() for name in mine} == {"mine\n"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return project(tmp_path / "site", {"a": "a\n", "b": "b\n"})


def changes(folder: Path, work: Callable[[Path], object]) -> tuple[str, ...]:
    """Return what is found to have changed by *work*."""
    watch = CheckoutWatch(checkout_at(folder))
    before = watch.read_state()
    work(folder)
    return watch.describe_changes(before, watch.read_state())


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
def test_a_write_is_found_and_named(site: Path, name: str) -> None:
    work, wanted = WRITES[name]
    write(site, {"b": "the user's\n", "dirty": "1"})
    (site / "link").symlink_to("a")
    assert changes(site, work) == wanted


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
def test_harmless_actions_are_not_reported_as_writes(site: Path, name: str) -> None:
    git(site, "branch", "sequencer-team/default/x-1")
    commit(site, {"c": "c\n"})
    write(site, {"b": "the user's\n", "dirty": "1"})
    assert changes(site, QUIET[name]) == ()


def test_merges_of_other_tasks_are_not_writes(site: Path) -> None:
    write(site, {"b": "the user's\n"})
    places = workplaces(site)

    def merges(at: Path) -> None:
        worked(places, lambda there: write(there, {"a": "1"}), "one", 1)
        worked(places, lambda there: write(there, {"n": "1"}), "two", 2)
        assert (at / "n").exists()

    assert changes(site, merges) == ()


def test_a_merge_by_hand_is_found(site: Path) -> None:
    git(site, "checkout", "-q", "-b", "side")
    commit(site, {"s": "s\n"})
    git(site, "checkout", "-q", "main")
    flags = ("-q", "--no-ff", "-m", "by hand")
    (found,) = changes(site, lambda at: git(at, "merge", *flags, "side"))
    assert found.startswith("branch 'main' (moved to ")


@pytest.mark.parametrize("with_merge", [False, True])
def test_a_commit_by_the_agent_is_found(site: Path, with_merge: bool) -> None:
    def commits(at: Path) -> None:
        if with_merge:
            worked(workplaces(site), lambda there: write(there, {"n": "1"}))
        commit(at, {"a": "2"})

    (found,) = changes(site, commits)
    assert found.startswith("branch 'main' (moved to ")


def test_a_branch_that_was_moved_switched_or_removed_is_found(
    site: Path,
) -> None:
    commit(site, {"a": "2"})
    git(site, "branch", "side", "HEAD~1")
    git(site, "branch", "gone", "HEAD~1")
    (back,) = changes(site, lambda at: git(at, "reset", "-q", "--hard", "HEAD~1"))
    assert back.startswith("branch 'main' (moved to ")
    (moved,) = changes(site, lambda at: git(at, "branch", "-f", "side", "ORIG_HEAD"))
    assert moved.startswith("branch 'side' (moved to ")
    assert changes(site, lambda at: git(at, "branch", "-D", "gone")) == ("branch 'gone' (removed)",)
    assert changes(site, lambda at: git(at, "checkout", "-q", "-b", "new")) == (
        "branch 'new' (checked out)",
    )
    assert changes(site, lambda at: git(at, "checkout", "-q", "--detach")) == ("HEAD",)


def test_a_change_to_a_large_file_is_found_by_its_time(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readonly, "MAX_HASHED_BYTES", 10)
    write(site, {"big": "x" * 100, "small": "x"})
    assert changes(site, lambda at: write(at, {"big": "y" * 100})) == ("big (added)",)
    assert changes(site, lambda at: write(at, {"small": "y"})) == ("small (added)",)


def test_too_many_files_to_watch_are_reported_without_false_alarms(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(site, {f"f{number}": "x" for number in range(10)})
    monkeypatch.setattr(readonly, "MAX_FILES", 5)
    watch = CheckoutWatch(checkout_at(site))
    before = watch.read_state()
    assert before.is_partial
    assert "only 5 files are watched" in before.notices[0]
    write(site, {"f0": "changed"})
    (site / "f1").unlink()
    assert watch.describe_changes(before, watch.read_state()) == ("f0 (added)",)


# --- without a repository -----------------------------------------------------------------


def test_a_walk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"f{number}": "x" for number in range(10)})
    monkeypatch.setattr(readonly, "MAX_FILES", 4)
    look = CheckoutWatch(checkout_at(tmp_path)).read_state()
    assert (len(look.files), look.is_partial) == (4, True)


# --- as a workplace ------------------------------------------------------------------------


def reading(places: TaskFolders, token: int = 1) -> SharedTaskFolder:
    place = placed(places, "research", token, writes=False)
    assert isinstance(place, SharedTaskFolder)
    return place


def test_tasks_that_share_the_checkout_are_named_with_a_write(site: Path) -> None:
    places = workplaces(site)
    earlier = placed(places, "earlier", 1, worktree=False)
    gone = placed(places, "gone", 2, worktree=False)
    gone.end(is_accepted=True, wait_for_turn=at_once)
    place, quiet = reading(places, 3), reading(places, 4)
    assert quiet.end(is_accepted=True, wait_for_turn=at_once).writers == ()
    placed(places, "later", 5, worktree=False)
    write(site, {"a": "written"})
    assert place.end(is_accepted=True, wait_for_turn=at_once).writers == ("earlier", "later")
    left = earlier.end(is_accepted=True, wait_for_turn=at_once)
    assert (left.result, left.written) == (FolderResult.SHARED, ())
