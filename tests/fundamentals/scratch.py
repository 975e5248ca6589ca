"""A project in a scratch folder, used the way people use one: by files and commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forked import Forked

STANDARD = "workflow: {name: standard}\nagent: {default: scribe}\n"
SCRIBE = 'echo "$SEQUENCER_STEP" >> done.txt'
"""What the agent does if a test says nothing else: one line a step."""


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Project:
    """A folder with orchestration.yaml, prompts and an agent that is a shell script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prompts("supervisor", "main", "reviewer")
        self.configure(STANDARD)
        self.agent(SCRIBE)

    # --- what a person writes ------------------------------------------------------

    def configure(self, text: str) -> None:
        """Write orchestration.yaml: *text* and the agent ``scribe``."""
        agents = "" if "agents:" in text else "agents:\n"
        entry = "  scribe: {kind: command, argv: [sh, agent.sh]}\n"
        (self.folder / "orchestration.yaml").write_text(f"{text}{agents}{entry}")

    def prompts(self, *names: str) -> None:
        """Write a prompt for each of *names*."""
        (self.folder / "prompts").mkdir(exist_ok=True)
        for name in names:
            (self.folder / "prompts" / f"{name}.md").write_text(f"Be the {name}.\n")

    def agent(self, script: str) -> None:
        """Let the agent do what *script* says."""
        (self.folder / "agent.sh").write_text(script + "\n")

    # --- what a person types -------------------------------------------------------

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command and return at once."""
        kept = ("HOME", "LANG", "PATH", "PYTHONPATH", "SEQUENCER_TRUST", "TMPDIR", "XDG_STATE_HOME")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        return Forked(
            [sys.executable, "-m", "sequencer", *arguments],
            cwd=self.folder,
            env=environment | {"NO_COLOR": "1", "COLUMNS": "200"} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def sequencer(self, *arguments: str, code: int = 0, **variables: str) -> Ran:
        """Run a command to its end, which has to be exit code *code*."""
        ran = ended(self.start(*arguments, **variables))
        assert ran.code == code, f"{arguments} ended with {ran.code}\n{ran.out}\n{ran.err}"
        return ran

    # --- what a person sees --------------------------------------------------------

    @property
    def state(self) -> Path:
        """Return the path of state.json."""
        return self.folder / "sync" / "state.json"

    def head(self) -> dict[str, Any]:
        """Return what state.json says."""
        found: dict[str, Any] = json.loads(self.state.read_text())
        return found

    def status(self, *arguments: str) -> dict[str, Any]:
        """Return what `status` says, which does not trust state.json alone."""
        found: dict[str, Any] = json.loads(self.sequencer("status", "--json", *arguments).out)
        return found

    def history(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the facts of the run, oldest first."""
        lines = self.sequencer("history", "--json", *arguments).out.splitlines()
        return [json.loads(line) for line in lines]

    def events(self) -> list[str]:
        """Return what has happened, in one word each."""
        return [fact["event"] for fact in self.history()]

    def done(self) -> list[str]:
        """Return what the agent has written, a line a step."""
        path = self.folder / "done.txt"
        return path.read_text().splitlines() if path.exists() else []

    def logs(self) -> list[str]:
        """Return the names of the step logs."""
        return sorted(path.name for path in (self.folder / "logs").rglob("*.log"))


def ended(process: subprocess.Popen[str], timeout_s: float = 60) -> Ran:
    """Wait for *process* and return how it ended; one that hangs is killed."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        message = f"it did not end in {timeout_s} s:\n{out}\n{err}"
        raise AssertionError(message) from None
    return Ran(process.returncode, out, err)


@contextlib.contextmanager
def running(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """End what is left of *processes* when the block ends, however it ends."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            process.kill()
            process.communicate()


def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    """Wait until *condition* holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Return whether process *pid* still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
