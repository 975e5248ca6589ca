"""Worktrees of tasks: notes, commits of what was left, removal after kills."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.files.textfile import is_branch_name
from sequencer.plugins.git.code import checkout, gathering
from sequencer.plugins.git.code import worktrees as module
from sequencer.plugins.git.code.checkout import FolderResult
from sequencer.plugins.git.code.worktrees import (
    branch_name,
    find_git_dirs,
    remove_folder,
    worktree_name,
)
from tests.unit.git.clones import ENVIRONMENT, SECRET, commit, git, said, tree_of, write
from tests.unit.git.teams import branches, closed, opened, project, remains, worked, workplaces

PEM = "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n", "b": "b\n", "d/c": "c\n"})


def made_by(here: Path, work: Callable[[Path], object]) -> dict[str, str]:
    """Return the files of the project after *work* was merged."""
    assert worked(workplaces(here), work).result is FolderResult.MERGED
    found = tree_of(here)
    return {path: text for path, text in found.items() if path not in (".gitignore", "README.md")}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("k.py", SECRET, "contains what looks like a key"),
        ("k.py", "hunter2-hunter2", "contains what looks like a key"),
        ("pem", PEM.format("MIIE" * 20), "contains what looks like a key"),
        (".env", "A=1\n", "has a name that is used for secrets"),
        (f"{SECRET}.txt", "x", "has a name that looks like a key"),
        ("large", "x" * 2001, "has 2001 bytes, more than 2000"),
    ],
)
def test_files_that_are_never_committed_fail_the_attempt(
    here: Path, name: str, text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MAX_FILE_BYTES", 2000)
    place = opened(workplaces(here))
    write(place.cwd, {name: text, "a": "changed\n"})
    left = closed(place)
    assert (left.result, left.error is not None, left.files) == (
        FolderResult.REFUSED,
        True,
        (name,),
    )
    assert left.error is not None
    assert reason in left.error
    assert left.hint is not None
    assert str(place.folder) in left.hint
    assert (place.folder / name).read_text() == text
    assert said(here, "rev-list", "--all", "--count") == "1"


def test_files_that_are_too_large_together_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MAX_TOTAL_BYTES", 5000)
    place = opened(workplaces(here))
    write(place.cwd, {f"f{number:02}": "x" * 1000 for number in range(20)})
    left = closed(place)
    assert left.result is FolderResult.REFUSED
    assert len(left.files) == 15
    assert left.error is not None
    assert "and 5 more" in left.error


def test_a_link_that_leads_out_of_the_worktree_is_refused(here: Path) -> None:
    place = opened(workplaces(here))
    (place.cwd / "link").symlink_to("/etc/passwd")
    assert closed(place).files == ("link",)


def test_a_key_already_in_a_file_does_not_block_other_changes_to_it(here: Path) -> None:
    commit(here, {"fixture": f"{SECRET}\nother\n", ".env.example": "A=\n"})
    found = made_by(
        here, lambda at: write(at, {"fixture": f"{SECRET}\nedited\n", ".env.example": "A=1\n"})
    )
    assert found["fixture"] == f"100644 {SECRET}\nedited\n"
    assert found[".env.example"] == "100644 A=1\n"
    place = opened(workplaces(here), token=2)
    write(place.cwd, {"fixture": f"{SECRET}\n{SECRET[::-1]} sk-{'z9' * 20}\n"})
    assert closed(place).files == ("fixture",)


def test_a_file_that_is_still_written_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = checkout.stage

    def late(*arguments: object) -> None:
        stage(*arguments)  # type: ignore[arg-type]
        write(place.cwd, {"new": SECRET})

    monkeypatch.setattr(gathering, "stage", late)
    place = opened(workplaces(here))
    write(place.cwd, {"new": "harmless\n"})
    left = closed(place)
    assert (left.result, left.files) == (FolderResult.REFUSED, ("new",))
    assert left.error is not None
    assert "was changed while it was read" in left.error


# --- agents that use git themselves -------------------------------------------------------


def test_work_on_a_detached_head_is_merged(here: Path) -> None:
    def work(at: Path) -> None:
        git(at, "checkout", "-q", "--detach")
        commit(at, {"a": "1\n"})

    assert made_by(here, work)["a"] == "100644 1\n"


def test_commits_the_agent_abandoned_are_not_lost(here: Path) -> None:
    place = opened(workplaces(here))
    left_behind = commit(place.cwd, {"a": "first try\n"})
    git(place.cwd, "checkout", "-q", "-b", "feature", "HEAD~1")
    commit(place.cwd, {"b": "second try\n"})
    left = closed(place)
    assert left.result is FolderResult.MERGED
    assert tree_of(here)["a"] == "100644 a\n"
    assert branches(here) == [f"{place.branch}.left"]
    assert said(here, "rev-parse", f"{place.branch}.left") == left_behind
    assert left.notices == (
        f"the agent continued from another commit; what it left is on {place.branch}.left",
    )


def test_a_branch_without_a_commit_is_refused(here: Path) -> None:
    place = opened(workplaces(here))
    git(place.cwd, "checkout", "-q", "--orphan", "fresh")
    left = closed(place)
    assert left.result is FolderResult.REFUSED
    assert left.error is not None
    assert "without a commit" in left.error
    assert remains(here) == [".git/implement-1", "implement-1", "implement-1.json"]


def test_a_clone_in_the_worktree_is_not_committed_and_not_lost(here: Path, tmp_path: Path) -> None:
    other = project(tmp_path / "other")
    place = opened(workplaces(here))
    git(place.cwd, "clone", "-q", str(other), "vendor/it")
    git(place.cwd, "init", "-q", "empty")
    write(place.cwd, {"a": "1\n"})
    left = closed(place)
    assert (left.result, left.branch, left.folder) == (FolderResult.MERGED, None, place.folder)
    assert tree_of(here)["a"] == "100644 1\n"
    assert not [path for path in tree_of(here) if path.startswith(("vendor", "empty"))]
    assert (place.folder / "vendor/it/README.md").exists()
    assert "vendor/it/" in left.notices[0]
    assert str(place.folder) in left.notices[-1]


def test_rejected_work_next_to_a_clone_is_reported_with_its_branch(
    here: Path, tmp_path: Path
) -> None:
    other = project(tmp_path / "other")
    place = opened(workplaces(here))
    git(place.cwd, "clone", "-q", str(other), "vendor")
    write(place.cwd, {"a": "1\n"})
    left = closed(place, is_accepted=False)
    assert (left.result, left.branch, left.folder) == (
        *(FolderResult.KEPT, place.branch, place.folder),
    )


def test_commits_in_a_submodule_are_not_lost(here: Path, tmp_path: Path) -> None:
    library = project(tmp_path / "library")
    allowed = ("-c", "protocol.file.allow=always")
    git(here, *allowed, "submodule", "--quiet", "add", str(library), "lib")
    git(here, "commit", "-q", "-m", "library")
    place = opened(workplaces(here))
    assert list((place.cwd / "lib").iterdir()) == []
    git(place.cwd, *allowed, "submodule", "--quiet", "update", "--init")
    made = commit(place.cwd / "lib", {"x": "x\n"})
    write(place.cwd, {"a": "1\n"})
    left = closed(place)
    assert (left.result, left.folder) == (FolderResult.MERGED, place.folder)
    assert tree_of(here)["a"] == "100644 1\n"
    assert said(place.folder / "lib", "rev-parse", "HEAD") == made
    assert "'lib'" in left.notices[0]


def test_a_worktree_shares_the_objects_of_its_repository(here: Path) -> None:
    commit(here, {"big": "".join(f"{number * number}\n" for number in range(60_000))})
    before = used(here / ".git")
    place = opened(workplaces(here))
    assert used(here / ".git") - before < 64 * 1024
    assert not (place.folder / ".git").is_dir()
    closed(place)


def used(folder: Path) -> int:
    """Return how many KiB *folder* takes, in bytes."""
    done = subprocess.run(
        ["du", "-sk", str(folder)], env=ENVIRONMENT, capture_output=True, check=True
    )
    return int(done.stdout.split()[0]) * 1024


@pytest.mark.parametrize("task", ["build", "A/b", "x.lock", "..", "-", "", "é", "a" * 500])
@pytest.mark.parametrize("run", [None, "nightly", "../x", "-x.lock"])
def test_names_are_fit_for_folders_and_branches(task: str, run: str | None) -> None:
    name = worktree_name(task, 7)
    assert "/" not in name
    assert name.endswith("-7")
    assert len(name) < 200
    assert is_branch_name(branch_name(run, name))
    assert branch_name(run, name).startswith("sequencer-team/")


# --- what git has --------------------------------------------------------------------------


def test_a_git_folder_of_a_killed_git_is_found_by_its_name(tmp_path: Path) -> None:
    kept = tmp_path / ".git/worktrees"
    for name in ("build-1", "build-11", "build-1-again2", "builder", "build-1x"):
        write(kept, {f"{name}/locked": "initializing"})
    write(kept, {"build-12/HEAD": "x"})
    found = [path.name for path in find_git_dirs(tmp_path / ".git", tmp_path / "w/build-1")]
    # build-11 is what git calls a second build-1.
    assert found == ["build-1", "build-11"]


# --- removing ------------------------------------------------------------------------------


def test_removal_waits_for_a_process_that_still_writes_there(tmp_path: Path) -> None:
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
        remove_folder(folder)
    writer.join()
    assert remove_folder(folder)
    assert not folder.exists()


def _until_gone(work: object) -> None:
    """Do *work*, again where the folder was removed in between."""
    assert callable(work)
    while True:
        try:
            work()
        except (FileNotFoundError, FileExistsError):
            # The latter is mkdir's, where the folder went before it looked what is there.
            continue
        return


def test_a_failed_removal_is_reported_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMOVAL_S", 0.1)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert not remove_folder(tmp_path)
