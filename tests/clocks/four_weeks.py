"""Four weeks alone: six projects under cron, with everything that goes wrong meanwhile.

Each tick is the entry that `sequencer schedule print` prints, given to ``sh`` with cron's few
variables, under the wall clock and the clock since boot of its hour. Agents end well, lie, fail,
crash, leave dirt and servers, hang, are overloaded and meet limits; machines are started again
and are off for days; a person breaks things, and repairs what a mail has told, twice a day.

Counted: steps accepted twice, steps lost, mails, processes left behind; for each event that
needs a person, after how many ticks a mail says so; how long a run waited for its turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.clocks import wall_clock
from tests.clocks.paid_calls import rejected, result
from tests.long.report import Report, Size

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
step_defaults: {timeout_s: 60, idle_timeout_s: 4}
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
            Event(22 * DAY + 1, "fail", r"failed 3 times in a row(.|\n)*400", 22 * DAY + 13),
        ), ("--all",), has_git=True),
        Project("pair", pair, 8, (
            Event(6 * DAY + 2, "dirty", r"work tree", 7 * DAY),
            Event(12 * DAY + 2, "remote", r"remote|origin|fetch|reach", 13 * DAY + 4),
            LIMITED,
        ), has_git=True),
        Project("tree", tree, 4, (
            Event(5 * DAY + 5, "conflict", r"merge", 5 * DAY + 6),
        ), ("--all",), has_git=True),
        Project("full", full, 6, (
            Event(9 * DAY, "full-disk", r"No space|no room", 10 * DAY),
            LIMITED,
            Event(24 * DAY, "last", r"the run is complete", 0),
        )),
        Project("flow", _COMMON % _FALLBACK + "workflow: rehearsal\n", 24, (
            Event(11 * DAY, "fail", r"failed", 11 * DAY + 2),
        )),
    ]  # fmt: skip


OFF = range(20 * DAY + 5, 23 * DAY)
"""The machines are off, but for `full` and `flow`: what begins then could not be seen."""
REBOOTS = (2 * DAY + 4, 10 * DAY + 2, 17 * DAY + 16, 26 * DAY + 8)


def prepare(project: Project, folder: Path, clock: Path) -> None:
    """Make the files of *project*, and its timer's entry."""
    first = Machine(project.name, folder / project.name, clock)
    project.machines.append(first)
    for machine in project.machines:
        machine.bin.mkdir(parents=True)
        for name in ("our-claude", "spare"):
            (machine.bin / name).write_text(AGENT)
            (machine.bin / name).chmod(0o755)
    app = first.app
    (app / "prompts").mkdir(parents=True)
    (app / "flows").mkdir()
    (app / "flows" / "nightly.md").write_text(FLOW)
    for step in ("supervisor", "main", "reviewer", "work", "review"):
        (app / "prompts" / f"{step}.md").write_text(f"Do the {step}.\n")
    (app / "orchestration.yaml").write_text(project.configuration)
    (app / ".gitignore").write_text("sync/\nlogs/\n")
    if project.has_git:
        (app / "work").mkdir()
        (app / "work" / f"{project.name}.txt").write_text("begun\n")
        first.git("init", "-q", "-b", "main")
        first.git("config", "user.name", "me")
        first.git("config", "user.email", "me@localhost")
        first.git("add", "-A")
        first.git("commit", "-q", "-m", "A project")
    if project.name == "pair":
        _make_a_pair(project, folder, clock)
    for machine in project.machines:
        trusted = machine.person("trust", "--yes")
        assert trusted.returncode == 0, trusted.stderr
        printed = machine.person("schedule", "print", "--with", "cron", *project.tick)
        assert printed.returncode == 0, printed.stderr
        machine.entry = printed.stdout.splitlines()[-1]
        if project.name == "flow":
            program = f"cd {machine.app} && PATH={machine.bin}:$PATH {sys.executable} -m sequencer"
            machine.entry = f"0 2 * * * {program} run nightly --new --quiet"


def _make_a_pair(project: Project, folder: Path, clock: Path) -> None:
    first, remote = project.machines[0], folder / "shared.git"
    first.git("clone", "-q", "--bare", ".", str(remote))
    first.git("remote", "add", "origin", str(remote))
    first.git("fetch", "-q")
    first.git("branch", "-q", "--set-upstream-to=origin/main")
    second = Machine("pair", folder / "pair-2", clock)
    second.home.mkdir()
    first.git("clone", "-q", str(remote), str(second.app))
    second.git("config", "user.name", "me")
    second.git("config", "user.email", "me@localhost")
    second.bin.mkdir()
    for name in ("our-claude", "spare"):
        (second.bin / name).write_text(AGENT)
        (second.bin / name).chmod(0o755)
    project.machines.append(second)


