"""The journal: its line format, which of its lines count, and its files.

A line is one JSON object with a checksum over everything before it. Of several lines with
the next revision the first in the file wins, every other one is skipped by every reader: an
append is a compare-and-swap, accepted if and only if it landed where its writer expected it.
A line that can't be read is skipped; if it held an accepted record, the revisions have a gap,
and that is refused. Rotation locks the journal itself, so no line lands in a file put aside.

Stdlib only: the idle `tick` reads the journal without loading anything heavy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sequencer.errors import CorruptState, NewerSchema
from sequencer.history.facts import StartKind, meaning_of
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular, sync_folder, synced, write_durably
from sequencer.store.strictjson import parse_object

if TYPE_CHECKING:
    from sequencer.model.transitions import Fact

CLOSING = b"#\n"
"""What a writer puts behind a torn line. A newline alone would make a line count that lacks
nothing else, after it was taken for torn."""
_SEAL = b',"checksum":"'
_CHECKSUM_HEX = 16
WRITING = "writing"
_NO_FACT = ("head", "also", WRITING)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_FACT_KEYS = frozenset({"event", "step", "step_index", "token", "attempt", "outcome"})
_TAIL_BYTES = len(_SEAL) + _CHECKSUM_HEX + len(b'"}')


class Record(NamedTuple):
    """One winning line."""

    revision: int
    offset: int
    """Where the line starts in its file, in bytes."""
    line: bytes
    """Without the newline."""
    data: dict[str, Any]

    @property
    def end(self) -> int:
        """Return the offset behind the newline."""
        return self.offset + len(self.line) + 1


class Gap(NamedTuple):
    """Revisions that the journal should have and has not."""

    offset: int
    """Of the first record behind the gap."""
    first: int
    last: int


class Scan(NamedTuple):
    """What a stretch of journal holds."""

    winners: tuple[Record, ...]
    size: int
    """Offset behind the last byte that was read."""
    is_torn: bool
    """The last line has no newline: its writer was stopped in mid-write."""
    skipped: tuple[tuple[int, str], ...] = ()
    """Offset and reason of each line that does not count."""
    gaps: tuple[Gap, ...] = ()


def checksum(body: bytes) -> str:
    """Return the checksum of a line's *body*, the bytes before the checksum's own key."""
    return blake2b(body, digest_size=_CHECKSUM_HEX // 2).hexdigest()


def fact_fields(fact: Fact) -> dict[str, Any]:
    """Return *fact* as a line has it."""
    return {
        "event": str(fact.event),
        "step": fact.step,
        "step_index": fact.step_index,
        "token": fact.token,
        "attempt": fact.attempt,
        "outcome": fact.outcome,
    }


def encode(
    revision: int,
    at: str,
    facts: Sequence[dict[str, Any]],
    head_json: bytes,
    writing: str | None = None,
) -> bytes:
    """Return the line for a transition, newline included.

    *facts*, one or more, have the keys event, step, step_index, token, attempt, outcome.
    *writing* tells this line from every other, where two writers may decide the same.
    """
    first, *rest = facts
    fields = {"revision": revision, "at": at, **first}
    if rest:
        fields["also"] = rest
    if writing is not None:
        fields[WRITING] = writing
    # An agent's output may hold half a surrogate pair, which no UTF-8 file can.
    start = _ENCODER.encode(fields).encode("utf-8", "replace")
    body = start[:-1] + b',"head":' + head_json
    return body + _SEAL + checksum(body).encode() + b'"}\n'


def decode(line: bytes) -> dict[str, Any]:
    """Return the record that *line* holds.

    Raises:
        ValueError: it is torn or damaged.
        NewerSchema: it is as it was written, but no record that this version knows.
    """
    body, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    if not (tail.startswith(_SEAL) and tail.endswith(b'"}')):
        message = "torn: the checksum is missing"
        raise ValueError(message)
    if tail[len(_SEAL) : -2].decode("ascii", "replace") != checksum(body):
        message = "damaged: the checksum does not match"
        raise ValueError(message)
    data = parse_object(body + b"}", max_bytes=4 * 1024 * 1024)
    if not _is_record(data):
        raise NewerSchema(
            f"a line of the journal is intact, but this version does not know it: {line[:80]!a}",
            hint="update sequencer on this machine; if no newer version wrote it, remove the line",
        )
    return data


def _is_record(data: dict[str, Any]) -> bool:
    """Return whether *data* has what every reader of a record relies on."""
    also = data.get("also", [])
    return (
        type(data.get("revision")) is int
        and isinstance(data.get("at"), str)
        and isinstance(data.get("head"), dict)
        and isinstance(also, list)
        and all(isinstance(fact, dict) and fact.keys() >= _FACT_KEYS for fact in (data, *also))
    )


def scan(data: bytes, offset: int, expected: int | None, where: str) -> Scan:
    """Return the winners among the lines of *data*; see `survey`.

    Raises:
        CorruptState: an accepted record is missing between two others.
    """
    found = survey(data, offset, expected)
    if (lost := lost_within(found, where)) is not None:
        raise lost
    return found


_REPAIR = "'sequencer repair' shows what can be saved"


def lost_within(found: Scan, where: str) -> CorruptState | None:
    """Return why *found* in the file *where* can't be used: an accepted record is missing."""
    if not found.gaps:
        return None
    at, first, last = found.gaps[0]
    lost = f"revision {first}" if first == last else f"revisions {first} to {last}"
    return CorruptState(f"{lost} missing before byte {at}", where=where, hint=_REPAIR)


