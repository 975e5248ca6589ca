"""When a run of ``schedules:`` starts, and starting it exactly once for a date.

A run is due when a date has come since it ended last, and that date is newer than the one it
started for. That one is kept in the user's own state folder, so that whoever changes the
run's files (an agent may) starts nothing by it. A date that nobody was awake for is made up
for once, and those that come while the run is under way are left out. Of two ticks only one
starts it: the run's own files decide.

Not promised: that a date is started for on one machine only, where several have ticks and the
run is not in git; and a crash between the note of a date and the very first start loses it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from sequencer.engine.run import Run
from sequencer.errors import TransitionRefused
from sequencer.model.head import Head
from sequencer.model.limits import parse_time, utc
from sequencer.project.project import Project
from sequencer.project.trusting import make_own, place
from sequencer.store.folder import put, read_regular


def next_start(project: Project, run: Run, now: float | None = None) -> float | None:
    """Return when *run* starts by itself, in seconds since 1970: at most *now* if it is due.

    None: it has no schedule, or is under way. Nothing is written.
    """
    return _next(project, run, run.head, time.time() if now is None else now)


def _next(project: Project, run: Run, head: Head | None, now: float) -> float | None:
    schedule = project.settings.schedules.get(run.name or "")
    if schedule is None or (head is not None and head.status != "complete"):
        return None
    known = _known(project, run)
    if known is None:
        return schedule.next(now)
    ended = parse_time(head.last_update) if head is not None else None
    # An end that is still to come was written by another clock, or by hand.
    if ended is not None and ended.timestamp() <= now:
        known = max(known, ended.timestamp())
    due = schedule.last(now)
    return due if known < due else schedule.next(now)


def scheduled(project: Project) -> Iterator[tuple[Run, float | None]]:
    """Yield each run of ``schedules:`` with its `next_start`."""
    for name in project.settings.schedules:
        run = project.run(name)
        yield run, next_start(project, run)


def clock(date: float) -> str:
    """Return a date on this machine's clock."""
    return f"{datetime.fromtimestamp(date).astimezone():%Y-%m-%d %H:%M}"


def as_utc(date: float) -> str:
    """Return a date as programs read it."""
    return utc(datetime.fromtimestamp(date, UTC))


def starts_at(date: float) -> str:
    """Return in words when a run starts."""
    return f"it starts at {clock(date)}"


def start_due(project: Project, run: Run) -> float | None:
    """Start *run* over if it is complete and due; a tick starts one that never was.

    Return the date that it waits for; None: it has no schedule, may be worked on, or is over
    and has results to post.
    """
    now = time.time()
    if run.name in project.settings.schedules and _known(project, run) is None:
        _note(project, run, now)
    # Once: another tick may start it meanwhile, and the run that it has started is not over.
    head = run.head
    date = _next(project, run, head, now)
    if date is None:
        return None
    if date > now:
        return date if head is None else None
    if head is None:
        # Before it starts: an agent of its first step could make it look as if it never had.
        _note(project, run, date)
        project.due.add(run.name)
        return None
    project.due.add(run.name)
    try:
        run.control.reset(ended=head.run_id)
    except TransitionRefused:
        return None  # another tick was faster
    _note(project, run, date)
    return None


def _record(project: Project, run: Run) -> str:
    # Another ``at`` is another schedule: its dates count from now on.
    at = project.settings.schedules[run.name or ""].at
    told = f"{project.settings.project_dir}\n{project.settings.config_path}\n{run.name}\n{at}"
    digest = blake2b(told.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return f"{digest}.json"


def _known(project: Project, run: Run) -> float | None:
    """Return the date that *run* started for last, or when its schedule was first seen here."""
    path = Path(os.path.realpath(place().parent)) / "schedules" / _record(project, run)
    try:
        found = json.loads(read_regular(path))
        return float(found["since"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _note(project: Project, run: Run, since: float) -> None:
    """Keep that no date up to *since* starts *run*."""
    told = {"project": str(project.settings.project_dir), "run": run.name, "since": since}
    folder = Path(os.path.realpath(make_own("schedules")))
    put(folder / _record(project, run), json.dumps(told).encode())
