"""The lock of a step's processes: who holds it, who waits for it, and whom it may end."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest

from sequencer.errors import MachineBusy, StorageFailed, to_machine_busy
from sequencer.executors import attempt_lock
from sequencer.executors.attempt_lock import MARK, AttemptLock, find_left_processes, lock_path
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.guard_process import Guard
from sequencer.executors.launch import Launch
from sequencer.executors.process import ProcessCore
from sequencer.executors.pump import OutputConsumer
from sequencer.project.agent_checks import check_left_processes
from sequencer.store.identity import pid_namespace

SLEEP = [sys.executable, "-IS", "-c", "import time; print(flush=True); time.sleep(300)"]


@pytest.fixture
def cancellation() -> Iterator[Cancellation]:
    made = Cancellation()
    yield made
    made.close()


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def marked_child(children: list[subprocess.Popen[bytes]], **variables: str) -> psutil.Process:
    """Start a process that has only *variables*, and wait until it is up."""
    child = subprocess.Popen(SLEEP, env=variables, stdout=subprocess.PIPE)
    children.append(child)
    assert child.stdout is not None
    assert child.stdout.readline() == b"\n"
    return psutil.Process(child.pid)


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


class Told(list[str]):
    """What was said."""

    def lock(self, folder: Path, node: str | None = None) -> AttemptLock:
        return AttemptLock(lock_path(folder / "state.json", node), self.append)


def is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def left_by(folder: Path, mark: str, where: str | None = None) -> Path:
    """Leave the file of an attempt with *mark* whose guard and sequencer were killed."""
    path = lock_path(folder / "state.json")
    path.parent.mkdir()
    path.write_text(f"{mark} {pid_namespace() if where is None else where}\n")
    return path


def test_the_next_attempt_waits_for_the_last_process_and_reports_it_once(
    tmp_path: Path, cancellation: Cancellation
) -> None:
    told = Told()
    first, second = told.lock(tmp_path), told.lock(tmp_path)
    assert first.acquire(cancellation)
    timer = threading.Timer(0.2, first.close)
    timer.start()
    assert second.acquire(cancellation)
    timer.join()
    assert told == ["waiting for the last process of the earlier attempt"]
    second.close()
    assert not second.path.exists()


def test_waiting_ends_with_the_attempt(tmp_path: Path, cancellation: Cancellation) -> None:
    told = Told()
    first, second = told.lock(tmp_path), told.lock(tmp_path)
    assert first.acquire(cancellation)
    cancellation.set(StopReason.INTERRUPTED)
    assert not second.acquire(cancellation)
    assert second.fd == -1
    first.close()


def test_a_process_never_ends_itself_or_its_ancestors(tmp_path: Path) -> None:
    mark, program = secrets.token_hex(16), tmp_path / "inner.py"
    program.write_text(
        "import os, subprocess, sys\n"
        "from sequencer.executors.attempt_lock import end_marked\n"
        "if len(sys.argv) > 2:\n"
        "    print(len(end_marked(sys.argv[1])), flush=True)\n"
        "else:\n"
        "    raise SystemExit(subprocess.run([sys.executable, *sys.argv, 'x']).returncode)\n"
    )
    argv = [sys.executable, str(program), mark]
    folder = Path(__file__).parents[3]
    variables = {MARK: mark, "PYTHONPATH": str(folder)}
    ended = subprocess.run(argv, env=variables, capture_output=True, check=False, timeout=60)
    # Both of them are left, and nobody may start beside them.
    assert (ended.returncode, ended.stdout) == (0, b"2\n"), ended.stderr


def test_the_message_names_the_processes_that_could_not_be_ended(
    tmp_path: Path, cancellation: Cancellation, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_by(tmp_path, secrets.token_hex(16))
    monkeypatch.setattr(attempt_lock, "end_marked", lambda *_: [71, 72])
    with pytest.raises(MachineBusy, match="processes 71, 72 of an earlier") as refused:
        Told().lock(tmp_path).acquire(cancellation)
    assert refused.value.where == str(path)


def test_processes_of_a_held_lock_do_not_count_as_left(
    tmp_path: Path, cancellation: Cancellation, children: list[subprocess.Popen[bytes]]
) -> None:
    state_path, mark = tmp_path / "state.json", secrets.token_hex(16)
    assert find_left_processes(state_path) == {}
    lock = Told().lock(tmp_path)
    assert lock.acquire(cancellation)
    lock.record_mark(mark)
    process = marked_child(children, **{MARK: mark})
    assert find_left_processes(state_path) == {}
    lock.is_clean = False
    lock.close()
    assert find_left_processes(state_path) == {lock.path: [process.pid]}
    (finding,) = check_left_processes(state_path)
    assert f"process {process.pid} of an earlier attempt" in finding.message


def test_a_note_that_cannot_be_written_starts_nothing_and_fails_no_agent(
    tmp_path: Path, cancellation: Cancellation
) -> None:
    lock = Told().lock(tmp_path)
    assert lock.acquire(cancellation)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, lock.fd)
    os.close(full)
    argv = [sys.executable, "-IS", "-c", f"open({str(tmp_path / 'begun')!r}, 'w')"]
    launch = Launch(
        identity=None, argv=tuple(argv), environment={}, cwd=tmp_path, prompt=b"", lock=lock
    )
    with ProcessCore() as core:
        core.prepare()
        for _ in ("with the guard that waits", "with a fresh one"):
            with pytest.raises(StorageFailed) as failed:
                core.run(launch, cast("OutputConsumer", Ignored()), cancellation)
            found = to_machine_busy(failed.value)
            assert found is not None
            assert "no room left" in found.message
    assert not (tmp_path / "begun").exists()
    assert not [one for one in psutil.Process().children() if "guard.py" in str(one.cmdline())]


class Ignored:
    """Hears nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def test_a_note_is_written_whole_despite_partial_writes(
    tmp_path: Path, cancellation: Cancellation, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, mark, write = Told().lock(tmp_path), secrets.token_hex(16), os.write
    assert lock.acquire(cancellation)
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:7]))
    lock.record_mark(mark)
    monkeypatch.undo()
    assert lock.path.read_text() == f"{mark} {pid_namespace()}\n"
    lock.close()


