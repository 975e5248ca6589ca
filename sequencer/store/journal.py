"""The journal: its line format, which of its lines count, and its files.

A line is one JSON object with a checksum over everything before it. If several lines have the
next revision, the first in the file wins, and every reader skips the others. So an append is a
compare-and-swap: it is accepted if and only if it landed where its writer expected it. A line
that can't be read is skipped; if it was an accepted record, the revisions have a gap, which is
refused. Rotation locks the journal file, so no line lands in a rotated file.

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
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular, sync_fd, sync_folder, write_durably
from sequencer.store.strictjson import may_be_refused, parse_object

if TYPE_CHECKING:
    from sequencer.model.transitions import Fact

CLOSING = b"#\n"
"""What a writer appends to a torn line. A newline alone could complete a line that was already
treated as torn, and it would count."""
_SEAL = b',"checksum":"'
_CHECKSUM_HEX = 16
WRITING = "writing"
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_TAIL_BYTES = len(_SEAL) + _CHECKSUM_HEX + len(b'"}')
_MAX_BYTES = 4 * 1024 * 1024
"""Longest line."""


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
        """Return the offset after the newline."""
        return self.offset + len(self.line) + 1


class Gap(NamedTuple):
    """Revisions that are missing in the journal."""

    offset: int
    """The offset of the first record after the gap."""
    first: int
    last: int

    def __str__(self) -> str:
        """Return what is missing, and where."""
        return f"{_format_missing(self.first, self.last)} before byte {self.offset}"


def _format_missing(first: int, last: int) -> str:
    if first == last:
        return f"revision {first} is missing"
    return f"revisions {first} to {last} are missing"


class Scan(NamedTuple):
    """The content of a part of the journal."""

    winners: tuple[Record, ...]
    size: int
    """Offset after the last byte that was read."""
    is_torn: bool
    """The last line has no newline: its writer was stopped in the middle of a write."""
    skipped: tuple[tuple[int, str], ...] = ()
    """Offset and reason of each line that does not count."""
    gaps: tuple[Gap, ...] = ()


def checksum(body: bytes) -> str:
    """Return the checksum of a line's *body*, the bytes before the checksum's own key."""
    return blake2b(body, digest_size=_CHECKSUM_HEX // 2).hexdigest()


def fact_fields(fact: Fact) -> dict[str, Any]:
    """Return *fact* in the form of a journal line."""
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
    """Return the line for a transition, including the newline.

    *facts*, one or more, have the keys event, step, step_index, token, attempt, outcome.
    *writing* makes the line unique where two writers may decide the same.
    """
    first_fact, *other_facts = facts
    fields = {"revision": revision, "at": at, **first_fact}
    if other_facts:
        fields["also"] = other_facts
    if writing is not None:
        fields[WRITING] = writing
    # An agent's output may hold half a surrogate pair, which no UTF-8 file can.
    start = _ENCODER.encode(fields).encode("utf-8", "replace")
    body = start[:-1] + b',"head":' + head_json
    return body + _SEAL + checksum(body).encode() + b'"}\n'


def ensure_readable(line: bytes) -> None:
    """Check that readers will accept *line*, which `encode` has made, including its newline.

    Raises:
        ValueError: they would refuse it, as `decode` says.
    """
    # Decoding takes longer than the rest of a transition: decode only what may be refused.
    if may_be_refused(line, _MAX_BYTES):
        decode(line[:-1])


def decode(line: bytes) -> dict[str, Any]:
    """Return the record that *line* holds.

    Raises:
        ValueError: it is torn or damaged.
        NewerSchema: it is intact, but not a record that this version knows.
    """
    body, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    if not (tail.startswith(_SEAL) and tail.endswith(b'"}')):
        message = "torn: the checksum is missing"
        raise ValueError(message)
    if tail[len(_SEAL) : -2].decode("ascii", "replace") != checksum(body):
        message = "damaged: the checksum does not match"
        raise ValueError(message)
    data = parse_object(body + b"}", max_bytes=_MAX_BYTES)
    if not _is_record(data):
        raise NewerSchema(
            f"a line of the journal is intact, but this version does not know it: {line[:80]!a}",
            hint="update sequencer on this machine; if no newer version wrote it, remove the line",
        )
    return data


def _is_record(data: dict[str, Any]) -> bool:
    """Return whether *data* has the keys that all readers of a record rely on."""
    other_facts = data.get("also", [])
    match data:
        case {"revision": int() as revision, "at": str(), "head": dict()} if type(revision) is int:
            return isinstance(other_facts, list) and _are_facts((data, *other_facts))
    return False


def _are_facts(facts: Iterable[Any]) -> bool:
    for fact in facts:
        match fact:  # needs no call, unlike isinstance
            case {
                "event": str(),
                "step": str() | None,
                "step_index": int() | None,
                "token": int() | None,
                "attempt": int() | None,
                "outcome": _,
            }:
                continue
        return False
    return True


def scan(data: bytes, offset: int, expected: int | None, where: str) -> Scan:
    """Return the winners among the lines of *data*; see `survey`.

    Raises:
        CorruptState: an accepted record is missing between two others.
    """
    result = survey(data, offset, expected)
    if (error := find_gap_within(result, where)) is not None:
        raise error
    return result


_REPAIR = "'sequencer repair' shows what can be saved"


def find_gap_within(found: Scan, where: str) -> CorruptState | None:
    """Return the error if an accepted record is missing in *found*, from the file *where*."""
    if not found.gaps:
        return None
    return CorruptState(str(found.gaps[0]), where=where, hint=_REPAIR)


def find_gap_between(
    newest: int | None, fresh: Sequence[Record], where: str
) -> CorruptState | None:
    """Return the error if *fresh*, from the file *where*, does not continue the files before it.

    Those end with the revision *newest* (None: there are none); *fresh* has the newer records.
    """
    if newest is None or not fresh or fresh[0].revision == newest + 1:
        return None
    message = _format_missing(newest + 1, fresh[0].revision - 1)
    return CorruptState(message, where=where, hint=_REPAIR)


def survey(data: bytes, offset: int = 0, expected: int | None = None) -> Scan:
    """Sort the lines of *data*, which starts at *offset* of its file, into winners and others.

    *expected* is the revision of the first winner; None: the revision of the first line that can
    be read.
    """
    winners: list[Record] = []
    skipped_lines: list[tuple[int, str]] = []
    gaps: list[Gap] = []
    start = 0
    while (newline := data.find(b"\n", start)) >= 0:
        line, line_offset = data[start:newline], offset + start
        start = newline + 1
        try:
            record = decode(line)
        except ValueError as error:
            if line:
                skipped_lines.append((line_offset, str(error)))
            continue
        revision = record["revision"]
        if expected is None:
            expected = revision
        if revision < expected:
            skipped_lines.append((line_offset, f"revision {revision} was already taken"))
            continue
        if revision > expected:
            gaps.append(Gap(line_offset, expected, revision - 1))
        winners.append(Record(revision, line_offset, line, record))
        expected = revision + 1
    is_torn = start < len(data)
    if is_torn:
        skipped_lines.append((offset + start, "torn: no end of line"))
    return Scan(tuple(winners), offset + len(data), is_torn, tuple(skipped_lines), tuple(gaps))


NAME = "journal.jsonl"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of a file system without hard links."""
_ROTATED = re.compile(r"journal-(\d{6,})\.jsonl")
_fdatasync = getattr(os, "fdatasync", sync_fd)


