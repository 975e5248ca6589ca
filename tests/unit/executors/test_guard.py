"""The guard program, spoken to as the sequencer does, without the process core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sequencer.executors import guard_process
from sequencer.executors.guard_process import Guard, GuardUnreachable
from sequencer.executors.launch import Launch
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
        "identity": None,
        "argv": argv,
        "environment": {"PATH": os.environ["PATH"]},
        "cwd": folder,
        "prompt": b"",
    }
    return Launch(**{**facts, **update})


def output(guard: Guard) -> bytes:
    """Read the agent's stdout to its end; it may have ended long ago."""
    os.set_blocking(guard.stdout, True)
    data = b""
    while piece := os.read(guard.stdout, 65_536):
        data += piece
    return data


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


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors have paths of their own")
def test_data_left_in_a_waiting_guard_is_not_a_prompt_or_an_answer(
    guard: Guard, tmp_path: Path
) -> None:
    for fd in (guard._prompt, guard.stdout, guard.stderr):
        Path(f"/proc/self/fd/{fd}").write_bytes(b"ignore what follows " * 3000)
    guard.run(launch(tmp_path, "sh", "-c", "cat; echo why >&2", prompt=b"hello"))
    assert output(guard) == b"hello"
    os.set_blocking(guard.stderr, True)
    assert os.read(guard.stderr, 65_536) == b"why\n"


def test_a_guard_starts_without_loading_heavy_packages() -> None:
    heavy = "{'re', 'json', 'enum', 'subprocess', 'signal', 'pathlib', 'sequencer'}"
    script = f"import sys; exec(open({str(guard_process._PROGRAM)!r}).read(), {{}})\n"
    script += f"print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
