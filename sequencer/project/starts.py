"""What starts runs by itself, asked by those who work on a run and by those who show it.

Nothing does, unless the project's configuration has a section for it. How dates are written and
said is here too, for whoever shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

from sequencer import extensions
from sequencer.engine.run import Run
from sequencer.model.limits import utc
from sequencer.project.project import Project


class Starts:
    """What starts runs of a project; times are in seconds since 1970. This one starts none."""

    def workflows(self, project: Project) -> Mapping[str, str]:
        """Return what each run that is started by itself works on, by the run's name."""
        del project
        return {}

    def next_start(self, project: Project, run: Run) -> float | None:
        """Return when *run* starts by itself: at most now if it is due. None: by nothing of this.

        Nothing is written.
        """

    def next_look(self, project: Project, run: Run) -> float | None:
        """Return when a tick of *run* may find a date; None: nothing of this starts it."""

    def left_out(self, project: Project, run: Run) -> tuple[float, str] | None:
        """Return the newest date that has started nothing, and why; None: there is none."""

    def scheduled(self, project: Project) -> Iterable[tuple[Run, float | None]]:
        """Yield each run that is started by itself with its `next_start`."""
        del project
        return ()

    def start_due(
        self,
        project: Project,
        run: Run,
        say: Callable[[str], None],
        tell: Callable[[str], None] | None = None,
    ) -> float | None:
        """Start *run* if it is due; return the date that it waits for if nothing may begin yet.

        *say* takes a notice, *tell* what a person must know.
        """

    def begin(self, project: Project, run: Run) -> None:
        """Make the first start of *run*, if `start_due` has found it due."""

    def telling_skipped(self, project: Project, run: Run | None) -> AbstractContextManager[None]:
        """Return a block in which a refused merge says that a date of *run* was left out."""
        del project, run
        return nullcontext()

    def turns(
        self,
        project: Project,
        listed: Iterable[tuple[Run, Mapping[str, Any]]],
        able: Collection[str],
    ) -> dict[str, int]:
        """Return the place of each *able* run in the line of ticks for all runs, 1 is next."""
        del project, listed, able
        return {}


_NOTHING = Starts()


def starts_of(project: Project) -> Starts:
    """Return what starts runs of *project*, loaded only if its configuration asks for it."""
    is_asked_for = any(
        name in project.settings.sections for name in extensions.OURS[extensions.STARTS]
    )
    return scheduler() if is_asked_for else _NOTHING


def scheduler() -> Starts:
    """Return the scheduler, also for a project without schedules: it orders all runs."""
    found: Starts = next((one for _, one in extensions.ours(extensions.STARTS)), _NOTHING)
    return found


# --- dates -----------------------------------------------------------------------------------


def clock(date: float) -> str:
    """Return a date on this machine's clock."""
    return f"{datetime.fromtimestamp(date).astimezone():%Y-%m-%d %H:%M}"


def as_utc(date: float) -> str:
    """Return a date as programs read it."""
    return utc(datetime.fromtimestamp(date, UTC))


def parsed(date: str) -> float:
    """Return a date of `as_utc` in seconds since 1970."""
    return datetime.fromisoformat(date).timestamp()


def left_out_json(missed: tuple[float, str] | None) -> dict[str, str] | None:
    """Return a date that is left out, and why, as ``--json`` prints it."""
    return None if missed is None else {"date": as_utc(missed[0]), "reason": missed[1]}


def starts_at(date: float) -> str:
    """Return in words when a run starts."""
    return f"it starts at {clock(date)}"