def test_a_holder_without_processes_loses_its_lock_and_starts_nothing_more(
    tmp_path: Path, cancellation: Cancellation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_lock, "WAIT_S", 0.05)
    told = Told()
    asleep, second = told.lock(tmp_path), told.lock(tmp_path)
    assert asleep.acquire(cancellation)
    asleep.record_mark(secrets.token_hex(16))
    assert second.acquire(cancellation)
    with pytest.raises(MachineBusy, match="taken over the step"):
        asleep.record_mark(secrets.token_hex(16))
    asleep.close()
    assert is_locked(second.path)
    second.close()
    assert not second.path.exists()


def test_processes_in_another_container_keep_the_machine_busy(
    tmp_path: Path, cancellation: Cancellation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_lock, "WAIT_S", 0.05)
    path = left_by(tmp_path, secrets.token_hex(16), "pid:[1]")
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    lock = Told().lock(tmp_path)
    with pytest.raises(MachineBusy, match="another container") as refused:
        lock.acquire(cancellation)
    assert refused.value.where == str(path)
    assert path.stat().st_size > 0
    os.close(holder)
    # Without its processes nobody holds it.
    assert lock.acquire(cancellation)
    lock.close()


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_lock_path_that_is_not_a_regular_file_is_not_touched(
    kind: str, tmp_path: Path, cancellation: Cancellation
) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    path = lock_path(tmp_path / "state.json")
    path.parent.mkdir()
    if kind == "link":
        path.symlink_to(target)
    else:
        path.mkdir()
    with pytest.raises(StorageFailed):
        Told().lock(tmp_path).acquire(cancellation)
    assert target.read_text() == "mine"
    assert os.path.lexists(path)


def test_the_next_attempt_ends_processes_the_last_one_could_not(
    tmp_path: Path, cancellation: Cancellation, children: list[subprocess.Popen[bytes]]
) -> None:
    mark = secrets.token_hex(16)
    lock = Told().lock(tmp_path)
    assert lock.acquire(cancellation)
    lock.record_mark(mark)
    lock.is_clean = False
    lock.close()
    survivor = marked_child(children, **{MARK: mark})
    assert lock.acquire(cancellation)
    assert not is_alive(survivor)
    lock.close()


# --- with a guard ------------------------------------------------------------------------


def launched(folder: Path, lock: AttemptLock, *argv: str) -> Guard:
    guard = Guard()
    environment = {"PATH": os.environ["PATH"]}
    guard.run(
        Launch(identity=None, argv=argv, environment=environment, cwd=folder, prompt=b"", lock=lock)
    )
    return guard
