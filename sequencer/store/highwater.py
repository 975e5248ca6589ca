"""How far each run has come, stored where restoring its project can't undo it.

All evidence of a step is in the run's folder, which git, a backup or a snapshot restores as a
whole. So the newest token and revision are also in the user's own state folder: one file for
each run and folder, written after the journal has the transition. It is never flushed, because a
power loss can only make it older. A run that is older than its record is refused.

Not promised: anything without a home folder, with a home folder that is restored together with
the project, or if a writer comes late because its lock file was deleted. If the whole run folder
is lost, a run that starts there is a new one, with a notice.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.model.head import Head
from sequencer.model.whole_numbers import MAX_COUNTER
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular
from sequencer.store.reading import ProgressEvidence, ProgressMark
from sequencer.store.recovery import find_furthest_mark
from sequencer.store.user_state import (
    make_user_folder,
    read_user_record,
    user_state_path,
    write_user_record,
)

KIND = "runs"
"""The kind of these records among the user's own records."""
KEPT_S = 180 * 24 * 60 * 60
"""How long to keep the record of a missing folder, in seconds. It may have been moved."""
SWEEP_EVERY = 64
"""How many new runs there are, on average, for each one that looks at all records: a user may have
thousands, and looking at them takes longer than everything else at the start of a run."""
_MAX_BYTES = 16 * 1024
_MAX_HEAD_BYTES = 16 * 1024 * 1024
_MAX_RESETS = 100
_AROUND = 4
"""How many parent folders of a head are recorded: enough to reach the project from `runs/NAME`."""
_PAIR = b'{"token":%19d,"revision":%19d'
"""The part of the file that each transition overwrites; its length never changes."""
_FAILURES = (SequencerError, OSError)


class Mark(Struct, frozen=True):
    """The content of a record."""

    token: int
    revision: int
    run_id: str
    state_file: str
    next: str = ""
    """The id of the run that replaced this one, after a reset or after its folder was emptied."""
    folders: tuple[str, ...] = ()
    """The parent folders of the file, innermost first, from `_list_parent_inodes`. A folder that
    is moved keeps its id, whatever is restored inside it."""

    def was_moved_to(self, state_file: str) -> bool:
        """Return whether a parent of *state_file* is a moved parent of this record's file."""
        paths = zip(Path(self.state_file).parents, Path(state_file).parents, strict=False)
        ids = zip(self.folders, _list_parent_inodes(state_file), strict=False)
        return any(
            old_id == new_id and old_path != new_path
            for (old_path, new_path), (old_id, new_id) in zip(paths, ids, strict=False)
        )

    @property
    def name(self) -> str:
        """Return the name of the record's file."""
        return _record_name(self.run_id, self.state_file)

    @property
    def is_there(self) -> bool:
        """Return whether its run is still where the record says."""
        try:
            data = read_regular(Path(self.state_file), max_bytes=_MAX_HEAD_BYTES)
        except _FAILURES:
            return False
        return self.run_id.encode() in data

    def write(self) -> None:
        """Write the record.

        Raises:
            UnsafeFolder, StorageFailed: the folder of the records can't be used.
        """
        texts = {"run_id": self.run_id, "state_file": self.state_file}
        texts |= {"next": self.next} if self.next else {}
        fields: dict[str, Any] = {**texts, "folders": self.folders} if self.folders else {**texts}
        data = _PAIR % (self.token, self.revision) + b"," + json.dumps(fields).encode()[1:]
        write_user_record(KIND, self.name, data, durably=False)


def _record_name(run_id: str, state_file: str) -> str:
    """Return the name of a record; digests, because anyone may have edited the file with the id."""
    return f"{_digest(run_id)}-{_digest(state_file)}.json"


def _digest(text: str) -> str:
    return blake2b(os.fsencode(text), digest_size=8).hexdigest()


def _read(name: str) -> Mark | None:
    """Return the record *name*; None: there is none, or it is not valid."""
    try:
        content = json.loads(read_user_record(KIND, name, _MAX_BYTES) or b"{}")
    except (*_FAILURES, ValueError, RecursionError):
        return None
    return _parse_mark(content, name)


def _parse_mark(content: Any, name: str) -> Mark | None:
    if not isinstance(content, dict):
        return None
    numbers = [content.get(key) for key in ("token", "revision")]
    texts = [content.get(key, "") for key in ("run_id", "state_file", "next")]
    is_known = all(type(number) is int and 0 <= number <= MAX_COUNTER for number in numbers)
    if not is_known or not all(isinstance(text, str) for text in texts):
        return None
    folder_ids = content.get("folders") or ()
    parents = tuple(map(str, folder_ids)) if isinstance(folder_ids, list) else ()
    mark = Mark(*numbers, *texts)  # type: ignore[arg-type]
    return replace(mark, folders=parents) if mark.name == name else None


