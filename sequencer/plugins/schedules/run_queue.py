"""The queue of `tick --all`: whose turn it is, stored between ticks.

There are rounds. In a round, each run that can move moves once and then goes to the end. Due
dates go first, then requests by age, then cycles, which never end. A run that comes during a
round waits for the next one, in which it goes before all runs that have moved; only a new
schedule goes to the front immediately. So between two moves of one run, every other run that
could move has moved, no matter how long steps take. The order is a list of names, so a wrong
clock can't delay a run. A tick that finds no work ends the round.

Not promised: fairness between users, who have separate records, or without a state folder. A
tick that is killed between a choice and the run's step costs this run one turn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.plugins.schedules.section import get_schedules
from sequencer.project.project import Project
from sequencer.project.settings import Settings
from sequencer.store.lock import RunLock
from sequencer.store.user_state import read_user_record, write_user_record

FOLDER = "ticks"
"""Folder of this user's records of ticks, shared with `unattended`."""
MAX_BYTES = 1024 * 1024
DATE, REQUEST, CYCLE = range(3)
"""Classes of runs, in order of precedence."""


class Rank(Struct, frozen=True, order=True):
    """The rank of a run among those that have not moved."""

    group: int
    """`DATE`, `REQUEST` or `CYCLE`."""
    since: str = ""
    """Time of its start or its date, ISO 8601 UTC."""
    order: int = 0
    """The order of runs that started in the same second."""


class RunQueue(Struct, frozen=True):
    """The state of the current round, by name of the run; "" is the default run."""

    waits: tuple[str, ...] = ()
    """Runs that have not moved in this round, in the order of their turns."""
    moved: tuple[str, ...] = ()
    """Runs that have moved, in the order of their moves."""

    def order(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Return all runs of *ranks* in the order in which they get their turns."""
        front, rest = self._list_waiting(ranks), [name for name in self.moved if name in ranks]
        known_names = {*front, *rest}
        new_names = sorted(
            (name for name in ranks if name not in known_names), key=lambda run: ranks[run]
        )
        return [*front, *new_names, *rest]

    def record_turn(self, name: str, ranks: Mapping[str, Rank]) -> RunQueue:
        """Return the queue after the turn of *name*; if all runs had a turn, in a new round."""
        front = self._list_waiting(ranks)
        if name in front:
            return RunQueue(_remove_name(front, name), (*_remove_name(self.moved, name), name))
        moved_names = [run for run in self.order(ranks) if run not in front and run in self.moved]
        unmoved_names = sorted(
            (run for run in ranks if run not in moved_names), key=lambda run: ranks[run]
        )
        return RunQueue(_remove_name([*unmoved_names, *moved_names], name), (name,))

    def undo_turn(self, name: str, later_runs: Iterable[str]) -> RunQueue:
        """Return the queue with *name*, which has not moved, back before *later_runs*."""
        waits, later_names = list(_remove_name(self.waits, name)), {*later_runs}
        position = next(
            (index for index, run in enumerate(waits) if run in later_names), len(waits)
        )
        waits.insert(position, name)
        return RunQueue(tuple(waits), _remove_name(self.moved, name))

    def _list_waiting(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Return the runs whose turn in this round is still to come."""
        known_names = {*self.waits, *self.moved}
        new_names = [
            name for name in ranks if name not in known_names and ranks[name].group == DATE
        ]
        waiting_names = (name for name in self.waits if name in ranks)
        return [*sorted(new_names, key=lambda run: ranks[run]), *waiting_names]


def _remove_name(names: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(item for item in names if item != name)


def rank_runs(
    project: Project,
    listed: Iterable[tuple[Run, Mapping[str, Any]]],
    dates: Mapping[str, str],
) -> dict[str, Rank]:
    """Return the ranks of the runs *listed* with their `run_facts`, and of schedules by *dates*."""
    schedules, ranks = get_schedules(project.settings), dict[str, Rank]()
    for run, facts in listed:
        group = CYCLE if facts.get("kind") == "cycle" else REQUEST
        group = DATE if run.name in schedules else group
        ranks[run.name or ""] = Rank(group, facts.get("began_at") or "", _created_ns(run))
    for name in schedules:
        # A scheduled run that has ended keeps its place in the queue.
        ranks.setdefault(name, Rank(DATE, dates.get(name, "")))
    return ranks


def _created_ns(run: Run) -> int:
    """Return the creation time of the run's files, to order runs of the same second."""
    try:
        return os.lstat(f"{run.store.state_path}.lock").st_mtime_ns  # it is never written again
    except OSError:
        return 0


class StoredRunQueue:
    """The stored queue of a project, in the user's state folder.

    If it can't be stored, each tick starts a new round: dates, then requests by age, then cycles.
    """

    def __init__(self, settings: Settings) -> None:
        """Use the record about the project of *settings*."""
        self._state_file = settings.state_file
        self._lock = RunLock(settings.state_file.with_name("tick-0.lock"), allow_network_fs=True)
        self._name = record_name(settings)
        self.problem: str | None = None
        """Why the queue can't be stored."""

    def order(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Return all runs of *ranks* in the order of their turns; empty before the first tick."""
        return self._read().order(ranks) if self._data() is not None else []

    def take_turn(self, ranks: Mapping[str, Rank], wanted: Iterable[str]) -> Turn | None:
        """Give the first of *wanted* its turn, so that no other tick chooses it too.

        None: *wanted* is empty.

        Raises:
            ClaimHeld: another process holds the lock of the queue for half a minute.
        """
        names = {*wanted}
        with self._lock:
            queue = self._read()
            order = queue.order(ranks)
            name = next((run for run in order if run in names), None)
            if name is None:
                return None
            self._write(queue.record_turn(name, ranks))
        return Turn(name, tuple(order[order.index(name) + 1 :]))

    def return_turn(self, turn: Turn) -> None:
        """Put the run of *turn*, which could not move, back in its place.

        Raises:
            ClaimHeld: see `take_turn`.
        """
        with self._lock:
            self._write(self._read().undo_turn(turn.name, turn.later_runs))

    def clear(self) -> None:
        """End the round: no run can move.

        Raises:
            ClaimHeld: see `take_turn`.
        """
        with self._lock:
            self._write(RunQueue())

    def _read(self) -> RunQueue:
        with suppress(ValueError, TypeError, LookupError):
            fields = json.loads(self._data() or b"")
            lists = fields["waits"], fields["moved"]
            if all(isinstance(name, str) for names in lists for name in names):
                return RunQueue(*(tuple(dict.fromkeys(names)) for names in lists))
        return RunQueue()

    def _data(self) -> bytes | None:
        with suppress(SequencerError, OSError):
            return read_user_record(FOLDER, self._name, MAX_BYTES)
        return None

    def _write(self, queue: RunQueue) -> None:
        fields = {"state_file": str(self._state_file), **asdict(queue)}
        try:
            write_user_record(FOLDER, self._name, json.dumps(fields).encode(), durably=False)
        except SequencerError as error:
            self.problem = str(error)


class Turn(Struct, frozen=True):
    """The turn of one run."""

    name: str
    later_runs: tuple[str, ...]
    """The runs after it in the queue."""


def record_name(settings: Settings) -> str:
    """Return the file name of a project's stored queue."""
    real_path = os.path.realpath(settings.state_file)
    return f"{blake2b(os.fsencode(real_path), digest_size=16).hexdigest()}.line.json"
