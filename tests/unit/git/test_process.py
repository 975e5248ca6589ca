"""Git processes, the locks they leave, and the objects they read and write."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sequencer.errors import RemoteUnreachable, StorageFailed, WorkTreeRefused
from sequencer.plugins.git import process as command
from sequencer.plugins.git.code import commit as committing
from sequencer.plugins.git.process import Git, GitFailed, is_never_stopped
from sequencer.plugins.git.state import locks
from sequencer.plugins.git.state import objects as module
from sequencer.plugins.git.state.objects import CommitDraft, Objects
from sequencer.plugins.git.state.remote import Remote
from sequencer.project.store_requests import EVERYTHING
from tests.clones import Shared
from tests.unit.git import remotes
from tests.unit.git.clones import repository, write
from tests.unit.git.committed import committed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return remotes.new_clone(tmp_path / "none.git", tmp_path / "clone")


def ssh(
    folder: Path,
    script: str,
    timeout_s: float = 20.0,
    is_stopped: Callable[[], bool] = is_never_stopped,
) -> Git:
    """Return a git whose remote is reached by *script*, as `ssh HOST COMMAND` would."""
    path = folder / "ssh.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    remotes.git(folder, "remote", "set-url", "origin", f"ssh://host{folder}/.git")
    remotes.git(folder, "config", "core.sshCommand", str(path))
    remotes.git(folder, "config", "ssh.variant", "simple")
    return Git(folder, timeout_s=timeout_s, allowed=EVERYTHING, is_stopped=is_stopped)


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


def test_a_process_that_ssh_leaves_running_is_not_waited_for(folder: Path) -> None:
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


def test_ctrl_c_during_a_start_leaves_no_process_running(
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


def test_a_stopping_process_does_not_wait_long_for_a_hanging_remote(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops_at = time.monotonic() + 0.5
    git = ssh(folder, "sleep 30 # $1", is_stopped=lambda: time.monotonic() > stops_at)
    monkeypatch.setattr(command, "STOPPED_S", 2.0)
    monkeypatch.setattr(command, "HANGING_S", 0.2)
    with pytest.raises(GitFailed, match="no answer in time"):
        git.run("ls-remote", "--", "origin")
    assert 2.4 < time.monotonic() - stops_at + 0.5 < 7
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(GitFailed, match="no answer in time"):
            git.run("fetch", "--", "origin")
    assert time.monotonic() - began < 2.0, "what has hung once is not waited for as long again"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path / "shared")
    yield made
    made.close()


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A repository in which a git works: it waits for what it is to read."""
    folder = repository(tmp_path / "busy")
    argv = ["git", "cat-file", "--batch"]
    with subprocess.Popen(argv, cwd=folder, stdin=subprocess.PIPE) as process:
        yield folder, process.pid
        process.kill()


