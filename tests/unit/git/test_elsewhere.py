"""A person moves the checkout to somewhere else while a task works, or leaves a lock there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.git import checkout as merging
from sequencer.git import checkout as shared
from sequencer.git.checkout import PlaceLeft, PlaceResult
from sequencer.git.places import OwnPlace
from sequencer.git.process import Git, GitFailed
from sequencer.git.worktrees import Phase, Worktrees
from tests.unit.git.clones import commit, git, porcelain, said, tree_of, write
from tests.unit.git.teams import (
    branches,
    closed,
    opened,
    project,
    remains,
    users,
    workplaces,
)

BRANCH = "sequencer-team/default/implement-1"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n"})


def place_with_work(here: Path) -> OwnPlace:
    place = opened(workplaces(here))
    write(place.cwd, {"x": "x\n"})
    return place


def assert_kept(here: Path, left: PlaceLeft, reason: str, hint: str) -> None:
    """Assert that the work is on its branch, and that a person is told why and what to do."""
    assert (left.result, left.branch, left.files) == (PlaceResult.IN_THE_WAY, BRANCH, ())
    assert left.error is not None
    assert left.hint is not None
    assert reason in left.error
    assert hint in left.hint
    assert f"then 'git merge {BRANCH}'" in left.hint
    assert "x" in tree_of(here, BRANCH)
    assert (porcelain(here), remains(here)) == ([], [])


def test_work_that_was_begun_on_one_branch_is_not_merged_into_another(here: Path) -> None:
    git(here, "branch", "release")
    commit(here, {"unreleased": "u\n"})
    place = place_with_work(here)
    git(here, "checkout", "-q", "release")
    before = users(here)
    left = closed(place)
    reason = "another branch is checked out than the work was begun on: release, not main"
    assert_kept(here, left, reason, "go back with 'git switch main'")
    assert users(here) == before
    git(here, "switch", "-q", "main")
    git(here, "merge", "-q", BRANCH)
    assert {"x", "unreleased"} <= set(tree_of(here))


def test_what_was_begun_on_a_branch_is_not_merged_without_one(here: Path) -> None:
    place = place_with_work(here)
    git(here, "checkout", "-q", "--detach")
    assert_kept(here, closed(place), "none, a commit alone, not main", "'git switch main'")


def test_a_commit_that_a_person_has_dropped_does_not_come_back(here: Path) -> None:
    dropped = commit(here, {"mistake": "m\n"})
    place = place_with_work(here)
    git(here, "reset", "-q", "--hard", "HEAD~1")
    left = closed(place)
    short = dropped[:12]
    reason = f"no longer the commit {short} that the work was begun on"
    assert_kept(here, left, reason, f"'git cherry-pick {short}..{BRANCH}'")
    assert "mistake" not in tree_of(here)
    git(here, "cherry-pick", f"{short}..{BRANCH}")
    assert "x" in tree_of(here)
    assert "mistake" not in tree_of(here)


def test_a_commit_that_was_amended_is_dropped(here: Path) -> None:
    commit(here, {"b": "1\n"})
    place = place_with_work(here)
    git(here, "commit", "-q", "--amend", "-m", "said better")
    assert_kept(here, closed(place), "no longer the commit", "git cherry-pick")


def test_the_note_says_which_branch_was_checked_out_and_old_notes_are_read(here: Path) -> None:
    opened(workplaces(here))
    notes = Worktrees(here / "sync")
    note = notes.read("implement-1")
    assert note is not None
    assert note.checked_out == "main"
    old = note.model_dump_json(exclude={"checked_out"})
    (notes.path / "implement-1.json").write_text(old)
    found = notes.read("implement-1")
    assert found is not None
    assert (found.checked_out, found.phase) == (None, Phase.WORKING)


@pytest.mark.parametrize("name", ["index.lock", "HEAD.lock", "refs/heads/main.lock"])
def test_a_lock_of_a_killed_git_is_named_with_what_to_do(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(shared, "INDEX_WAIT_S", 0.1)
    place = place_with_work(here)
    lock = here / ".git" / name
    lock.touch()
    before = users(here)
    left = closed(place)
    assert users(here) == before
    lock.unlink()
    assert porcelain(here) == []
    assert left.result is PlaceResult.IN_THE_WAY
    assert left.hint is not None
    assert left.error is not None
    assert f"{lock} is a lock of git: remove it if no git runs there" in left.error
    assert "or remove its lock, then" in left.hint
    assert left.branch == BRANCH


# --- git fails, and yet it is merged ---------------------------------------------------------


def failing_after_the_move(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let git fail so many times when it is asked for the commit behind a fast-forward."""
    left = [times]
    forward, commit_of = shared.Checkout.move_to, shared.Checkout.commit
    moved: list[str] = []

    def moves(self: shared.Checkout, name: str) -> GitFailed | None:
        moved.append(name)
        return forward(self, name)

    def fails(self: shared.Checkout) -> str | None:
        if moved and left[0]:
            left[0] -= 1
            raise GitFailed(("rev-parse",), 128, "fatal: out of memory")
        return commit_of(self)

    monkeypatch.setattr(shared.Checkout, "move_to", moves)
    monkeypatch.setattr(shared.Checkout, "commit", fails)


