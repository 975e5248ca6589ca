"""One reading of a run's files: each is opened at most once, when it is first asked for.

Whoever opens a run asks for state.json and for the journal from the head's own record on. A
diagnosis asks for every journal first, as a whole, and everything after it is a part of that.
Nothing here says what the files mean, and nothing writes.

Not promised: that everything is of one moment. A writer may continue between two files; compare
`RunFiles.signature` from before and after, and read again if they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import CorruptState
from sequencer.model.head import Head
from sequencer.store import documents
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular
from sequencer.store.head import RawHead, raw_head, signature
from sequencer.store.journal import JournalFile, Record, Scan, decode, first_in, first_of, scan
from sequencer.store.ownership import refused
from sequencer.store.strictjson import MAX_BYTES

READ_ATTEMPTS = 20
"""So often files are read that writers change meanwhile."""
_TOKEN = re.compile(rb'"token"\s*:\s*(\d{1,19})(?=[\s,}])')
_REVISION = re.compile(rb'"revision"\s*:\s*(\d{1,19})(?=[\s,}])')
_NAMED_BY_TOKEN = {
    "beats": re.compile(r"(\d+)(?:\..*)?"),
    "results": re.compile(r"\d+-(\d+)(?:-.*)?"),
}
"""Folders whose entries are named after a token, and how."""


class ProgressMark(Struct, frozen=True):
    """Something that shows that a run had come as far as a token or a revision."""

    where: Path
    token: int = 0
    revision: int = 0
    has_ended: bool = False
    """The attempt with *token* was over; whether its end was accepted is not said."""
    is_outside: bool = False
    """It is no file of the run or its project, so nothing that puts those back takes it back."""


ProgressEvidence = Callable[[str], Iterable[ProgressMark]]
"""From a run's id to what its step logs show, which a store does not know; newest first."""


def no_progress_evidence(run_id: str) -> Iterable[ProgressMark]:
    """Return nothing: there are no step logs to ask."""
    del run_id
    return ()


class FileContent(Struct, frozen=True):
    """What one file holds, from *offset* on."""

    path: Path
    data: bytes | None = None
    """None: the file is missing or can't be read."""
    offset: int = 0
    refusal: CorruptState | None = None
    """Why it can't be read."""

    def checked(self) -> bytes | None:
        """Return the bytes, or None if the file is missing.

        Raises:
            CorruptState: it is no plain file, or it can't be read.
        """
        if self.refusal is not None:
            raise self.refusal
        return self.data


