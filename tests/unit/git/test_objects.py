"""Commits that are written by fast-import and read by cat-file, in real repositories."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.git import objects as module
from sequencer.git.objects import CommitDraft, Objects
from sequencer.git.process import Git, GitFailed
from tests.unit.git import remotes

REF = "refs/sequencer/x/draft"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return remotes.new_remote(tmp_path / "r.git")


@pytest.fixture
def objects(folder: Path) -> Iterator[Objects]:
    made = Objects(Git(folder, git_dir=folder))
    yield made
    made.close()


def draft(files: dict[str, bytes | None], parent: str | None = None, **more: object) -> CommitDraft:
    return CommitDraft(f"ä: {len(files)}\n", parent, files, 1_700_000_000, **more)  # type: ignore[arg-type]


def test_another_kind_is_refused(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    with pytest.raises(GitFailed, match="is a commit, not a blob"):
        objects.read(commit, "blob")
    with pytest.raises(GitFailed, match="is a commit, not a tree"):
        objects.tree(commit)
    assert objects.read(f"{commit}:a", "blob") == b"1", "and the next answer is its own"


def test_a_name_cannot_smuggle_another_question(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    with pytest.raises(GitFailed, match="one line"):
        objects.resolve(f"HEAD\n{commit}")
    assert objects.resolve(commit) == commit


def test_what_is_too_large_is_not_read(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = objects.write(draft({"a": b"x" * 101, "b": b"2"}), REF)
    monkeypatch.setattr(module, "MAX_OBJECT_BYTES", 100)
    with pytest.raises(GitFailed, match="101 bytes"):
        objects.read(f"{commit}:a", "blob")
    assert objects.read(f"{commit}:b", "blob") == b"2", "by a reader of its own"


def test_a_reader_that_was_killed_is_started_again(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    reader = objects._reader
    assert objects.resolve(commit) == commit
    reader = objects._reader
    assert reader is not None
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    assert objects.read(f"{commit}:a", "blob") == b"1"
    assert objects._reader is not reader


def test_why_the_reader_ends_at_once_is_told(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    reader = Objects(Git(tmp_path / "plain", {**os.environ, "GIT_CEILING_DIRECTORIES": "/"}))
    with pytest.raises(GitFailed, match="not a git repository"):
        reader.resolve("HEAD")
