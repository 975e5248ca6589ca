"""A day of cron over a change of the clocks, and the mails that somebody gets of it.

The entry that `sequencer schedule print` prints is given to ``sh`` each hour, with cron's few
variables and a wall clock of that hour. Meanwhile an agent fails, meets a limit, is away,
the configuration is damaged, a gate asks. Whatever the tick prints is a mail.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests import forked
from tests.clocks import wall_clock
from tests.clocks.paid_calls import rejected, result
from tests.long.report import Report, Size

ZONE = "EST5EDT,M3.2.0,M11.1.0"
"""New York's, as every C library reads it without a table of zones."""
AUTUMN = datetime(2026, 11, 1, 2, tzinfo=UTC)
"""22:00 of the evening before: four hours later the clocks are set back."""
SPRING = datetime(2027, 3, 14, 3, tzinfo=UTC)
AGENT = f"""\
#!{sys.executable}
import json, pathlib, sys, time, uuid
prompt = sys.stdin.read()
mood = json.loads(pathlib.Path("mood.json").read_text())
for event in mood["events"]:
    text = json.dumps(event).replace('"@reset"', str(mood["reset"]))
    print(text.replace("@request", "req_" + uuid.uuid4().hex), flush=True)
sys.exit(mood["exit"])
"""
CONFIGURATION = """\
workflow: {name: day}
agent: {default: worker}
agents:
  worker: {kind: claude, program: our-claude, limit_wait_s: 600}
workflows:
  day: {steps: [plan, build, {name: publish, requires_approval: true}]}
limits: {max_failures_in_row: 3}
"""
MOODS: dict[str, tuple[list[dict[str, Any]], int]] = {
    "ok": ([result("done", is_error=False)], 0),
    "fails": ([result("API Error: 400 no such model (@request)", api_error_status=400)], 1),
    "limit": ([rejected(resetsAt="@reset"), result("You've hit your limit")], 1),
}


class Hour(NamedTuple):
    """What happens before a tick, and the mail that comes of that tick."""

    before: str
    code: int
    mail: str | None = None
    """A regular expression; None: nobody is told anything."""


MISSING = 2
"""How a tick ends whose client is not there."""
FAILED = r"^error: step 'build' failed 3 times(.|\n)*API Error: 400 no such model(.|\n)*retry'"
ASKS = r"'publish' waits for a decision(.|\n)*'sequencer --config=\S+/app/\S+ answer approve'"
SHORT = (
    Hour("ok", 0),
    Hour("fails", 1),
    Hour("ok", 0),
    Hour("ok", 0, rf"^{ASKS}"),
    Hour("", 4),
    Hour("answer approve", 0),
    Hour("gone", MISSING, "our-claude"),
    Hour("", MISSING),
    Hour("back", 0),
    Hour("damage", 2, r"^error: .*orchestration.yaml"),
    Hour("undo", 0, ASKS),
)
LONG = (
    Hour("ok", 0),
    Hour("fails", 1),
    Hour("", 1),
    Hour("ok", 0),
    Hour("ok", 0, rf"^{ASKS}"),
    Hour("", 4),
    Hour("", 4),
    Hour("answer approve", 0),
    Hour("limit", 0),
    Hour("", 0),
    Hour("ok", 0),
    Hour("gone", MISSING, "our-claude"),
    Hour("", MISSING),
    Hour("back", 0, ASKS),
    Hour("damage", 2, r"^error: .*orchestration.yaml"),
    Hour("", 2),
    Hour("undo", 4),
    Hour("answer approve", 0),
    Hour("fails", 1),
    Hour("", 1),
    Hour("", 1, FAILED),
    *[Hour("", 3)] * 6,
    Hour("ok, retry", 0),
    Hour("", 0, rf"^{ASKS}"),
    *[Hour("", 4)] * 7,
    Hour("answer approve", 0),
    Hour("limit", 0),
    Hour("", 0),
    Hour("ok", 0),
    Hour("stop", 0, r"^the run was stopped"),
    *[Hour("", 0)] * 3,
    Hour("resume", 0, rf"^{ASKS}"),
    *[Hour("", 4)] * 2,
    Hour("answer approve", 0),
)


