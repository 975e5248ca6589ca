"""How far each run has come, kept where the tree of its project can't take it back.

Everything that proves a step is in the run's folder, and git, a backup or a snapshot restores all
of it at once. So the newest token and revision are kept in the user's own state folder as well:
one file for each run and folder, written after the journal has the transition. It is never
flushed, because a power loss can only make it older. A run that is behind its record is refused.

Not promised: anything without a home folder, with one that is restored together with the project,
or where a writer whose lock file was deleted comes late. If the whole folder is gone, the run that
starts there is a new one, with a notice.
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

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.model.head import MAX_COUNTER, Head
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular
from sequencer.store.reading import ProgressEvidence, ProgressMark
from sequencer.store.recovery import beyond
from sequencer.store.user_state import make_own, own_state, put_own, read_own

KIND = "runs"
"""Of the user's own records."""
KEPT_S = 180 * 24 * 60 * 60
"""In seconds: how long the record of a folder that is gone is kept. It may have been moved."""
_MAX_BYTES = 16 * 1024
_MAX_HEAD_BYTES = 16 * 1024 * 1024
_MOST_RESETS = 100
_AROUND = 4
"""How many folders around a head are known: up to the project, also from `runs/NAME`."""
_PAIR = b'{"token":%19d,"revision":%19d'
"""What each transition overwrites; its length never changes."""
_FAILURES = (SequencerError, OSError)


class Mark(Struct, frozen=True):
    """What a record says."""

    token: int
    revision: int
    run_id: str
    state_file: str
    next: str = ""
    """The id of the run that has taken this one's place: it was reset, or its folder emptied."""
    folders: tuple[str, ...] = ()
    """Which folders are around the file, innermost first, as `_folders_of` says it. A folder that
    is moved stays the same one, whatever is put back inside of it."""

    def was_moved_to(self, state_file: str) -> bool:
        """Return whether a folder around *state_file* is one that was around this record's file."""
        pairs = zip(Path(self.state_file).parents, Path(state_file).parents, strict=False)
        known = zip(self.folders, _folders_of(state_file), strict=False)
        return any(
            one == other and old != new
            for (old, new), (one, other) in zip(pairs, known, strict=False)
        )

    @property
    def name(self) -> str:
        """Return the name of the record's file."""
        return _name_of(self.run_id, self.state_file)

    @property
    def is_there(self) -> bool:
        """Return whether its run is still where the record says."""
        try:
            data = read_regular(Path(self.state_file), max_bytes=_MAX_HEAD_BYTES)
        except _FAILURES:
            return False
        return self.run_id.encode() in data

    def put(self) -> None:
        """Write it.

        Raises:
            UnsafeFolder, StorageFailed: there is no place for it.
        """
        rest = {"run_id": self.run_id, "state_file": self.state_file}
        rest |= {"next": self.next} if self.next else {}
        told: dict[str, Any] = {**rest, "folders": self.folders} if self.folders else {**rest}
        data = _PAIR % (self.token, self.revision) + b"," + json.dumps(told).encode()[1:]
        put_own(KIND, self.name, data, durably=False)


def _name_of(run_id: str, state_file: str) -> str:
    """Return the name of a record; the id may come from a file that anybody can edit."""
    return f"{_digest(run_id)}-{_digest(state_file)}.json"


def _digest(text: str) -> str:
    return blake2b(os.fsencode(text), digest_size=8).hexdigest()


def _read(name: str) -> Mark | None:
    """Return what the record *name* says; None: there is none, or it says nothing."""
    try:
        found = json.loads(read_own(KIND, name, _MAX_BYTES) or b"{}")
    except (*_FAILURES, ValueError, RecursionError):
        return None
    return _mark_of(found, name)


def _mark_of(found: Any, name: str) -> Mark | None:
    if not isinstance(found, dict):
        return None
    numbers = [found.get(key) for key in ("token", "revision")]
    texts = [found.get(key, "") for key in ("run_id", "state_file", "next")]
    is_known = all(type(n) is int and 0 <= n <= MAX_COUNTER for n in numbers)
    if not is_known or not all(isinstance(text, str) for text in texts):
        return None
    known = found.get("folders") or ()
    around = tuple(map(str, known)) if isinstance(known, list) else ()
    mark = Mark(*numbers, *texts)  # type: ignore[arg-type]
    return replace(mark, folders=around) if mark.name == name else None


