"""What is kept about each sink of a run: how far it has been told, and what is in the way.

A cursor is replaced whole and synced before what comes next is posted, so after a crash at
most one result is posted twice, with the same key. A file that can't be read is never
guessed: starting again would drop results or post all of them again. When the last thought
was posted counts on the clock since the machine started, and means nothing elsewhere.

All who work on a run share its cursors, so they are files of the project, and an agent that edits
files can move them. What this user posted last is also noted in the user's state folder: so a
cursor that somebody else has moved on is noticed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict, replace

from sequencer.errors import CorruptState, SequencerError, UnsafeFolder
from sequencer.files.textfile import slug
from sequencer.plugins.posting.protocol import LONGEST_PAUSE_S
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular, sync_folder
from sequencer.store.identity import utc_now
from sequencer.store.strictjson import parse_object
from sequencer.store.user_state import put_own, read_own

FOLDER = "activity"
POSTED = "posted"
"""Of the user's own records: how far this user has posted."""
REFUSED = "refused.jsonl"
MAX_BYTES = 64 * 1024
MAX_REFUSED_BYTES = 1024 * 1024
ALL = 2**31
"""An index behind every activity of a revision."""


class CursorUnreadable(Exception):
    """What stands in a cursor's file says nothing."""


class Trouble(Struct, frozen=True, forbid_unknown_fields=True):
    """Why the sink has not taken the result that comes next."""

    since: str
    """When it was first tried without success."""
    tries: int
    error: str
    asked_s: Annotated[float, Meta(le=LONGEST_PAUSE_S)] = 0.0
    """How long the sink asked to be left alone, after the last try."""
    tried_at: float = 0.0
    """When that was, on the clock since the machine started: nobody sets that one."""

    def left_s(self, now: float) -> float:
        """Return how long the sink is still to be left alone.

        A time ahead was written before the machine started; nobody waits for that.
        """
        since = now - self.tried_at
        return self.asked_s - since if 0 <= since < self.asked_s else 0.0


class Cursor(Struct, frozen=True):
    """The place in a run's journal up to which everything is posted."""

    run_id: str | None
    """None: the run was not begun when the sink was first seen."""
    revision: Annotated[int, Meta(ge=0)]
    index: Annotated[int, Meta(ge=-1)]
    """Among the activities of that revision; -1: none of it is posted."""
    trouble: Trouble | None = None
    """None: the sink took what it was given last."""

    def is_before(self, revision: int, index: int) -> bool:
        """Return whether the activity at that place is still to be posted."""
        return (self.revision, self.index) < (revision, index)


