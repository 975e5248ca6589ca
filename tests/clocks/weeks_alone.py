"""The six projects of `four_weeks`, their agents and machines, and what happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.clocks import wall_clock

BEGINS = datetime(2026, 10, 15, 0, tzinfo=UTC)
"""A Thursday; the clocks change in the first and in the last week."""
ZONE = "AAA5BBB,M10.3.0,M11.2.0"
KILL_AFTER_S = 1.5
TICK_S = 240.0
"""A tick that takes longer is stuck: each limit of time of a step is below it."""
AGENT = f"""\
#!{sys.executable} -IS
import json, os, pathlib, subprocess, sys, time
here = pathlib.Path(__file__).resolve().parent
prompt = sys.stdin.read()
world = json.loads((here / "world.json").read_text())
is_spare = pathlib.Path(sys.argv[0]).name == "spare"
mood = world["mood"]
if mood == "limit" and is_spare:
    mood = "ok"
with (here / "calls.txt").open("a+") as calls:
    name = f"call-{{world['project']}}-{{world['hour']}}-{{os.getpid()}}"
    calls.write(f"{{name}} {{mood}}\\n")
def say(event):
    print(json.dumps(event), flush=True)
work = pathlib.Path("work")
if mood == "dirt":
    work.mkdir(exist_ok=True)
    (work / f"half-{{name}}.txt").write_text("half")
if mood in ("fails", "dirt"):
    say(world["failed"]); sys.exit(1)
if mood == "overloaded":
    say(world["overloaded"]); sys.exit(1)
if mood == "limit":
    say(world["rejected"]); say(world["limited"]); sys.exit(1)
if mood == "crash":
    os.kill(os.getpid(), 9)
if mood == "hang":
    time.sleep(600)
if mood == "slow":
    time.sleep(20)
if mood == "server":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
if mood != "lie":
    work.mkdir(exist_ok=True)
    with (work / f"{{world['project']}}.txt").open("a") as file:
        file.write(name + "\\n")
text = {{"lie": "All 60 items are finished.", "question": "Should I go on?"}}.get(mood, "done")
text += " " + "x" * (300_000 if mood == "big" else 0)
done = dict(world["done"])
done["result"] = text + " " + name + ("\\nALL DONE" if world["is_last"] else "")
say(done)
with (here / "calls.txt").open("a") as calls:
    calls.write(f"{{name}} ended\\n")
"""
MOODS = {
    "ok": 72, "overloaded": 5, "fails": 4, "dirt": 4, "crash": 3, "hang": 3,
    "server": 3, "big": 2, "lie": 3, "question": 1,
}  # fmt: skip
ENDS_WELL = frozenset(("ok", "lie", "server", "big", "question"))
_COMMON = """\
agent: {default: worker%s}
agents:
  worker: {kind: claude, program: our-claude, limit_wait_s: 600}
  spare: {kind: claude, program: spare}
step_defaults: {timeout_s: 60, idle_timeout_s: 20}
"""
_FALLBACK = ", fallback: [spare]"
_TASK = """\
workflows:
  task: {kind: procedure, steps: [{name: look, text: Look.}, {name: change, text: Change.}]}
  letter:
    kind: procedure
    steps: [{name: write, text: Write., requires_approval: true}, {name: send, text: Send.}]
"""
FLOW = """\
```mermaid
flowchart TD
  S((start)) --> Look --> Change --> E((End))
```

### Look
Look for one thing.

