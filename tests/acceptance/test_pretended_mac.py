"""The program on a system that calls itself darwin and lacks what a Mac lacks.

What is only Linux's is taken out of Python before the program starts: inotify, locks of open
files, process descriptors, the boot clock, nameless files, a subreaper. Not shown: how a Mac's
own kernel, file system and launchd behave.
"""

from __future__ import annotations

import os
import plistlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli_process import done, environment, head, scripted_project, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac need not pretend")
PRETENDED = """\
import fcntl, os, select, signal, sys, time
import psutil, watchdog.observers  # they ask what they run on, and have to get the truth
for module, names in (
    (os, "fdatasync posix_fallocate memfd_create pidfd_open eventfd O_PATH O_TMPFILE "
         "sched_getaffinity copy_file_range sendfile splice"),
    (time, "CLOCK_BOOTTIME"), (select, "epoll"), (signal, "pidfd_send_signal"),
    (fcntl, "F_OFD_SETLK F_OFD_SETLKW F_OFD_GETLK F_SETPIPE_SZ F_GETPIPE_SZ"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform, fcntl.F_FULLFSYNC = "darwin", 51
"""


@pytest.fixture
def mac(tmp_path: Path) -> dict[str, str]:
    """Return variables with which a process takes this machine for a Mac."""
    (tmp_path / "mac").mkdir()
    (tmp_path / "mac" / "sitecustomize.py").write_text(PRETENDED)
    (tmp_path / "home").mkdir()
    paths = os.pathsep.join([str(tmp_path / "mac"), str(Path(__file__).parents[2])])
    return environment(PYTHONPATH=paths, HOME=str(tmp_path / "home"))


def started(folder: Path, env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sequencer", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True)


def ended(folder: Path, env: dict[str, str], *arguments: str) -> str:
    process = started(folder, env, *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_two_processes_take_turns_and_a_killed_ones_step_is_taken_over(
    tmp_path: Path, mac: dict[str, str]
) -> None:
    folder = scripted_project(tmp_path / "p")
    ended(folder, mac, "run", "--max-steps", "1")
    (folder / "hold").touch()
    killed = started(folder, mac, "run", "--mode", "sync", "--position", "main")
    until(lambda: done(folder) == [0, 1])
    waiting = started(
        folder, mac, "run", "--mode", "sync", "--position", "supervisor", "--max-steps", "1"
    )
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (folder / "hold").unlink()
    again = started(folder, mac, "run", "--mode", "sync", "--position", "main", "--max-steps", "2")
    for process in (again, waiting):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert done(folder) == [0, 1, 1, 2, 3]
    assert (head(folder)["step_index"], head(folder)["token"]) == (4, 5)


def test_a_tick_is_installed_as_an_agent_of_launchd(tmp_path: Path, mac: dict[str, str]) -> None:
    folder = scripted_project(tmp_path / "p")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "launchctl").write_text('#!/bin/sh\necho "$@" >> "$HOME/asked"\n')
    (programs / "launchctl").chmod(0o755)
    mac |= {"PATH": f"{programs}:{mac['PATH']}"}
    ended(folder, mac, "schedule", "install", "--every", "30")
    (agent,) = (tmp_path / "home/Library/LaunchAgents").iterdir()
    told = plistlib.loads(agent.read_bytes())
    assert (told["StartInterval"], told["WorkingDirectory"]) == (1800, str(folder))
    assert f"bootstrap gui/{os.getuid()} {agent}" in (tmp_path / "home/asked").read_text()
    # As launchd would: with next to nothing in the environment.
    tick = subprocess.run(
        told["ProgramArguments"],
        cwd=told["WorkingDirectory"],
        env={"HOME": mac["HOME"], "PYTHONPATH": mac["PYTHONPATH"], "SEQUENCER_TRUST": "all"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert tick.returncode == 0, tick.stderr
    assert done(folder) == [0]
    assert "installed, active" in ended(folder, mac, "schedule", "show")
    ended(folder, mac, "schedule", "remove")
    assert not agent.exists()
