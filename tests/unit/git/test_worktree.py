"""Notes of worktrees, what git has of them, and how folders are removed."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from sequencer.git import worktrees as module
from sequencer.git.process import Git, GitFailed
from sequencer.git.worktrees import (
    branch_of,
    git_dirs,
    name_of,
    remove,
)
from sequencer.model.names import is_branch_name
from tests.unit.git.clones import ENVIRONMENT, git, write
from tests.unit.git.teams import project


@pytest.mark.parametrize("task", ["build", "A/b", "x.lock", "..", "-", "", "é", "a" * 500])
@pytest.mark.parametrize("run", [None, "nightly", "../x", "-x.lock"])
def test_names_are_fit_for_folders_and_branches(task: str, run: str | None) -> None:
    name = name_of(task, 7)
    assert "/" not in name
    assert name.endswith("-7")
    assert len(name) < 200
    assert is_branch_name(branch_of(run, name))
    assert branch_of(run, name).startswith("sequencer-team/")


# --- what git has --------------------------------------------------------------------------


def test_one_over_which_git_was_killed_is_found_by_its_name(tmp_path: Path) -> None:
    kept = tmp_path / ".git/worktrees"
    for name in ("build-1", "build-11", "build-1-again2", "builder", "build-1x"):
        write(kept, {f"{name}/locked": "initializing"})
    write(kept, {"build-12/HEAD": "x"})
    found = [path.name for path in git_dirs(tmp_path / ".git", tmp_path / "w/build-1")]
    # build-11 is what git calls a second build-1.
    assert found == ["build-1", "build-11"]


def test_git_of_a_place_never_works_in_the_checkout_around_it(tmp_path: Path) -> None:
    here = project(tmp_path / "here")
    inner = here / "sync/worktrees/x"
    git(here, "worktree", "add", "-q", "-b", "x", str(inner))
    (inner / ".git").unlink()
    placed = Git(here, ENVIRONMENT).at(inner, git_dir=here / ".git/worktrees/x")
    assert placed.text("symbolic-ref", "HEAD") == "refs/heads/x"
    assert placed.text("rev-parse", "--show-toplevel") == str(inner)
    gone = Git(here, ENVIRONMENT).at(inner, git_dir=here / ".git/worktrees/gone")
    with pytest.raises(GitFailed, match="not a git repository"):
        gone.text("symbolic-ref", "HEAD")


# --- removing ------------------------------------------------------------------------------


def test_a_folder_is_removed_and_nothing_behind_links_in_it(tmp_path: Path) -> None:
    write(tmp_path, {"kept/file": "x", "gone/deep/er/file": "x"})
    (tmp_path / "gone/link").symlink_to(tmp_path / "kept", target_is_directory=True)
    (tmp_path / "kept").chmod(0o500)
    (tmp_path / "gone/deep/er").chmod(0)
    assert remove(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
    assert (tmp_path / "kept/file").read_text() == "x"
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o500
    assert remove(tmp_path / "gone")


def test_somebody_who_still_writes_there_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    write(folder, {"x": "x"})
    ends = time.monotonic() + 0.3

    def busy() -> None:
        number = 0
        while time.monotonic() < ends:
            number += 1
            folder.mkdir(exist_ok=True)
            (folder / str(number)).touch()
            time.sleep(0.002)

    writer = threading.Thread(target=_until_gone, args=(busy,))
    writer.start()
    while time.monotonic() < ends:
        remove(folder)
    writer.join()
    assert remove(folder)
    assert not folder.exists()


def _until_gone(work: object) -> None:
    """Do *work*, again where the folder was removed in between."""
    assert callable(work)
    while True:
        try:
            work()
        except FileNotFoundError:
            continue
        return


def test_what_can_not_be_removed_is_told_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMOVAL_S", 0.1)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert not remove(tmp_path)
