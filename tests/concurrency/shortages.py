"""A machine without a free descriptor, process or thread: at every point of a run's start.

Each round is a real process with a lower limit, or one whose system calls the kernel's tracer
refuses. It has to say what ran out and leave the run as it was, so that the next one does the
step.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sequencer import open_project
from tests.acceptance.cli_process import environment
from tests.boundary.traced import tracer
from tests.long.report import Report, Size

DONE, BUSY = 0, 75
MIN_FILES = 6
"""With fewer the interpreter itself can't import what would say so."""
MAX_FILES = 40
AGAIN_FILES = 18
"""Enough for a claim and not for an agent; the next run has enough."""
AT_ONCE = 3
_NAMES = {"line": None, "graph": "flow"}
_STRACE = "strace -f -qq -o /dev/null -e"
REFUSED_CALLS = {
    "no thread": f"{_STRACE} inject=clone3:error=EAGAIN",
    "no second thread": f"{_STRACE} inject=clone3:error=EAGAIN:when=2+",
    "no agent's process": f"{_STRACE} inject=clone:error=EAGAIN",
    "no memory for an agent's process": f"{_STRACE} inject=clone:error=ENOMEM",
    "no program": f"{_STRACE} inject=execve:error=EAGAIN:when=2+",
}
_GRAPH = """---
id: flow
---

```mermaid
flowchart TD
a --> b & c
b & c --> d
```

### a
x

### b
x

### c
x

### d
x
"""


def project(folder: Path, kind: str) -> Path:
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "main.md").write_text("x\n")
    argv = ["sh", "-c", "echo $SEQUENCER_STEP >> ran; echo ok"]
    document: dict[str, Any] = {
        "workflow": {"name": "w"},
        "workflows": {"w": {"steps": [{"name": "main"}]}},
        "agent": {"default": "a"},
        "agents": {"a": {"kind": "command", "argv": argv}},
    }
    if kind == "graph":
        (folder / "flows").mkdir()
        (folder / "flows" / "flow.md").write_text(_GRAPH)
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


def run(
    folder: Path, kind: str, *, files: int | None = None, around: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a step, or the whole graph, with at most *files* descriptors, below *around*."""
    what = ["flow"] if kind == "graph" else ["--max-steps=1"]

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return subprocess.run(
        [*around.split(), sys.executable, "-m", "sequencer", "run", *what, "--quiet"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit,
    )


def looked_at(folder: Path, kind: str, ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what is wrong with how a run *ended*, and with what it left."""
    wrong = []
    if ended.returncode not in (DONE, BUSY):
        wrong.append(f"exit code {ended.returncode}: {ended.stderr.strip()[-300:]}")
    if ended.returncode == BUSY and not any(
        word in ended.stderr for word in ("ulimit", "memory", "fs.file-max")
    ):
        wrong.append(f"it does not say what to do: {ended.stderr.strip()[-300:]}")
    head = open_project(folder, environment={}).run(_NAMES[kind]).head
    if head is not None and (head.failures_in_row or head.claims or head.status == "failed"):
        wrong.append(f"the run is {head.status}, {len(head.claims)} claims")
    journals = "".join(path.read_text() for path in folder.glob("sync/**/journal.jsonl"))
    if '"failed"' in journals:
        wrong.append("a failure was counted")
    ran = (folder / "ran").read_text().split() if (folder / "ran").exists() else []
    if len(ran) != len(set(ran)) or (ended.returncode == DONE and not ran):
        wrong.append(f"its agents ran {ran}")
    return [f"{kind}: {what}" for what in wrong]


def one(folder: Path, kind: str, files: int | None, around: str) -> tuple[list[str], bool]:
    ended = run(project(folder, kind), kind, files=files, around=around)
    place = f"{files} files" if files is not None else around.removeprefix(_STRACE).strip()
    wrong = looked_at(folder, kind, ended)
    is_refused = ended.returncode == BUSY
    if is_refused and files == AGAIN_FILES:
        # What was released waits a little, and then it is done as if nothing had been.
        following = run(folder, kind)
        wrong += looked_at(folder, kind, following)
        if following.returncode != DONE:
            wrong.append(f"{kind}: the next run ends with {following.returncode}")
    return [f"{place}, {what}" for what in wrong], is_refused


def campaign(folder: Path, size: Size) -> Report:
    """Let a run start with too few descriptors, threads or processes: nothing fails."""
    step, kinds = (16, ("line",)) if size is Size.SHORT else (1, ("line", "graph"))
    plan: list[tuple[str, int | None, str]] = []
    if size is Size.SHORT:
        # Enough to claim, and not for two agents and the record of one.
        plan += [("graph", files, "") for files in (13,)]
    for kind in kinds:
        plan += [(kind, files, "") for files in range(MIN_FILES, MAX_FILES, step)]
        if tracer():
            # On every push a thread and a process.
            calls = list(REFUSED_CALLS.values())[:: 3 if size is Size.SHORT else 1]
            plan += [(kind, None, around) for around in calls]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = [pool.submit(one, folder / str(n), *case) for n, case in enumerate(plan)]
        ended = [future.result() for future in tried]
    notes = () if tracer() else ("without strace no system call was refused",)
    violations = tuple(line for broken, _ in ended for line in broken)
    refused = sum(is_busy for _, is_busy in ended)
    return Report({"rounds": len(plan)}, violations, {"refused": refused}, notes)
