"""When a run of ``schedules:`` starts, and starting it exactly once for a date; see `Starts`.

A run is due when a date has come since it ended last, newer than the one that it started for.
That one is kept in the user's own state folder, so an agent that changes the run's files starts
nothing. A missed date is made up for once. A date that comes while the run is under way, or
while work of it is not merged, is left out; that is noted with the reason, and said once. Dates
count since the project was trusted.
A start is noted before it is made and again when it is, before an agent of the run works: so
the next tick makes up for a crash in between. A date noted by a clock far ahead is set aside.

Not promised: that a date starts a run on one machine only, where several have ticks and the run
is not in git.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from sequencer.engine.run import Run
from sequencer.errors import SequencerError, TransitionRefused, WorkTreeRefused
from sequencer.model.commands import Reset
from sequencer.model.head import Head
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.limits import parse_time
from sequencer.plugins.schedules.line import KeptLine, ranks_of
from sequencer.plugins.schedules.section import schedules_of
from sequencer.project.project import Project
from sequencer.project.starts import as_utc, clock
from sequencer.store.user_state import own_state, put_own, read_own

FOLDER = "schedules"
"""Of the user's own records."""
AHEAD_S = 24 * 60 * 60
"""A time that is noted may be so far ahead: clocks are set, and differ."""
LATEST_S = 2.0**33
"""A note of a later time is damaged; no calendar has it on every machine."""
MAX_BYTES = 64 * 1024
_WHY = {
    ReadinessKind.PERSON: "it waits for you",
    ReadinessKind.EXPIRED: "it waits for you",
    ReadinessKind.PAUSED: "it is paused",
    ReadinessKind.STOPPED: "it was stopped",
    ReadinessKind.REFUSED: "it failed",
}
"""Why a run is not over; otherwise it is under way."""
_BY_ITSELF = (
    ReadinessKind.READY,
    ReadinessKind.HELD,
    ReadinessKind.NOT_YET,
    ReadinessKind.COMPLETE,
)
UNMERGED = "yesterday's work is not merged"
"""Why the date of a run that is over starts nothing."""


class DateNote(NamedTuple):
    """What is known of a schedule's dates outside the project."""

    since: float
    """The date that the run started for last, or when its schedule was first seen here."""
    starting: float | None = None
    """The date for which a tick is about to start it."""
    ended: str | None = None
    """Id of the run that is started over for that date; None: there was none."""
    ahead: float | None = None
    """A `since` that is more than a day ahead of the clock. One of the two clocks is wrong, and
    no one knows which: it counts again once the clock comes near it."""
    left_out: float | None = None
    """The newest date since then that started nothing."""
    why: str | None = None
    """The reason for that."""

    def is_made(self, head: Head | None) -> bool:
        """Return whether the start that was about to be made has been made, as *head* shows."""
        return head is not None and head.run_id != self.ended

    def made(self) -> DateNote:
        """Return the note after the start that was about to be made."""
        return DateNote(max(self.since, self.starting or 0.0), ahead=self.ahead)

    def believed(self, now: float) -> DateNote:
        """Return it as it counts at *now*.

        A time more than a day ahead would keep the run from starting until then, for years
        perhaps.
        """
        latest, note = now + AHEAD_S, self
        if note.ahead is not None and note.ahead <= latest:
            note = note._replace(since=max(note.since, note.ahead), ahead=None)
        if note.starting is not None and note.starting > latest:
            note = note._replace(starting=None, ended=None)
        if note.left_out is not None and note.left_out > latest:
            note = note._replace(left_out=None, why=None)
        if note.since > latest:
            note = note._replace(since=now, ahead=note.since)
        return note


def workflows(project: Project) -> dict[str, str]:
    """Return what the run of each schedule works on, by the run's name."""
    return {name: one.workflow for name, one in schedules_of(project.settings).items()}


