"""Stores each delivery once, and the list of runs that need work because of deliveries.

There is one SQLite file per project. It is in the user's state folder, because in the project an
agent could write an answer in a person's name. A delivery is stored before its sender gets an
answer, and its keys stay for as long as it could be sent again. Two servers may share a file: one
works, and the other takes over when that one ends.

Not promised: that a delivery is missing if its sender got no answer; the server may have been
killed after it stored the delivery.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.store.user_state import make_user_folder, user_state_path

MAX_WAITING = 1000
MAX_PER_MINUTE = 600
"""Maximum number of new deliveries taken per minute, not counting repeated ones."""
KEPT_S = 4 * 24 * 3600
"""How long a delivery's keys are kept: GitHub redelivers for up to three days."""
BUSY_S = 5.0
_TABLES = """
CREATE TABLE IF NOT EXISTS deliveries (
  id INTEGER PRIMARY KEY AUTOINCREMENT, body_key TEXT UNIQUE, id_key TEXT UNIQUE, taken_at REAL,
  tracker TEXT, kind TEXT, body TEXT, revision INTEGER, done TEXT);
CREATE INDEX IF NOT EXISTS by_age ON deliveries (taken_at);
CREATE INDEX IF NOT EXISTS waiting ON deliveries (id) WHERE done IS NULL;
CREATE TABLE IF NOT EXISTS wanted (id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT UNIQUE);
"""


_READ = "SELECT id, taken_at, tracker, kind, body, revision, done FROM deliveries"


class Delivery(Struct, frozen=True):
    """A stored delivery, and what was noted about it."""

    id: int
    taken_at: float
    tracker: str
    kind: str
    """The event's name, from a header."""
    body: str
    revision: int | None
    """Revision of its run before the first try."""
    done: str | None
    """What was done for it; None while it waits."""


class DeliveryQueueFull(Exception):
    """Too many deliveries are waiting; no more are taken."""


class TooManyDeliveries(Exception):
    """Too many deliveries came within a minute; no more are taken yet."""


class DeliveryStore:
    """The deliveries of one project; its methods raise `sqlite3.Error` if the disk fails."""

    def __init__(self, project_key: str) -> None:
        """Use the file of the project with trust key *project_key*; the first use creates it."""
        self._name = _digest(os.fsencode(project_key))
        self.path = Path(os.path.realpath(user_state_path())) / "deliveries" / self._name

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file; all changes in the block are committed together, or none."""
        make_user_folder("deliveries", self._name)
        with closing(sqlite3.connect(self.path / "box.db", BUSY_S)) as db:
            db.executescript(_TABLES)
            with db:
                yield db

    def add_delivery(self, tracker: str, kind: str, id: bytes, body: bytes) -> bool:  # noqa: A002
        """Store a delivery; return False if its *body* or its *id* was taken before.

        Either one identifies it: the id is not signed, so a replay can change it, and a
        tracker's second try may have another body.

        Raises:
            DeliveryQueueFull: too many are waiting.
            TooManyDeliveries: too many came within a minute.
        """
        keys = _digest(body), _digest(tracker.encode() + (id or body))
        row = (*keys, time.time(), tracker, kind, body.decode())
        oldest_time = row[2] - KEPT_S
        with self._open() as db:
            # A replay costs one query and no write.
            if db.execute(
                "SELECT 1 FROM deliveries WHERE (body_key = ? OR id_key = ?)"
                " AND (taken_at >= ? OR done IS NULL)",
                (*keys, oldest_time),
            ).fetchone():
                return False
            db.execute(
                "DELETE FROM deliveries WHERE taken_at < ? AND done IS NOT NULL", [oldest_time]
            )
            cursor = db.execute(
                "INSERT OR IGNORE INTO deliveries (body_key, id_key, taken_at, tracker, kind, body)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
            if not cursor.rowcount:
                return False
            (count,) = db.execute("SELECT count(*) FROM deliveries WHERE done IS NULL").fetchone()
            if count > MAX_WAITING:
                raise DeliveryQueueFull
            # A wrong clock may have recorded some as taken after now; ignore those.
            (count,) = db.execute(
                "SELECT count(*) FROM deliveries WHERE taken_at > ? AND taken_at <= ?",
                (row[2] - 60, row[2]),
            ).fetchone()
            if count > MAX_PER_MINUTE:
                raise TooManyDeliveries
        return True

    def _rows(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        if not (self.path / "box.db").exists():
            return []
        with self._open() as db:
            return db.execute(query, values).fetchall()

    def find_oldest_waiting(self) -> Delivery | None:
        """Return the oldest delivery that waits, or None."""
        rows = self._rows(f"{_READ} WHERE done IS NULL ORDER BY id LIMIT 1")
        return Delivery(*rows[0]) if rows else None

    def list_newest(self, count: int) -> list[Delivery]:
        """Return the last *count* deliveries that were taken, newest first."""
        return [Delivery(*row) for row in self._rows(f"{_READ} ORDER BY id DESC LIMIT ?", count)]

    def note(self, delivery: Delivery, revision: int) -> None:
        """Store the *revision* at which the run of *delivery* was before the first try."""
        with self._open() as db:
            db.execute("UPDATE deliveries SET revision = ? WHERE id = ?", (revision, delivery.id))

    def finish(self, delivery: Delivery, done: str) -> None:
        """Store what was *done* for *delivery*, and erase its body."""
        with self._open() as db:
            db.execute(
                "UPDATE deliveries SET done = ?, body = '' WHERE id = ?", (done, delivery.id)
            )

    # --- runs that need work -----------------------------------------------------------

    def add_wanted_run(self, run: str) -> None:
        """Add *run* to the wanted runs, under a new number."""
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO wanted (run) VALUES (?)", [run])

    def list_wanted_runs(self) -> list[tuple[int, str]]:
        """Return (number, run) for each wanted run, oldest first."""
        return self._rows("SELECT id, run FROM wanted ORDER BY id")

    def remove_wanted_run(self, run: str, up_to: int = 2**62) -> None:
        """Remove *run* from the wanted runs, unless it was added after number *up_to*."""
        with self._open() as db:
            db.execute("DELETE FROM wanted WHERE run = ? AND id <= ?", (run, up_to))

    @contextmanager
    def hold_worker_lock(self) -> Iterator[None]:
        """Wait until no other server works on this project; keep others out during the block.

        Call it in a thread of its own: the wait has no limit.
        """
        make_user_folder("deliveries", self._name)
        with (self.path / "worker.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]