def test_what_is_merged_is_said_to_be_though_git_fails_behind_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_with_work(here)
    failing_after_the_move(monkeypatch, 1)
    left = closed(place)
    assert (left.result, left.error, left.branch) == (PlaceResult.MERGED, None, None)
    assert left.commit == said(here, "rev-parse", "HEAD")
    assert (branches(here), remains(here)) == ([], [])
    assert "x" in tree_of(here)


def test_a_failure_before_anything_has_moved_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_with_work(here)

    def fails(*_: object) -> None:
        raise GitFailed(("merge",), 128, "fatal: out of memory")

    monkeypatch.setattr(merging._Merge, "made", fails)
    left = closed(place)
    assert (left.result, left.folder, left.branch) == (PlaceResult.REFUSED, place.folder, BRANCH)
    assert left.error is not None
    assert "out of memory" in left.error
    assert "x" not in tree_of(here)


# --- branches whose work somebody has merged -------------------------------------------------


def kept(here: Path, token: int = 1, run: str | None = None) -> str:
    """Return a branch with work that was not accepted."""
    place = opened(workplaces(here, run), "implement", token)
    write(place.cwd, {f"x{token}": "x\n"})
    left = closed(place, is_accepted=False)
    assert left.branch is not None
    return left.branch


def test_branches_go_when_the_checkout_has_everything_of_them(here: Path) -> None:
    merged, open_still = kept(here, 1), kept(here, 2)
    git(here, "branch", f"{merged}.left", "main")
    assert workplaces(here).clean(()) == ()
    assert branches(here) == [merged, open_still]
    git(here, "merge", "-q", merged)
    assert workplaces(here).clean(()) == ()
    assert branches(here) == [open_still]
    assert "x2" in tree_of(here, open_still)


def test_branches_of_other_runs_and_of_people_stay(here: Path) -> None:
    kept(here)
    others = [
        kept(here, 7, "nightly"),
        "sequencer-team/default/mine",
        "sequencer-team/default2/a-1",
    ]
    others += ["sequencer-team/default/deep/a-1"]
    for name in others[1:]:
        git(here, "branch", name)
    git(here, "merge", "-q", others[0])
    workplaces(here).clean(())
    assert set(others) <= set(branches(here))


def test_a_branch_that_a_worktree_or_a_note_holds_stays(here: Path, tmp_path: Path) -> None:
    works = opened(workplaces(here), "works", 1)
    git(here, "branch", "sequencer-team/default/noted-2")
    (here / "sync/worktrees/noted-2.json").write_text("{ half a note")
    git(here, "branch", "sequencer-team/default/held-3")
    git(here, "worktree", "add", "-q", str(tmp_path / "held"), "sequencer-team/default/held-3")
    git(here, "branch", "sequencer-team/default/free-4")
    workplaces(here).clean([1])
    names = ["held-3", "noted-2", "works-1"]
    assert branches(here) == [f"sequencer-team/default/{name}" for name in names]
    assert works.cwd.is_dir()


def test_a_branch_that_moves_at_the_last_moment_stays(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = kept(here)
    git(here, "merge", "-q", branch)
    run = Git.run

    def moved(self: Git, *argv: str, **options: object) -> object:
        if argv[0] == "update-ref":
            later = said(here, "commit-tree", "-p", branch, "-m", "later", f"{branch}^{{tree}}")
            git(here, "update-ref", f"refs/heads/{branch}", later)
        return run(self, *argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Git, "run", moved)
    workplaces(here).clean(())
    assert branches(here) == [branch]


def test_cleaning_is_quiet_where_the_repository_is_gone(here: Path) -> None:
    kept(here)
    (here / ".git").rename(here / "gone")
    assert workplaces(here).clean(()) == ()