class CursorFile:
    """The cursor of one sink in one run, and the lock under which it is moved."""

    def __init__(self, run_folder: Path, sink: str) -> None:
        """Use ``activity/`` in *run_folder*; nothing is made before the first write."""
        self.folder = run_folder / FOLDER
        self.path = self.folder / f"{slug(sink)}.json"
        self._lock_path = self.folder / f"{slug(sink)}.lock"
        self._sink = sink

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the sink's lock for the block, if no other process has it; give whether it does."""
        fd = folders.made(self.folder).open(self._lock_path.name, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(fd)

    def read(self) -> Cursor | None:
        """Return the cursor, or None if there is none.

        Raises:
            CursorUnreadable: there is something else in its place.
        """
        try:
            fields = parse_object(read_regular(self.path, max_bytes=MAX_BYTES))
            trouble = _trouble(fields.pop("trouble", None))
            return replace(convert(fields, Cursor), trouble=trouble)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, ValidationError, SequencerError) as error:
            message = f"{self.path} can't be read ({error}); remove it to start with the next event"
            raise CursorUnreadable(message) from error

    def write(self, cursor: Cursor) -> None:
        """Replace the cursor, so that it survives a power loss."""
        fields: dict[str, Any] = {
            "schema_version": 1,
            "sink": self._sink,
            "run_id": cursor.run_id,
            "revision": cursor.revision,
            "index": cursor.index,
            "at": utc_now(),
        }
        if cursor.trouble is not None:
            fields["trouble"] = asdict(cursor.trouble)
        is_new = not self.path.exists()
        folders.made(self.folder)
        folders.put(self.path, json.dumps(fields).encode() + b"\n")
        if is_new:
            sync_folder(self.folder.parent)

    def noted(self) -> Cursor | None:
        """Return how far this user has posted to the sink; None: nobody knows."""
        try:
            kept = read_own(POSTED, self._record_name, MAX_BYTES)
            return None if kept is None else convert(parse_object(kept), Cursor)
        except (OSError, ValueError, ValidationError, SequencerError):
            return None

    def note(self, cursor: Cursor) -> None:
        """Remember that this user has posted up to *cursor*, as far as that is possible."""
        place = {name: getattr(cursor, name) for name in ("run_id", "revision", "index")}
        told = json.dumps({"state_file": str(self.folder), **place})
        with contextlib.suppress(OSError, SequencerError):
            put_own(POSTED, self._record_name, told.encode(), durably=False)

    @property
    def _record_name(self) -> str:
        return f"{blake2b(os.fsencode(self.path), digest_size=16).hexdigest()}.json"

    def refusals(self) -> int:
        """Return how many results the sink has refused for good, as far as that is still noted."""
        try:
            noted = read_regular(self.folder / REFUSED, max_bytes=MAX_REFUSED_BYTES)
        except (OSError, SequencerError):
            return 0
        name = json.dumps(self._sink, ensure_ascii=False).encode("utf-8", "replace")
        return sum(b'"sink": ' + name in line for line in noted.splitlines())

    def note_refusal(self, fields: dict[str, Any]) -> None:
        """Add a line about a result that the sink will never take."""
        line = json.dumps({"at": utc_now(), "sink": self._sink, **fields}, ensure_ascii=False)
        fd = folders.open_file(self.folder / REFUSED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, line.encode("utf-8", "replace") + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


def _trouble(kept: object) -> Trouble | None:
    """Return what was kept of a failure; where that makes no sense, the next try says it again."""
    try:
        return convert(kept, Trouble | None)
    except ValidationError:
        return None


def moved_to_run(cursor: Cursor, run_id: str, revision: int, *, was_reset: bool) -> Cursor:
    """Return *cursor* for the run that is there, at *revision*.

    A reset keeps the journal and goes on counting (*was_reset*), so what is behind the
    cursor is still to be posted. A run of its own has begun in place of one whose files are
    gone, and all of it is new. A journal that was repaired may end before the cursor.
    """
    if cursor.run_id is None:
        return replace(cursor, run_id=run_id)
    if cursor.run_id != run_id and not was_reset:
        return Cursor(run_id, 0, -1)
    if cursor.revision > revision:
        return Cursor(cursor.run_id, revision, ALL)
    return cursor


_MAX_BYTES = 64


class Pace:
    """Lets one pass in each *every_s* seconds."""

    def __init__(self, path: Path, every_s: float) -> None:
        """Keep the time in *path*, which is made when somebody has passed."""
        self._path = path
        self._every_s = every_s

    def left_s(self, now: float) -> float:
        """Return how long nobody may pass yet, seen from *now*."""
        try:
            return self._left(read_regular(self._path, max_bytes=_MAX_BYTES)[:_MAX_BYTES], now)
        except (OSError, CorruptState, UnsafeFolder):
            return 0.0

    def take(self, now: float) -> bool:
        """Pass at *now*; return False if somebody else did a moment ago."""
        try:
            fd = folders.made(self._path.parent).open(self._path.name, os.O_RDWR | os.O_CREAT)
        except (OSError, UnsafeFolder):
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if self._left(os.pread(fd, _MAX_BYTES, 0), now) > 0:
                return False
            data = f"{now:.3f}\n".encode()
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        except OSError:
            return True
        finally:
            os.close(fd)
        return True

    def _left(self, data: bytes, now: float) -> float:
        try:
            since = now - float(data)
        except ValueError:
            return 0.0
        # What is ahead was written before the machine started, or by another one.
        return self._every_s - since if 0 <= since < self._every_s else 0.0