def lost_between(newest: int | None, fresh: Sequence[Record], where: str) -> CorruptState | None:
    """Return why *fresh* in the file *where* does not continue the files before it.

    These end with the revision *newest* (None: there are none), and *fresh* has what is newer.
    """
    if newest is None or not fresh or fresh[0].revision == newest + 1:
        return None
    missing = f"revisions {newest + 1} to {fresh[0].revision - 1} are missing"
    return CorruptState(missing, where=where, hint=_REPAIR)


def survey(data: bytes, offset: int = 0, expected: int | None = None) -> Scan:
    """Return what the lines of *data* are, which starts at *offset* of its file.

    *expected* is the revision of the first winner; None takes that of the first line
    that can be read.
    """
    winners: list[Record] = []
    skipped: list[tuple[int, str]] = []
    gaps: list[Gap] = []
    start = 0
    while (newline := data.find(b"\n", start)) >= 0:
        line, at = data[start:newline], offset + start
        start = newline + 1
        try:
            record = decode(line)
        except ValueError as error:
            if line:
                skipped.append((at, str(error)))
            continue
        revision = record["revision"]
        if expected is None:
            expected = revision
        if revision < expected:
            skipped.append((at, f"revision {revision} was already taken"))
            continue
        if revision > expected:
            gaps.append(Gap(at, expected, revision - 1))
        winners.append(Record(revision, at, line, record))
        expected = revision + 1
    is_torn = start < len(data)
    if is_torn:
        skipped.append((offset + start, "torn: no end of line"))
    return Scan(tuple(winners), offset + len(data), is_torn, tuple(skipped), tuple(gaps))


def facts_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of *record* as ``history --json`` prints them, one or more."""
    shared = {"revision": record["revision"], "at": record["at"]}
    first = {k: v for k, v in record.items() if k not in _NO_FACT and k not in shared}
    facts = [{**shared, **fact} for fact in (first, *record.get("also", ()))]
    for fact in facts:
        if meaning_of(fact["event"]).starts is StartKind.ATTEMPT:
            # Where it runs is in the head that came of it.
            claims = {one["token"]: one for one in record["head"].get("claims", ())}
            claim = claims.get(fact["token"])
            fact["host"] = None if claim is None else claim["owner"]["host"]
    return facts


NAME = "journal.jsonl"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system without hard links answers."""
_ROTATED = re.compile(r"journal-(\d{6,})\.jsonl")
_fdatasync = getattr(os, "fdatasync", synced)


class JournalMoved(Exception):
    """The file was rotated since it was opened; nothing was written."""


def _end_of(path: Path, size: int) -> bytes:
    """Return the whole lines among the last *size* bytes of the file at *path*."""
    start = max(path.lstat().st_size - size, 0)
    data = read_regular(path, start)
    return data[data.find(b"\n") + 1 :] if start else data


