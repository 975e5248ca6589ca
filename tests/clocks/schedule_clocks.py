"""Wrong clocks and the dates of schedules: each later date starts its run, once.

A tick under a wrong clock may start the run, or note a date, that is years away. What it
leaves must not count once the clock is right.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from sequencer import Project, open_project
from sequencer.plugins.schedules import schedules
from tests.clocks.faketime import library, variables
from tests.concurrency.schedule_points import CONFIGURATION, finish, resets, tick
from tests.long.report import Report, Size
from tests.storage.commands import sequencer

DAY_S = 24 * 60 * 60
WRONG = (-20 * 365.0, -400.0, -2.0, -0.04, 0.04, 0.8, 1.3, 40.0, 10 * 365.0, 70 * 365.0)
"""How many days the clock is wrong by."""
WHEN = ("at the first look", "while it waits", "at a date", "between the notes of a start")
NIGHTS = 3
MAX_LOST = 2
"""Dates that a clock costs that is ahead by less than so many days."""
DATES = (
    *("@2027-01-02 01:00:00", "@2027-01-02 02:01:00", "@2027-01-02 02:06:00"),
    *("@2027-01-03 02:01:00", "@2027-02-03 02:01:00"),
)
STARTED = 3
"""Nights among `DATES`."""


@contextmanager
def clock(days: float) -> Iterator[None]:
    moved = SimpleNamespace(time=lambda: time.time() + days * DAY_S)
    with patch.object(schedules, "time", moved):
        yield


def night(project: Project, days: float) -> int:
    """Let ticks come on that day, and bring the run to its end; return how often it was started."""
    run, started = project.run("night"), 0
    with clock(days):
        for _ in range(3):
            before = _runs(project)
            tick(project)
            head = run.head
            if head is not None and head.status != "complete":
                finish(project)
            started += _runs(project) - before
    return started


def _runs(project: Project) -> int:
    return 0 if project.run("night").head is None else 1 + resets(project)


def wrong(project: Project, off: float, when: str) -> Iterator[str]:
    """Let one tick come under a clock that is *off* days wrong; yield which dates suffer."""
    if when != WHEN[0]:
        night(project, 0)
    if when == WHEN[3]:
        note = schedules.DateNote(time.time() - DAY_S, time.time() + off * DAY_S)
        schedules._write(project, project.run("night"), note)
    else:
        night(project, off + (when == WHEN[2]))
    # It may be that the date was noted as one that has started; no more than one.
    night(project, 1 if when == WHEN[2] else 0)
    lost = 0
    for day in range(2, 2 + NIGHTS):
        started = night(project, day)
        lost += not started
        if started > 1:
            yield f"on night {day} the run was started {started} times"
    # What a clock that is hours ahead notes can't be told from a right note.
    most = MAX_LOST if 0 < off < MAX_LOST else 0
    if lost > most:
        yield f"{lost} of {NIGHTS} nights were lost"


def of_processes(folder: Path, path: Path, when: str) -> Iterator[str]:
    """Let the program itself tick under a clock that stands at *when*, and at right ones."""
    folder.mkdir()
    one_step = CONFIGURATION.replace(", {name: other, text: y}", "")
    (folder / "orchestration.yaml").write_text(one_step)
    said = {"XDG_STATE_HOME": str(folder / "state"), "TZ": "UTC"}
    started = []
    for at in ("@2027-01-01 12:00:00", when, *DATES):
        more = {**variables(path, at), **said}
        ended = sequencer(folder, "--run", "night", "tick", "--json", variables=more)
        if found := ended.wrong(0):
            yield f"the tick at {at}: {found}"
            return
        started.append((at, json.loads(ended.out)["steps"]))
    done = sum(steps for at, steps in started if at in DATES)
    if done != STARTED:
        yield f"{done} steps in {STARTED} nights after the clock had stood at {when}: {started}"


def campaign(folder: Path, size: Size) -> Report:
    """Let a tick come while the clock is wrong by hours or years; then count later starts."""
    violations, inputs, path = list[str](), 0, library()
    offsets = (-400.0, 10 * 365.0) if size is Size.SHORT else WRONG
    for off, when in itertools.product(offsets, WHEN):
        place = folder / f"{inputs}"
        place.mkdir()
        (place / "orchestration.yaml").write_text(CONFIGURATION)
        with patch.dict(os.environ, {"XDG_STATE_HOME": str(place / "state")}):
            found = [*wrong(open_project(place, trust=True), off, when)]
        violations += [f"a clock wrong by {off} days {when}: {text}" for text in found]
        inputs += 1
    years = (2036,) if size is Size.SHORT else (1980, 2026, 2028, 2036, 2100)
    for year in years:
        if path is not None:
            violations += of_processes(folder / str(year), path, f"@{year}-01-01 12:00:00")
            inputs += 1
    return Report({"inputs": inputs}, tuple(violations))
