"""One git process: what it is given, what it may not do, and how it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from sequencer.errors import ConfigurationError
from sequencer.store.git.command import Git, GitFailed
from tests.unit.store.git import remotes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return remotes.new_clone(tmp_path / "none.git", tmp_path / "clone")


def test_another_repository_in_the_environment_is_not_meant(folder: Path, tmp_path: Path) -> None:
    other = remotes.new_remote(tmp_path / "other.git")
    spoiled = {
        "PATH": os.environ["PATH"],
        "GIT_DIR": str(other),
        "GIT_WORK_TREE": str(tmp_path),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_TRACE": "1",
    }
    done = Git(folder, spoiled).run("rev-parse", "--absolute-git-dir")
    assert done.stdout.decode().strip() == str(folder / ".git")
    assert done.stderr == ""


def test_nobody_is_asked_for_a_password(folder: Path) -> None:
    given = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "de_DE.UTF-8"}
    told = Git(folder, given).text("-c", "alias.environment=!env", "environment").splitlines()
    assert {"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "LC_ALL=C", "HOME=/nowhere"} <= set(told)
    own = Git(folder, {**given, "GIT_ASKPASS": "/bin/mine"})
    assert "GIT_ASKPASS=/bin/mine" in own.text("-c", "alias.e=!env", "e").splitlines()


def test_the_users_hooks_have_no_part_in_it(folder: Path) -> None:
    canary = folder / "canary"
    hook = folder / ".git" / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
    hook.chmod(0o755)
    tree = Git(folder).text("mktree")
    commit = remotes.git(folder, "commit-tree", "-m", "x", tree)
    Git(folder).run("update-ref", "refs/x", commit)
    assert not canary.exists()
    remotes.git(folder, "update-ref", "refs/y", commit)
    assert canary.exists(), "a check of the check"


def test_an_end_that_was_not_expected_is_told_with_gits_words(folder: Path) -> None:
    git = Git(folder)
    with pytest.raises(GitFailed, match="git rev-parse ended with 128") as failed:
        git.run("rev-parse", "--verify", "refs/heads/none")
    assert failed.value.reason == "Needed a single revision"
    assert git.run("rev-parse", "--verify", "x", accepts=(0, 128)).code == 128
    assert git.started == 2


def test_what_takes_too_long_is_killed_with_its_children(folder: Path) -> None:
    git = Git(folder, timeout_s=1.0)
    mark = "31.4159"
    began = time.monotonic()
    with pytest.raises(GitFailed) as failed:
        git.run("-c", f"alias.slow=!sleep {mark}", "slow")
    assert time.monotonic() - began < 10
    assert failed.value.code is None
    assert failed.value.reason == "no answer in time"
    time.sleep(0.1)
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
    assert left == []


def test_a_shorter_limit_than_usual(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(GitFailed):
        Git(folder).run("-c", "alias.slow=!sleep 30", "slow", timeout_s=0.5)
    assert time.monotonic() - began < 10


def test_without_git_that_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="git is not installed"):
        Git(folder, {"PATH": str(tmp_path)}).run("version")
    with pytest.raises(ConfigurationError, match="is no folder"):
        Git(tmp_path / "nowhere", {"PATH": str(tmp_path)}).run("version")