def left(path: Path, age_s: float = 7200.0) -> Path:
    """Leave a lock as a git does that was killed so long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    at = time.time() - age_s
    os.utime(path, (at, at))
    return path


def test_a_lock_is_reported_with_its_age_and_the_command_to_remove_it(tmp_path: Path) -> None:
    folder = repository(tmp_path / "it's a folder")
    lock = locks.read_lock(left(folder / ".git" / "index.lock"), folder / ".git")
    assert lock is not None
    assert lock.description == f"{lock.path} has been there for 2 h, and no git is working there"
    assert lock.workers == ()
    command = lock.hint.split(", '", 1)[1].removesuffix("'")
    subprocess.run(["sh", "-c", command], check=True)
    assert not lock.path.exists()
    assert locks.read_lock(lock.path, folder) is None


def test_a_git_process_at_work_is_named_and_waited_for(at_work: tuple[Path, int]) -> None:
    folder, pid = at_work
    lock = locks.read_lock(left(folder / ".git" / "index.lock", 5), folder / ".git")
    assert lock is not None
    assert lock.workers == (pid,)
    assert lock.description.endswith(
        f"has been there for 5 s, and git (process {pid}) is working there"
    )
    assert lock.hint == f"wait until git (process {pid}) has finished"


def test_only_stale_locks_are_found(tmp_path: Path) -> None:
    git_dir = repository(tmp_path / "r") / ".git"
    names = ("index.lock", "packed-refs.lock", "refs/heads/a/b.lock", "HEAD.lock")
    for name in names:
        left(git_dir / name)
    left(git_dir / "config.lock", 5)
    left(git_dir / "objects" / "x.lock")
    found = [
        lock.path.relative_to(git_dir).as_posix()
        for lock in locks.find_stale_locks(git_dir, git_dir)
    ]
    assert found == sorted(names)


# --- where they are told -------------------------------------------------------------------------


def test_a_lock_on_the_index_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "LOCK_WAIT_S", 0.1)
    folder = repository(tmp_path / "r")
    write(folder, {"a": "1"})
    lock = left(folder / ".git" / "index.lock")
    with pytest.raises(
        WorkTreeRefused, match="has been there for 2 h, and no git is working"
    ) as refused:
        committed(folder)
    assert f"'rm {lock}'" in str(refused.value.hint)


def test_a_lock_in_the_way_of_a_fetch(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = shared.clone("ours")
    monkeypatch.setattr("sequencer.plugins.git.process._RACE_ATTEMPTS", 2)
    lock = left(clone / ".git" / "refs" / "mine" / "x.lock")
    with pytest.raises(
        StorageFailed, match="has been there for 2 h, and no git is working there"
    ) as failed:
        Remote(Git(clone, allowed=EVERYTHING), "origin").fetch({"refs/heads/main": "refs/mine/x"})
    assert f"'rm {lock}'" in str(failed.value.hint)


@pytest.mark.parametrize("where", ["sequencer", "sequencer-work"])
def test_a_stale_lock_on_one_of_our_own_refs_is_removed(where: str, shared: Shared) -> None:
    clone, ref = shared.clone("ours"), f"refs/worktree/{where}/x"
    lock = left(clone / ".git" / f"{ref}.lock")
    assert Remote(Git(clone, allowed=EVERYTHING), "origin").fetch({"refs/heads/main": ref})
    assert not lock.exists()


@pytest.mark.parametrize(
    "path",
    [
        ".git/refs/worktree/sequencer/../../../../yarn.lock",
        "{folder}/.git/refs/worktree/sequencer/../../../../yarn.lock",
        ".git/refs/worktree/sequencer/link/yarn.lock",
        ".git/refs/worktree/sequencer-work/yarn.lock",
    ],
)
@pytest.mark.parametrize(
    "script",
    [
        'printf "%04xERR %s" $((${#text} + 8)) "$text"',
        'text="no$nl$text"; printf "%04xERR %s" $((${#text} + 8)) "$text"',
        'printf "fatal: %s\\n" "$text" >&2; exit 1',
        'printf "remote: %s\\n" "$text" >&2; exit 1',
    ],
    ids=["error", "lines", "unmarked", "marked"],
)
def test_a_remote_cannot_have_a_file_removed(folder: Path, path: str, script: str) -> None:
    target = left(folder / "yarn.lock")
    own_refs = folder / ".git" / "refs" / "worktree"
    (own_refs / "sequencer").mkdir(parents=True)
    (own_refs / "sequencer" / "link").symlink_to(folder)
    # A folder of refs that is itself a link.
    (own_refs / "sequencer-work").symlink_to(folder)
    text = f"Unable to create '{path.format(folder=folder)}': File exists"
    git = ssh(folder, f"nl=$'\\n'\ntext=\"{text}\"\n{script}", timeout_s=5.0)
    with pytest.raises(GitFailed):
        git.run("fetch", "--quiet", "--", "origin", "refs/heads/main")
    assert target.exists()


def test_a_remote_cannot_have_an_empty_file_removed(folder: Path) -> None:
    target = folder / "ab" / ("c" * 38)
    target.parent.mkdir()
    target.touch()
    own_object = folder / ".git" / "objects" / "ab" / ("c" * 38)
    own_object.parent.mkdir()
    own_object.touch()
    git = ssh(folder, f'echo "error: object file {target} is empty" >&2; exit 1', timeout_s=5.0)
    with pytest.raises((RemoteUnreachable, StorageFailed)):
        Remote(git, "origin").refetch({"refs/heads/main": "refs/mine/x"})
    assert target.exists()
    assert not own_object.exists()


@pytest.mark.parametrize(
    "stderr",
    [
        "fatal: remote error: No space left on device, cannot lock ref, bad object",
        "fatal: remote error: sorry\nfatal: No space left on device, cannot lock ref, bad object",
        "remote: No space left on device, cannot lock ref, bad object",
        "remote: x\x0bfatal: No space left on device, cannot lock ref, bad object",
        "remote: x\rfatal: No space left on device, cannot lock ref, bad object",
    ],
)
def test_what_a_remote_says_is_no_fact_about_this_machine(stderr: str) -> None:
    failed = GitFailed(("fetch",), 128, stderr)
    assert failed.__cause__ is None
    assert not failed.is_race
    assert not failed.has_local_message(command.UNWRITABLE)
    assert not failed.has_local_message(command.INCOMPLETE)
    own_words = GitFailed(("fetch",), 128, f"fatal: No space left on device\n{stderr}")
    assert isinstance(own_words.__cause__, OSError)


REF = "refs/sequencer/x/draft"


@pytest.fixture
def folder_of_objects(tmp_path: Path) -> Path:
    return remotes.new_remote(tmp_path / "r.git")


@pytest.fixture
def objects(folder_of_objects: Path) -> Iterator[Objects]:
    made = Objects(Git(folder_of_objects, git_dir=folder_of_objects))
    yield made
    made.close()


def draft(files: dict[str, bytes | None], parent: str | None = None, **more: object) -> CommitDraft:
    return CommitDraft(f"ä: {len(files)}\n", parent, files, 1_700_000_000, **more)  # type: ignore[arg-type]


def test_another_kind_is_refused(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    with pytest.raises(GitFailed, match="is a commit, not a blob"):
        objects.read(commit, "blob")
    with pytest.raises(GitFailed, match="is a commit, not a tree"):
        objects.list_tree(commit)
    assert objects.read(f"{commit}:a", "blob") == b"1", "and the next answer is its own"


def test_a_name_cannot_smuggle_another_question(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    with pytest.raises(GitFailed, match="one line"):
        objects.resolve(f"HEAD\n{commit}")
    assert objects.resolve(commit) == commit


def test_an_object_that_is_too_large_is_not_read(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_reason_a_reader_ends_at_once_is_reported(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    reader = Objects(Git(tmp_path / "plain", {**os.environ, "GIT_CEILING_DIRECTORIES": "/"}))
    with pytest.raises(GitFailed, match="not a git repository"):
        reader.resolve("HEAD")