### Change
Change it.
"""


class Event(NamedTuple):
    """Something that needs a person, unless *mail* is empty."""

    hour: int
    what: str
    mail: str = ""
    """A regular expression: a mail within two ticks has it."""
    until: int = 0
    """The hour at which it is over by itself, or repaired by whoever has caused it."""


@dataclass
class Told:
    """One mail."""

    hour: int
    project: str
    code: int
    text: str


@dataclass
class Machine:
    """A home folder with a project, on a machine with a boot of its own."""

    name: str
    home: Path
    clock: Path
    hour: int = 0
    boots: int = 0
    has_full_disk: bool = False
    entry: str = ""

    @property
    def app(self) -> Path:
        return self.home / "app"

    @property
    def bin(self) -> Path:
        return self.home / "bin"

    def variables(self, **more: str) -> dict[str, str]:
        """Return what cron gives, under this hour's clocks."""
        shift_s = round(BEGINS.timestamp() + self.hour * 3_600 - time.time())
        boot = self.home / "boot_id"
        boot.write_text(f"{self.boots:08x}-0000-4000-8000-000000000000\n")
        cron = {"HOME": str(self.home), "LOGNAME": "me", "SHELL": "/bin/sh"}
        bent = wall_clock.variables(
            self.clock, shift_s, (self.hour * 3_600, boot), has_full_disk=self.has_full_disk
        )
        return {**cron, "PATH": "/usr/bin:/bin", "TZ": ZONE, **bent, **more}

    def person(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Let the person type ``sequencer ARGUMENTS``."""
        return self.command([sys.executable, "-m", "sequencer", *arguments])

    def command(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.app, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=self.variables(PATH=f"{self.bin}:{os.environ['PATH']}"), check=False,
        )  # fmt: skip

    def git(self, *arguments: str) -> None:
        done = self.command(
            ["git", "-c", "user.name=me", "-c", "user.email=me@localhost", *arguments]
        )
        assert done.returncode == 0, f"git {arguments}: {done.stderr}"

    def tick(self, *, is_killed: bool = False) -> tuple[int, str]:
        """Do what cron does; with *is_killed* the machine goes down in the middle."""
        command = self.entry.split(" ", 5)[5].replace(r"\%", "%")
        with tempfile.TemporaryFile("w+") as mail:
            child = subprocess.Popen(
                ["/bin/sh", "-c", command], cwd=self.home, env=self.variables(),
                stdin=subprocess.DEVNULL, stdout=mail, stderr=mail, start_new_session=True,
            )  # fmt: skip
            if is_killed:
                time.sleep(KILL_AFTER_S)
                while self.left():
                    for pid in self.left():
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                self.boots += 1
            code = child.wait(timeout=TICK_S)
            mail.seek(0)
            return (130, "") if is_killed else (code, mail.read())

    def left(self) -> list[int]:
        """Return the processes that were started here and are still there."""
        found, mark = [], f"HOME={self.home}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found


@dataclass
class Project:
    """One of the six: what it is, when it ticks, and what happens to it."""

    name: str
    configuration: str
    every_h: int
    events: tuple[Event, ...] = ()
    tick: tuple[str, ...] = ()
    """Options of its timer."""
    has_git: bool = False
    machines: list[Machine] = field(default_factory=list)
    mails: list[Told] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    hours: list[int] = field(default_factory=list)
    """Of its ticks."""
    wrong: list[str] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)
    asked: dict[str, int] = field(default_factory=dict)
    """Requests, by the tick in whose time they were made."""
    waited: dict[str, int] = field(default_factory=dict)
    """After how many ticks each request had its first step."""
    lived_h: int = 0


DAY = 24
LIMITED = Event(14 * DAY + 4, "limit", r"usage limit of agent", 19 * DAY)
"""Most of a week in which the subscription gives nothing."""


def projects() -> list[Project]:
    """Return the six projects, with the events that need a person; see `Event`."""
    hourly = _COMMON % _FALLBACK + "steps: [work]\nreview: {every: 3}\nlimits: {cost_usd: 1.5}\n"
    desk = (
        _COMMON % ""
        + "steps: [work]\n"
        + _TASK
        + (
            'schedules:\n  nightly: {workflow: task, at: "0 2 * * *"}\n'
            '  weekly: {workflow: letter, at: "0 8 * * 1"}\n'
        )
    )
    tree = _COMMON % _FALLBACK + "worktree: true\n" + _TASK
    tree += 'schedules: {nightly: {workflow: task, at: "0 2 * * *"}}\n'
    pair = _COMMON % "" + "workflow: standard\nstore: {kind: git}\ncommit: {paths: [work/]}\n"
    full = _COMMON % "" + "steps: [{name: work, text: Work., complete_when: ALL DONE}]\n"
    return [
        Project("hourly", hourly, 2, (
            Event(50, "typo", r"orchestration\.yaml.*unknown key", 56),
            Event(8 * DAY, "fail", r"failed 3 times in a row(.|\n)*400", 8 * DAY + 8),
        )),
        Project("desk", desk, 3, (
            Event(4 * DAY + 9, "untrusted", r"changed since you trusted", 4 * DAY + 15),
            LIMITED,
            Event(24 * DAY + 1, "fail", r"failed 3 times in a row(.|\n)*400", 25 * DAY + 13),
        ), ("--all",), has_git=True),
        Project("pair", pair, 8, (
            Event(6 * DAY + 2, "dirty", r"work tree", 7 * DAY),
            Event(12 * DAY + 2, "remote", r"remote|origin|fetch|reach", 13 * DAY + 4),
            LIMITED,
        ), has_git=True),
        Project("tree", tree, 4, (
            Event(5 * DAY + 8, "conflict", r"merge", 5 * DAY + 9),
        ), ("--all",), has_git=True),
        Project("full", full, 6, (
            Event(9 * DAY, "full-disk", r"No space|no room", 10 * DAY),
            LIMITED,
        )),
        Project("flow", _COMMON % _FALLBACK + "steps: [work]\n", 24, (
            Event(11 * DAY, "fail", r"failed", 11 * DAY + 3),
        )),
    ]  # fmt: skip


OFF = range(20 * DAY + 5, 23 * DAY)
"""The machines are off, but for `full` and `flow`: what begins then could not be seen."""
REBOOTS = (2 * DAY + 4, 10 * DAY + 2, 17 * DAY + 16, 26 * DAY + 8)
