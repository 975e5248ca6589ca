"""A forked command is the command: what it prints, how it ends, what it is given."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import forked
from tests.acceptance.cli_process import environment, scripted_project, until
from tests.forked import Forked

COMMAND = [sys.executable, "-m", "sequencer"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")


def both(folder: Path, *arguments: str, **variables: str) -> list[tuple[int, str, str]]:
    """Return how a forked command and a started one ended."""
    how: dict[str, Any] = {"cwd": folder, "env": environment(**variables), "text": True}
    how |= {"stdin": subprocess.DEVNULL, "capture_output": True}
    ended = [
        forked.run([*COMMAND, *arguments], **how),
        subprocess.run([*COMMAND, *arguments], check=False, **how),
    ]
    return [(done.returncode, done.stdout, done.stderr) for done in ended]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scripted_project(tmp_path / "p\u00e4th")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("status", "--json"),
        ("check", "--settings"),
        ("nonsense",),
        ("answer", "approve"),
    ],
    ids=" ".join,
)
def test_a_forked_command_has_the_same_output_and_exit_code(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    assert forked.run([*COMMAND, "tick"], cwd=folder, env=environment()).returncode == 0
    one, other = both(folder, *arguments, COLUMNS="70")
    assert one == other


@pytest.mark.slow
def test_python_startup_variables_are_respected(folder: Path) -> None:
    arguments = ("--config", "\u00e4.yaml", "status")
    one, other = both(folder, *arguments, PYTHONIOENCODING="ascii:backslashreplace")
    assert one == other
    assert "\\xe4.yaml" in one[2]
    assert "\u00e4.yaml" in both(folder, *arguments)[0][2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_signal_reaches_it(folder: Path, number: int, code: int) -> None:
    process = Forked(
        [*COMMAND, "run"], cwd=folder, env=environment(SLOW="30"), stderr=subprocess.PIPE
    )
    try:
        until((folder / "done.txt").exists)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.poll() == code
    finally:
        process.kill()
        process.communicate()


def test_waiting_for_a_forked_command_times_out(folder: Path) -> None:
    process = Forked(
        [*COMMAND, "run"], cwd=folder, env=environment(SLOW="30"), stdout=-3, stderr=-3
    )
    try:
        started = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        assert 0.15 < time.monotonic() - started < 5
        with pytest.raises(subprocess.TimeoutExpired):
            forked.run([*COMMAND, "run"], cwd=folder, env=environment(), timeout=0.0)
    finally:
        process.kill()
        process.communicate()


def test_a_forked_command_uses_the_given_streams(folder: Path, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        ended = forked.run(
            [*COMMAND, "plan", "--json"], cwd=folder, env=environment(), stdout=out,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, None)
    assert b'"supervisor"' in (tmp_path / "out").read_bytes()


def test_no_process_is_left_behind(folder: Path) -> None:
    """The process that waits ends with the one that asked, even if that one is killed."""
    script = (
        "import os, sys, signal; from tests import forked;"
        f"forked.run({[*COMMAND, '--version']!r}, cwd={str(folder)!r}, stdout=-3);"
        "print(forked._waiting_process()._process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=forked.ROOT,
        env=environment(PYTHONPATH=str(forked.ROOT)),
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    until(lambda: not psutil.pid_exists(int(done.stdout)))
