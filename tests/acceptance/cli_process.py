"""The installed command as a child process, and a project whose agent is a real script."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import forked

CASES = Path(__file__).parent / "cases"
"""A folder each, with the files of something that happened to somebody."""

AGENT = """\
import os, sys, time
sys.stdin.read()
with open("done.txt", "a") as file:
    file.write(os.environ["SEQUENCER_STEP_INDEX"] + "\\n")
time.sleep(float(os.environ.get("SLOW", "0")))
while os.path.exists("hold"):
    time.sleep(0.02)
"""
"""A file ``hold`` lets a step last for as long as a test needs."""
CONFIGURATION = """\
workflow: {name: review_cadence, review_every_n: 2}
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py], pass_env: [SLOW]}
"""
"""-IS: no agent needs the installed packages, and to find them is half of its start."""


def cli(
    folder: Path, *arguments: str, timeout_s: float = 60.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``sequencer ARGUMENTS`` in *folder* to its end."""
    return forked.run(
        [sys.executable, "-m", "sequencer", *arguments],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def launched(
    folder: Path, *arguments: str, variables: Mapping[str, str] | None = None, **how: Any
) -> forked.Forked:
    """Start ``sequencer ARGUMENTS`` in *folder*; streams lead nowhere unless *how* says it."""
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, "-m", "sequencer", *arguments]
    return forked.Forked(command, cwd=folder, env=environment(**variables or {}), **nowhere | how)


STRANGER = 12345
"""A user without an entry in passwd."""


def cli_as_stranger(
    folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``sequencer ARGUMENTS`` as the user `STRANGER`, whose environment is *variables* only.

    The agent has to be a rehearsal: this user may not be able to start this Python again. The
    test is skipped where this user can't be had.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can become a user who is in no passwd")
    user = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
    found = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*user, sys.executable, "-m", "sequencer", *arguments],
        cwd=folder,
        env={**found, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "No module named" in done.stderr:
        pytest.skip("this Python can't be read by every user")
    return done


@contextlib.contextmanager
def strangers_copy(case: Path) -> Iterator[Path]:
    """Yield a copy of *case* that belongs to `STRANGER`, where this user can go."""
    with tempfile.TemporaryDirectory(prefix="stranger-", dir="/tmp") as made:
        folder = Path(shutil.copytree(case, Path(made, "project")))
        for path in (Path(made), folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
            if os.geteuid() == 0:
                os.chown(path, STRANGER, STRANGER)
        yield folder


def environment(**variables: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SEQUENCER_")}
    return {**clean, "SEQUENCER_TRUST": "all", **variables}


def scripted_project(folder: Path) -> Path:
    """Make a project whose agent notes each step_index in ``done.txt``."""
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main", "reviewer"):
        (folder / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / "orchestration.yaml").write_text(CONFIGURATION)
    return folder


def done(folder: Path) -> list[int]:
    """Return the step indexes that the agent has worked on, in order."""
    path = folder / "done.txt"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def head(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sync" / "state.json").read_text())
    return found


def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait until *condition* holds; fail after *limit_s* seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def read_until(fd: int, mark: bytes | None) -> bytes:
    """Return what comes until *mark*, or until no process has the other end open."""
    seen = b""
    while mark is None or mark not in seen:
        try:
            data = os.read(fd, 65_536)
        except OSError:
            data = b""
        if not data:
            assert mark is None, seen
            break
        seen += data
    return seen
