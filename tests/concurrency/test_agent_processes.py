"""Agents that misbehave, and deaths at the worst moment; real processes throughout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sequencer.executors.process import Launch, ProcessCore, ProcessEnd
from sequencer.executors.protocol import Cancellation
from tests.contract.executor_cases import marked_processes, wait_until

# Ignores what it can, and leaves a grandchild that is in another session, has no parent
# but the guard, and holds the agent's stdout.
STUBBORN = """
import os, signal, sys, time
mark, ready = sys.argv[1:3]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import signal, time\\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
            "open(%r, 'w').close()\\ntime.sleep(300)" % ready, mark])
    os._exit(0)
print("started", flush=True)
time.sleep(300)
"""
# Each process lives a moment, forks its successor in a session of its own, and exits.
HOPPING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for hop in range(100_000):
    if os.fork():
        if hop == 0:
            time.sleep(300)
        os._exit(0)
    os.setsid()
    time.sleep(0.002)
"""


class Sink:
    """Counts what comes, and keeps a little of it."""

    def __init__(self) -> None:
        self.sizes = {"stdout": 0, "stderr": 0}
        self.largest = 0
        self.first = b""

    def stdout(self, data: bytes) -> None:
        self.sizes["stdout"] += len(data)
        self.largest = max(self.largest, len(data))
        self.first = (self.first + data)[:4096]

    def stderr(self, data: bytes) -> None:
        self.sizes["stderr"] += len(data)


@pytest.fixture
def core() -> Iterator[ProcessCore]:
    with ProcessCore() as core:
        yield core


def run(core: ProcessCore, folder: Path, *argv: str, **update: object) -> tuple[ProcessEnd, Sink]:
    cancellation, sink = Cancellation(), Sink()
    facts: dict[str, object] = {
        "argv": argv,
        "environment": {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        "cwd": folder,
        "prompt": b"go",
    }
    end = core.run(Launch(**{**facts, **update}), sink, cancellation)  # type: ignore[arg-type]
    cancellation.close()
    return end, sink


def test_an_agent_that_ignores_every_signal_is_gone_with_its_detached_grandchild(
    core: ProcessCore, tmp_path: Path
) -> None:
    mark, ready = f"stubborn-{uuid.uuid4()}", tmp_path / "ready"
    started = time.monotonic()
    end, sink = run(core, tmp_path, sys.executable, "-c", STUBBORN, mark, str(ready), timeout_s=1.5)
    assert ready.exists()
    assert sink.first == b"started\n"
    assert (end.ended_by, end.exit_code, end.survivors) == ("timeout", -signal.SIGKILL, 0)
    assert marked_processes(mark) == []
    # 1.5 s of time limit, 5 s of grace, and 1.5 s for all the rest.
    assert 6.5 <= time.monotonic() - started < 8


def test_what_forks_while_it_is_swept_is_swept_too(core: ProcessCore, tmp_path: Path) -> None:
    mark = f"hopping-{uuid.uuid4()}"
    end, _ = run(core, tmp_path, sys.executable, "-c", HOPPING, mark, timeout_s=0.5, grace_s=0.2)
    assert end.ended_by == "timeout"
    assert end.survivors == 0
    assert marked_processes(mark) == []


_WORKER = """
import sys
from pathlib import Path
from tests.concurrency.test_agent_processes import STUBBORN, Sink
from sequencer.executors.process import Launch, ProcessCore
from sequencer.executors.protocol import Cancellation
folder, mark = Path(sys.argv[1]), sys.argv[2]
core = ProcessCore()
core.prepare()
launch = Launch(
    argv=[sys.executable, "-c", STUBBORN, mark, str(folder / "ready")],
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
        cwd=Path(__file__).parents[2],
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


def test_the_agents_of_a_killed_sequencer_are_gone_within_two_seconds(
    worker: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, mark = worker
    guards = [child.pid for child in psutil.Process(process.pid).children()]
    assert len(others(mark, process.pid)) == 2
    process.kill()
    assert wait_until(lambda: not others(mark, process.pid), 2)
    assert wait_until(lambda: not any(map(psutil.pid_exists, guards)), 2)


def test_nothing_is_left_when_the_guard_is_killed(
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
    monkeypatch.setattr("sequencer.executors.pump._OVERDUE_S", 0.3)
    monkeypatch.setattr("sequencer.executors.guarding._REPORT_S", 0.3)
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


def test_the_sequencer_told_to_stop_by_an_exception_ends_the_agent_first(
    core: ProcessCore, tmp_path: Path
) -> None:
    mark = f"raising-{uuid.uuid4()}"

    class Full(Sink):
        def stdout(self, data: bytes) -> None:
            super().stdout(data)
            raise OSError(28, "No space left on device")

    launch = Launch(
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


# Prints the highest memory use of a process that runs the agent given as arguments.
_MEASURED = """
import re, sys, time
from pathlib import Path
from tests.concurrency.test_agent_processes import Sink, run
from sequencer.executors.process import ProcessCore
started = time.monotonic()
with ProcessCore() as core:
    end, sink = run(core, Path(sys.argv[1]), *sys.argv[2:])
assert end.exit_code == 0, end
# Not ru_maxrss: that one remembers the process that this one was forked from.
peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())
print(peak[1], sink.sizes["stdout"],
      sink.sizes["stderr"], sink.largest, time.monotonic() - started)
"""


def measured(folder: Path, script: str) -> tuple[float, int, int, int, float]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(folder), "sh", "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    rss, out, err, largest, seconds = done.stdout.split()
    return int(rss) / 1024, int(out), int(err), int(largest), float(seconds)


def test_fast_output_needs_little_memory(tmp_path: Path) -> None:
    script = "head -c 67108864 /dev/zero & yes 2>/dev/null | head -c 8388608 >&2; wait"
    rss_mib, out, err, largest, _ = measured(tmp_path, script)
    assert (out, err) == (64 * 1024**2, 8 * 1024**2)
    assert largest <= 65_536
    assert rss_mib < 100


@pytest.mark.long
def test_a_gibibyte_without_a_newline_needs_little_memory_and_time(tmp_path: Path) -> None:
    script = "head -c 1073741824 /dev/zero & yes | head -c 104857600 >&2; wait"
    rss_mib, out, err, _, seconds = measured(tmp_path, script)
    assert (out, err) == (1024**3, 100 * 1024**2)
    assert rss_mib < 100
    assert seconds < 60


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
