"""Decides when a run of ``schedules:`` starts, and starts it once per date; see `Scheduler`.

A run is due if a date has come since it last ended, newer than the date of its last start. That
date is in the user's state folder, so an agent that changes the run's files starts nothing.
Missed dates start the run once. A date is skipped while the run is under way or has unmerged
work; the reason is noted, and reported once. Dates before the project was trusted are ignored. A
start is noted before it is made and again after, before an agent works, so the next tick can
finish it after a crash. A date noted by a clock that is far ahead is set aside.

Not promised: that a date starts a run on only one machine, if several machines have ticks and the
run is not in git.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from sequencer.engine.run import Run
from sequencer.errors import SequencerError, TransitionRefused, WorkTreeRefused
from sequencer.model.commands import Reset
from sequencer.model.head import Head
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.limits import parse_time
from sequencer.plugins.schedules.run_queue import StoredRunQueue, rank_runs
from sequencer.plugins.schedules.section import get_schedules
from sequencer.project.project import Project
from sequencer.project.scheduler import format_local_time, format_utc
from sequencer.store.user_state import read_user_record, user_state_path, write_user_record

FOLDER = "schedules"
"""Folder of this user's records of schedules."""
AHEAD_S = 24 * 60 * 60
"""A noted time may be this far ahead of the clock, because clocks differ and are adjusted."""
LATEST_S = 2.0**33
"""A note of a later time is damaged; not every machine can represent it as a date."""
MAX_BYTES = 64 * 1024
_WHY = {
    ReadinessKind.PERSON: "it waits for you",
    ReadinessKind.EXPIRED: "it waits for you",
    ReadinessKind.PAUSED: "it is paused",
    ReadinessKind.STOPPED: "it was stopped",
    ReadinessKind.REFUSED: "it failed",
}
"""Why a run has not ended; for any other kind it is under way."""
_BY_ITSELF = (
    ReadinessKind.READY,
    ReadinessKind.HELD,
    ReadinessKind.NOT_YET,
    ReadinessKind.COMPLETE,
)
UNMERGED = "yesterday's work is not merged"
"""Why a date does not start a run that has ended."""


class DateNote(Struct, frozen=True):
    """The record about a schedule's dates, outside the project."""

    since: float
    """The date of the run's last start, or the time when this machine first saw the schedule."""
    starting: float | None = None
    """The date for which a tick is starting the run."""
    ended: str | None = None
    """Id of the completed run that this start replaces; None: there was none."""
    ahead: float | None = None
    """A `since` that is more than a day ahead of the clock. One of the clocks was wrong, and it is
    unknown which one; it is used again when the clock comes near it."""
    left_out: float | None = None
    """The newest skipped date since then."""
    why: str | None = None
    """Why it was skipped."""

    def is_made(self, head: Head | None) -> bool:
        """Return whether *head* shows that the start for `starting` has happened."""
        return head is not None and head.run_id != self.ended

    def with_start_done(self) -> DateNote:
        """Return the note after the start for `starting` has happened."""
        return DateNote(max(self.since, self.starting or 0.0), ahead=self.ahead)

    def drop_future_times(self, now: float) -> DateNote:
        """Return the note without times that are too far ahead of *now*.

        Otherwise such a time would keep the run from starting until then, perhaps for years.
        """
        latest, note = now + AHEAD_S, self
        if note.ahead is not None and note.ahead <= latest:
            note = replace(note, since=max(note.since, note.ahead), ahead=None)
        if note.starting is not None and note.starting > latest:
            note = replace(note, starting=None, ended=None)
        if note.left_out is not None and note.left_out > latest:
            note = replace(note, left_out=None, why=None)
        if note.since > latest:
            note = replace(note, since=now, ahead=note.since)
        return note


def workflows(project: Project) -> dict[str, str]:
    """Return run name -> workflow for each schedule."""
    return {name: schedule.workflow for name, schedule in get_schedules(project.settings).items()}


def next_start(project: Project, run: Run, now: float | None = None) -> float | None:
    """Return the time when *run* starts by itself, in seconds since 1970; at most *now*: it is due.

    None: it has no schedule, or is under way. Writes nothing.
    """
    if run.name not in get_schedules(project.settings):
        return None
    now = time.time() if now is None else now
    return _find_next_start(project, run, run.head, now, _find_valid_note(project, run, now))