def live(project: Project, seed: int, days: int, ends_at: float) -> None:
    """Let the days of *project* pass, until the real clock says *ends_at*."""
    begun = [one for one in project.events if one.hour < days * DAY]
    for hour in range(days * DAY):
        if time.monotonic() > ends_at:
            return
        project.lived_h = hour
        for machine in project.machines:
            machine.hour = hour
        for event in begun:
            if event.hour == hour:
                happens(project, event)
            elif event.until == hour:
                is_over(project, event)
        if project.name == "desk" and hour % 48 == 11 and hour < 27 * DAY:
            name = f"request-{hour // 48}"
            done = project.machines[0].person(
                "--run", name, "start", f"Fix: thing {hour}", "--no-run", "--procedure", "task"
            )
            if done.returncode:
                project.wrong.append(f"hour {hour}: start: {done.stderr}")
            project.asked[name] = len(project.hours)
        is_off = hour in OFF and project.name not in ("full", "flow")
        if hour % project.every_h == 2 % project.every_h and not is_off:
            _tick(project, hour, seed)
        if hour % 12 == 9:
            visit(project, hour)


def _tick(project: Project, hour: int, seed: int) -> None:
    mood = _mood(project, hour, seed)
    turn = len(project.hours)
    machine = project.machines[turn % len(project.machines)]
    is_last = any(one.what == "last" and hour >= one.hour for one in project.events)
    is_killed = hour // project.every_h in [one // project.every_h for one in REBOOTS]
    is_killed = is_killed and project.name != "flow"
    world = {
        "mood": "slow" if is_killed else mood,
        "project": project.name,
        "hour": hour,
        "is_last": is_last,
        "done": result("", is_error=False),
        "failed": result("API Error: 400 no such model", api_error_status=400),
        "overloaded": result("API Error: 529 overloaded", api_error_status=529),
        "rejected": rejected(resetsAt=_limit_ends(hour)),
        "limited": result("You've hit your limit"),
    }
    for one in project.machines:
        (one.bin / "world.json").write_text(json.dumps(world))
    code, mail = machine.tick(is_killed=is_killed)
    if is_killed:
        project.killed.add(str(hour))
    project.hours.append(hour)
    project.codes[code] += 1
    if mail:
        project.mails.append(Told(hour, project.name, code, mail))
    if code not in (0, 1, 2, 3, 4, 75, 130) or "Traceback" in mail or "is a bug" in mail:
        project.wrong.append(f"hour {hour}: {project.name} ended with {code}: {mail[-400:]}")
    if project.asked.keys() - project.waited.keys():
        for run in project.asked.keys() - project.waited.keys():
            journal = project.machines[0].app / "sync" / "runs" / run / "journal.jsonl"
            if journal.exists() and b'"claimed"' in journal.read_bytes():
                project.waited[run] = turn - project.asked[run]


def _mood(project: Project, hour: int, seed: int) -> str:
    for event in project.events:
        if event.hour <= hour < event.until and event.what in ("limit", "fail"):
            return {"limit": "limit", "fail": "fails"}[event.what]
    if project.name in ("hourly", "tree") and LIMITED.hour <= hour < LIMITED.until:
        return "limit"
    chance = random.Random(f"{seed} {project.name} {hour}")  # noqa: S311
    if chance.random() < 0.02:
        return "limit"  # of five hours
    return chance.choices([*MOODS], [*MOODS.values()])[0]


def _limit_ends(hour: int) -> int:
    is_week = LIMITED.hour <= hour < LIMITED.until
    return int((BEGINS + timedelta(hours=LIMITED.until if is_week else hour + 5)).timestamp())


