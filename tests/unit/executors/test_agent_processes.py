"""Agents that misbehave, and deaths at the worst moment; real processes throughout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sequencer.executors.cancellation import Cancellation
from sequencer.executors.launch import Launch
from sequencer.executors.process import ProcessCore, ProcessEnd
from tests.contract.executor_cases import marked_processes, wait_until


class Sink:
    """Keeps a little of what comes."""

    def __init__(self) -> None:
        self.first = b""

    def feed_stdout(self, data: bytes) -> bool:
        self.first = (self.first + data)[:4096]
        return True

    def feed_stderr(self, data: bytes) -> bool:
        return bool(data)


@pytest.fixture
def core() -> Iterator[ProcessCore]:
    with ProcessCore() as core:
        yield core


def run(core: ProcessCore, folder: Path, *argv: str, **update: object) -> tuple[ProcessEnd, Sink]:
    cancellation, sink = Cancellation(), Sink()
    facts: dict[str, object] = {
        "identity": None,
        "argv": argv,
        "environment": {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        "cwd": folder,
        "prompt": b"go",
    }
    end = core.run(Launch(**{**facts, **update}), sink, cancellation)  # type: ignore[arg-type]
    cancellation.close()
    return end, sink


_WORKER = """
import sys
from pathlib import Path
from tests.concurrency.stubborn_agents import script
from tests.unit.executors.test_agent_processes import Sink
from sequencer.executors.process import Launch, ProcessCore
from sequencer.executors.cancellation import Cancellation
folder, mark = Path(sys.argv[1]), sys.argv[2]
core = ProcessCore()
core.prepare()
launch = Launch(
    identity=None,
    argv=[sys.executable, "-c", script("deaf"), mark, str(folder / "ready")],
    environment={"PATH": "/usr/bin:/bin"}, cwd=folder, prompt=b"go",
)
core.prepare()
print(core.run(launch, Sink(), Cancellation()), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Return a sequencer in mid-step and the mark of its agent's processes."""
    mark = f"worker-{uuid.uuid4()}"
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(tmp_path), mark],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
    )
    try:
        assert wait_until((tmp_path / "ready").exists, 20)
        yield process, mark
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def others(mark: str, worker_pid: int) -> list[int]:
    return [pid for pid in marked_processes(mark) if pid != worker_pid]


def test_no_process_remains_when_the_guard_is_killed(
    worker: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, mark = worker
    (guard,) = psutil.Process(process.pid).children()
    guard.kill()
    said, _ = process.communicate(timeout=15)
    assert b"is_guard_lost=True" in said
    assert b"survivors=0" in said
    assert others(mark, process.pid) == []


def test_a_frozen_guard_is_given_up_and_its_agent_ended(
    core: ProcessCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.executors.pump._GUARD_LOST_S", 0.3)
    monkeypatch.setattr("sequencer.executors.guard_process._REPORT_S", 0.3)
    core.prepare()
    assert core._spare is not None
    guard = core._spare.pid
    mark = f"frozen-{uuid.uuid4()}"

    def freeze() -> None:
        wait_until(lambda: marked_processes(mark), 20)
        os.kill(guard, signal.SIGSTOP)

    thread = threading.Thread(target=freeze)
    thread.start()
    end, _ = run(core, tmp_path, "sh", "-c", "sleep 300; true", mark, timeout_s=1, grace_s=0.1)
    thread.join()
    assert end.is_guard_lost
    assert end.ended_by == "timeout"
    assert marked_processes(mark) == []


def test_an_exception_in_the_sequencer_ends_the_agent_first(
    core: ProcessCore, tmp_path: Path
) -> None:
    mark = f"raising-{uuid.uuid4()}"

    class Full(Sink):
        def feed_stdout(self, data: bytes) -> bool:
            super().feed_stdout(data)
            raise OSError(28, "No space left on device")

    launch = Launch(
        identity=None,
        argv=["sh", "-c", "echo x; sleep 300; true", mark],
        environment={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        prompt=b"",
    )
    cancellation = Cancellation()
    with pytest.raises(OSError, match="No space left"):
        core.run(launch, Full(), cancellation)
    cancellation.close()
    assert marked_processes(mark) == []


def test_many_agents_at_once_do_not_disturb_each_other(core: ProcessCore, tmp_path: Path) -> None:
    ends: dict[int, tuple[ProcessEnd, Sink]] = {}

    def work(number: int) -> None:
        script = f"cat; sleep 0.{number}; exit {number}"
        ends[number] = run(core, tmp_path, "sh", "-c", script, prompt=b"%d" % number)

    core.prepare()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: (end.exit_code, sink.first) for n, (end, sink) in ends.items()} == {
        n: (n, b"%d" % n) for n in range(8)
    }


def test_nothing_stays_open_after_many_attempts(core: ProcessCore, tmp_path: Path) -> None:
    run(core, tmp_path, "true")
    this = psutil.Process()
    before, children = this.num_fds(), this.children()
    for _ in range(5):
        run(core, tmp_path, "true")
        run(core, tmp_path, "no-such-program")
        core.prepare()
    core.close()
    assert (this.num_fds(), this.children()) == (before, children)
