"""Places to work in: where they are, what is said about them, and where there can be none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, WorkTreeRefused, to_machine_busy
from sequencer.plugins.git.code import checkout as shared
from sequencer.plugins.git.process import UNWRITABLE, Git, GitFailed
from sequencer.plugins.git.state.store import GitOptions, GitStore
from sequencer.project.store_requests import EVERYTHING
from tests.unit.git.clones import commit, git, porcelain, said, write
from tests.unit.git.teams import (
    RUN_ID,
    at_once,
    branches,
    checkout_at,
    closed,
    opened,
    placed,
    project,
    remains,
    workplaces,
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n"})


@pytest.mark.parametrize(
    "task",
    [
        *("../../../etc", "-rf", "a b", "x.lock", "a..b", "a\nb", "ä/ö", "x" * 300, "~^:@{*"),
        *(".", "'; touch pwned; '", "\x1b[31m"),
    ],
)
def test_hostile_names_do_not_escape_the_worktrees_folder(here: Path, task: str) -> None:
    places = workplaces(here, task)
    place = opened(places, task, 1)
    assert place.cwd.parent == here / "sync/worktrees"
    write(place.cwd, {"x": "x\n"})
    left = closed(place)
    assert left.commit == said(here, "rev-parse", "HEAD")
    assert places.find_merged_tokens(task, RUN_ID) == {1}
    assert (remains(here), branches(here)) == ([], [])
    assert not list(here.rglob("pwned"))


def test_a_name_that_is_taken_gets_a_number(here: Path) -> None:
    git(here, "branch", "sequencer-team/default/build-1")
    write(here, {"sync/worktrees/build-1-again2/x": "somebody's"})
    place = opened(workplaces(here), "build", 1)
    assert place.branch == "sequencer-team/default/build-1-again3"
    write(place.cwd, {"x": "x"})
    closed(place)
    assert branches(here) == ["sequencer-team/default/build-1"]
    assert (here / "sync/worktrees/build-1-again2/x").read_text() == "somebody's"


def test_a_secret_in_a_name_is_hidden_in_notices(here: Path) -> None:
    commit(here, {"hunter2-hunter2": "x\n"})
    write(here, {"hunter2-hunter2": "changed\n"})
    assert "hunter2" not in "".join(opened(workplaces(here)).notices)


def test_a_worktree_that_git_refuses_is_an_error_and_leaves_nothing(here: Path) -> None:
    git(here, "branch", "sequencer-team")
    with pytest.raises(WorkTreeRefused, match="can't have another worktree"):
        opened(workplaces(here))
    assert remains(here) == []
    assert porcelain(here) == []


# --- where there can be none ----------------------------------------------------------------


def bare(folder: Path) -> None:
    git(folder, "init", "-q", "--bare")


def unborn(folder: Path) -> None:
    git(folder, "init", "-q")


def below_another(folder: Path) -> None:
    project(folder.parent)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: None, "is not in a git work tree"),
        (bare, "is not in a git work tree"),
        (unborn, "the repository has no commit yet"),
        (below_another, "no commit has the project's folder"),
    ],
)
def test_without_a_commit_tasks_share_the_folder_with_one_notice(
    tmp_path: Path, make: object, reason: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    assert callable(make)
    make(here)
    places = workplaces(here)
    first = placed(places, "one", 1)
    assert first.cwd == here
    (notice,) = first.notices
    assert reason in notice
    second = placed(places, "two", 2)
    assert (second.cwd, second.notices) == (here, ())
    write(here, {"x": "x\n"})
    left = first.end(is_accepted=True, wait_for_turn=at_once)
    assert (left.error is not None, left.written) == (False, ())
    assert not (here / "sync").exists()
    (problem,) = places.find_problems()
    assert reason in problem.message
    assert problem.hint is not None
    assert "share the project's folder" in problem.hint


def test_without_git_tasks_share_the_folder(here: Path, tmp_path: Path) -> None:
    places = workplaces(here, git=Git(here, {"PATH": str(tmp_path / "empty")}))
    place = placed(places, "one", 1)
    assert place.cwd == here
    assert "git is not installed" in place.notices[0]
    (problem,) = places.find_problems()
    assert isinstance(problem, ConfigurationError)
    assert problem.message == "git is not installed"


# --- what a check says ---------------------------------------------------------------------


def with_git(tmp_path: Path, script: str) -> dict[str, str]:
    """Return an environment in which ``git`` is *script*."""
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_nothing_is_wrong_with_a_repository(here: Path) -> None:
    assert workplaces(here).find_problems() == ()


def test_an_old_git_is_reported(here: Path, tmp_path: Path) -> None:
    old = with_git(tmp_path, "echo git version 2.29.3")
    (problem,) = workplaces(here, git=Git(here, old)).find_problems()
    assert problem.message == "git version 2.29.3 is too old"
    assert problem.hint == "install git 2.30 or newer"


def test_a_git_that_does_not_run_is_reported(here: Path, tmp_path: Path) -> None:
    broken = with_git(tmp_path, "echo fatal: broken >&2; exit 3")
    (problem,) = workplaces(here, git=Git(here, broken)).find_problems()
    assert problem.message == "git does not run: broken"


def test_a_merge_under_way_is_reported(here: Path) -> None:
    (here / ".git/MERGE_HEAD").write_text(said(here, "rev-parse", "HEAD") + "\n")
    (problem,) = workplaces(here).find_problems()
    assert problem.message == "a merge is under way"


# --- what was merged before a kill ---------------------------------------------------------


def test_nothing_counts_as_merged_without_a_repository(tmp_path: Path) -> None:
    assert workplaces(tmp_path).find_merged_tokens("build", RUN_ID) == frozenset()


# --- locks that somebody else holds --------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "LOCK_WAIT_S", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_worktree_is_not_added_while_another_process_holds_the_lock(here: Path) -> None:
    with (
        checkout_at(here).repository_lock(),
        pytest.raises(WorkTreeRefused, match="is locked by"),
    ):
        opened(workplaces(here))
    assert remains(here) == []


@pytest.mark.usefixtures("impatient")
def test_nothing_is_merged_during_another_merge_and_the_worktree_stays(here: Path) -> None:
    place = opened(workplaces(here))
    write(place.cwd, {"x": "x\n"})
    with checkout_at(here).merge_lock():
        left = closed(place)
    assert (left.error is not None, left.folder) == (True, place.folder)
    assert left.error is not None
    assert "is locked by" in left.error
    assert not (here / "x").exists()
    assert said(here, "show", f"{place.branch}:x") == "x"


@pytest.mark.usefixtures("impatient")
def test_a_worktree_that_cannot_be_removed_yet_is_reported_after_its_merge(here: Path) -> None:
    place = opened(workplaces(here))
    write(place.cwd, {"x": "x\n"})
    with checkout_at(here).repository_lock():
        left = closed(place)
    assert (left.error is not None, left.branch) == (False, None)
    assert left.commit == said(here, "rev-parse", "HEAD")
    assert "can't be removed" in left.notices[0]
    assert place.folder.is_dir()


# --- work trees of one repository, each with a run of its own branch or with the same one -----


def store_of(tree: Path) -> GitStore:
    return GitStore(tree / "sync" / "state.json", tree, None, GitOptions(), allowed=EVERYTHING)


# --- what is in the way in a repository ------------------------------------------------


@pytest.mark.parametrize(
    ("stderr", "is_local"),
    [
        ("fatal: write error: No space left on device\nfatal: fetch-pack: invalid output", True),
        ("error: unable to create temporary file: Permission denied", True),
        ("error: insufficient permission for adding an object to repository database", True),
        ("remote: fatal: write error: No space left on device", False),
        ("remote: error: cannot lock ref 'refs/heads/x'", False),
        ("ssh: connect to host x port 22: Connection refused", False),
        ("fatal: early EOF", False),
    ],
)
def test_local_failures_are_recognized_by_the_git_message(stderr: str, *, is_local: bool) -> None:
    failed = GitFailed(("fetch",), 128, stderr)
    assert failed.has_local_message(UNWRITABLE) is is_local
    # A full disk of this machine is a shortage, whoever met it.
    is_full = is_local and "No space left" in stderr
    assert (to_machine_busy(failed) is not None) is is_full
