"""Projects whose runs are on a real Temporal server, and the same in files beside them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.clones import ENVIRONMENT, git

AGENT = """\
import os, sys, time
text = sys.stdin.read()
name = os.environ["SEQUENCER_STEP"]
with open("done.txt", "a") as file:
    index, token = os.environ["SEQUENCER_STEP_INDEX"], os.environ["SEQUENCER_TOKEN"]
    file.write(f"{name} {index} {token} {os.getpid()}\\n")
while os.path.exists("hold") or os.path.exists(f"hold-{name}"):
    time.sleep(0.02)
print(text.split("Say ")[-1].strip() if "Say " in text else f"did {name} {index}")
"""
AGENTS = """\
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py]}
"""
CYCLE = AGENTS + "workflow: {name: review_cadence, review_every_n: 2}\n"
PROCEDURE = (
    AGENTS
    + """\
workflow: {name: release}
workflows:
  release:
    kind: procedure
    steps: [{name: plan, prompt: main.md, requires_approval: true}, {name: build, prompt: main.md}]
"""
)

FLOW = """\
---
id: review
name: Review
state:
  who: nobody
---

# Review

```mermaid
flowchart TD
  draft[Draft] --> prose & facts
  prose & facts --> join((All))
  join --> fine{{Fine?}}
  fine -->|approve| publish
  fine -->|"send back"| draft
  publish --> done((Done))
```

### draft
Say a draft for {{state.who}}

### prose
Say prose of {{output}}

### facts
Say facts

### publish
Say published: {{nodes.prose.output}}
"""


CODE_AGENT = """\
import os, subprocess, sys, time
sys.stdin.read()
name, index = os.environ["SEQUENCER_STEP"], int(os.environ["SEQUENCER_STEP_INDEX"])
with open("../done.txt", "a") as file:
    place = os.path.basename(os.getcwd())
    file.write(f"{name} {index} {os.environ['SEQUENCER_TOKEN']} {os.getpid()} {place}\\n")
lines = open("code.txt").read().split() if os.path.exists("code.txt") else []
if lines != [str(number) for number in range(index)]:
    sys.exit(f"step {index} needs the code of all before it, and has {lines}")
with open("code.txt", "a") as file:
    file.write(f"{index}\\n")
subprocess.run(["git", "add", "code.txt"], check=True)
subprocess.run(["git", "commit", "-qm", f"step {index}"], check=True)
while os.path.exists("../hold") or os.path.exists("hold"):
    time.sleep(0.02)
"""
NODE_AGENT = """\
import os, subprocess, sys, time
sys.stdin.read()
name = os.environ["SEQUENCER_STEP"]
with open("../done.txt", "a") as file:
    file.write(f"{name} {os.getpid()} {os.path.basename(os.getcwd())}\\n")
while os.path.exists(f"../hold-{name}"):
    time.sleep(0.02)
with open(f"{name}.txt", "a") as file:
    file.write(" ".join(sorted(one for one in os.listdir(".") if one.endswith(".txt"))))
subprocess.run(["git", "add", "-A"], check=True)
subprocess.run(["git", "commit", "-qm", name], check=True)
print(name)
"""
CODE = """\
workflow: {name: review_cadence, review_every_n: 2}
agent: {default: script}
step_defaults: {retry: {max_attempts: 5, initial_delay_s: 0.1}}
agents:
  script:
    kind: command
    argv: ["{python}", -IS, agent.py]
    pass_env: [GIT_CONFIG_GLOBAL, GIT_AUTHOR_NAME, GIT_AUTHOR_EMAIL, GIT_COMMITTER_NAME,
               GIT_COMMITTER_EMAIL]