def _list_parent_inodes(state_file: str) -> tuple[str, ...]:
    """Return "device:inode" of the parent folders of *state_file*, innermost first.

    Not unique forever: the inode of a removed folder may be used again.
    """
    ids = []
    for folder in [*Path(state_file).parents][:_AROUND]:
        try:
            status = os.stat(folder)  # noqa: PTH116 - cheaper than a Path
        except OSError:
            break
        ids.append(f"{status.st_dev}:{status.st_ino}")
    return tuple(ids)


class HighWaterMark:
    """The record of the run in one folder. A record that can't be read or written is ignored."""

    def __init__(self, state_path: Path, *, is_shared: bool = False) -> None:
        """Use the record of the run with the head at *state_path*; nothing is opened yet.

        *is_shared*: other folders have the same run on purpose, as clones of a git store do. Their
        records do not count here.
        """
        self._path, self._is_shared = state_path, is_shared
        self._key = ""
        self._run_id: str | None = None
        """The run whose record is open."""
        self._fd = -1
        self._loaded_id: str | None = None
        """The run that was in the folder when it was loaded; a reset replaces it."""

    @property
    def _state_file(self) -> str:
        if not self._key:
            self._key = os.path.join(os.path.realpath(self._path.parent), self._path.name)  # noqa: PTH118
        return self._key

    def close(self) -> None:
        """Close the record; the next transition opens it again."""
        fd, self._fd, self._run_id = self._fd, -1, None
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the record if it is still open."""
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    # --- comparing -------------------------------------------------------------------

    def find_marks(self, run_id: str) -> Iterator[ProgressMark]:
        """Yield how far the run *run_id* has come according to this user's records.

        A run that was moved here keeps the record of its old folder. A copy starts a record of its
        own: the progress of the original does not matter to it.
        """
        mark = self._find_newest(run_id)
        if mark is None and not self._is_shared:
            mark = self._find_moved(run_id)[0]
        if mark is not None:
            location = user_state_path(KIND, mark.name)
            yield ProgressMark(location, token=mark.token, revision=mark.revision, is_outside=True)

    def find_later_mark(self, head: Head) -> ProgressMark | None:
        """Return the record if the run had come further than *head*; None: it had not."""
        return find_furthest_mark(head, head.revision, self.find_marks(head.run_id))

    def prepend_to(self, progress: ProgressEvidence) -> ProgressEvidence:
        """Return evidence that yields this record first and then *progress*."""

        def chained(run_id: str) -> Iterable[ProgressMark]:
            yield from self.find_marks(run_id)
            yield from progress(run_id)

        return chained

    def _find_newest(self, run_id: str) -> Mark | None:
        """Return the record of the run *run_id* in this folder, or of the run that replaced it."""
        mark = _read(_record_name(run_id, self._state_file))
        for _ in range(_MAX_RESETS):
            next_mark = (
                _read(_record_name(mark.next, self._state_file)) if mark and mark.next else None
            )
            if next_mark is None:
                break
            mark = next_mark
        return mark

    def _find_moved(self, run_id: str) -> tuple[Mark | None, list[Mark], bool]:
        """Return (the record that a moved run keeps, all records of its old folders, is_copy).

        *is_copy*: another folder still has the run.
        """
        marks = [
            mark
            for mark in _iter_records(lambda name: name.startswith(_digest(run_id)))
            if not mark.next
        ]
        is_copy = any(mark.is_there for mark in marks)
        missing_marks = [mark for mark in marks if not mark.is_there]
        moved_marks = [mark for mark in missing_marks if mark.was_moved_to(self._state_file)]
        if moved_marks:
            # This is the folder of the record, even if other folders have copies of the run.
            missing_marks, is_copy = moved_marks, False
        newest_mark = max(missing_marks, key=lambda mark: (mark.token, mark.revision), default=None)
        return (None if is_copy else newest_mark), missing_marks, is_copy

    def reconcile(self, run_id: str) -> tuple[str, ...]:
        """Move the record of a run that was moved, or start one for a copy; return notices."""
        self._loaded_id = run_id
        if self._is_shared:
            return ()
        with contextlib.suppress(*_FAILURES):
            if _read(_record_name(run_id, self._state_file)) is not None:
                return ()
            mark, old_marks, is_copy = self._find_moved(run_id)
            if mark is None and not is_copy:
                return ()
            token, revision = (mark.token, mark.revision) if mark else (0, 0)
            parents = _list_parent_inodes(self._state_file)
            Mark(token, revision, run_id, self._state_file, folders=parents).write()
            if mark is not None:
                for old_mark in old_marks:
                    folders.remove(Path(os.path.realpath(user_state_path(KIND)), old_mark.name))
            else:
                notice = f"{self._path} is a copy: another folder still has the run {run_id}"
                return (f"{notice}; from here, each of them continues on its own",)
        return ()

    # --- writing ---------------------------------------------------------------------

    def record_head(self, head: Head) -> tuple[str, ...]:
        """Record that *head* was accepted; return notices."""
        if head.run_id != self._run_id:
            return self._open(head)
        if self._fd >= 0:
            try:
                os.pwrite(self._fd, _PAIR % (head.token, head.revision), 0)
            except OSError:
                self._drop()
        return ()

    def overwrite(self, head: Head) -> None:
        """Record *head* even if the record is further ahead, because a person decided so.

        Raises:
            UnsafeFolder, StorageFailed: the record exists and can't be changed.
        """
        self.close()
        parents = _list_parent_inodes(self._state_file)
        mark = Mark(head.token, head.revision, head.run_id, self._state_file, folders=parents)
        try:
            os.close(self._write(mark))
        except _FAILURES:
            if _read(mark.name) is not None:
                raise

    def remove_record(self, run_id: str) -> None:
        """Remove the record of the run *run_id*, which is permanently deleted."""
        self.close()
        with contextlib.suppress(*_FAILURES):
            name = _record_name(run_id, self._state_file)
            folders.remove(Path(os.path.realpath(user_state_path(KIND)), name))

    def _open(self, head: Head) -> tuple[str, ...]:
        """Open the record of *head*'s run, or create it; return notices."""
        old_run_id, notices = self._run_id or self._loaded_id, tuple[str, ...]()
        self.close()
        # Set even if the record can't be written, so that later steps do not try again.
        self._run_id = head.run_id
        parents = _list_parent_inodes(self._state_file)
        mark = Mark(head.token, head.revision, head.run_id, self._state_file, folders=parents)
        with contextlib.suppress(*_FAILURES):
            make_user_folder(KIND)
            if old_run_id not in {None, head.run_id} and (
                old_mark := _read(_record_name(old_run_id, mark.state_file))
            ):
                replace(old_mark, next=head.run_id).write()
            elif old_run_id is None and head.revision == 1:
                notices = tuple(self._link_earlier_runs(mark))
            self._fd = self._write(mark)
        return notices

    @staticmethod
    def _write(mark: Mark) -> int:
        """Write *mark* into its record; return a descriptor of the file.

        In place, because other processes that work on the run have the file open.
        """
        old_mark = _read(mark.name)
        if old_mark is None and crc32(mark.run_id.encode()) % SWEEP_EVERY == 0:
            sweep(time.time() - KEPT_S)
        if old_mark is None or old_mark.next:
            mark.write()
        folder = folders.open_folder(os.path.realpath(user_state_path(KIND)))
        fd = folder.open(mark.name, os.O_RDWR)
        try:
            os.pwrite(fd, _PAIR % (mark.token, mark.revision), 0)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _link_earlier_runs(self, mark: Mark) -> Iterator[str]:
        """Link the records of earlier runs of this folder to *mark*; yield a notice for each."""
        suffix = f"-{_digest(mark.state_file)}.json"
        for record in _iter_records(lambda name: name.endswith(suffix)):
            if record.next or record.run_id == mark.run_id:
                continue
            replace(record, next=mark.run_id).write()
            yield (
                f"a new run starts in {self._path.parent}, where the run {record.run_id} was up to "
                f"token {record.token}. If its files were not removed on purpose (git clean -x and "
                "git stash --all remove them), stop this run and put them back"
            )

    def _drop(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def _iter_records(is_wanted: Callable[[str], bool]) -> Iterator[Mark]:
    """Yield the records whose names *is_wanted* accepts."""
    try:
        names = folders.list_names(os.path.realpath(user_state_path(KIND)))
    except _FAILURES:
        return
    yield from filter(None, map(_read, sorted(filter(is_wanted, names))))


def sweep(before: float) -> None:
    """Remove records of missing runs that were last written *before* a time (Unix)."""
    folder = os.path.realpath(user_state_path(KIND))

    def is_old(name: str) -> bool:
        with contextlib.suppress(OSError):
            return os.stat(f"{folder}/{name}").st_mtime < before  # noqa: PTH116
        return False

    for mark in _iter_records(is_old):
        if mark.next or not mark.is_there:
            Path(folder, mark.name).unlink(missing_ok=True)


def find_problem() -> str | None:
    """Return why records can't be used on this machine; None: they can."""
    try:
        folder = user_state_path(KIND)
        read_user_record(KIND, "none", 1)
    except _FAILURES as error:
        return str(error).splitlines()[0]
    existing_folder = next(path for path in (folder, *folder.parents) if path.exists())
    return (
        None
        if os.access(existing_folder, os.W_OK | os.X_OK)
        else f"{existing_folder}: can't be written to"
    )
