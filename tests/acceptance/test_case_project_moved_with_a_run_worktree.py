"""A project that is moved or copied with the worktree of a run: git's paths in it are old."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli
from tests.clones import git

CASE = Path(__file__).parent / "cases" / "project-moved-with-a-run-worktree"


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Return a project with a run that waits, of which the first step is done in its worktree."""
    folder = tmp_path / "before"
    folder.mkdir()
    shutil.copy(CASE / "orchestration.yaml", folder)
    (folder / ".gitignore").write_text("sync/\nlogs/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    assert cli(folder, "--run", "y", "run").returncode == 4
    return folder


def worktree(folder: Path) -> Path:
    (found,) = (folder / "sync" / "runs" / "y" / "worktrees").glob("run-*/")
    return found


def answered(folder: Path) -> None:
    assert cli(folder, "--run", "y", "answer", "approve").returncode == 0


@pytest.mark.slow
def test_a_moved_project_continues_in_its_own_worktree(before: Path) -> None:
    after = before.rename(before.with_name("after"))
    checked = cli(after, "check")
    assert "moved or copied with it" in checked.stdout + checked.stderr
    assert "the next start of the run repairs it" in checked.stdout + checked.stderr
    answered(after)
    done = cli(after, "--run", "y", "run")
    assert done.returncode == 0, done.stderr
    assert "it is this repository's now" in done.stderr
    assert (after / "work.txt").read_text() == "one\ntwo\n"
    checked = cli(after, "check")
    assert "worktree" not in checked.stdout + checked.stderr


@pytest.mark.slow
def test_a_copy_never_works_in_the_originals_repository(before: Path) -> None:
    copy = Path(shutil.copytree(before, before.with_name("copy"), symlinks=True))
    was = (git(before, "for-each-ref"), (worktree(before) / ".git").read_text())
    answered(copy)
    done = cli(copy, "--run", "y", "run")
    assert done.returncode == 0, done.stderr
    assert (copy / "work.txt").read_text() == "one\ntwo\n"
    assert not (before / "work.txt").exists()
    assert (git(before, "for-each-ref"), (worktree(before) / ".git").read_text()) == was
    assert git(worktree(before), "rev-parse", "--git-common-dir").strip() == str(before / ".git")
    answered(before)
    assert cli(before, "--run", "y", "run").returncode == 0
    assert (before / "work.txt").read_text() == "one\ntwo\n"


def refused(folder: Path) -> str:
    """Return what is said where no agent may start, in the run or in the check."""
    answered(folder)
    tree, before = worktree(folder), git(folder, "for-each-ref")
    done = cli(folder, "--run", "y", "run")
    assert done.returncode == 3, done.stderr
    assert f"worktree repair {tree.relative_to(folder)}" in done.stderr
    assert not any(word in done.stderr for word in ("remove", "prune", "rm -", "branch -D"))
    assert (tree / "work.txt").read_text() == "one\n"
    assert git(folder, "for-each-ref") == before
    checked = cli(folder, "check")
    assert checked.returncode == 3, checked.stdout
    return done.stderr


@pytest.mark.slow
def test_a_worktree_that_git_has_forgotten_is_refused(before: Path) -> None:
    after = before.rename(before.with_name("after"))
    git(after, "worktree", "prune", "--expire", "now")
    assert "has no such worktree" in refused(after)


@pytest.mark.slow
def test_a_separate_repository_in_the_worktree_is_refused(before: Path) -> None:
    tree = worktree(before)
    (tree / ".git").unlink()
    git(tree, "init", "-q")
    assert "is not a file that names a repository" in refused(before)


@pytest.mark.slow
def test_a_worktree_that_is_used_from_another_folder_is_refused(before: Path) -> None:
    tree = worktree(before)
    other = tree.with_name("other")
    shutil.copytree(tree, other)
    (before / ".git" / "worktrees" / tree.name / "gitdir").write_text(f"{other}/.git\n")
    assert "has that worktree in" in refused(before)


def test_a_link_in_place_of_gits_worktree_data_is_refused(before: Path, tmp_path: Path) -> None:
    place = before / ".git" / "worktrees" / worktree(before).name
    elsewhere = place.rename(tmp_path / "elsewhere")
    place.symlink_to(elsewhere)
    assert "has no such worktree" in refused(before)


def test_an_agent_that_redirects_its_worktree_gets_no_retry_elsewhere(
    before: Path, tmp_path: Path
) -> None:
    """Looked at before each attempt, not only at the start of a process."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    config = before / "orchestration.yaml"
    text = config.read_text().replace(", requires_approval: true", "")
    bends = f'echo "gitdir: {other}/.git" > .git'
    config.write_text(text.replace("git status --short || true", bends))
    done = cli(before, "--run", "z", "run")
    assert done.returncode == 0, done.stderr
    assert (before / "work.txt").read_text() == "one\ntwo\n"
    assert done.stderr.count("it is this repository's now") == 2
    assert [path.name for path in other.iterdir()] == [".git"]