def _folders_of(state_file: str) -> tuple[str, ...]:
    """Return which folders are around *state_file*, innermost first, by device and inode.

    An inode of a folder that was removed may be another's later.
    """
    found = []
    for folder in [*Path(state_file).parents][:_AROUND]:
        try:
            about = os.stat(folder)  # noqa: PTH116 - no Path for each
        except OSError:
            break
        found.append(f"{about.st_dev}:{about.st_ino}")
    return tuple(found)


class HighWaterMark:
    """The record of the run in one folder. What can't be read or written is ignored."""

    def __init__(self, state_path: Path, *, is_shared: bool = False) -> None:
        """Keep it for the run with the head at *state_path*; nothing is touched before it is used.

        *is_shared*: other folders are meant to have the same run, as clones of a git store do.
        Their records do not count here.
        """
        self._path, self._is_shared = state_path, is_shared
        self._key = ""
        self._run_id: str | None = None
        """Of the run whose record is open."""
        self._fd = -1
        self._loaded_id: str | None = None
        """Of the run that was here when it was loaded; a reset replaces it."""

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

    def traces(self, run_id: str) -> Iterator[ProgressMark]:
        """Yield how far the run *run_id* has come, as far as this user's records know.

        A run that was moved here keeps the record of its old place. One that was copied starts
        a record of its own: what the other one did does not matter to it.
        """
        mark = self._own(run_id)
        if mark is None and not self._is_shared:
            mark = self._moved(run_id)[0]
        if mark is not None:
            where = own_state(KIND, mark.name)
            yield ProgressMark(where, token=mark.token, revision=mark.revision, is_outside=True)

    def shown_beyond(self, head: Head) -> ProgressMark | None:
        """Return what shows that the run had come further than *head*; None: nothing does."""
        return beyond(head, head.revision, self.traces(head.run_id))

    def beside(self, progress: ProgressEvidence) -> ProgressEvidence:
        """Return evidence that starts with this record, followed by that of *progress*."""

        def both(run_id: str) -> Iterable[ProgressMark]:
            yield from self.traces(run_id)
            yield from progress(run_id)

        return both

    def _own(self, run_id: str) -> Mark | None:
        """Return the newest record of this folder's run *run_id*, or of what followed it."""
        mark = _read(_name_of(run_id, self._state_file))
        for _ in range(_MOST_RESETS):
            after = _read(_name_of(mark.next, self._state_file)) if mark and mark.next else None
            if after is None:
                break
            mark = after
        return mark

    def _moved(self, run_id: str) -> tuple[Mark | None, list[Mark], bool]:
        """Return the record that a moved run keeps, those of its old places, and who else has it.

        The last says whether another folder still has the run, so that this one is a copy.
        """
        others = [m for m in _records(lambda name: name.startswith(_digest(run_id))) if not m.next]
        is_copy = any(one.is_there for one in others)
        gone = [one for one in others if not one.is_there]
        moved = [one for one in gone if one.was_moved_to(self._state_file)]
        if moved:
            # Whoever else has a copy of the run: this is the folder that the record is about.
            gone, is_copy = moved, False
        newest = max(gone, key=lambda one: (one.token, one.revision), default=None)
        return (None if is_copy else newest), gone, is_copy

    def settled(self, run_id: str) -> tuple[str, ...]:
        """Move the record of a run that was moved, and start one for a copy.

        Returns what a person should know.
        """
        self._loaded_id = run_id
        if self._is_shared:
            return ()
        with contextlib.suppress(*_FAILURES):
            if _read(_name_of(run_id, self._state_file)) is not None:
                return ()
            mark, gone, is_copy = self._moved(run_id)
            if mark is None and not is_copy:
                return ()
            token, revision = (mark.token, mark.revision) if mark else (0, 0)
            around = _folders_of(self._state_file)
            Mark(token, revision, run_id, self._state_file, folders=around).put()
            if mark is not None:
                for one in gone:
                    folders.remove(Path(os.path.realpath(own_state(KIND)), one.name))
            else:
                told = f"{self._path} is a copy: another folder still has the run {run_id}"
                return (f"{told}; each of them continues by itself from here",)
        return ()

    # --- writing ---------------------------------------------------------------------

    def note(self, head: Head) -> tuple[str, ...]:
        """Remember that *head* was accepted; return what a person should know."""
        if head.run_id != self._run_id:
            return self._begin(head)
        if self._fd >= 0:
            try:
                os.pwrite(self._fd, _PAIR % (head.token, head.revision), 0)
            except OSError:
                self._drop()
        return ()

    def put(self, head: Head) -> None:
        """Make *head* the newest, even if the record was beyond it: a person has said so.

        Raises:
            UnsafeFolder, StorageFailed: the record is there and can't be changed.
        """
        self.close()
        around = _folders_of(self._state_file)
        mark = Mark(head.token, head.revision, head.run_id, self._state_file, folders=around)
        try:
            os.close(self._write(mark))
        except _FAILURES:
            if _read(mark.name) is not None:
                raise

    def forget(self, run_id: str) -> None:
        """Remove the record of the run *run_id*, which is deleted for good."""
        self.close()
        with contextlib.suppress(*_FAILURES):
            name = _name_of(run_id, self._state_file)
            folders.remove(Path(os.path.realpath(own_state(KIND)), name))

    def _begin(self, head: Head) -> tuple[str, ...]:
        """Open the record of *head*'s run, made where there is none."""
        before, told = self._run_id or self._loaded_id, tuple[str, ...]()
        self.close()
        # Set even if the record can't be written, so that not every step tries again.
        self._run_id = head.run_id
        around = _folders_of(self._state_file)
        mark = Mark(head.token, head.revision, head.run_id, self._state_file, folders=around)
        with contextlib.suppress(*_FAILURES):
            make_own(KIND)
            if before not in {None, head.run_id} and (
                old := _read(_name_of(before, mark.state_file))
            ):
                replace(old, next=head.run_id).put()
            elif before is None and head.revision == 1:
                told = tuple(self._replaced(mark))
            self._fd = self._write(mark)
        return told

    @staticmethod
    def _write(mark: Mark) -> int:
        """Make the record say what *mark* does; return a descriptor of it.

        In place, because other processes that work on the run have it open.
        """
        there = _read(mark.name)
        if there is None:
            sweep(time.time() - KEPT_S)
        if there is None or there.next:
            mark.put()
        place = folders.opened(os.path.realpath(own_state(KIND)))
        fd = place.open(mark.name, os.O_RDWR)
        try:
            os.pwrite(fd, _PAIR % (mark.token, mark.revision), 0)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _replaced(self, mark: Mark) -> Iterator[str]:
        """Note in the records of earlier runs of this folder that *mark* follows; yield notices."""
        end = f"-{_digest(mark.state_file)}.json"
        for old in _records(lambda name: name.endswith(end)):
            if old.next or old.run_id == mark.run_id:
                continue
            replace(old, next=mark.run_id).put()
            yield (
                f"a new run starts in {self._path.parent}, where the run {old.run_id} was up to "
                f"token {old.token}. If its files were not removed on purpose (git clean -x and "
                "git stash --all take them), end this and put them back"
            )

    def _drop(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def _records(is_asked: Callable[[str], bool]) -> Iterator[Mark]:
    """Yield the records whose names *is_asked* takes."""
    try:
        found = folders.names(os.path.realpath(own_state(KIND)))
    except _FAILURES:
        return
    yield from filter(None, map(_read, sorted(filter(is_asked, found))))


def sweep(before: float) -> None:
    """Remove the records, last written *before* a time (Unix), of runs that are gone."""
    place = os.path.realpath(own_state(KIND))

    def is_old(name: str) -> bool:
        with contextlib.suppress(OSError):
            return os.stat(f"{place}/{name}").st_mtime < before  # noqa: PTH116
        return False

    for mark in _records(is_old):
        if mark.next or not mark.is_there:
            Path(place, mark.name).unlink(missing_ok=True)


def problem() -> str | None:
    """Return why nothing can be compared on this machine; None: it can."""
    try:
        place = own_state(KIND)
        read_own(KIND, "none", 1)
    except _FAILURES as error:
        return str(error).splitlines()[0]
    there = next(path for path in (place, *place.parents) if path.exists())
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there}: can't be written to"
