"""The executors that pass the contract suite, and what the suite needs to drive them.

A new executor registers by one line in `CASES`: how to build one that behaves as a
`Behaviour` says, and which parts of the contract have a meaning for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from sequencer import (
    CommandExecutor,
    CommandOptions,
    Executor,
    Identity,
    Piece,
    ProcessCore,
    Step,
    StepRequest,
    Usage,
)
from sequencer.testing import AGENT, ScratchProject

IDENTITY = Identity(run_id="0b5c", step="main", step_index=12, token=17, attempt=1)


@dataclass
class Recorder:
    """A listener that keeps what it hears."""

    pieces: list[tuple[bytes, Piece]] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        self.pieces.append((data, kind))

    def report_usage(self, usage: Usage) -> None:
        self.usages.append(usage)

    def text(self, *kinds: Piece) -> str:
        wanted = kinds or tuple(Piece)
        return b"".join(data for data, kind in self.pieces if kind in wanted).decode()


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What the agent behind the executor is to do."""

    answer: str = "the answer"
    fails: bool = False
    delay_s: float = 0.0
    result: dict[str, Any] | None = None
    """Written to SEQUENCER_RESULT."""
    leaves: str | None = None
    """A mark on the command line of a process that the agent leaves behind, detached."""


@dataclass(frozen=True, kw_only=True)
class ExecutorCase:
    name: str
    build: Callable[[Behaviour, Path], AbstractContextManager[Executor]]
    """Builds one; the agent records below the path what it was given."""
    has_agent: bool = True
    """Whether there is an agent that can answer, fail and be given a prompt."""
    has_process: bool = True


def request_for(folder: Path, **update: Any) -> StepRequest:
    """Return a request whose result file and working folder are below *folder*."""
    # Each attempt has a folder of its own, which nobody has made before it.
    names = (f"results-{number}" if number else "results" for number in count())
    results = next(folder / name for name in names if not (folder / name).exists())
    step = update.pop("step", None) or Step(name="main")
    facts: dict[str, Any] = {
        "step": step,
        "prompt": "Do it.\n",
        "cwd": folder,
        "result_path": results / "result.json",
        "identity": replace(IDENTITY, result_path=results / "result.json"),
    }
    return StepRequest(**{**facts, **update})


def marked_processes(mark: str) -> list[int]:
    """Return the processes with *mark* on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(mark in word for word in process.cmdline()):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Return whether *condition* came true within *seconds*."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


_AGENT = """
import json, os, subprocess, sys, time
from pathlib import Path
plan = json.loads(Path(sys.argv[1]).read_text())
folder = Path(sys.argv[1]).parent
(folder / "prompt").write_bytes(sys.stdin.buffer.read())
(folder / "environ.json").write_text(json.dumps(dict(os.environ)))
(folder / "cmdline").write_bytes(Path("/proc/self/cmdline").read_bytes())
if plan["leaves"]:
    subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)", plan["leaves"]],
        start_new_session=True,
    )
if plan["result"] is not None:
    Path(os.environ["SEQUENCER_RESULT"]).write_text(json.dumps(plan["result"]))
for line in plan["answer"].splitlines():
    print(line, flush=True)
(folder / "answered").touch()
time.sleep(plan["delay_s"])
sys.exit(3 if plan["fails"] else 0)
"""


@contextmanager
def _command(behaviour: Behaviour, folder: Path) -> Iterator[Executor]:
    program, plan = folder / "agent.py", folder / "plan.json"
    program.write_text(_AGENT)
    plan.write_text(json.dumps(vars(behaviour)))
    options = CommandOptions(argv=("{python}", str(program), str(plan)), grace_s=1)
    with ProcessCore() as core:
        yield CommandExecutor("fake", options, core)


def _configured(folder: Path, entry: dict[str, Any]) -> Executor:
    """Return the agent of a project whose `orchestration.yaml` has this *entry*."""
    project = ScratchProject(folder / "project", {"agents": {AGENT: entry}})
    return project.open().agents.build(AGENT)


@contextmanager
def _rehearsal(behaviour: Behaviour, folder: Path) -> Iterator[Executor]:
    yield _configured(folder, {"kind": "rehearsal", "seconds": behaviour.delay_s})


@contextmanager
def _scripted(behaviour: Behaviour, folder: Path) -> Iterator[Executor]:
    entry = {
        "status": "failed" if behaviour.fails else "ok",
        "output": behaviour.answer,
        "delay_s": behaviour.delay_s,
        "usage": {"cost_usd": 0.5, "input_tokens": 7, "output_tokens": 3},
        "evidence": {},
    }
    yield _configured(folder, {"kind": "scripted", "outcomes": [entry]})


CASES = [
    ExecutorCase(name="command", build=_command),
    ExecutorCase(name="rehearsal", build=_rehearsal, has_agent=False, has_process=False),
    ExecutorCase(name="scripted", build=_scripted, has_process=False),
]
