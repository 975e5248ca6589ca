"""Which files the file tools reach, and what becomes of them on an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.executors.project_tools import (
    MAX_FILE_BYTES,
    MAX_WRITE_BYTES,
    FileFailed,
    PathRefused,
    ToolFolder,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "sync").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "src").mkdir()
    (root / "sync" / "state.json").write_text("{}")
    (root / ".git" / "config").write_text("[core]")
    (root / ".env").write_text("KEY=1")
    (root / "src" / "a.py").write_text("print(1)\n")
    (tmp_path / "outside.txt").write_text("outside")
    return root


def folder_of(project: Path) -> ToolFolder:
    return ToolFolder(project, [project / "sync"])


@pytest.mark.parametrize(
    "name",
    [
        "../outside.txt",
        "src/../../outside.txt",
        "/etc/passwd",
        "..",
        "",
        "a\x00b",
        ".git/config",
        ".GIT/config",
        "src/.git/hooks/pre-commit",
        "sync/state.json",
        "sync",
        "sync/new/file",
        "src/../sync/state.json",
        ".env",
        ".env.local",
        "keys/server.PEM",
        "home/id_rsa",
    ],
)
def test_protected_paths_are_refused_to_tools(project: Path, name: str) -> None:
    folder = folder_of(project)
    with pytest.raises(PathRefused):
        folder.read(name)
    with pytest.raises(PathRefused):
        folder.write(name, "x")
    assert (project / "sync" / "state.json").read_text() == "{}"


@pytest.mark.parametrize("target", ["../outside.txt", "sync/state.json", ".git/config", ".env"])
def test_a_link_is_judged_by_where_it_leads(project: Path, target: str) -> None:
    (project / "link").symlink_to(target)
    with pytest.raises(PathRefused):
        folder_of(project).read("link")
    with pytest.raises(PathRefused):
        folder_of(project).write("link", "x")


def test_a_loop_of_links_is_refused(project: Path) -> None:
    (project / "a").symlink_to("b")
    (project / "b").symlink_to("a")
    with pytest.raises((PathRefused, FileFailed)):
        folder_of(project).read("a")


def test_a_fifo_does_not_hang_and_a_folder_is_no_file(project: Path) -> None:
    os.mkfifo(project / "fifo")
    for name in ("fifo", "src"):
        with pytest.raises(FileFailed, match="regular file"):
            folder_of(project).read(name)
        with pytest.raises(FileFailed):
            folder_of(project).write(name, "x")


def test_sizes_are_limited(project: Path) -> None:
    with (project / "huge").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(FileFailed, match="allowed"):
        folder_of(project).read("huge")
    with pytest.raises(FileFailed, match="allowed"):
        folder_of(project).write("src/a.py", "x" * (MAX_WRITE_BYTES + 1))
    assert (project / "src" / "a.py").read_text() == "print(1)\n"


def test_a_file_system_error_is_an_answer_and_not_a_crash(project: Path) -> None:
    with pytest.raises(FileFailed, match="can't be written"):
        folder_of(project).write("src/a.py/below", "x")
    with pytest.raises(FileFailed, match="can't be written"):
        folder_of(project).write("n" * 300, "x")
    with pytest.raises(FileFailed, match="can't be read"):
        folder_of(project).read("missing.txt")