def find_next_look(project: Project, run: Run) -> float | None:
    """Return the time when a tick of *run* may find a date, in seconds since 1970.

    At most now if a date has come already; None if it has no schedule.
    """
    schedule = get_schedules(project.settings).get(run.name or "")
    start = next_start(project, run)
    if schedule is None or start is not None:
        return start
    # The run is under way, so that a tick can only find its next date.
    return schedule.find_next_date(time.time())


def is_unsettled(project: Project, run: Run) -> bool:
    """Return whether a tick of *run* must write a note before its dates apply."""
    with suppress(SequencerError):  # a tick reports the error
        note = _read(project, run)
        return note is None or note.drop_future_times(time.time()) != note
    return True


def find_skipped_date(project: Project, run: Run) -> tuple[float, str] | None:
    """Return the newest skipped date and the reason; None: no date was skipped.

    Only dates after the last start are considered. Writes nothing.
    """
    if run.name not in get_schedules(project.settings):
        return None
    now = time.time()
    note, skip = _find_valid_note(project, run, now), None
    with suppress(SequencerError):  # `status` reports the error
        skip = _find_newly_skipped(project, run, run.head, now, note)
    if skip is not None or note.left_out is None:
        return skip
    return note.left_out, note.why or ""


def _find_valid_note(project: Project, run: Run, now: float) -> DateNote:
    """Return the note about the dates of *run* that applies at *now*."""
    note = None
    with suppress(SequencerError):  # a tick reports the error
        note = _read(project, run)
    return (note or _first_note(project, run.head, now)).drop_future_times(now)


def _first_note(project: Project, head: Head | None, now: float) -> DateNote:
    """Return the note for a schedule without one: its dates apply since the project was trusted.

    Perhaps no tick has come yet, but by trusting the project a person has approved its schedules.
    """
    trust_time = end_time = None
    with suppress(SequencerError):
        trust_time = project.trust.since
    if head is not None:
        end_time = now if head.status != "complete" else _find_end_time(head, now)
    since = now if trust_time is None else min(trust_time, now)
    return DateNote(max(since, end_time or 0.0))


def _find_end_time(head: Head, now: float) -> float | None:
    """Return the time when the completed run ended; None: unknown.

    An end in the future was written by another clock, or edited by a person.
    """
    end_time = parse_time(head.last_update)
    return end_time.timestamp() if end_time is not None and end_time.timestamp() <= now else None


def _find_newly_skipped(
    project: Project, run: Run, head: Head | None, now: float, note: DateNote
) -> tuple[float, str] | None:
    """Return (date, reason) for the newest date that *run* missed, unless it is noted already."""
    if head is None or (note.starting is not None and not note.is_made(head)):
        return None
    date = get_schedules(project.settings)[run.name or ""].find_last_date(now)
    if date <= max(note.since, note.starting or 0.0, note.left_out or 0.0):
        return None
    if head.status != "complete":
        return date, _describe_wait(run, head)
    end_time = _find_end_time(head, now)
    if end_time is None or end_time < date:
        return None
    return date, f"it was under way until {format_local_time(end_time)}"


def _readiness(run: Run) -> Readiness | None:
    with suppress(SequencerError):  # the tick reports the error
        return run.readiness()
    return None


def _needs_no_person(run: Run) -> bool:
    """Return whether *run* needs no person: it is working, will continue, or is complete."""
    readiness = _readiness(run)
    return readiness is not None and readiness.kind in _BY_ITSELF


def _describe_wait(run: Run, head: Head) -> str:
    readiness = _readiness(run)
    kind = ReadinessKind.READY if readiness is None else readiness.kind
    if kind is ReadinessKind.READY and head.failures_in_row:
        return "its step failed and is tried again"
    if kind in (ReadinessKind.LIMIT, ReadinessKind.NOT_YET) and readiness is not None:
        return readiness.message
    return _WHY.get(kind, "it is under way")