class RunFiles:
    """The files of one run, as they are when they are first asked for."""

    def __init__(
        self,
        state_path: Path,
        journal: JournalFile,
        progress: ProgressEvidence = no_progress_evidence,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Read nothing yet; *progress* tells what the step logs of the run show.

        *redact* removes secrets from what a person has written into state.json.
        """
        self.state_path, self.folder = state_path, state_path.parent
        self.journal, self.redact = journal, redact
        self._progress_evidence = progress
        self._contents: dict[Path, FileContent] = {}
        self._witnessed: dict[str, tuple[ProgressMark, ...]] = {}

    def signature(self) -> object:
        """Return what differs after every write to the head or the journal; it is not kept."""
        try:
            return signature(self.state_path), self.journal.signature()
        except OSError:
            return None

    # --- the head --------------------------------------------------------------------

    @cached_property
    def state(self) -> FileContent:
        """Return what is in state.json."""
        return _read(self.state_path, max_bytes=MAX_BYTES)

    @cached_property
    def head(self) -> RawHead:
        """Return state.json as an object.

        Raises:
            CorruptState: it is no plain file, so that it can't be replaced either.
        """
        return raw_head(self.state.checked())

    # --- the journals ----------------------------------------------------------------

    @cached_property
    def rotated(self) -> tuple[Path, ...]:
        """Return the journals that were put aside, oldest first."""
        return tuple(self.journal.rotated())

    def content(self, path: Path, offset: int = 0) -> FileContent:
        """Return what the journal *path* holds, from *offset* on or from before it."""
        held = self._contents.get(path)
        if held is None or held.offset > offset:
            held = self._contents[path] = _read(path, offset)
        return held

    @cached_property
    def journals(self) -> tuple[FileContent, ...]:
        """Return every journal that is there, whole, oldest first."""
        paths = (*self.rotated, self.journal.path)
        return tuple(one for one in map(self.content, paths) if one.data is not None or one.refusal)

    def scan(self, offset: int = 0, expected: int | None = None) -> Scan:
        """Return the winners of the newest journal from *offset* on, see `journal.scan`.

        Raises:
            CorruptState: it is not a regular file, or has a gap.
        """
        found = self.content(self.journal.path, offset)
        if (data := found.checked()) is None:
            return Scan((), 0, is_torn=False)
        return scan(data[offset - found.offset :], offset, expected, str(found.path))

    @cached_property
    def oldest(self) -> dict[str, Any] | None:
        """Return the first record that can be read; more than that is not read for it."""
        return next(filter(None, map(self._first_of, (*self.rotated, self.journal.path))), None)

    def _first_of(self, path: Path) -> dict[str, Any] | None:
        held = self._contents.get(path)
        if held is None or held.offset:
            return first_of(path)
        return first_in((held.data or b"").split(b"\n"))

    # --- what else shows how far the run came ------------------------------------------

    def traces(self, run_id: str | None, last: Record | None) -> Iterator[ProgressMark]:
        """Yield what the folder of the run *run_id* shows, but for its good records.

        *last* is the last good record of the newest journal; None if that has none.

        Raises:
            CorruptState: a folder may not be read, so nobody can tell.
        """
        if run_id is not None and run_id.encode() in (data := self.state.data or b""):
            # It was published after it was accepted. What is in it may also be another
            # program's, or half of a merge.
            revisions = map(int, _REVISION.findall(data))
            tokens = _tokens_in(data)
            yield ProgressMark(self.state_path, max(tokens, default=0), max(revisions, default=0))
        if last is not None:
            yield from self._after(last)
        yield from self._left_behind

    def _after(self, last: Record) -> Iterator[ProgressMark]:
        """Yield what the lines after *last* show, but for the one that was being written.

        That one was not accepted: whoever wrote it was stopped in the middle.
        """
        found = self.content(self.journal.path, last.end)
        for line in (found.data or b"")[last.end - found.offset :].split(b"\n"):
            # A whole line shows it twice; the smaller one was not damaged upwards.
            shown = min(map(int, _REVISION.findall(line)), default=0)
            if shown > last.revision + 1:
                # The line before it can only have been accepted.
                yield ProgressMark(found.path, revision=shown - 1)

    @cached_property
    def _left_behind(self) -> tuple[ProgressMark, ...]:
        """Return what names of heartbeats and results, and the newest closed journal show."""
        found = [
            ProgressMark(self.folder / name / entry, token=int(match[1]))
            for name, pattern in _NAMED_BY_TOKEN.items()
            for entry in names_in(self.folder / name)
            if (match := pattern.fullmatch(entry))
        ]
        closed = map(self.content, self.rotated[-1:])
        return (*found, *(trace for one in closed for trace in _newest_of(one)))

    @cached_property
    def tokens(self) -> frozenset[int]:
        """Return every number after a "token" in the head and all journals, readable or not."""
        whole = (self.state, *self.journals)
        return frozenset(token for one in whole for token in _tokens_in(one.data or b""))

    def witnessed(self, run_id: str) -> tuple[ProgressMark, ...]:
        """Return what the step logs of the run *run_id* show."""
        if run_id not in self._witnessed:
            self._witnessed[run_id] = tuple(self._progress_evidence(run_id))
        return self._witnessed[run_id]

    def left_over(self) -> Path | None:
        """Return something that only a run that had begun leaves behind."""
        for name in ("results", "beats"):
            try:
                # Empty or not: the first attempt makes it.
                entries = folders.opened(self.folder / name).entries()
                return self.folder / name / next(entries).name
            except StopIteration:
                return self.folder / name
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                # Nobody can say that there is nothing in it.
                return self.folder / name
        return None

    def wrong_documents(self, head: Head) -> tuple[tuple[Path, str], ...]:
        """Return which documents that *head* continues from can't be used, and why."""
        return documents.problems(self.folder, head)


def changing(state_path: Path) -> CorruptState:
    """Return the refusal to say what files are that were different at each look."""
    return CorruptState("changes faster than it can be read", where=str(state_path))


def _tokens_in(data: bytes) -> Iterator[int]:
    return map(int, set(_TOKEN.findall(data)))


def names_in(folder: Path) -> Iterator[str]:
    """Yield the names in *folder*; none if it is not there. A long run has a log for each step.

    Raises:
        CorruptState: its permissions forbid a look.
    """
    try:
        yield from (entry.name for entry in folders.opened(folder).entries())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        why, hint = refused(error, folder, "fix its permissions, then try again")
        raise CorruptState(f"can't be looked at: {why}", where=str(folder), hint=hint) from error


def _read(path: Path, offset: int = 0, max_bytes: int | None = None) -> FileContent:
    try:
        return FileContent(path, read_regular(path, offset, max_bytes), offset)
    except FileNotFoundError:
        return FileContent(path)
    except CorruptState as refusal:
        return FileContent(path, refusal=refusal)


def _newest_of(closed: FileContent) -> Iterator[ProgressMark]:
    """Yield what the last good record of a *closed* journal shows."""
    for line in reversed((closed.data or b"").split(b"\n")):
        try:
            record = decode(line)
        except ValueError:
            continue
        token = record["head"].get("token")
        yield ProgressMark(closed.path, token if type(token) is int else 0, record["revision"])
        return
