"""The stored state of each sink of a run: the last posted result, and the latest failure.

A cursor is replaced as a whole and synced before the next post. So after a crash at most one
result is posted twice, with the same key. An unreadable cursor is an error: starting over would
skip results or post all of them again. The time of the last thought is on the machine's boot
clock and has no meaning on other machines.

All processes of a run share its cursors, so they are files of the project, and an agent that edits
files can move them. The last post of this user is also noted in the user's state folder, so that
a cursor which another process has moved is noticed.
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
from sequencer.store.user_state import read_user_record, write_user_record

FOLDER = "activity"
POSTED = "posted"
"""Folder of this user's records of the last posts."""
REFUSED = "refused.jsonl"
MAX_BYTES = 64 * 1024
MAX_REFUSED_BYTES = 1024 * 1024
ALL = 2**31
"""An index after every activity of a revision."""


class CursorUnreadable(Exception):
    """The file of a cursor has no valid cursor."""


class PostingProblem(Struct, frozen=True, forbid_unknown_fields=True):
    """Why the sink has not accepted the next result."""

    since: str
    """Time of the first failed try."""
    tries: int
    error: str
    asked_s: Annotated[float, Meta(le=LONGEST_PAUSE_S)] = 0.0
    """The pause that the sink asked for after the last try."""
    tried_at: float = 0.0
    """Time of the last try on the machine's boot clock, which people can't change."""

    def remaining_s(self, now: float) -> float:
        """Return the rest of the pause that the sink asked for.

        A time in the future was written before the machine restarted, so it is ignored.
        """
        elapsed_s = now - self.tried_at
        return self.asked_s - elapsed_s if 0 <= elapsed_s < self.asked_s else 0.0


class Cursor(Struct, frozen=True):
    """The position in a run's journal up to which everything is posted."""

    run_id: str | None
    """None: the run had not started when the sink was first used."""
    revision: Annotated[int, Meta(ge=0)]
    index: Annotated[int, Meta(ge=-1)]
    """Index among the activities of this revision; -1: none of them is posted."""
    trouble: PostingProblem | None = None
    """None: the sink accepted the last result."""

    def is_before(self, revision: int, index: int) -> bool:
        """Return whether the activity at this position is not posted yet."""
        return (self.revision, self.index) < (revision, index)


class CursorFile:
    """The file with the cursor of one sink in one run, and its lock."""

    def __init__(self, run_folder: Path, sink: str) -> None:
        """Use ``activity/`` in *run_folder*; nothing is created before the first write."""
        self.folder = run_folder / FOLDER
        self.path = self.folder / f"{slug(sink)}.json"
        self._lock_path = self.folder / f"{slug(sink)}.lock"
        self._sink = sink

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[bool]:
        """Hold the sink's lock during the block and yield True; yield False if it is taken."""
        fd = folders.make_folder(self.folder).open(self._lock_path.name, os.O_RDWR | os.O_CREAT)
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
            CursorUnreadable: the file has no valid cursor.
        """
        try:
            fields = parse_object(read_regular(self.path, max_bytes=MAX_BYTES))
            trouble = _parse_trouble(fields.pop("trouble", None))
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
        folders.make_folder(self.folder)
        folders.write_atomically(self.path, json.dumps(fields).encode() + b"\n")
        if is_new:
            sync_folder(self.folder.parent)

    def read_note(self) -> Cursor | None:
        """Return this user's note of the last post to the sink; None: there is no valid note."""
        try:
            data = read_user_record(POSTED, self._record_name, MAX_BYTES)
            return None if data is None else convert(parse_object(data), Cursor)
        except (OSError, ValueError, ValidationError, SequencerError):
            return None

    def write_note(self, cursor: Cursor) -> None:
        """Note that this user has posted up to *cursor*; failures are ignored."""
        position = {name: getattr(cursor, name) for name in ("run_id", "revision", "index")}
        record = json.dumps({"state_file": str(self.folder), **position})
        with contextlib.suppress(OSError, SequencerError):
            write_user_record(POSTED, self._record_name, record.encode(), durably=False)

    @property
    def _record_name(self) -> str:
        return f"{blake2b(os.fsencode(self.path), digest_size=16).hexdigest()}.json"

    def count_refusals(self) -> int:
        """Return the number of results that the sink has refused permanently and that are noted."""
        try:
            data = read_regular(self.folder / REFUSED, max_bytes=MAX_REFUSED_BYTES)
        except (OSError, SequencerError):
            return 0
        name = json.dumps(self._sink, ensure_ascii=False).encode("utf-8", "replace")
        return sum(b'"sink": ' + name in line for line in data.splitlines())

    def note_refusal(self, fields: dict[str, Any]) -> None:
        """Add a line about a result that the sink will never accept."""
        line = json.dumps({"at": utc_now(), "sink": self._sink, **fields}, ensure_ascii=False)
        fd = folders.open_file(self.folder / REFUSED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, line.encode("utf-8", "replace") + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


def _parse_trouble(fields: object) -> PostingProblem | None:
    """Return the stored failure, or None if it is invalid: the next try finds it again."""
    try:
        return convert(fields, PostingProblem | None)
    except ValidationError:
        return None


def move_to_run(cursor: Cursor, run_id: str, revision: int, *, was_reset: bool) -> Cursor:
    """Return *cursor* for the current run, which is at *revision*.

    A reset keeps the journal and its revisions (*was_reset*), so results after the cursor are
    still posted. If a new run has replaced one whose files are gone, all its results are new. A
    repaired journal may end before the cursor.
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
    """Limits posts of several processes to one per *every_s* seconds."""

    def __init__(self, path: Path, every_s: float) -> None:
        """Keep the time of the last post in *path*, which the first post creates."""
        self._path = path
        self._every_s = every_s

    def remaining_s(self, now: float) -> float:
        """Return the seconds from *now* until the next post is allowed."""
        try:
            return self._remaining_s(
                read_regular(self._path, max_bytes=_MAX_BYTES)[:_MAX_BYTES], now
            )
        except (OSError, CorruptState, UnsafeFolder):
            return 0.0

    def record_post(self, now: float) -> bool:
        """Record a post at *now*; return False if another process has just posted."""
        try:
            fd = folders.make_folder(self._path.parent).open(
                self._path.name, os.O_RDWR | os.O_CREAT
            )
        except (OSError, UnsafeFolder):
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if self._remaining_s(os.pread(fd, _MAX_BYTES, 0), now) > 0:
                return False
            data = f"{now:.3f}\n".encode()
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        except OSError:
            return True
        finally:
            os.close(fd)
        return True

    def _remaining_s(self, data: bytes, now: float) -> float:
        try:
            elapsed_s = now - float(data)
        except ValueError:
            return 0.0
        # A time in the future was written before the machine restarted, or by another machine.
        return self._every_s - elapsed_s if 0 <= elapsed_s < self._every_s else 0.0