def _find_next_start(
    project: Project, run: Run, head: Head | None, now: float, note: DateNote
) -> float | None:
    schedule = get_schedules(project.settings)[run.name or ""]
    if head is not None and head.status != "complete":
        return None
    if note.starting is not None and note.starting <= now and not note.is_made(head):
        return note.starting
    end_time = None if head is None else _find_end_time(head, now)
    newest_date = max(note.since, note.left_out or 0.0, end_time or 0.0)
    due_date = schedule.find_last_date(now)
    return due_date if newest_date < due_date else schedule.find_next_date(now)


def list_scheduled_runs(project: Project) -> Iterator[tuple[Run, float | None]]:
    """Yield each run of ``schedules:`` with its `next_start`."""
    for name in get_schedules(project.settings):
        run = project.run(name)
        yield run, next_start(project, run)


def turns(
    project: Project, listed: Iterable[tuple[Run, Mapping[str, Any]]], able: Collection[str]
) -> dict[str, int]:
    """Return the position of each *able* run in the queue of `tick --all`; 1 is next.

    *listed* are the runs that have not ended, with their `run_facts`; "" is the default run. The
    result is empty if there was no `tick --all` yet.
    """
    dates = {
        run.name or "": format_utc(date)
        for run, date in list_scheduled_runs(project)
        if date is not None
    }
    ranks = rank_runs(project, listed, dates)
    order = [name for name in StoredRunQueue(project.settings).order(ranks) if name in able]
    return {name: place for place, name in enumerate(order, 1)}


def describe_skipped_date(run: Run, date: float, why: str) -> str:
    """Return a sentence about a skipped date."""
    return f"run {run.name!r} did not start at {format_local_time(date)}: {why}"


def start_due(
    project: Project,
    run: Run,
    say: Callable[[str], None],
    notify: Callable[[str], None] | None = None,
) -> float | None:
    """Restart *run* if it is complete and due; for a run that never started, call `begin` next.

    Return the date that a run which never started waits for. None: it has no schedule, is due, or
    may have work to do. *say* gets notices, *notify* gets messages that a person must read: a
    skipped date.
    """
    now = time.time()
    if run.name not in get_schedules(project.settings):
        return None
    # Read the head only once: another tick may start the run meanwhile.
    head = run.head
    note = _settle_note(project, run, head, now, say)
    if (skip := _find_newly_skipped(project, run, head, now, note)) is not None:
        note = replace(note, left_out=skip[0], why=skip[1])
        _write(project, run, note)
        report = say if notify is None or _needs_no_person(run) else notify
        report(describe_skipped_date(run, *skip))
    date = _find_next_start(project, run, head, now, note)
    if date is None or (head and _is_held(project, run, head, note, is_due=date <= now)):
        return None
    if date > now:
        return date if head is None else None
    note = replace(note, starting=date, ended=None if head is None else head.run_id)
    _write(project, run, note)
    if head is None:
        project.due.add(run.name)
        return None
    project.due.add(run.name)
    with suppress(TransitionRefused):  # another tick was faster
        run.do(Reset(head.run_id))
    _write(project, run, note.with_start_done())
    return None


def _is_held(project: Project, run: Run, head: Head, note: DateNote, *, is_due: bool) -> bool:
    """Return whether unmerged work of *run* keeps its date from restarting it.

    Raises:
        WorkTreeRefused: the work is from an earlier run, so that a tick can't try to merge it.
    """
    if not (is_due or _has_skipped(head, note)):
        return False
    works = [work for work in project.find_unmerged_work() if work.run == run.name and work.run_id]
    if works and all(work.run_id != head.run_id for work in works):
        if is_due:
            _skip_date(project, run)
        raise _make_skipped_error(
            works[0].words, f"{works[0].hint}; then its next date starts the run"
        )
    return bool(works)


@contextmanager
def report_skipped_date(project: Project, run: Run | None) -> Iterator[None]:
    """Add to the error of a refused merge in the block that a date of *run* was skipped.

    Raises:
        WorkTreeRefused: the error of the block, with this addition.
    """
    try:
        yield
    except WorkTreeRefused as error:
        if run is None or run.name not in get_schedules(project.settings):
            raise
        head = run.head
        if head is None or head.status != "complete" or not _skip_date(project, run):
            raise
        raise _make_skipped_error(error.message, error.hint) from error