class JournalFile:
    """The journal of one run; keeps its descriptor open between appends."""

    def __init__(self, folder: Path, rotate_bytes: int, keep: int) -> None:
        """Use *folder*; put files of *rotate_bytes* aside and keep the newest *keep* of them."""
        self.folder = folder
        self.path = folder / NAME
        self._path = str(self.path)
        self.rotate_bytes = rotate_bytes
        self._keep = keep
        self._fd: int | None = None
        self._inode = (0, 0)
        self._has_synced_names = False
        """Of the journal that is open."""

    def close(self) -> None:
        """Close the descriptor; the next append opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        """Close it where nobody did: a program may open a thousand runs."""
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    def signature(self) -> tuple[int, int, int] | None:
        """Return (device, inode, size) of the journal, or None if it is missing."""
        try:
            found = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116 (on every step's path)
        except FileNotFoundError:
            return None
        return (found.st_dev, found.st_ino, found.st_size)

    def signature_at(self, size: int) -> tuple[int, int, int]:
        """Return what `signature` is after an append of ours that ended at *size*."""
        return (*self._inode, size)

    def rotated(self) -> list[Path]:
        """Return the files that were put aside, oldest first."""
        numbered = sorted(
            (int(match[1]), name)
            for name in folders.names(self.folder)
            if (match := _ROTATED.fullmatch(name))
        )
        return [self.folder / name for _, name in numbered]

    def read(self, offset: int = 0, expected: int | None = None) -> Scan:
        """Return the winners from *offset* on, see `journal.scan`.

        Raises:
            CorruptState: the file is not a regular file, or has a gap.
        """
        try:
            data = read_regular(self.path, offset)
        except FileNotFoundError:
            return Scan((), 0, is_torn=False)
        return scan(data, offset, expected, str(self.path))

    def records(self, after: int = 0) -> Iterator[Record]:
        """Yield every winner that is kept, oldest first, over all files.

        Only those of revisions after *after*; files that hold none of them are not read.
        """
        newest: int | None = None
        files, is_pruned = self._files_since(after), False
        while files:
            path = files.pop(0)
            try:
                found = scan(read_regular(path), 0, None, str(path)).winners
            except FileNotFoundError:
                is_pruned = True
                continue
            fresh = [r for r in found if newest is None or r.revision > newest]
            lost = lost_between(newest, fresh, str(path))
            if newest is not None and lost is not None and not is_pruned:
                if path == self.path and (missed := self._put_aside_meanwhile(newest)):
                    files = [*missed, self.path]
                    continue
                raise lost
            is_pruned = False
            for record in fresh:
                newest = record.revision
                if newest > after:
                    yield record

    def _files_since(self, after: int) -> list[Path]:
        """Return the files, oldest first, from the last one that begins at or before *after*."""
        files = [*self.rotated(), self.path]
        if not after:
            return files
        for place in reversed(range(len(files))):
            first = first_of(files[place])
            if first is not None and first["revision"] <= after + 1:
                return files[place:]
        return files

    def oldest(self) -> dict[str, Any] | None:
        """Return the first record that can be read in the oldest file, reading no more."""
        found = (first_of(path) for path in (*self.rotated(), self.path))
        return next((first for first in found if first is not None), None)

    def newest(self, size: int) -> tuple[Record, ...]:
        """Return the winners among about the last *size* bytes, reading little more.

        None where these alone do not tell: a line is longer, or a file was just put aside.
        """
        data = b""
        for path in (self.path, *self.rotated()[-1:]):
            if len(data) < size:
                try:
                    data = _end_of(path, size - len(data)) + data
                except FileNotFoundError:
                    return ()
        found = survey(data)
        # What stands first may have lost to a line before it.
        return () if found.gaps else found.winners[1:]

    def _put_aside_meanwhile(self, newest: int) -> list[Path]:
        """Return the files that a writer put aside while this reader was on its way."""
        rotated = self.rotated()
        for place, path in enumerate(rotated):
            with contextlib.suppress(FileNotFoundError):
                found = scan(read_regular(path), 0, None, str(path)).winners
                if any(record.revision == newest + 1 for record in found):
                    return rotated[place:]
        return []

    def append(self, line: bytes, offset: int) -> bool:
        """Append *line* durably; return whether it landed at *offset*, so that it counts.

        False leaves one doubt: what came before it may not count itself, see `holds`.

        Raises:
            JournalMoved: the file at the path is another one than before.
            OSError: writing failed, *outcome unknown*: the line may be there.
        """
        fd = self._descriptor() if self._fd is None else self._fd
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            if not self._is_current():
                self.close()
                raise JournalMoved
            written = os.write(fd, line)
            if written != len(line):
                message = f"only {written} of {len(line)} bytes were written to {self.path}"
                # Of a regular file only a full disk takes a part.
                raise OSError(errno.ENOSPC, message)
            # O_APPEND moves the descriptor's own position behind the bytes that it wrote.
            landed = os.lseek(fd, 0, os.SEEK_CUR) - len(line)
            _fdatasync(fd)
        finally:
            if self._fd is not None:
                fcntl.flock(fd, fcntl.LOCK_UN)
        return landed == offset

    def begin(self, line: bytes) -> bool:
        """Make a journal that holds *line*, durably; return whether there was none.

        It is there with the whole line or not at all, so that a crash can't leave a journal
        of which nobody can say whether it ever held a record.

        Raises:
            OSError: *outcome unknown*, as in `append`.
        """
        fresh = self._fresh()
        try:
            write_durably(fresh, line)
            folders.link(fresh, self.path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self.sync_names()
            return self.append(line, 0)
        finally:
            with contextlib.suppress(OSError):
                folders.remove(fresh)
        self.sync_names()
        return True

    def sync(self) -> None:
        """Make what is in the journal survive a power loss, whoever wrote it.

        A line that can be read need not be on the disk: its writer may have been killed
        before its own fdatasync.
        """
        _fdatasync(self._descriptor())
        self.sync_names()

    def sync_names(self) -> None:
        """Make the journal's name and those of the folders above survive a power loss.

        Needed only while the journal is new; who made it may have been killed before it
        came to that, so whoever writes the second line does it again.
        """
        self._descriptor()
        if self._has_synced_names:
            # Whoever lost a race comes again: this takes longer than all the rest.
            return
        sync_folder(self.folder)
        for above in self.folder.absolute().parents:
            # One that may not be read was not made by this program.
            with contextlib.suppress(OSError):
                _sync_above(above)
            if os.path.ismount(above):
                break
        self._has_synced_names = True

    def holds(self, line: bytes) -> bool:
        """Return whether *line*, newline included, is among the winners of the journal."""
        return any(record.line == line[:-1] for record in self.read(0, None).winners)

    def rotate_if_large(self, last: Record, size: int) -> bool:
        """Put the journal aside if it is large; the new one starts with a copy of *last*.

        The copy is the very line, so that whoever holds an older head still finds its
        record. Returns whether a new file is in place.
        """
        # A file that holds nothing but its first record would not get smaller.
        if size < self.rotate_bytes or not last.offset:
            return False
        fd, fresh = self._descriptor(), self._fresh()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not self._is_current() or os.fstat(fd).st_size != size:
                return False
            aside = self._next_rotated()
            with contextlib.suppress(FileExistsError):
                folders.link(self.path, aside)
            write_durably(fresh, last.line + b"\n")
            # Else a power loss could leave the new file, and nothing that names the old one.
            sync_folder(self.folder)
            folders.replace(fresh, self.path)
            sync_folder(self.folder)
        finally:
            os.close(fd)
            self._fd = None
            with contextlib.suppress(OSError):
                folders.remove(fresh)
        for old in self.rotated()[: -self._keep]:
            folders.remove(old)
        return True

    def _fresh(self) -> Path:
        return self.folder / f"{NAME}.{os.getpid()}.tmp"

    def _next_rotated(self) -> Path:
        """Return the name to rotate to; the newest again if a crash left it half done."""
        existing = self.rotated()
        if existing and existing[-1].stat().st_ino == self._inode[1]:
            return existing[-1]
        match = _ROTATED.fullmatch(existing[-1].name) if existing else None
        return self.folder / f"journal-{(int(match[1]) if match else 0) + 1:06d}.jsonl"

    def _descriptor(self) -> int:
        if self._fd is not None and not self._is_current():
            self.close()
        if self._fd is None:
            self._fd = folders.open_file(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            found = os.fstat(self._fd)
            self._inode, self._has_synced_names = (found.st_dev, found.st_ino), False
        return self._fd

    def _is_current(self) -> bool:
        found = self.signature()
        return found is not None and found[:2] == self._inode


def _sync_above(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        synced(fd)
    finally:
        os.close(fd)


def first_of(path: Path) -> dict[str, Any] | None:
    """Return the first record of *path* that can be read, reading no more."""
    with (
        contextlib.suppress(FileNotFoundError),
        os.fdopen(folders.open_file(path, os.O_RDONLY), "rb") as file,
    ):
        return first_in(line.rstrip(b"\n") for line in file)
    return None


def first_in(lines: Iterable[bytes]) -> dict[str, Any] | None:
    """Return the first record in *lines*, which have no ends of lines."""
    for line in lines:
        with contextlib.suppress(ValueError):
            return decode(line)
    return None