def next_start(project: Project, run: Run, now: float | None = None) -> float | None:
    """Return when *run* starts by itself, in seconds since 1970: at most *now* if it is due.

    None: it has no schedule, or is under way. Nothing is written.
    """
    if run.name not in schedules_of(project.settings):
        return None
    now = time.time() if now is None else now
    return _next(project, run, run.head, now, _known(project, run, now))


def next_look(project: Project, run: Run) -> float | None:
    """Return when a tick of *run* may find a date, in seconds since 1970; None: no schedule.

    At most now if it would find one that has come already.
    """
    schedule = schedules_of(project.settings).get(run.name or "")
    start = next_start(project, run)
    return schedule.next(time.time()) if schedule is not None and start is None else start


def is_unsettled(project: Project, run: Run) -> bool:
    """Return whether a tick of *run* has to come before its dates count as they should."""
    with suppress(SequencerError):  # a tick says what is wrong with it
        note = _read(project, run)
        return note is None or note.believed(time.time()) != note
    return True


def left_out(project: Project, run: Run) -> tuple[float, str] | None:
    """Return the newest date that has started nothing, and why; None: there is none.

    Only what came after the newest start counts. Nothing is written.
    """
    if run.name not in schedules_of(project.settings):
        return None
    now = time.time()
    note, found = _known(project, run, now), None
    with suppress(SequencerError):  # `status` says what is wrong with the run
        found = _newly_left_out(project, run, run.head, now, note)
    if found is not None or note.left_out is None:
        return found
    return note.left_out, note.why or ""


def _known(project: Project, run: Run, now: float) -> DateNote:
    """Return what counts of the dates of *run* at *now*."""
    note = None
    with suppress(SequencerError):  # a tick says what is wrong with it
        note = _read(project, run)
    return (note or _first_note(project, run.head, now)).believed(now)


def _first_note(project: Project, head: Head | None, now: float) -> DateNote:
    """Return what is known of dates of which nothing is noted: they count since people know them.

    No tick may have come yet, but somebody trusted the project with its schedules.
    """
    trusted = ended = None
    with suppress(SequencerError):
        trusted = project.trust.since
    if head is not None:
        ended = now if head.status != "complete" else _ended_at(head, now)
    since = now if trusted is None else min(trusted, now)
    return DateNote(max(since, ended or 0.0))


def _ended_at(head: Head, now: float) -> float | None:
    """Return when the run that is complete ended; None: no one knows.

    An end that is still to come was written by another clock, or by hand.
    """
    ended = parse_time(head.last_update)
    return ended.timestamp() if ended is not None and ended.timestamp() <= now else None


def _newly_left_out(
    project: Project, run: Run, head: Head | None, now: float, note: DateNote
) -> tuple[float, str] | None:
    """Return the newest date that *run* missed since it was under way, and why, if not noted."""
    if head is None or (note.starting is not None and not note.is_made(head)):
        return None
    date = schedules_of(project.settings)[run.name or ""].last(now)
    if date <= max(note.since, note.starting or 0.0, note.left_out or 0.0):
        return None
    if head.status != "complete":
        return date, _why_it_waits(run, head)
    ended = _ended_at(head, now)
    if ended is None or ended < date:
        return None
    return date, f"it was under way until {clock(ended)}"


def _standing(run: Run) -> Readiness | None:
    with suppress(SequencerError):  # the tick says what is wrong with it
        return run.readiness()
    return None


def _continues_by_itself(run: Run) -> bool:
    """Return whether *run* needs no one: it is working, will continue, or is complete."""
    here = _standing(run)
    return here is not None and here.kind in _BY_ITSELF


def _why_it_waits(run: Run, head: Head) -> str:
    here = _standing(run)
    kind = ReadinessKind.READY if here is None else here.kind
    if kind is ReadinessKind.READY and head.failures_in_row:
        return "its step failed and is tried again"
    if kind in (ReadinessKind.LIMIT, ReadinessKind.NOT_YET) and here is not None:
        return here.message
    return _WHY.get(kind, "it is under way")


