"""journal.jsonl and its rotated predecessors in one folder.

An append is accepted if and only if its line landed where its writer expected it; that
holds even for two writers that both believe to have the lock. Rotation takes an exclusive
kernel lock on the journal itself and appends a shared one, so that no line can land in a
file that was just put aside.

Not promised: that two writers with one lock are fair to each other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sequencer.errors import CorruptState
from sequencer.store import folder as folders
from sequencer.store.journal import Record, Scan, decode, scan

NAME = "journal.jsonl"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system without hard links answers."""
MAX_READ_BYTES = 256 * 1024 * 1024
"""A journal is put aside long before; a file with holes has any size at no cost."""
_ROTATED = re.compile(r"journal-(\d{6,})\.jsonl")
_fdatasync = getattr(os, "fdatasync", os.fsync)


class JournalMoved(Exception):
    """The file was rotated since it was opened; nothing was written."""


class JournalFile:
    """The journal of one run; keeps its descriptor open between appends."""

    def __init__(self, folder: Path, rotate_bytes: int, keep: int) -> None:
        """Use *folder*; put files of *rotate_bytes* aside and keep the newest *keep* of them."""
        self.folder = folder
        self.path = folder / NAME
        self._rotate_bytes = rotate_bytes
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
            found = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116 (on every step's path)
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

    def has_rotated(self) -> bool:
        """Return whether any file was ever put aside and kept."""
        return bool(self.rotated())

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
            is_gap = newest is not None and bool(fresh) and fresh[0].revision != newest + 1
            if newest is not None and is_gap and not is_pruned:
                if path == self.path and (missed := self._put_aside_meanwhile(newest)):
                    files = [*missed, self.path]
                    continue
                raise CorruptState(
                    f"revisions {newest + 1} to {fresh[0].revision - 1} are missing",
                    where=str(path),
                    hint="'sequencer repair' shows what can be saved",
                )
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
            first = _first_of(files[place])
            if first is not None and first["revision"] <= after + 1:
                return files[place:]
        return files

    def oldest(self) -> dict[str, Any] | None:
        """Return the first record that can be read in the oldest file, reading no more."""
        found = (_first_of(path) for path in (*self.rotated(), self.path))
        return next((first for first in found if first is not None), None)

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
                raise OSError(message)
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
        if size < self._rotate_bytes or not last.offset:
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


def open_new(path: Path) -> BinaryIO:
    """Open *path* for writing bytes as a new file; see `folder.open_new`."""
    return os.fdopen(folders.open_new(path), "wb")


def write_durably(path: Path, data: bytes) -> None:
    """Write *data* to *path*, never through a link; its folder is still to be synced."""
    with open_new(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make created and renamed entries of *folder* survive a power loss."""
    folders.opened(folder).sync()


def _sync_above(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _first_of(path: Path) -> dict[str, Any] | None:
    """Return the first record of *path* that can be read, reading no more."""
    with contextlib.suppress(FileNotFoundError), _opened_to_read(path) as file:
        for line in file:
            with contextlib.suppress(ValueError):
                return decode(line.rstrip(b"\n"))
    return None


def _opened_to_read(path: Path) -> BinaryIO:
    return os.fdopen(folders.open_file(path, os.O_RDONLY), "rb")


def read_regular(path: Path, offset: int = 0, max_bytes: int | None = None) -> bytes:
    """Return the bytes of *path* from *offset* on, at most *max_bytes* + 1 of them.

    Raises:
        FileNotFoundError: it is not there.
        CorruptState: it is a link, a folder, a pipe or a device; opening one of those
            could hang or reach outside the run's folder.
        UnsafeFolder: its folder is reached through a link.
    """
    try:
        fd = folders.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptState(
            f"can't be read: {error.strerror}", where=str(path), hint="it has to be a plain file"
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptState(
                "is not a plain file",
                where=str(path),
                hint="move it away; 'sequencer repair --apply' does it and restores the file",
            )
        # An offset comes from a file that anybody may edit; no file reaches 2**63.
        if offset > found.st_size:
            return b""
        if max_bytes is None and found.st_size - offset > MAX_READ_BYTES:
            raise CorruptState(
                f"has {found.st_size} bytes; {MAX_READ_BYTES} are the most that are read",
                where=str(path),
                hint="move it away; 'sequencer repair' shows what the rest can be restored from",
            )
        # One byte more than there was: a file that is being written may have grown.
        size = found.st_size - offset + 1
        data = os.pread(fd, size if max_bytes is None else min(size, max_bytes + 1), offset)
        if len(data) < size and (max_bytes is None or len(data) <= max_bytes):
            return data
        with os.fdopen(fd, "rb", closefd=False) as file:
            file.seek(offset)
            return file.read() if max_bytes is None else file.read(max_bytes + 1)
    except OSError as error:
        raise CorruptState(f"can't be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(fd)
