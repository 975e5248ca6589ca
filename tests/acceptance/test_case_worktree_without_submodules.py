"""What a fresh worktree lacks of what the project has is said before an agent is paid for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.acceptance.team_projects import make_project
from tests.clones import ENVIRONMENT, git

CASE = Path(__file__).parent / "cases" / "worktree-without-submodules"
GIT: dict[str, Any] = dict(ENVIRONMENT)
EMPTY = "submodules are empty in a new worktree: 'data/'"
FILLS = "setup: [[git, submodule, update, --init, --recursive]] fills them"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def repository(folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(CASE / "orchestration.yaml", folder)
    (folder / ".gitignore").write_text("sync/\nlogs/\n.env\nnode_modules/\n__pycache__/\n")
    git(folder, "init", "-q", "-b", "main")
    committed(folder)
    return folder


def committed(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "more")


def with_submodule(folder: Path) -> None:
    other = folder.with_name("other")
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    (other / "corpus.txt").write_text("x\n")
    committed(other)
    git(folder, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(other), "data")
    committed(folder)


def said(folder: Path, *words: str, code: int = 0) -> str:
    done = cli(folder, *words, **GIT)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_empty_submodules_are_reported_by_check_and_before_the_run(
    tmp_path: Path,
) -> None:
    folder = repository(tmp_path / "p")
    with_submodule(folder)
    checked = said(folder, "check")
    assert EMPTY in checked
    assert FILLS in checked
    ran = said(folder, "--run", "x", "run")
    assert ran.index(EMPTY) < ran.index("[1] one: a with")
    assert FILLS in ran
    assert "files in data: 0" in ran


@pytest.mark.slow
def test_files_brought_by_setup_are_not_reported_as_missing(tmp_path: Path) -> None:
    folder = repository(tmp_path / "p")
    with_submodule(folder)
    config = folder / "orchestration.yaml"
    fill = "[git, -c, protocol.file.allow=always, submodule, --quiet, update, --init]"
    setup = f"setup: [{fill}, [sh, -c, 'echo X > .env']]\n"
    config.write_text(config.read_text() + setup)
    (folder / ".env").write_text("X\n")
    committed(folder)
    assert "submodules are empty" not in said(folder, "check")
    ran = said(folder, "--run", "x", "run")
    assert "new worktree:" not in ran
    assert "files in data: 1" in ran


def test_ignored_files_and_lfs_pointers_are_reported_too(tmp_path: Path) -> None:
    folder = repository(tmp_path / "p")
    (folder / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (folder / "big.bin").write_text(POINTER)
    committed(folder)
    git(folder, "config", "filter.lfs.clean", "cat")
    (folder / "big.bin").write_bytes(b"contents\0" * 10)
    git(folder, "update-index", "--assume-unchanged", "big.bin")
    (folder / ".env").write_text("KEY=1\n")
    for name in ("node_modules", "__pycache__"):
        (folder / name).mkdir()
        (folder / name / "x").write_text("x\n")
    for text in (said(folder, "check"), said(folder, "--run", "x", "run")):
        assert "git-lfs are only pointers in a new worktree: 'big.bin'" in text
        assert "git ignores are not there in a new worktree: '.env', 'node_modules/'" in text
        assert "__pycache__" not in text
        assert "sync/'" not in text


def test_nothing_is_reported_when_nothing_is_missing(tmp_path: Path) -> None:
    folder = repository(tmp_path / "p")
    assert "new worktree:" not in said(folder, "check") + said(folder, "--run", "x", "run")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("path", ["../outside", "/etc", "data\nx"])
def test_hostile_submodule_paths_are_ignored(tmp_path: Path, path: str) -> None:
    folder = repository(tmp_path / "p")
    git(folder, "config", "--file", ".gitmodules", "submodule.x.path", path)
    committed(folder)
    assert "submodules are empty" not in said(folder, "check") + said(folder, "--run", "x", "run")


@pytest.mark.slow
def test_missing_submodules_of_team_worktrees_are_reported_once(tmp_path: Path) -> None:
    tasks = [
        {"id": name, "subject": name, "role": "implementer", "blocked_by": before}
        for name, before in (("one", []), ("two", ["one"]))
    ]
    folder = make_project(tmp_path / "p", tasks, is_repository=True)
    with_submodule(folder)
    checked = said(folder, "check")
    assert EMPTY in checked
    ran = said(folder, "run")
    assert ran.count(EMPTY) == 1
    for text in (checked, ran):
        assert "a task's agent has to bring what it needs" in text
        assert "setup" not in text
