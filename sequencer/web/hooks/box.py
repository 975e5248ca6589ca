"""Deliveries that were taken and not yet acted on, each once, in files of this user's.

They lie in the user's state folder and not in the project, where an agent could write an answer
for a person. A delivery is a file before its sender is told so; its keys stand in ``seen`` for
as long as they are young enough to be believed, so that a second copy is refused after a
restart too. Two servers may share a box: one works, the other takes its place when it ends.

Not promised: that a delivery whose sender heard nothing (killed in between) is not there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from sequencer.assembly.trusting import place
from sequencer.documents.files import slug
from sequencer.store import folder as folders

MOST_WAITING = 1000
MOST_SEEN = 50_000
"""Keys that are remembered; a tracker that sends more is refused long before."""
KEY_CHARS = 32
_SUFFIX, _RUN = ".delivery", ".run"


def key_of(text: bytes) -> str:
    """Return the key of a delivery that is told by *text*."""
    return hashlib.sha256(text).hexdigest()[:KEY_CHARS]


def keys_in(name: str) -> list[str]:
    """Return the keys of the delivery called *name*."""
    return name.removesuffix(_SUFFIX).split("-")[1:]


class Delivery(Struct, kw_only=True):
    """What was taken, and what was noted on it before something was done for it."""

    tracker: str
    kind: str
    """Which event, as a header says."""
    body: str
    name: str = ""
    token: int | None = None
    """Of the question that it answers."""
    revision: int | None = None
    """Of the run to which it was told as guidance."""


class BoxFull(Exception):
    """So many deliveries wait that no more are taken."""


class DeliveryBox:
    """What waits for one project."""

    def __init__(self, project_key: str) -> None:
        """Use the box of the project that trust calls *project_key*; made with the first use."""
        base = Path(os.path.realpath(place().parent))
        self.path = base / "deliveries" / key_of(os.fsencode(project_key))
        self._guard = threading.Lock()
        self._seen: dict[str, None] = {}
        self._read_to = 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only one, of all threads and servers, that adds to the box."""
        with self._guard:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = folders.open_file(self.path / "lock", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)

    def take(self, keys: Sequence[str], tracker: str, kind: str, body: bytes) -> bool:
        """Keep a delivery; return False if one of its *keys* was taken before.

        Raises:
            BoxFull: too many wait.
            OSError: the disk is full, or the folder can't be written.
        """
        with self._locked():
            self._read_seen()
            waiting = self.waiting()
            # A crash came perhaps before the keys of one that waits were remembered.
            there = {key for name in waiting for key in keys_in(name)}
            if not self._seen.keys().isdisjoint(keys) or not there.isdisjoint(keys):
                return False
            if len(waiting) >= MOST_WAITING:
                raise BoxFull
            # After whatever waits, though the clock was set back.
            after = int(waiting[-1].partition("-")[0]) + 1 if waiting else 0
            name = "-".join((f"{max(time.time_ns(), after):020d}", *keys)) + _SUFFIX
            self.note(Delivery(tracker=tracker, kind=kind, body=body.decode(), name=name))
            self._remember(keys)
            return True

    def _read_seen(self) -> None:
        """Read what was added to ``seen`` since the last look, by whichever server."""
        path = self.path / "seen"
        size = path.stat().st_size if path.exists() else 0
        if size < self._read_to:
            # Another server has shortened it.
            self._read_to = 0
            self._seen.clear()
        if size > self._read_to:
            data = folders.read_regular(path, self._read_to)
            self._seen.update(dict.fromkeys(data.decode("ascii", "replace").split()))
            self._read_to += len(data)

    def _remember(self, keys: Sequence[str]) -> None:
        self._seen.update(dict.fromkeys(keys))
        if len(self._seen) > 2 * MOST_SEEN:
            self._seen = dict.fromkeys([*self._seen][-MOST_SEEN:])
            data = "".join(f"{key}\n" for key in self._seen).encode()
            folders.put(self.path / "seen", data)
            self._read_to = len(data)
            return
        fd = folders.open_file(self.path / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            # A line that a crash tore ends here.
            line = ("\n" + "".join(f"{key}\n" for key in keys)).encode()
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)

    def waiting(self) -> list[str]:
        """Return the names of the deliveries that wait, oldest first."""
        with suppress(FileNotFoundError):
            return sorted(one for one in folders.names(self.path) if one.endswith(_SUFFIX))
        return []

    def read(self, name: str) -> Delivery:
        """Return the delivery called *name*.

        Raises:
            ValueError: it is none that was written here.
        """
        return msgspec.json.decode(folders.read_regular(self.path / name), type=Delivery)

    def note(self, delivery: Delivery) -> None:
        """Keep *delivery* as it is now."""
        folders.put(self.path / delivery.name, msgspec.json.encode(delivery))

    def drop(self, name: str) -> None:
        """Forget the delivery called *name*: all was done for it."""
        with self._locked():
            self._read_seen()
            # A crash came perhaps between the delivery and its keys.
            if lost := [key for key in keys_in(name) if key not in self._seen]:
                self._remember(lost)
            folders.remove(self.path / name)
            folders.sync_folder(self.path)

    # --- runs that are to be worked on -----------------------------------------------

    def want(self, run: str) -> None:
        """Remember that *run* is to be worked on."""
        folders.put(self.path / f"{slug(run)}{_RUN}", run.encode())

    def wanted(self) -> list[str]:
        """Return the runs that are to be worked on."""
        with suppress(FileNotFoundError):
            names = (one for one in folders.names(self.path) if one.endswith(_RUN))
            return [folders.read_regular(self.path / one).decode() for one in names]
        return []

    def unwant(self, run: str) -> None:
        """Forget that *run* is to be worked on."""
        with suppress(FileNotFoundError):
            folders.remove(self.path / f"{slug(run)}{_RUN}")

    @contextmanager
    def work(self) -> Iterator[None]:
        """Wait until no other server works on this box, and keep others out while the block lasts.

        A thread that waits costs nothing.
        """
        with self._locked():
            fd = folders.open_file(self.path / "worker.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
