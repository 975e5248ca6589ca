"""The line of `tick --all`: whose turn it is, kept from one tick to the next.

Time passes in rounds. In a round each run that can move moves once; then it stands at the end.
Dates go first, then requests by age, then cycles, which never end. A run that comes during a
round waits for the next one, where it stands before all that have moved; only a new schedule
goes to the front at once. So between two moves of one run every other run that could move has
moved, however long steps take. The order is a list of names: no clock can hold a run back.

A tick that finds nothing to do for anybody ends the round, and the next one begins anew.

Not promised: fairness between users, each of whom has a record, or where none can be kept. A
tick that is killed between a choice and its run's step costs this run one turn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.plugins.schedules.section import schedules_of
from sequencer.project.project import Project
from sequencer.project.settings import Settings
from sequencer.store.lock import RunLock
from sequencer.store.user_state import put_own, read_own

FOLDER = "ticks"
"""Of the user's own records, with what else ticks remember (`unattended`)."""
MAX_BYTES = 1024 * 1024
DATE, REQUEST, CYCLE = range(3)
"""Classes of runs, those that go first at the front."""


class Rank(NamedTuple):
    """Where a run stands among those that have not moved."""

    group: int
    """`DATE`, `REQUEST` or `CYCLE`."""
    since: str = ""
    """When it began or its date came, ISO 8601 UTC."""
    order: int = 0
    """Which of several that began in one second was first."""


class WaitingLine(NamedTuple):
    """Who has had a turn in the present round, by name of the run; "" is the default run."""

    waits: tuple[str, ...] = ()
    """Those that have not moved in this round, in the order of their turns."""
    moved: tuple[str, ...] = ()
    """Those that have, in the order in which they did."""

    def order(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Return all runs of *ranks* in the order in which they get their turns."""
        front, rest = self._front(ranks), [name for name in self.moved if name in ranks]
        known = {*front, *rest}
        new = sorted((name for name in ranks if name not in known), key=ranks.__getitem__)
        return [*front, *new, *rest]

    def turned(self, name: str, ranks: Mapping[str, Rank]) -> WaitingLine:
        """Return the line after the turn of *name*: in a new round, if all before had theirs."""
        front = self._front(ranks)
        if name in front:
            return WaitingLine(_without(front, name), (*_without(self.moved, name), name))
        rest = [one for one in self.order(ranks) if one not in front and one in self.moved]
        still = sorted((one for one in ranks if one not in rest), key=ranks.__getitem__)
        return WaitingLine(_without([*still, *rest], name), (name,))

    def returned(self, name: str, behind: Iterable[str]) -> WaitingLine:
        """Return the line after *name* has not moved: it stands before those *behind* it."""
        waits, later = list(_without(self.waits, name)), {*behind}
        place = next((at for at, one in enumerate(waits) if one in later), len(waits))
        waits.insert(place, name)
        return WaitingLine(tuple(waits), _without(self.moved, name))

    def _front(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Return those whose turn is still to come in this round."""
        known = {*self.waits, *self.moved}
        new = [name for name in ranks if name not in known and ranks[name].group == DATE]
        return [*sorted(new, key=ranks.__getitem__), *(one for one in self.waits if one in ranks)]


def _without(names: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(one for one in names if one != name)


def ranks_of(
    project: Project,
    listed: Iterable[tuple[Run, Mapping[str, Any]]],
    dates: Mapping[str, str],
) -> dict[str, Rank]:
    """Return where runs stand: those *listed* with their `run_facts`, and schedules by *dates*."""
    schedules, found = schedules_of(project.settings), dict[str, Rank]()
    for run, facts in listed:
        group = CYCLE if facts.get("kind") == "cycle" else REQUEST
        group = DATE if run.name in schedules else group
        found[run.name or ""] = Rank(group, facts.get("began_at") or "", _made_at(run))
    for name in schedules:
        # One that is over keeps its place in the line.
        found.setdefault(name, Rank(DATE, dates.get(name, "")))
    return found


def _made_at(run: Run) -> int:
    """Return when the files of *run* were made; of many runs that started in one second."""
    try:
        return os.lstat(f"{run.store.state_path}.lock").st_mtime_ns  # nobody ever writes it
    except OSError:
        return 0


class KeptLine:
    """The line of a project, in the user's own state folder.

    If it can't be kept there, each tick begins a round: dates, then requests by age, then cycles.
    """

    def __init__(self, settings: Settings) -> None:
        """Use the record about the project of *settings*."""
        self._state_file = settings.state_file
        self._lock = RunLock(settings.state_file.with_name("tick-0.lock"), allow_network_fs=True)
        self._name = record_name(settings)
        self.problem: str | None = None
        """Why it can't be kept."""

    def order(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Return all runs of *ranks* in the order of their turns; none if no tick ever came."""
        return self._read().order(ranks) if self._kept() is not None else []

    def take(self, ranks: Mapping[str, Rank], wanted: Iterable[str]) -> Turn | None:
        """Let the first of *wanted* have its turn; no other tick chooses it meanwhile.

        None: nobody is wanted.

        Raises:
            ClaimHeld: another process holds the line's lock for half a minute.
        """
        names = {*wanted}
        with self._lock:
            line = self._read()
            order = line.order(ranks)
            name = next((one for one in order if one in names), None)
            if name is None:
                return None
            self._write(line.turned(name, ranks))
        return Turn(name, tuple(order[order.index(name) + 1 :]))

    def give_back(self, turn: Turn) -> None:
        """Put the run of *turn*, which could not move, where it stood.

        Raises:
            ClaimHeld: see `take`.
        """
        with self._lock:
            self._write(self._read().returned(turn.name, turn.behind))

    def clear(self) -> None:
        """End the round: nobody can move, so whoever can first is not before anybody.

        Raises:
            ClaimHeld: see `take`.
        """
        with self._lock:
            self._write(WaitingLine())

    def _read(self) -> WaitingLine:
        with suppress(ValueError, TypeError, LookupError):
            kept = json.loads(self._kept() or b"")
            lists = kept["waits"], kept["moved"]
            if all(isinstance(one, str) for names in lists for one in names):
                return WaitingLine(*(tuple(dict.fromkeys(names)) for names in lists))
        return WaitingLine()

    def _kept(self) -> bytes | None:
        with suppress(SequencerError, OSError):
            return read_own(FOLDER, self._name, MAX_BYTES)
        return None

    def _write(self, line: WaitingLine) -> None:
        told = {"state_file": str(self._state_file), **line._asdict()}
        try:
            put_own(FOLDER, self._name, json.dumps(told).encode(), durably=False)
        except SequencerError as error:
            self.problem = str(error)


class Turn(NamedTuple):
    """The turn of one run."""

    name: str
    behind: tuple[str, ...]
    """Those that come after it."""


def record_name(settings: Settings) -> str:
    """Return the name of the record about the line of a project."""
    real = os.path.realpath(settings.state_file)
    return f"{blake2b(os.fsencode(real), digest_size=16).hexdigest()}.line.json"
