"""When a run of ``schedules:`` starts, and starting it exactly once for a date.

A run is due when a date has come since it ended last, or, if it has never started, since the
schedule was first looked at. So a date that nobody was awake for is made up for once, and
those that come while the run is under way are left out. The run's own files decide: of two
ticks only one starts it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sequencer.documents.files import slug
from sequencer.engine.run import Run
from sequencer.errors import TransitionRefused
from sequencer.model.limits import parse_time, utc
from sequencer.store import folder as folders

if TYPE_CHECKING:
    from sequencer.project import Project


def next_start(project: Project, run: Run, now: float | None = None) -> float | None:
    """Return when *run* starts by itself, in seconds since 1970: at most *now* if it is due.

    None: it has no schedule, or is under way. Nothing is written.
    """
    schedule = project.settings.schedules.get(run.name or "")
    head = run.head
    if schedule is None or (head is not None and head.status != "complete"):
        return None
    now = time.time() if now is None else now
    ended = parse_time(head.last_update) if head is not None else None
    since = ended.timestamp() if ended else _first_seen(project, run)
    due = schedule.last(now)
    return due if since is not None and since < due else schedule.next(now)


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
    if run.name in project.settings.schedules and run.head is None:
        _see(project, run)
    date = next_start(project, run, now)
    if date is None or (head := run.head) is None:
        return None if date is None or date <= now else date
    if date <= now:
        try:
            run.control.reset(ended=head.run_id)
        except TransitionRefused:
            return None  # another tick was faster
    return None


def _mark(project: Project, run: Run) -> str:
    return os.path.join(project.settings.state_file.parent, f"scheduled-{slug(run.name or '')}")  # noqa: PTH118 - as folders take it


def _first_seen(project: Project, run: Run) -> float | None:
    try:
        return os.lstat(_mark(project, run)).st_mtime
    except FileNotFoundError:
        return None


def _see(project: Project, run: Run) -> None:
    """Note since when the schedule of a run that never started is known."""
    folder, name = os.path.split(_mark(project, run))
    try:
        os.close(folders.made(folder).open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
