"""A server, projects whose agents write down what they do, and what has to hold afterwards.

The agents' own record is asked whether the server's history is right: each attempt that was
accepted has started once and ended once, before the next step started.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from tests.fleet.fleet_projects import CYCLE, FleetProject, until
from tests.fleet.server import HOST, TemporalServer

TTL_S = 3
"""After so long without a beat an attempt is taken for dead."""
GONE_S = 10.0
CYCLE_NAMES = ("supervisor", "main", "reviewer", "reviewer")
"""What `CYCLE` runs, over and over."""
RECORDER = """\
import json, os, sys, time
sys.stdin.read()
token = os.environ["SEQUENCER_TOKEN"]
facts = {"step": os.environ["SEQUENCER_STEP"], "place": int(os.environ["SEQUENCER_STEP_INDEX"])}
facts |= {"token": int(token), "pid": os.getpid(), "run": os.environ["SEQUENCER_RUN_ID"]}
def note(what):
    line = json.dumps({"what": what, "at": time.monotonic(), **facts}) + "\\n"
    file = os.open("record", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
note("start")
while os.path.exists("hold") and not os.path.exists(f"go-{token}"):
    time.sleep(0.02)
if os.path.exists("busy_s"):
    time.sleep(float(open("busy_s").read()))
print("did", facts["step"], facts["place"], flush=True)
note("end")
"""


class Noted(NamedTuple):
    """What an agent has written down."""

    what: str
    at: float
    """By the machine's monotonic clock."""
    step: str
    place: int
    token: int
    pid: int
    run: str


class RecordedProject(FleetProject):
    """A project whose agents keep a record."""

    def __init__(self, folder: Path, configuration: str, store: str) -> None:
        """Write the project."""
        super().__init__(folder, configuration, store)
        (folder / "agent.py").write_text(RECORDER)
        self.clones: tuple[RecordedProject, ...] = ()
        """Others that work on the same runs."""

    @property
    def _folders(self) -> list[Path]:
        return [self.folder, *(one.folder for one in self.clones)]

    @property
    def record(self) -> list[Noted]:
        """Return what the agents have written down, those of its clones too, in order of time."""
        paths = [folder / "record" for folder in self._folders]
        texts = [path.read_text() for path in paths if path.exists()]
        lines = [line for text in texts for line in text.splitlines()]
        return sorted((Noted(**json.loads(line)) for line in lines), key=attrgetter("at"))

    def keep_in(self) -> None:
        """Let no agent end, but those that `go`."""
        for folder in self._folders:
            (folder / "hold").touch()

    def let_out(self) -> None:
        """Let all agents end."""
        for folder in self._folders:
            (folder / "hold").unlink(missing_ok=True)

    def started(self, count: int, timeout_s: float = 60.0) -> Noted:
        """Wait for the start number *count* of an agent, from 1; return it."""
        found: list[Noted] = []

        def is_there() -> bool:
            found[:] = [one for one in self.record if one.what == "start"]
            return len(found) >= count

        until(is_there, timeout_s)
        return found[count - 1]

    def ended(self, token: int, timeout_s: float = 60.0) -> None:
        """Wait for the end of the agent with *token*."""
        until(lambda: any((o.what, o.token) == ("end", token) for o in self.record), timeout_s)

    def go(self, token: int) -> None:
        """Let the agent with *token* end."""
        for folder in self._folders:
            (folder / f"go-{token}").touch()


class Arena:
    """One server that can be killed, and projects on it."""

    def __init__(self, folder: Path, more: Sequence[str] = (), host: str = HOST) -> None:
        """Keep everything below *folder*; *more* are arguments of the server."""
        self.folder = folder
        self.server = TemporalServer(folder / "server", more, host)
        self.address = self.server.address

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    def project(
        self, name: str, configuration: str = CYCLE, *, address: str = "", folder: str = ""
    ) -> RecordedProject:
        """Return a new project, in a *folder* of its own; *address* leads to the server."""
        where = address or self.address
        store = f'store: {{kind: temporal, address: "{where}", ttl_s: {TTL_S}, project: {name}}}'
        return RecordedProject(self.folder / (folder or name), configuration, store)


@contextlib.contextmanager
def crew(here: RecordedProject, count: int, *more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Let *count* workers serve; whoever kills one puts another one into the list."""
    workers = [here.launched("worker", *more) for _ in range(count)]
    for one in workers:
        # A worker that nobody listens to would wait for room in the pipe.
        threading.Thread(target=_heard, args=(one,), daemon=True).start()
    try:
        yield workers
    finally:
        for one in workers:
            if one.poll() is None:
                one.kill()
            one.wait()


def _heard(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ValueError):
        for _ in process.stdout or ():
            pass


def is_gone(pid: int) -> bool:
    """Return whether the process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone_within(pid: int, timeout_s: float = GONE_S) -> float | None:
    """Return how long it took until the process was gone; None: it is still there."""
    began = time.monotonic()
    while not is_gone(pid):
        if time.monotonic() - began > timeout_s:
            return None
        time.sleep(0.02)
    return time.monotonic() - began


# --- what has to hold --------------------------------------------------------------------


def violations(
    here: RecordedProject, run: str = "", *, names: Sequence[str] = CYCLE_NAMES, least: int = 0
) -> list[str]:
    """Return what of a line's *run* does not hold, by its agents' record."""
    chosen = ("--run", run) if run else ()
    facts, status = here.facts(*chosen, "history"), here.facts(*chosen, "status")
    accepted = [one for one in facts if one["event"] == "succeeded"]
    indexes = [one["step_index"] for one in accepted]
    record = [one for one in here.record if one.run == status["run_id"]]
    wrong = wrong_attempts(record, facts)
    if indexes != list(range(len(indexes))) or len(indexes) < least:
        wrong.append(f"accepted steps, at least {least} expected: {indexes}")
    if [one["step"] for one in accepted] != [names[i % len(names)] for i in range(len(indexes))]:
        wrong.append(f"steps of other names: {[one['step'] for one in accepted]}")
    if (status["step_index"], status["usage"]["steps"]) != (len(indexes), len(indexes)):
        wrong.append(f"status tells of {status['step_index']} steps, history of {len(indexes)}")
    spans = [_span(record, one["token"]) for one in accepted]
    for before, after in pairwise(spans):
        if before and after and before[1] > after[0]:
            wrong.append(f"a step started before the one before it ended: {before}, {after}")
    return wrong


def wrong_attempts(record: Sequence[Noted], facts: Sequence[dict[str, Any]]) -> list[str]:
    """Return what of the attempts in the *facts* of a history their *record* contradicts."""
    wrong = list[str]()
    starts = Counter(one.token for one in record if one.what == "start")
    ends = Counter(one.token for one in record if one.what == "end")
    places = {one.token: (one.step, one.place) for one in record}
    claimed = Counter(one["token"] for one in facts if one["event"] == "claimed")
    accepted = [one for one in facts if one["event"] == "succeeded"]
    wrong += [f"token {t} has {n} agents" for t, n in starts.items() if n > 1]
    wrong += [f"token {t} was claimed {n} times" for t, n in claimed.items() if n > 1]
    wrong += [f"token {t} was never claimed" for t in starts if t not in claimed]
    twice = Counter(one["token"] for one in accepted)
    wrong += [f"token {t} was accepted {n} times" for t, n in twice.items() if n > 1]
    for one in accepted:
        token, place = one["token"], (one["step"], one["step_index"])
        if (starts[token], ends[token]) != (1, 1):
            wrong.append(f"accepted {token}: {starts[token]} starts, {ends[token]} ends")
        elif places[token] != place:
            wrong.append(f"accepted {token} as {place}, its agent was at {places[token]}")
    revisions = sorted({one["revision"] for one in facts})
    if revisions != list(range(1, len(revisions) + 1)):
        wrong.append(f"revisions {revisions}")
    return wrong


def _span(record: Sequence[Noted], token: int) -> tuple[float, float] | None:
    times = [one.at for one in record if one.token == token]
    return (times[0], times[-1]) if len(times) == 2 else None


def holder_of(agent: int) -> int | None:
    """Return the worker or the `run` that has started *agent*, or None if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for parent in psutil.Process(agent).parents():
            words = parent.cmdline()
            if {"worker", "run"} & set(words) and "sequencer" in words:
                return parent.pid
    return None


def percentile(times: Sequence[float], share: float) -> float:
    """Return the value below which that *share* of the *times* is."""
    ranked = sorted(times)
    return round(ranked[min(int(share * len(ranked)), len(ranked) - 1)], 2) if ranked else 0.0


def end(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
