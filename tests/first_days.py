"""``python -m tests.first_days``: six first days, from ``pip install`` to the morning after.

Each day is played with real processes and a stand-in ``claude`` on PATH, by at most five
commands, and ends with what the person has to see. Times are printed, and mean little: the
stand-in answers at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_COMMANDS = 5
CLAUDE = """#!/bin/sh
case "$1" in --version) echo "2.0.0 (Claude Code)"; exit 0;; esac
cat > /dev/null
echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"x",\
"total_cost_usd":0.01,"usage":{"input_tokens":1,"output_tokens":1}}'
"""


@dataclass(frozen=True)
class Day:
    """What somebody types on their first day, and reads at its end."""

    name: str
    commands: tuple[str, ...]
    sees: tuple[str, ...]


_SYNC = "sequencer run --mode sync --max-steps 2 --position"
DAYS = (
    Day(
        "two terminals",
        ("sequencer init", f"{_SYNC} supervisor & {_SYNC} main; wait", "sequencer history"),
        ("supervisor", "main", "succeeded"),
    ),
    Day(
        "a reviewer every third cycle",
        ("sequencer init", "sequencer plan", "sequencer run --max-steps 6", "sequencer status"),
        ("next step   supervisor", "6 steps", "0.0600 USD"),
    ),
    Day(
        "cron",
        (
            "sequencer init",
            "sequencer trust --yes",
            "sequencer schedule print --with cron",
            "sequencer tick",
            "sequencer status",
        ),
        ("next step   main", "1 step,"),
    ),
    Day(
        "a flow that asks",
        (
            "sequencer init --example flows",
            "sequencer trust --yes",
            "sequencer run code-review --state base=main; test $? = 4",
            "sequencer inbox",
        ),
        ("Is this report right?", "answer decide approve"),
    ),
    Day(
        "a request with a gate",
        (
            "sequencer init",
            'sequencer start "Debug the login timeout" --label bug; test $? = 4',
            "sequencer inbox",
            "sequencer answer approve",
            "sequencer status --all",
        ),
        ("debug-the-login-timeout", "debugger-fix"),
    ),
    Day(
        "a team",
        (
            "sequencer init --example teams",
            "sequencer trust --yes",
            "sequencer run greeting",
            "sequencer report",
        ),
        ("greeting · complete", "critical path", "verify-fix-1"),
    ),
)


def install(folder: Path) -> Path:
    """Install this checkout into a new environment in *folder*, and return its programs."""
    programs = folder / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([programs / "pip", "install", "-q", ROOT], check=True, capture_output=True)
    return programs


def play(day: Day, folder: Path, programs: Path) -> str:
    """Play *day* in *folder*, and return what its last command printed.

    Raises:
        AssertionError: a command failed, or the person does not see what they should.
    """
    home, project, clients = (folder / name for name in ("home", "project", "clients"))
    for each in (home, project, clients):
        each.mkdir(parents=True)
    claude = clients / "claude"
    claude.write_text(CLAUDE)
    claude.chmod(0o755)
    path = os.pathsep.join(map(str, (clients, programs, "/usr/bin", "/bin")))
    environment = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "COLUMNS": "120"}
    said = ""
    for command in day.commands:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = done.stdout
        assert done.returncode == 0, f"{day.name}: {command}: {done.stdout}{done.stderr}"
    missing = [text for text in day.sees if text not in said]
    assert not missing, f"{day.name}: {missing} is not in:\n{said}"
    return said


def main() -> int:
    """Install, play each day and print how long it took."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        programs = install(Path(name))
        print(f"pip install: {time.monotonic() - start:.1f} s")
        for number, day in enumerate(DAYS):
            start = time.monotonic()
            try:
                play(day, Path(name) / str(number), programs)
                told = "as it should be"
            except AssertionError as error:
                failed, told = failed + 1, f"FAILED: {error}"
            took = time.monotonic() - start
            print(f"{day.name}: {len(day.commands)} commands, {took:.1f} s, {told}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