"""


def clones(
    folder: Path, configuration: str, store: str, *names: str, flow: str = "", agent: str = ""
) -> list[FleetProject]:
    """Make one clone of a project for each of *names*, beside a bare repository."""
    agent = agent or (NODE_AGENT if flow else CODE_AGENT)
    first = FleetProject(folder / "first", configuration, store, agent)
    if flow:
        (first.folder / "flow.md").write_text(flow)
    (first.folder / ".gitignore").write_text("sync/\nlogs/\nhold\n")
    git(folder, "init", "-q", "--bare", "-b", "main", "remote.git")
    for words in ("init -q -b main", "add .", "commit -qm first", "remote add origin ../remote.git",
                  "push -q origin main"):  # fmt: skip
        git(first.folder, *words.split())
    for name in names:
        git(folder, "clone", "-q", "remote.git", name)
    nobodys = {name: text for name, text in ENVIRONMENT.items() if name.startswith("GIT_")}
    return [FleetProject.at(folder / name, nobodys) for name in names]


def code(folder: Path, ref: str = "main") -> list[int]:
    """Return the steps whose code *ref* of the repository that clones in *folder* share has."""
    shown = git(folder / "remote.git", "show", f"{ref}:code.txt", check=False)
    return [int(line) for line in shown.split()]


CALLED = """\
import runpy, socket, sys
host = sys.argv.pop(1)
socket.gethostname = lambda: host
runpy.run_module("sequencer", run_name="__main__", alter_sys=True)
"""
NEWER = """\
import runpy, sys
from sequencer.plugins.temporal import wire, workflow
wire.EDITION += 1
workflow.ATTEMPT = "sequencer.attempt.newer"
sys.argv[0] = "sequencer"
runpy.run_module("sequencer", run_name="__main__")
"""
"""A release that decides something else: what it replays of the one before is refused."""


class FleetProject:
    """One folder, and what is run in it."""

    host = ""
    """What this machine is called; empty: as it is."""
    is_newer = False
    """Whether its commands are of a release with another edition."""

    def __init__(self, folder: Path, configuration: str, store: str, agent: str = AGENT) -> None:
        """Write the project."""
        self.folder = folder
        self.variables: dict[str, str] = {}
        """Of its commands, beside those of this process."""
        (folder / "prompts").mkdir(parents=True)
        for name in ("supervisor", "main", "reviewer"):
            (folder / "prompts" / f"{name}.md").write_text(f"Do {name}.\n")
        (folder / "agent.py").write_text(agent)
        (folder / "orchestration.yaml").write_text(f"{configuration}{store}\n")

    @classmethod
    def at(cls, folder: Path, variables: dict[str, str]) -> FleetProject:
        """Return the project that is in *folder* already; its commands have *variables*."""
        made = cls.__new__(cls)
        made.folder, made.variables = folder, variables
        return made

    def cli(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run ``sequencer ARGUMENTS`` to its end."""
        return subprocess.run(
            self._command(arguments),
            cwd=self.folder,
            env=_environment() | self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        program = ["-c", NEWER] if self.is_newer else ["-m", "sequencer"]
        program = ["-c", CALLED, self.host] if self.host else program
        return [sys.executable, *program, *arguments]

    def facts(self, *arguments: str) -> Any:
        """Return what ``sequencer ARGUMENTS --json`` prints; of several lines a list."""
        ended = self.cli(*arguments, "--json")
        assert ended.returncode == 0, ended.stderr
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        return lines if "history" in arguments else lines[0]

    def launched(self, *arguments: str, within: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start ``sequencer ARGUMENTS`` *within* another command; whoever does ends it."""
        return subprocess.Popen(
            [*within, *self._command(arguments)],
            cwd=self.folder,
            env=_environment() | self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @contextlib.contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run ``sequencer ARGUMENTS`` while the block lasts; it is killed if it is still there."""
        process = self.launched(*arguments)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    @contextlib.contextmanager
    def worker(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Let a worker serve while the block lasts."""
        with self.process("worker", *more) as process:
            assert process.stderr is None
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "serving" in line, line + process.stdout.read()
            yield process

    @property
    def done(self) -> list[list[str]]:
        """Return step, step_index, token and process of every agent that has begun."""
        path = self.folder / "done.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def hold(self, step: str = "") -> Path:
        """Let every agent wait, or those of one step, until the file is gone."""
        path = self.folder / (f"hold-{step}" if step else "hold")
        path.touch()
        return path


def _environment() -> dict[str, str]:
    clean = {key: one for key, one in os.environ.items() if not key.startswith("SEQUENCER_")}
    return clean | {"SEQUENCER_TRUST": "all"}


def until(is_so: Callable[[], object], timeout_s: float = 30.0) -> float:
    """Wait until *is_so*; return how long that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < timeout_s, "it did not come to be"
        time.sleep(0.02)
    return time.monotonic() - began


def started_by(agent: int) -> int:
    """Return the process that has started *agent*, through its guard."""
    for parent in psutil.Process(agent).parents():
        if {"worker", "run"} & set(parent.cmdline()) and "sequencer" in parent.cmdline():
            return parent.pid
    raise AssertionError("nobody has started it")


def told(facts: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what of a history has to be the same everywhere."""
    return [
        (
            one["revision"],
            one["event"],
            one["step"],
            one["step_index"],
            one["token"],
            one["attempt"],
            _steady(one["outcome"] or {}),
        )
        for one in facts
    ]


def _steady(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return *outcome* without what a clock has said, and without commits."""
    varying = ("usage", "began_at", "note", "work")
    kept = json.dumps({key: value for key, value in outcome.items() if key not in varying})
    kept = re.sub(r"-[0-9a-f]{16}/", "/", re.sub(r"\b[0-9a-f]{40}\b", "COMMIT", kept))
    found: dict[str, Any] = json.loads(kept)
    return found


def steady(text: str) -> str:
    """Return *text* without times, durations, ids and the widths of its columns."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME", text)
    text = re.sub(r"^\d\d:\d\d:\d\d", "TIME", text, flags=re.MULTILINE)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "ID", text)
    text = re.sub(r'"(seconds|journal_offset|age_s)": [0-9.]+', r'"\1": N', text)
    text = re.sub(r"\b(\d+ (h|min) )?\d+(\.\d+)? (s|min|h)\b", "N s", text)
    return re.sub(r" {2,}", "  ", text)