def happens(project: Project, event: Event) -> None:
    """Let *event* begin."""
    machine = project.machines[0]
    config = machine.app / "orchestration.yaml"
    if event.what == "typo":
        config.write_text(project.configuration.replace("limits:", "limit:"))
    elif event.what == "untrusted":
        text = project.configuration.replace("spare}", "spare, allowed_tools: [Bash]}")
        config.write_text(text)
    elif event.what == "dirty":
        for one in project.machines:
            (one.app / "prompts" / "main.md").write_text("Do the main thing, by hand.\n")
    elif event.what == "remote":
        remote = machine.home.parent / "shared.git"
        remote.rename(remote.with_suffix(".away"))
    elif event.what == "full-disk":
        machine.has_full_disk = True
    elif event.what == "conflict":
        # In the time of the night's run: the same line, changed by hand.
        (machine.app / "work" / f"{project.name}.txt").write_text("changed by hand\n")
        machine.git("commit", "-q", "-a", "-m", "By hand")


def is_over(project: Project, event: Event) -> None:
    """Let *event* end."""
    machine = project.machines[0]
    if event.what == "typo":
        (machine.app / "orchestration.yaml").write_text(project.configuration)
    elif event.what == "untrusted":
        assert machine.person("trust", "--yes").returncode == 0
    elif event.what == "dirty":
        for one in project.machines:
            one.git("checkout", "-q", "--", ".")
    elif event.what == "remote":
        remote = machine.home.parent / "shared.git"
        remote.with_suffix(".away").rename(remote)
    elif event.what == "full-disk":
        machine.has_full_disk = False


def visit(project: Project, hour: int) -> None:
    """Let a person do what the inbox says, if a mail has told about it; else it was silent."""
    machine = project.machines[0]
    if machine.has_full_disk or project.codes.keys() <= {0, 130} or not project.hours:
        return
    shown = machine.person("inbox", "--json")
    if shown.returncode:
        return  # the configuration is broken just now
    for row in json.loads(shown.stdout):
        told = [one for one in project.mails if _is_about(one, row)]
        if not told:
            ticks = [one for one in project.hours if one > hour - 2 * project.every_h]
            if len(ticks) > 2:
                project.wrong.append(f"hour {hour}: {project.name}: no mail told about {row}")
            continue
        option = [] if row["run"] is None else ["--run", row["run"]]
        if row.get("need") == "untrusted":
            machine.person("trust", "--yes")
        elif row.get("need") == "limit":
            _raise_the_cap(project)
        elif row.get("need") in ("refused", "person"):
            machine.person(*option, "retry" if row["need"] == "refused" else "resume")
        else:
            machine.person(*option, "answer", "approve")


def _is_about(mail: Told, row: dict[str, Any]) -> bool:
    run = row["run"] or "default"
    return row.get("need") == "untrusted" or f"run: {run}\n" in mail.text


def _raise_the_cap(project: Project) -> None:
    found = re.search(r"cost_usd: ([\d.]+)", project.configuration)
    if found is not None:
        more = f"cost_usd: {float(found[1]) + 1.5}"
        project.configuration = project.configuration.replace(found[0], more)
        (project.machines[0].app / "orchestration.yaml").write_text(project.configuration)
        project.machines[0].person("trust", "--yes")


# --- what came of it -------------------------------------------------------------------------


def accepted(project: Project) -> Iterator[tuple[str, int, str, str]]:
    """Yield run id, step index, step and output of each step that was accepted."""
    machine = project.machines[0]
    if project.name == "pair":
        machine.person("sync", "--fetch")
    for journal in sorted((machine.app / "sync").rglob("journal*.jsonl")):
        for line in journal.read_text().splitlines():
            record = json.loads(line)
            for fact in record.get("facts") or [record.get("fact") or record]:
                if fact.get("event") == "succeeded":
                    said = json.dumps(fact.get("outcome") or {})
                    yield str(record["head"]["run_id"]), fact["step_index"], fact["step"], said


def judged(project: Project) -> Iterator[str]:
    """Yield what did not hold."""
    yield from project.wrong
    places: Counter[tuple[str, int, str]] = Counter()
    said = []
    for run_id, index, step, text in accepted(project):
        places[run_id, index, step] += 1
        said.append(text)
    # A flow's nodes have no index; a step before a gate is done again after feedback only.
    doubled = (
        [place for place, count in places.items() if count > 1] if project.name != "flow" else []
    )
    yield from (f"{project.name}: accepted twice: {one}" for one in doubled)
    text = "\n".join(said)
    for machine in project.machines:
        yield from (f"{project.name}: left behind: process {pid}" for pid in machine.left())
        for call in _ended(machine):
            hour = call.split("-")[2]
            if call not in text and hour not in project.killed and not _is_hidden(machine, call):
                yield f"{project.name}: lost: {call}"
    for event in project.events:
        if event.mail and event.hour <= project.lived_h and (late := _late(project, event)):
            yield late