def _next(
    project: Project, run: Run, head: Head | None, now: float, note: DateNote
) -> float | None:
    schedule = schedules_of(project.settings)[run.name or ""]
    if head is not None and head.status != "complete":
        return None
    if note.starting is not None and note.starting <= now and not note.is_made(head):
        return note.starting
    ended = None if head is None else _ended_at(head, now)
    known = max(note.since, note.left_out or 0.0, ended or 0.0)
    due = schedule.last(now)
    return due if known < due else schedule.next(now)


def scheduled(project: Project) -> Iterator[tuple[Run, float | None]]:
    """Yield each run of ``schedules:`` with its `next_start`."""
    for name in schedules_of(project.settings):
        run = project.run(name)
        yield run, next_start(project, run)


def turns(
    project: Project, listed: Iterable[tuple[Run, Mapping[str, Any]]], able: Collection[str]
) -> dict[str, int]:
    """Return the place of each *able* run in the line of `tick --all`, 1 for the next one.

    *listed* are the runs that are not over, with their `run_facts`; "" is the default run. It
    is empty if no tick of all runs came.
    """
    dates = {run.name or "": as_utc(date) for run, date in scheduled(project) if date is not None}
    ranks = ranks_of(project, listed, dates)
    order = [name for name in KeptLine(project.settings).order(ranks) if name in able]
    return {name: place for place, name in enumerate(order, 1)}


def leaves_out(run: Run, date: float, why: str) -> str:
    """Return in words that a date has started nothing."""
    return f"run {run.name!r} did not start at {clock(date)}: {why}"


def start_due(
    project: Project,
    run: Run,
    say: Callable[[str], None],
    tell: Callable[[str], None] | None = None,
) -> float | None:
    """Start *run* over if it is complete and due; a tick starts one that never was.

    Return the date that it waits for; None: it has no schedule, may be worked on, or is over
    and has results to post. *say* takes a notice, *tell* what a person must know: a date that
    is left out. If the run never was, `begin` has to follow.
    """
    now = time.time()
    if run.name not in schedules_of(project.settings):
        return None
    # Once: another tick may start it meanwhile, and the run that it has started is not over.
    head = run.head
    note = _settled(project, run, head, now, say)
    if (missed := _newly_left_out(project, run, head, now, note)) is not None:
        note = note._replace(left_out=missed[0], why=missed[1])
        _write(project, run, note)
        heard = say if tell is None or _continues_by_itself(run) else tell
        heard(leaves_out(run, *missed))
    date = _next(project, run, head, now, note)
    if date is None or (head and _is_held(project, run, head, note, is_due=date <= now)):
        return None
    if date > now:
        return date if head is None else None
    note = note._replace(starting=date, ended=None if head is None else head.run_id)
    _write(project, run, note)
    if head is None:
        project.due.add(run.name)
        return None
    project.due.add(run.name)
    with suppress(TransitionRefused):  # another tick was faster
        run.do(Reset(head.run_id))
    _write(project, run, note.made())
    return None


def _is_held(project: Project, run: Run, head: Head, note: DateNote, *, is_due: bool) -> bool:
    """Return whether work of *run* that is not merged keeps its date from starting it over.

    Raises:
        WorkTreeRefused: it is of an earlier run, so that no merge is to be tried first.
    """
    if not (is_due or _has_skipped(head, note)):
        return False
    left = [one for one in project.unmerged() if one.run == run.name and one.run_id]
    if left and all(one.run_id != head.run_id for one in left):
        if is_due:
            _leave_out(project, run)
        raise _skipped(left[0].words, f"{left[0].hint}; then its next date starts the run")
    return bool(left)


@contextmanager
def telling_skipped(project: Project, run: Run | None) -> Iterator[None]:
    """Say of a refused merge in the block that a date of *run* was left out for it.

    Raises:
        WorkTreeRefused: the same as the block, and that.
    """
    try:
        yield
    except WorkTreeRefused as error:
        if run is None or run.name not in schedules_of(project.settings):
            raise
        head = run.head
        if head is None or head.status != "complete" or not _leave_out(project, run):
            raise
        raise _skipped(error.message, error.hint) from error


