"""Deliveries that were taken, each once, and the runs that are worked on because of them.

One SQLite file a project in the user's state folder, and not in the project, where an agent could
write an answer for a person. A delivery is in it before its sender is told so, and its keys stay
for as long as anybody could send it again. Two servers may share a box: one works, the other
takes its place when it ends.

Not promised: that a delivery whose sender heard nothing (killed in between) is not there.
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

from sequencer.store.user_state import make_own, own_state

MOST_WAITING = 1000
A_MINUTE = 600
"""New deliveries that are taken; one that comes again is none."""
KEPT_S = 4 * 24 * 3600
"""GitHub sends again what is up to three days old."""
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
    """What was taken, and what was noted on it before something was done for it."""

    id: int
    taken_at: float
    tracker: str
    kind: str
    """Which event, as a header says."""
    body: str
    revision: int | None
    """Of its run when it was tried first."""
    done: str | None
    """What was done for it; None: it waits."""


class BoxFull(Exception):
    """So many deliveries wait that no more are taken."""


class BoxBusy(Exception):
    """So many deliveries were taken within a minute that no more are taken yet."""


class DeliveryBox:
    """What waits for one project; its methods raise `sqlite3.Error` where the disk refuses."""

    def __init__(self, project_key: str) -> None:
        """Use the box of the project that trust calls *project_key*; made with the first use."""
        self._name = _digest(os.fsencode(project_key))
        self.path = Path(os.path.realpath(own_state())) / "deliveries" / self._name

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Change the box as a whole, or not at all."""
        make_own("deliveries", self._name)
        with closing(sqlite3.connect(self.path / "box.db", BUSY_S)) as db:
            db.executescript(_TABLES)
            with db:
                yield db

    def take(self, tracker: str, kind: str, id: bytes, body: bytes) -> bool:  # noqa: A002
        """Keep a delivery; return False if its *body* or its *id* was taken before.

        The id is not signed, and a second try may be signed as another: either is the same.

        Raises:
            BoxFull: too many wait.
            BoxBusy: too many were taken within a minute.
        """
        keys = _digest(body), _digest(tracker.encode() + (id or body))
        row = (*keys, time.time(), tracker, kind, body.decode())
        oldest = row[2] - KEPT_S
        with self._open() as db:
            # Looking is all that a replay may cost.
            if db.execute(
                "SELECT 1 FROM deliveries WHERE (body_key = ? OR id_key = ?)"
                " AND (taken_at >= ? OR done IS NULL)",
                (*keys, oldest),
            ).fetchone():
                return False
            db.execute("DELETE FROM deliveries WHERE taken_at < ? AND done IS NOT NULL", [oldest])
            found = db.execute(
                "INSERT OR IGNORE INTO deliveries (body_key, id_key, taken_at, tracker, kind, body)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
            if not found.rowcount:
                return False
            (count,) = db.execute("SELECT count(*) FROM deliveries WHERE done IS NULL").fetchone()
            if count > MOST_WAITING:
                raise BoxFull
            # By a clock that was wrong some may have been taken later than now.
            (count,) = db.execute(
                "SELECT count(*) FROM deliveries WHERE taken_at > ? AND taken_at <= ?",
                (row[2] - 60, row[2]),
            ).fetchone()
            if count > A_MINUTE:
                raise BoxBusy
        return True

    def _rows(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        if not (self.path / "box.db").exists():
            return []
        with self._open() as db:
            return db.execute(query, values).fetchall()

    def next(self) -> Delivery | None:
        """Return the oldest delivery that waits."""
        found = self._rows(f"{_READ} WHERE done IS NULL ORDER BY id LIMIT 1")
        return Delivery(*found[0]) if found else None

    def newest(self, count: int) -> list[Delivery]:
        """Return the deliveries that were taken last, newest first."""
        return [Delivery(*row) for row in self._rows(f"{_READ} ORDER BY id DESC LIMIT ?", count)]

    def note(self, delivery: Delivery, revision: int) -> None:
        """Remember at which *revision* of its run *delivery* is tried."""
        with self._open() as db:
            db.execute("UPDATE deliveries SET revision = ? WHERE id = ?", (revision, delivery.id))

    def finish(self, delivery: Delivery, done: str) -> None:
        """Remember what was *done* for *delivery*, and forget what it says."""
        with self._open() as db:
            db.execute(
                "UPDATE deliveries SET done = ?, body = '' WHERE id = ?", (done, delivery.id)
            )

    # --- runs that are to be worked on -----------------------------------------------

    def want(self, run: str) -> None:
        """Remember that *run* is to be worked on from now on."""
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO wanted (run) VALUES (?)", [run])

    def wanted(self) -> list[tuple[int, str]]:
        """Return the runs that are to be worked on, oldest first, each with the number of that."""
        return self._rows("SELECT id, run FROM wanted ORDER BY id")

    def unwant(self, run: str, up_to: int = 2**62) -> None:
        """Forget that *run* is to be worked on, unless it was wanted after the number *up_to*."""
        with self._open() as db:
            db.execute("DELETE FROM wanted WHERE run = ? AND id <= ?", (run, up_to))

    @contextmanager
    def work(self) -> Iterator[None]:
        """Wait until no other server works on this box, and keep others out while the block lasts.

        A thread that waits costs nothing.
        """
        make_own("deliveries", self._name)
        with (self.path / "worker.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]
