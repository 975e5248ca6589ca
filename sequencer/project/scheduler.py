"""The interface to the scheduler, which starts runs automatically, and its date formats.

Without a schedules section in the configuration, `Scheduler` itself is used, and it starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

from sequencer import extensions
from sequencer.engine.run import Run
from sequencer.model.limits import format_utc_s
from sequencer.project.project import Project


class Scheduler:
    """Starts runs of a project; times are in seconds since 1970. This base class starts none."""

    def workflows(self, project: Project) -> Mapping[str, str]:
        """Return run name -> workflow for each scheduled run."""
        del project
        return {}

    def next_start(self, project: Project, run: Run) -> float | None:
        """Return when *run* starts automatically, now or earlier if it is due, or None.

        Writes nothing.
        """

    def find_next_look(self, project: Project, run: Run) -> float | None:
        """Return the time when a tick of *run* may find a date; None: it has no schedule."""

    def find_skipped_date(self, project: Project, run: Run) -> tuple[float, str] | None:
        """Return the newest skipped date and the reason; None: no date was skipped."""

    def list_scheduled_runs(self, project: Project) -> Iterable[tuple[Run, float | None]]:
        """Yield each scheduled run with its `next_start`."""
        del project
        return ()

    def start_due(
        self,
        project: Project,
        run: Run,
        say: Callable[[str], None],
        notify: Callable[[str], None] | None = None,
    ) -> float | None:
        """Start *run* if it is due; otherwise return the date that it waits for.

        *say* gets notices, *notify* gets messages that a person must read.
        """

    def begin(self, project: Project, run: Run) -> None:
        """Start *run* for the first time if `start_due` found it due."""

    def report_skipped_date(
        self, project: Project, run: Run | None
    ) -> AbstractContextManager[None]:
        """Return a context in which the error of a refused merge names a skipped date of *run*."""
        del project, run
        return nullcontext()

    def turns(
        self,
        project: Project,
        listed: Iterable[tuple[Run, Mapping[str, Any]]],
        able: Collection[str],
    ) -> dict[str, int]:
        """Return the position of each *able* run in the queue of ticks for all runs; 1 is next."""
        del project, listed, able
        return {}


_NOTHING = Scheduler()


def load_scheduler(project: Project) -> Scheduler:
    """Return the scheduler of *project*; the plug-in is loaded only if the settings need it."""
    is_asked_for = any(
        name in project.settings.sections for name in extensions.OURS[extensions.SCHEDULERS]
    )
    return get_scheduler() if is_asked_for else _NOTHING


def get_scheduler() -> Scheduler:
    """Return the scheduler even for a project without schedules: it orders all ticks."""
    implementation: Scheduler = next(
        (starts for _, starts in extensions.load_builtins(extensions.SCHEDULERS)), _NOTHING
    )
    return implementation


# --- dates -----------------------------------------------------------------------------------


def format_local_time(date: float) -> str:
    """Return a date in local time, for people."""
    return f"{datetime.fromtimestamp(date).astimezone():%Y-%m-%d %H:%M}"


def format_utc(date: float) -> str:
    """Return a date in UTC, for programs."""
    return format_utc_s(datetime.fromtimestamp(date, UTC))


def parse_date(date: str) -> float:
    """Return a date of `format_utc` in seconds since 1970."""
    return datetime.fromisoformat(date).timestamp()


def skipped_date_to_data(missed: tuple[float, str] | None) -> dict[str, str] | None:
    """Return a skipped date and the reason as ``--json`` prints them."""
    return None if missed is None else {"date": format_utc(missed[0]), "reason": missed[1]}


def describe_start(date: float) -> str:
    """Return a clause that says when a run starts."""
    return f"it starts at {format_local_time(date)}"
