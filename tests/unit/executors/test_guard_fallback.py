"""What the guard does where the kernel gives it less: no subreaper, no children files.

The program is run with its view of the platform changed; all else is real.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sequencer.executors import guard, guard_process
from sequencer.executors.attempt_lock import MARK
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.launch import Launch
from sequencer.executors.process import ProcessCore, ProcessEnd
from tests.contract.executor_cases import wait_until

ENVIRONMENT = {"PATH": os.environ["PATH"]}


class Silent:
    def feed_stdout(self, data: bytes) -> bool:
        """Keep nothing."""
        return bool(data)

    def feed_stderr(self, data: bytes) -> bool:
        """Keep nothing."""
        return bool(data)


def run(core: ProcessCore, folder: Path, *argv: str, **limits: float) -> ProcessEnd:
    cancellation = Cancellation()
    launch = Launch(
        identity=None,
        argv=argv,
        environment=ENVIRONMENT,
        cwd=folder,
        prompt=b"",
        grace_s=0.2,
        timeout_s=limits.get("timeout_s"),
    )
    end = core.run(launch, Silent(), cancellation)
    cancellation.close()
    return end


def sent_to(data: bytes) -> int:
    """Return a socket from which *data* comes, and then its end."""
    reading, writing = socket.socketpair()
    with writing:
        writing.sendall(data)
    return reading.detach()


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """Return a child with a child of its own."""
    process = subprocess.Popen(["sh", "-c", "sleep 300 & echo up; wait"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.wait()
        process.stdout.close()


def test_without_children_files_all_processes_are_searched(
    family: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = set(guard.descendants())
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    assert {family.pid} < set(guard.descendants())
    assert expected <= set(guard.descendants())


def test_a_dead_process_has_no_children() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert guard.list_children(process.pid) == []


def test_a_record_comes_back_as_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["prog", "", "a b", "x\ny", "ü", "\udcff", "k=v"]
    environment = {"A": "", "B": "x=y", "C": "\udcfe\n"}
    launch = Launch(
        identity=None,
        argv=argv,
        environment=environment,
        cwd=tmp_path,
        prompt=b"",
        grace_s=2.5,
    )
    reading, writing = socket.socketpair()
    writing.sendall(guard_process.encode_record(launch, "m"))
    writing.close()
    read = reading.detach()
    monkeypatch.setattr(guard, "_CONTROL", read)
    record = guard.read_record()
    os.close(read)
    assert record is not None
    received = guard.Order(*record)
    assert received.lock == -1
    assert (received.grace_s, received.cwd) == (2.5, os.fsencode(tmp_path))
    assert list(map(os.fsdecode, received.argv)) == argv
    decoded = {os.fsdecode(k): os.fsdecode(v) for k, v in received.environment.items()}
    assert decoded == {**environment, MARK: "m"}


@pytest.mark.parametrize("sent", [b"", b"0000", b"000000ff12"])
def test_a_record_that_is_cut_off_starts_nothing(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = sent_to(sent)
    monkeypatch.setattr(guard, "_CONTROL", read)
    assert guard.read_record() is None
    os.close(read)


def test_a_guard_that_does_not_read_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_process, "_WRITE_S", 0.2)
    monkeypatch.setattr(guard_process, "_REPORT_S", 0.2)
    spare = guard_process.Guard()
    process = psutil.Process(spare.pid)
    assert wait_until(lambda: process.status() == psutil.STATUS_SLEEPING, 5)
    process.suspend()
    environment = {f"BIG{n}": "x" * 100_000 for n in range(3)}
    launch = Launch(identity=None, argv=["true"], environment=environment, cwd=tmp_path, prompt=b"")
    started = time.monotonic()
    with pytest.raises(guard_process.GuardUnreachable):
        spare.run(launch)
    assert not spare.close()
    assert time.monotonic() - started < 5
    assert not process.is_running()
