"""One git process: what it is given, what it may not do, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sequencer.git import process as command
from sequencer.git.own_settings import EVERYTHING
from sequencer.git.process import Git, GitFailed
from tests.unit.git import remotes


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


def test_what_takes_too_long_is_killed_with_its_children(folder: Path) -> None:
    git = Git(folder)
    mark = seconds_of_this_process(31)
    began = time.monotonic()
    with pytest.raises(GitFailed) as failed:
        git.run("-c", f"alias.slow=!sleep {mark}", "slow", timeout_s=1.0)
    assert time.monotonic() - began < 10
    assert failed.value.code is None
    assert failed.value.reason == "no answer in time"
    until(lambda: not sleepers(mark))


def ssh(folder: Path, script: str, timeout_s: float = 20.0) -> Git:
    """Return a git whose remote is reached by *script*, as `ssh HOST COMMAND` would."""
    path = folder / "ssh.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    remotes.git(folder, "remote", "set-url", "origin", f"ssh://host{folder}/.git")
    remotes.git(folder, "config", "core.sshCommand", str(path))
    remotes.git(folder, "config", "ssh.variant", "simple")
    return Git(folder, timeout_s=timeout_s, allowed=EVERYTHING)


def seconds_of_this_process(seconds: int) -> str:
    """Return how long to sleep in a way that no other test does."""
    return f"{seconds}.{os.getpid()}"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def sleepers(seconds: str) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if process.info["cmdline"] == ["sleep", seconds]]


def test_what_ssh_leaves_behind_is_not_waited_for(folder: Path) -> None:
    """A master of ControlPersist keeps the pipes that it was started with."""
    commit = remotes.commit(folder, {"a": b"1"})
    remotes.git(folder, "update-ref", "refs/heads/x", commit)
    seconds = seconds_of_this_process(27)
    git = ssh(folder, f'setsid sleep {seconds} </dev/null >/dev/null & exec bash -c "$2"')
    began = time.monotonic()
    done = git.run("ls-remote", "--refs", "--", "origin")
    assert time.monotonic() - began < 10
    assert done.stdout.decode() == f"{commit}\trefs/heads/x\n"
    # It goes on: the next connection needs it.
    until(lambda: len(sleepers(seconds)) == 1)
    with pytest.raises(GitFailed, match="ended with 128: Could not read"):
        ssh(folder, f"setsid sleep {seconds} </dev/null >/dev/null & exit 1").run(
            "ls-remote", "--", "origin"
        )
    assert time.monotonic() - began < 20
    until(lambda: len(sleepers(seconds)) == 2)
    for process in sleepers(seconds):
        process.kill()


def test_ctrl_c_in_the_middle_of_a_start_leaves_nobody_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is there, and nobody has been told of it yet."""
    mark, real = seconds_of_this_process(33), subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = real(*arguments, **options)
        until(lambda: len(sleepers(mark)) == 1)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Git(folder, allowed=EVERYTHING).run("-c", f"alias.slow=!sleep {mark}", "slow")
    until(lambda: not sleepers(mark))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # Where it is no reason to end at once, it is heard and git goes on.
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with pytest.raises(GitFailed) as failed:
            Git(folder, allowed=EVERYTHING).run(
                "-c", f"alias.slow=!sleep {mark}", "slow", timeout_s=2
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert failed.value.code is None, "its time was over"
    assert heard == [signal.SIGINT]


def test_who_was_told_to_stop_is_not_kept_by_a_remote_that_hangs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git, stops_at = ssh(folder, "sleep 30 # $1"), time.monotonic() + 0.5
    monkeypatch.setattr(command, "STOPPED_S", 2.0)
    monkeypatch.setattr(command, "HANGING_S", 0.2)
    git.stopped = lambda: time.monotonic() > stops_at
    with pytest.raises(GitFailed, match="no answer in time"):
        git.run("ls-remote", "--", "origin")
    assert 2.4 < time.monotonic() - stops_at + 0.5 < 7
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(GitFailed, match="no answer in time"):
            git.run("fetch", "--", "origin")
    assert time.monotonic() - began < 2.0, "what has hung once is not waited for as long again"