def _has_skipped(head: Head, note: DateNote) -> bool:
    """Return whether a date has come since the run of *head* ended, and started nothing."""
    ended = parse_time(head.last_update)
    is_over = head.status == "complete" and ended is not None and note.why == UNMERGED
    return is_over and (note.left_out or 0.0) > (0.0 if ended is None else ended.timestamp())


def _leave_out(project: Project, run: Run) -> bool:
    """Note that the date for which *run* is due starts nothing; return whether one did so."""
    now, head = time.time(), run.head
    note = (_read(project, run) or DateNote(now)).believed(now)
    date = _next(project, run, head, now, note)
    if date is not None and date <= now:
        note = note._replace(left_out=date, why=UNMERGED, starting=None, ended=None)
        _write(project, run, note)
    return head is not None and _has_skipped(head, note)


def _skipped(why: str, hint: str | None) -> WorkTreeRefused:
    return WorkTreeRefused(f"skipped: {UNMERGED}: {why}", hint=hint)


def begin(project: Project, run: Run) -> None:
    """Make the first start of *run*, if `start_due` has found it due, and note that it is made.

    Raises:
        StorageFailed: it can't be written.
    """
    if run.name in project.due:
        # Before an agent of it works: that could make it look as if it never had started.
        run.commands.begin()
        note = _read(project, run)
        if note is not None and note.starting is not None:
            _write(project, run, note.made())


def _settled(
    project: Project, run: Run, head: Head | None, now: float, say: Callable[[str], None]
) -> DateNote:
    """Return what is known of the dates of *run*, and write it down where it has changed."""
    found = _read(project, run)
    note = found or _first_note(project, head, now)
    if note.starting is not None and note.is_made(head):
        note = note.made()
    note = note.believed(now)
    if note.ahead is not None and (found is None or note.ahead != found.ahead):
        noted = f"run {run.name!r} has started for {clock(note.ahead)}"
        say(f"notice: {noted}, far ahead of this machine's clock: its dates count from now on")
    if found is None and head is not None:
        missed = _next(project, run, head, now, DateNote(0.0))
        is_lost = _next(project, run, head, now, note) != missed
        if missed is not None and missed <= now and is_lost:
            date, where = f"the date {clock(missed)} of run {run.name!r}", own_state(FOLDER)
            say(f"notice: {where}: nothing was noted of {date}: it is left out, later ones count")
    if note != found:
        _write(project, run, note)
    return note


def _record(project: Project, run: Run) -> str:
    # Another ``at`` is another schedule: its dates count from now on.
    at = schedules_of(project.settings)[run.name or ""].at
    told = f"{project.settings.project_dir}\n{project.settings.config_path}\n{run.name}\n{at}"
    digest = blake2b(told.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return f"{digest}.json"


def _read(project: Project, run: Run) -> DateNote | None:
    """Return what is noted of the dates of *run*; None: nothing that can be read."""
    data = read_own(FOLDER, _record(project, run), MAX_BYTES)
    try:
        kept = json.loads(data or b"")
        note = DateNote(**{name: kept.get(name) for name in DateNote._fields})
        times = [float(at) for at in _times(note) if at is not None]
    except (ValueError, TypeError, AttributeError):
        return None
    is_sound = note.since is not None and all(0 <= at < LATEST_S for at in times)
    is_told = isinstance(note.ended, str | None) and isinstance(note.why, str | None)
    return note if is_sound and is_told else None


def _times(note: DateNote) -> tuple[float | None, ...]:
    return note.since, note.starting, note.ahead, note.left_out


def _write(project: Project, run: Run, note: DateNote) -> None:
    told = {"project": str(project.settings.project_dir), "run": run.name, **note._asdict()}
    put_own(FOLDER, _record(project, run), json.dumps(told).encode())