def _has_skipped(head: Head, note: DateNote) -> bool:
    """Return whether a date was skipped for unmerged work since the run of *head* ended."""
    end_time = parse_time(head.last_update)
    is_over = head.status == "complete" and end_time is not None and note.why == UNMERGED
    return is_over and (note.left_out or 0.0) > (0.0 if end_time is None else end_time.timestamp())


def _skip_date(project: Project, run: Run) -> bool:
    """Note that the date for which *run* is due is skipped; return whether a date was skipped."""
    now, head = time.time(), run.head
    note = (_read(project, run) or DateNote(now)).drop_future_times(now)
    date = _find_next_start(project, run, head, now, note)
    if date is not None and date <= now:
        note = replace(note, left_out=date, why=UNMERGED, starting=None, ended=None)
        _write(project, run, note)
    return head is not None and _has_skipped(head, note)


def _make_skipped_error(reason: str, hint: str | None) -> WorkTreeRefused:
    return WorkTreeRefused(f"skipped: {UNMERGED}: {reason}", hint=hint)


def begin(project: Project, run: Run) -> None:
    """Start *run* for the first time if `start_due` has found it due, and note the start.

    Raises:
        StorageFailed: the run or the note can't be written.
    """
    if run.name in project.due:
        # Note it before an agent works: an agent could make the run look as if it never started.
        run.commands.begin()
        note = _read(project, run)
        if note is not None and note.starting is not None:
            _write(project, run, note.with_start_done())


def _settle_note(
    project: Project, run: Run, head: Head | None, now: float, say: Callable[[str], None]
) -> DateNote:
    """Return the note about the dates of *run*, and write it if it has changed."""
    old_note = _read(project, run)
    note = old_note or _first_note(project, head, now)
    if note.starting is not None and note.is_made(head):
        note = note.with_start_done()
    note = note.drop_future_times(now)
    if note.ahead is not None and (old_note is None or note.ahead != old_note.ahead):
        start = f"run {run.name!r} has started for {format_local_time(note.ahead)}"
        say(f"notice: {start}, far ahead of this machine's clock: its dates count from now on")
    if old_note is None and head is not None:
        missed_date = _find_next_start(project, run, head, now, DateNote(0.0))
        is_lost = _find_next_start(project, run, head, now, note) != missed_date
        if missed_date is not None and missed_date <= now and is_lost:
            skip_words, where = (
                f"the date {format_local_time(missed_date)} of run {run.name!r}",
                user_state_path(FOLDER),
            )
            say(
                f"notice: {where}: nothing was noted about {skip_words}: "
                "it is skipped, and later dates apply"
            )
    if note != old_note:
        _write(project, run, note)
    return note


def _record_name(project: Project, run: Run) -> str:
    # A changed ``at`` gets a new record: its dates apply from the change on.
    cron = get_schedules(project.settings)[run.name or ""].at
    key = f"{project.settings.project_dir}\n{project.settings.config_path}\n{run.name}\n{cron}"
    digest = blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return f"{digest}.json"


def _read(project: Project, run: Run) -> DateNote | None:
    """Return the note about the dates of *run*; None: there is no readable note."""
    data = read_user_record(FOLDER, _record_name(project, run), MAX_BYTES)
    try:
        fields = json.loads(data or b"")
        note = DateNote(**{name: fields.get(name) for name in DateNote.__struct_fields__})
        times = [float(value) for value in _times(note) if value is not None]
    except (ValueError, TypeError, AttributeError):
        return None
    is_sound = note.since is not None and all(0 <= timestamp < LATEST_S for timestamp in times)
    has_texts = isinstance(note.ended, str | None) and isinstance(note.why, str | None)
    return note if is_sound and has_texts else None


def _times(note: DateNote) -> tuple[float | None, ...]:
    return note.since, note.starting, note.ahead, note.left_out


def _write(project: Project, run: Run, note: DateNote) -> None:
    fields = {"project": str(project.settings.project_dir), "run": run.name, **asdict(note)}
    write_user_record(FOLDER, _record_name(project, run), json.dumps(fields).encode())