class JournalMoved(Exception):
    """The file was rotated after it was opened; nothing was written."""


def _read_tail(path: Path, size: int) -> bytes:
    """Return the complete lines in the last *size* bytes of the file at *path*."""
    start = max(path.lstat().st_size - size, 0)
    data = read_regular(path, start)
    return data[data.find(b"\n") + 1 :] if start else data


class JournalFile:
    """The journal of one run; its descriptor stays open between appends."""

    def __init__(self, folder: Path, rotate_bytes: int, keep: int) -> None:
        """Use *folder*; rotate at *rotate_bytes* and keep the newest *keep* rotated files."""
        self.folder = folder
        self.path = folder / NAME
        self._path = str(self.path)
        self.rotate_bytes = rotate_bytes
        self._keep = keep
        self._fd: int | None = None
        self._inode = (0, 0)
        self._has_synced_names = False
        """Whether `sync_names` was done for the open journal."""

    def close(self) -> None:
        """Close the descriptor; the next append opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        """Close the descriptor if it is still open: a program may open a thousand runs."""
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    def signature(self) -> tuple[int, int, int] | None:
        """Return (device, inode, size) of the journal, or None if it is missing."""
        try:
            status = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116 (on every step's path)
        except FileNotFoundError:
            return None
        return (status.st_dev, status.st_ino, status.st_size)

    def signature_at(self, size: int) -> tuple[int, int, int]:
        """Return the value of `signature` after our append that ended at *size*."""
        return (*self._inode, size)

    def list_rotated(self) -> list[Path]:
        """Return the rotated files, oldest first."""
        numbered = sorted(
            (int(match[1]), name)
            for name in folders.list_names(self.folder)
            if (match := _ROTATED.fullmatch(name))
        )
        return [self.folder / name for _, name in numbered]

    def read(self, offset: int = 0, expected: int | None = None) -> Scan:
        """Return the winners from *offset* on; see `journal.scan`.

        Raises:
            CorruptState: it is not a regular file, or has a gap.
        """
        try:
            data = read_regular(self.path, offset)
        except FileNotFoundError:
            return Scan((), 0, is_torn=False)
        return scan(data, offset, expected, str(self.path))

    def read_records(self, after: int = 0) -> Iterator[Record]:
        """Yield the winners of all files, oldest first.

        Only those with revisions above *after*; files without any of them are not read.
        """
        newest_revision: int | None = None
        files, is_pruned = self._files_since(after), False
        while files:
            path = files.pop(0)
            try:
                winners = scan(read_regular(path), 0, None, str(path)).winners
            except FileNotFoundError:
                is_pruned = True
                continue
            new_records = [
                record
                for record in winners
                if newest_revision is None or record.revision > newest_revision
            ]
            error = find_gap_between(newest_revision, new_records, str(path))
            if newest_revision is not None and error is not None and not is_pruned:
                if path == self.path and (
                    rotated_paths := self._list_rotated_since(newest_revision)
                ):
                    files = [*rotated_paths, self.path]
                    continue
                raise error
            is_pruned = False
            for record in new_records:
                newest_revision = record.revision
                if newest_revision > after:
                    yield record

    def _files_since(self, revision: int) -> list[Path]:
        """Return the files, oldest first, from the last one that starts at or before *revision*."""
        files = [*self.list_rotated(), self.path]
        if not revision:
            return files
        for index in reversed(range(len(files))):
            first_record = read_first_record(files[index])
            if first_record is not None and first_record["revision"] <= revision + 1:
                return files[index:]
        return files

    def read_oldest(self) -> dict[str, Any] | None:
        """Return the first readable record of the oldest file that has one; read nothing else."""
        records = (read_first_record(path) for path in (*self.list_rotated(), self.path))
        return next((record for record in records if record is not None), None)

    def read_newest(self, size: int) -> tuple[Record, ...]:
        """Return the winners among about the last *size* bytes, reading little more.

        Empty if these bytes are not enough: a line is longer, or a file was just rotated.
        """
        data = b""
        for path in (self.path, *self.list_rotated()[-1:]):
            if len(data) < size:
                try:
                    data = _read_tail(path, size - len(data)) + data
                except FileNotFoundError:
                    return ()
        scan_result = survey(data)
        # The first one may have lost to a line before these bytes.
        return () if scan_result.gaps else scan_result.winners[1:]

    def _list_rotated_since(self, newest_revision: int) -> list[Path]:
        """Return the files that a writer has rotated since *newest_revision* was read."""
        rotated_paths = self.list_rotated()
        for index, path in enumerate(rotated_paths):
            with contextlib.suppress(FileNotFoundError):
                winners = scan(read_regular(path), 0, None, str(path)).winners
                if any(record.revision == newest_revision + 1 for record in winners):
                    return rotated_paths[index:]
        return []

    def append(self, line: bytes, offset: int) -> bool:
        """Append *line* durably; return whether it landed at *offset*, so that it counts.

        After False it may still count, if the lines before it do not; see `has_line`.

        Raises:
            JournalMoved: another file is at the path now.
            OSError: writing failed, *outcome unknown*: the line may be in the file.
        """
        fd = self._open_descriptor() if self._fd is None else self._fd
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            if not self._is_current():
                self.close()
                raise JournalMoved
            byte_count = os.write(fd, line)
            if byte_count != len(line):
                message = f"only {byte_count} of {len(line)} bytes were written to {self.path}"
                # A partial write to a regular file means that the disk is full.
                raise OSError(errno.ENOSPC, message)
            # O_APPEND moves the descriptor's position to the end of the bytes that it wrote.
            start = os.lseek(fd, 0, os.SEEK_CUR) - len(line)
            _fdatasync(fd)
        finally:
            if self._fd is not None:
                fcntl.flock(fd, fcntl.LOCK_UN)
        return start == offset

    def create(self, line: bytes) -> bool:
        """Make a journal with *line*, durably; return whether there was none.

        The file appears with the complete line or not at all. So no crash leaves a journal that
        may or may not have held a record.

        Raises:
            OSError: *outcome unknown*, as in `append`.
        """
        temporary_path = self._temporary_path()
        try:
            write_durably(temporary_path, line)
            folders.link(temporary_path, self.path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self.sync_names()
            return self.append(line, 0)
        finally:
            with contextlib.suppress(OSError):
                folders.remove(temporary_path)
        self.sync_names()
        return True

    def sync(self) -> None:
        """Make all lines of the journal survive a power loss, even those of other processes.

        A line that can be read is not always on the disk: its writer may have been killed before
        its fdatasync.
        """
        _fdatasync(self._open_descriptor())
        self.sync_names()

    def sync_names(self) -> None:
        """Make the names of the journal and of the folders above it survive a power loss.

        Needed only while the journal is new. Its creator may have been killed before this call,
        so the writer of the second line calls it again.
        """
        self._open_descriptor()
        if self._has_synced_names:
            # A writer that lost a race gets here again, and this takes longer than all the rest.
            return
        sync_folder(self.folder)
        for ancestor in self.folder.absolute().parents:
            # This program did not make a folder that it can't read.
            with contextlib.suppress(OSError):
                _sync_parents(ancestor)
            if os.path.ismount(ancestor):
                break
        self._has_synced_names = True

    def has_line(self, line: bytes) -> bool:
        """Return whether *line*, including its newline, is one of the journal's winners."""
        return any(record.line == line[:-1] for record in self.read(0, None).winners)

    def rotate_if_large(self, last: Record, size: int) -> bool:
        """Rotate the journal if it is large; return whether it did.

        The new one starts with a copy of the line of *last*, so that a reader with an older head
        still finds its record.
        """
        # A file with only one record would not get smaller.
        if size < self.rotate_bytes or not last.offset:
            return False
        fd, temporary_path = self._open_descriptor(), self._temporary_path()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not self._is_current() or os.fstat(fd).st_size != size:
                return False
            rotated_path = self._next_rotated()
            with contextlib.suppress(FileExistsError):
                folders.link(self.path, rotated_path)
            write_durably(temporary_path, last.line + b"\n")
            # Otherwise a power loss could leave the new file, but no name for the old one.
            sync_folder(self.folder)
            folders.replace(temporary_path, self.path)
            sync_folder(self.folder)
        finally:
            os.close(fd)
            self._fd = None
            with contextlib.suppress(OSError):
                folders.remove(temporary_path)
        for old_path in self.list_rotated()[: -self._keep]:
            folders.remove(old_path)
        return True

    def _temporary_path(self) -> Path:
        return self.folder / f"{NAME}.{os.getpid()}.tmp"

    def _next_rotated(self) -> Path:
        """Return the path to rotate to; the newest one if a crash left a rotation half done."""
        rotated_paths = self.list_rotated()
        if rotated_paths and rotated_paths[-1].stat().st_ino == self._inode[1]:
            return rotated_paths[-1]
        match = _ROTATED.fullmatch(rotated_paths[-1].name) if rotated_paths else None
        return self.folder / f"journal-{(int(match[1]) if match else 0) + 1:06d}.jsonl"

    def _open_descriptor(self) -> int:
        if self._fd is not None and not self._is_current():
            self.close()
        if self._fd is None:
            self._fd = folders.open_file(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            status = os.fstat(self._fd)
            self._inode, self._has_synced_names = (status.st_dev, status.st_ino), False
        return self._fd

    def _is_current(self) -> bool:
        signature = self.signature()
        return signature is not None and signature[:2] == self._inode


def _sync_parents(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_fd(fd)
    finally:
        os.close(fd)


def read_first_record(path: Path) -> dict[str, Any] | None:
    """Return the first readable record of the file *path*; read no more of it."""
    with (
        contextlib.suppress(FileNotFoundError),
        os.fdopen(folders.open_file(path, os.O_RDONLY), "rb") as file,
    ):
        return find_first_record(line.rstrip(b"\n") for line in file)
    return None


def find_first_record(lines: Iterable[bytes]) -> dict[str, Any] | None:
    """Return the first readable record in *lines*, which have no newlines."""
    for line in lines:
        with contextlib.suppress(ValueError):
            return decode(line)
    return None
