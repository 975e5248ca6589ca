"""The guard program, spoken to as the sequencer does, without the process core."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sequencer.executors import pump as guarding
from sequencer.executors.pump import Guard, GuardUnreachable, Launch
from tests.contract.executor_cases import wait_until


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    try:
        yield guard
    finally:
        guard.close()


def launch(folder: Path, *argv: str, **update: Any) -> Launch:
    facts: dict[str, Any] = {
        "argv": argv,
        "environment": {"PATH": os.environ["PATH"]},
        "cwd": folder,
        "prompt": b"",
    }
    return Launch(**{**facts, **update})


def reports(guard: Guard) -> list[dict[str, Any]]:
    """Read the status pipe to its end."""
    data = b""
    while piece := os.read(guard.status, 4096):
        data += piece
    return [json.loads(line) for line in data.splitlines()]


def output(guard: Guard) -> bytes:
    """Read the agent's stdout to its end; it may have ended long ago."""
    os.set_blocking(guard.stdout, True)
    data = b""
    while piece := os.read(guard.stdout, 65_536):
        data += piece
    return data


def test_it_reports_the_start_and_the_end(guard: Guard, tmp_path: Path) -> None:
    guard.run(launch(tmp_path, "sh", "-c", "exit 3"))
    started, ended = reports(guard)
    assert started["event"] == "started"
    assert started["pid"] > 0
    assert ended == {"event": "ended", "exit_code": 3, "stopped_by": None, "survivors": 0}


def test_the_agent_gets_the_prompt_and_none_of_the_pipes(guard: Guard, tmp_path: Path) -> None:
    script = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))); print(input())"
    guard.run(launch(tmp_path, sys.executable, "-c", script, prompt=b"hello"))
    # 3 is the listing's own descriptor.
    assert output(guard).decode().splitlines() == ["[0, 1, 2, 3]", "hello"]


def test_the_agent_starts_with_default_signals(guard: Guard, tmp_path: Path) -> None:
    guard.run(launch(tmp_path, "sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    assert {line.split()[1] for line in output(guard).decode().splitlines()} == {"0" * 16}


def test_an_idle_guard_uses_no_time_and_ends_with_its_pipe() -> None:
    guard = Guard()
    process = psutil.Process(guard.pid)
    assert wait_until(lambda: process.status() == psutil.STATUS_SLEEPING, 5)
    before = process.cpu_times()
    switches = process.num_ctx_switches().voluntary
    wait_until(lambda: False, 0.3)
    assert process.cpu_times() == before
    assert process.num_ctx_switches().voluntary == switches
    assert guard.close()
    assert not process.is_running()


def test_it_stops_the_agent_when_it_is_told(guard: Guard, tmp_path: Path) -> None:
    guard.run(launch(tmp_path, "sleep", "300"))
    guard.stop()
    assert reports(guard)[-1] == {
        "event": "ended",
        "exit_code": -signal.SIGTERM,
        "stopped_by": "control",
        "survivors": 0,
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_guard_ends_the_agent(
    guard: Guard, tmp_path: Path, number: signal.Signals
) -> None:
    guard.run(launch(tmp_path, "sh", "-c", "echo up; exec sleep 300"))
    os.set_blocking(guard.stdout, True)
    assert os.read(guard.stdout, 10) == b"up\n"
    os.kill(guard.pid, number)
    ended = reports(guard)[-1]
    assert (ended["exit_code"], ended["stopped_by"]) == (-signal.SIGTERM, "signal")


def test_an_agent_may_use_its_grace_to_finish(guard: Guard, tmp_path: Path) -> None:
    script = "trap 'sleep 0.3; echo saved; exit 7' TERM; echo up; while :; do sleep 0.05; done"
    guard.run(launch(tmp_path, "sh", "-c", script, grace_s=5))
    os.set_blocking(guard.stdout, True)
    assert os.read(guard.stdout, 10) == b"up\n"
    guard.stop()
    assert output(guard) == b"saved\n"
    assert reports(guard)[-1]["exit_code"] == 7


@pytest.mark.parametrize(
    ("program", "cwd", "error", "stage"),
    [
        ("no-such-program", ".", errno.ENOENT, "program"),
        ("/etc/passwd", ".", errno.EACCES, "program"),
        ("true", "missing", errno.ENOENT, "folder"),
    ],
)
def test_it_reports_why_a_program_cannot_start(
    tmp_path: Path, program: str, cwd: str, error: int, stage: str
) -> None:
    guard = Guard()
    guard.run(launch(tmp_path / cwd, program))
    (refused,) = reports(guard)
    guard.close()
    assert refused == {"event": "refused", "errno": error, "stage": stage}


def test_a_dead_guard_takes_no_order(guard: Guard, tmp_path: Path) -> None:
    os.kill(guard.pid, signal.SIGKILL)
    assert wait_until(lambda: not guard.is_alive, 5)
    with pytest.raises(GuardUnreachable):
        guard.run(launch(tmp_path, "true"))


def test_a_refused_process_leaks_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().num_fds()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(GuardUnreachable, match="can't start a guard"):
        Guard()
    assert psutil.Process().num_fds() == before


def test_a_record_cannot_hold_nul(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="NUL"):
        guarding.record_of(launch(tmp_path, "echo", "a\0b"), "mark")


def test_without_memory_files_the_prompt_is_a_nameless_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    guard = Guard()
    assert list(tmp_path.iterdir()) == []
    guard.run(launch(tmp_path, "cat", prompt=b"hello"))
    assert output(guard) == b"hello"
    guard.close()


def test_it_starts_without_the_packages_of_anybody() -> None:
    heavy = "{'re', 'json', 'enum', 'subprocess', 'signal', 'pathlib', 'sequencer'}"
    script = f"import sys; exec(open({str(guarding._PROGRAM)!r}).read(), {{}})\n"
    script += f"print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