def _ended(machine: Machine) -> list[str]:
    calls = machine.bin / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [line.split()[0] for line in lines if line.endswith(" ended")]


def _is_hidden(machine: Machine, call: str) -> bool:
    """Return whether the answer is in a file beside the journal: it was too long for it."""
    folder = machine.app / "sync"
    return any(call in path.read_text() for path in folder.rglob("results/**/*") if path.is_file())


def _late(project: Project, event: Event) -> str:
    """Return that no mail told of *event* within two ticks; three attempts make a failure."""
    later = [hour for hour in project.hours if hour >= event.hour]
    ticks = {"fail": 6, "conflict": 14, "last": 3, "limit": 6}.get(event.what, 3)
    if len(later) < ticks:
        return ""
    last = later[ticks - 1]
    for mail in project.mails:
        if event.hour <= mail.hour <= last and re.search(event.mail, mail.text):
            return ""
    return f"{project.name}: no mail about {event.what} from hour {event.hour} to {last}"


def weeks(
    folder: Path,
    clock: Path,
    seed: int,
    days: int,
    names: Sequence[str] = (),
    seconds: float = 86_400,
) -> Report:
    """Return what *days* days came to, or those of them for which *seconds* are enough."""
    found = [one for one in projects() if not names or one.name in names]
    for project in found:
        prepare(project, folder, clock)
    began = time.monotonic()

    def lived(project: Project) -> None:
        try:
            live(project, seed, days, began + seconds)
        except Exception as error:  # noqa: BLE001 - one that breaks must not hide the others
            project.wrong.append(f"{project.name}: the campaign: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(len(found)) as pool:
        list(pool.map(lived, found))
    wrong = [text for project in found for text in judged(project)]
    mails = [mail for project in found for mail in project.mails]
    for mail in sorted(mails, key=lambda one: one.hour):
        at = BEGINS + timedelta(hours=mail.hour)
        print(f"--- {mail.project}, hour {mail.hour} ({at:%a %d %H:%M} UTC), exit code {mail.code}")
        print(mail.text.rstrip())
    waits = [count for project in found for count in project.waited.values()]
    figures = {f"mails_{one.name}": float(len(one.mails)) for one in found}
    figures |= {"mails": float(len(mails)), "seconds": round(time.monotonic() - began, 1)}
    figures |= {"longest_wait_for_a_turn_ticks": float(max(waits, default=0))}
    lost = sum(": lost: " in text for text in wrong)
    doubled = sum(": accepted twice: " in text for text in wrong)
    figures |= {"lost": float(lost), "doubled": float(doubled)}
    calls = sum(len(_calls(one)) for project in found for one in project.machines)
    steps = sum(1 for project in found for _ in accepted(project))
    counts = {"ticks": sum(len(one.hours) for one in found), "agent calls": calls, "steps": steps}
    notes = tuple(
        f"{one.name}: {one.lived_h + 1} h, exit codes {dict(sorted(one.codes.items()))}"
        for one in found
    )
    return Report(counts, tuple(wrong), figures, notes)


def _calls(machine: Machine) -> list[str]:
    calls = machine.bin / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [line for line in lines if not line.endswith(" ended")]


def campaign(folder: Path, size: Size) -> Report:
    """Four weeks alone under cron, in six projects: nothing doubled or lost, few mails."""
    clock = wall_clock.library(folder)
    if clock is None:
        return Report({"ticks": 0}, (), {"skipped_because_there_is_no_compiler": 1.0})
    names = ("hourly", "desk") if size is Size.SHORT else ()
    return weeks(folder, clock, 1, 3 if size is Size.SHORT else 28, names)


def main() -> int:
    """Run it by hand, for other days and seeds."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--days", type=int, default=28)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--seconds", type=float, default=86_400, help="stop after so long")
    asked.add_argument("--only", nargs="*", default=())
    asked.add_argument("--report", type=Path, required=True)
    given = asked.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="four-weeks-"))
    clock = wall_clock.library(folder)
    assert clock is not None, "no C compiler"
    report = weeks(folder, clock, given.seed, given.days, given.only, given.seconds)
    told = {"counts": dict(report.counts), "figures": dict(report.figures)}
    told |= {"violations": list(report.violations), "notes": list(report.notes)}
    given.report.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main())