@dataclass
class Day:
    """A project, its entry, and the world around it."""

    folder: Path
    clock: Path
    begins: datetime
    entry: str = ""
    hours: int = 0
    mails: list[tuple[int, int, str]] = field(default_factory=list)
    """Hour, exit code, text."""

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def now(self) -> datetime:
        return self.begins + timedelta(hours=self.hours)

    @property
    def client(self) -> Path:
        return self.folder / "bin" / "our-claude"

    def variables(self, **more: str) -> dict[str, str]:
        """Return what cron gives to what it starts, in the zone and at the hour of the day."""
        shift_s = math.ceil(self.now.timestamp() - time.time())
        cron = {"HOME": str(self.folder), "LOGNAME": "me", "SHELL": "/bin/sh"}
        own = {"TZ": ZONE, **wall_clock.variables(self.clock, shift_s)}
        return {**cron, "PATH": "/usr/bin:/bin", **own, **more}

    def person(self, *arguments: str) -> str:
        """Let somebody type ``sequencer ARGUMENTS``; what was to be done has to be done."""
        path = f"{self.client.parent}:{os.environ['PATH']}"
        done = forked.run(
            [sys.executable, "-m", "sequencer", *arguments],
            cwd=self.app,
            env=self.variables(PATH=path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return str(done.stdout)

    def prepare(self) -> None:
        (self.app / "prompts").mkdir(parents=True)
        for step in ("plan", "build", "publish"):
            (self.app / "prompts" / f"{step}.md").write_text(f"Do the {step}.\n")
        (self.app / "orchestration.yaml").write_text(CONFIGURATION)
        self.client.parent.mkdir()
        self.client.write_text(AGENT)
        self.client.chmod(0o755)
        self.person("trust", "--yes")
        self.entry = self.person("schedule", "print").splitlines()[-1]

    def change(self, what: str) -> None:
        """Let happen what an hour says."""
        config, away = self.app / "orchestration.yaml", self.client.with_suffix(".away")
        if what in MOODS:
            events, code = MOODS[what]
            # Half an hour before the next tick but one.
            reset = int(self.now.timestamp()) + 5_400
            mood = {"events": events, "exit": code, "reset": reset}
            (self.app / "mood.json").write_text(json.dumps(mood))
        elif what == "gone":
            self.client.rename(away)
        elif what == "back":
            away.rename(self.client)
        elif what == "damage":
            config.write_text(CONFIGURATION.replace("limits:", "limit:"))
        elif what == "undo":
            config.write_text(CONFIGURATION)
        else:
            self.person(*what.split())

    def tick(self) -> tuple[int, str]:
        """Do what cron does; return the exit code and the mail."""
        # Five fields; then the command, in which cron takes \\% for %.
        command = self.entry.split(" ", 5)[5].replace(r"\%", "%")
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def wrong(self, hours: Sequence[Hour]) -> Iterator[str]:
        """Let *hours* pass; yield what was not as they say."""
        for hour in hours:
            for what in filter(None, hour.before.split(", ")):
                self.change(what)
            code, mail = self.tick()
            if mail:
                self.mails.append((self.hours, code, mail))
            if code != hour.code:
                yield f"hour {self.hours} ended with {code}: {hour}: {mail}"
            if bool(mail) != bool(hour.mail) or not re.search(hour.mail or "", mail):
                yield f"hour {self.hours}, the mail: {mail!r}, not {hour.mail!r}"
            self.hours += 1
        yield from self._log(hours)

    def _log(self, hours: Sequence[Hour]) -> Iterator[str]:
        """Yield what is wrong with the log: it has every hour, and each line its time."""
        lines = (self.app / "logs" / "tick.log").read_text().splitlines()
        stamps = [line[:24] for line in lines]
        times = [datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S%z") for stamp in stamps]
        if times != sorted(times):
            yield "the log's lines are not in their order"
        local = {time.strftime("%d %H%z") for time in times}
        if len(local) != len(hours):
            yield f"the log has {len(local)} hours of {len(hours)}: {sorted(local)}"
        codes = [
            int(line.rpartition(" ")[2]) for line in lines if line[26:].startswith("exit code")
        ]
        if codes != [hour.code for hour in hours if hour.code]:
            yield f"the log's exit codes are {codes}"


def day(
    folder: Path, clock: Path, begins: datetime, hours: Sequence[Hour]
) -> tuple[Day, list[str]]:
    """Return how *hours* from *begins* on went, and what was wrong with them."""
    lived = Day(folder, clock, begins)
    lived.prepare()
    return lived, list(lived.wrong(hours))


def campaign(folder: Path, size: Size) -> Report:
    """Cron ticks through a change of the clocks, and tells a person each change once."""
    clock = wall_clock.library(folder)
    if clock is None:
        return Report({"inputs": 0}, (), {"skipped_because_there_is_no_compiler": 1.0})
    hours = SHORT if size is Size.SHORT else LONG
    ticks, mails, wrong = 0, 0, []
    for name, begins in (("autumn", AUTUMN), ("spring", SPRING))[: 1 if size is Size.SHORT else 2]:
        (folder / name).mkdir()
        lived, found = day(folder / name, clock, begins, hours)
        wrong += [f"{name}: {text}" for text in found]
        ticks, mails = ticks + lived.hours, mails + len(lived.mails)
        for hour, code, text in lived.mails:
            at = begins + timedelta(hours=hour)
            print(f"--- {name}, hour {hour} ({at:%d %H:%M} UTC), exit code {code}\n{text.rstrip()}")
    return Report({"inputs": ticks}, tuple(wrong), {"mails": float(mails)})
