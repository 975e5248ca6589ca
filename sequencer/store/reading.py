"""One reading of a run's files: each file is opened at most once, when it is first needed.

An ordinary reader needs state.json, and the journal from the record of that head on. A diagnosis
reads all journals completely first, so everything that it reads later is a part of them. Nothing
here interprets the files, and nothing writes.

Not promised: that all files are from one moment. A writer may continue between two files; compare
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
from sequencer.store.head import RawHead, parse_raw_head, signature
from sequencer.store.journal import (
    JournalFile,
    Record,
    Scan,
    decode,
    find_first_record,
    read_first_record,
    scan,
)
from sequencer.store.ownership import explain_refusal
from sequencer.store.strictjson import MAX_BYTES

READ_ATTEMPTS = 20
"""How often to read files that writers change in the meantime."""
_TOKEN = re.compile(rb'"token"\s*:\s*(\d{1,19})(?=[\s,}])')
_REVISION = re.compile(rb'"revision"\s*:\s*(\d{1,19})(?=[\s,}])')
_NAMED_BY_TOKEN = {
    "beats": re.compile(r"(\d+)(?:\..*)?"),
    "results": re.compile(r"\d+-(\d+)(?:-.*)?"),
}
"""Folders whose entries have a token in their names, and the patterns of those names."""


class ProgressMark(Struct, frozen=True):
    """Evidence that a run had reached a token or a revision."""

    where: Path
    token: int = 0
    revision: int = 0
    has_ended: bool = False
    """The attempt with *token* had ended; its end may or may not have been accepted."""
    is_outside: bool = False
    """It is not a file of the run or its project, so restoring those does not restore it."""


ProgressEvidence = Callable[[str], Iterable[ProgressMark]]
"""From a run's id to the evidence in its step logs, newest first; a store can't read those."""


def no_progress_evidence(run_id: str) -> Iterable[ProgressMark]:
    """Return nothing: there are no step logs."""
    del run_id
    return ()


class FileContent(Struct, frozen=True):
    """The content of one file from *offset* on."""

    path: Path
    data: bytes | None = None
    """None: the file is missing or can't be read."""
    offset: int = 0
    refusal: CorruptState | None = None
    """Why it can't be read."""

    def get_data(self) -> bytes | None:
        """Return the bytes, or None if the file is missing.

        Raises:
            CorruptState: it is not a regular file, or it can't be read.
        """
        if self.refusal is not None:
            raise self.refusal
        return self.data


class RunFiles:
    """The files of one run, each as it was when it was first needed."""

    def __init__(
        self,
        state_path: Path,
        journal: JournalFile,
        progress: ProgressEvidence = no_progress_evidence,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Read nothing yet; *progress* gives the evidence in the run's step logs.

        *redact* removes secrets from what a person wrote into state.json.
        """
        self.state_path, self.folder = state_path, state_path.parent
        self.journal, self.redact = journal, redact
        self._progress_evidence = progress
        self._contents: dict[Path, FileContent] = {}
        self._logged: dict[str, tuple[ProgressMark, ...]] = {}

    def signature(self) -> object:
        """Return a value that changes with each write to the head or the journal; not cached."""
        try:
            return signature(self.state_path), self.journal.signature()
        except OSError:
            return None

    # --- the head --------------------------------------------------------------------

    @cached_property
    def state(self) -> FileContent:
        """Return the content of state.json."""
        return _read_content(self.state_path, max_bytes=MAX_BYTES)

    @cached_property
    def head(self) -> RawHead:
        """Return state.json as an object.

        Raises:
            CorruptState: it is not a regular file, so it can't be replaced either.
        """
        return parse_raw_head(self.state.get_data())

    # --- the journals ----------------------------------------------------------------

    @cached_property
    def rotated(self) -> tuple[Path, ...]:
        """Return the rotated journals, oldest first."""
        return tuple(self.journal.list_rotated())

    def read_content(self, path: Path, offset: int = 0) -> FileContent:
        """Return the content of the journal *path*, from *offset* or an earlier one on."""
        content = self._contents.get(path)
        if content is None or content.offset > offset:
            content = self._contents[path] = _read_content(path, offset)
        return content

    @cached_property
    def journals(self) -> tuple[FileContent, ...]:
        """Return the complete content of each journal that exists, oldest first."""
        paths = (*self.rotated, self.journal.path)
        return tuple(
            content
            for content in map(self.read_content, paths)
            if content.data is not None or content.refusal
        )

    def scan(self, offset: int = 0, expected: int | None = None) -> Scan:
        """Return the winners of the newest journal from *offset* on; see `journal.scan`.

        Raises:
            CorruptState: it is not a regular file, or has a gap.
        """
        content = self.read_content(self.journal.path, offset)
        if (data := content.get_data()) is None:
            return Scan((), 0, is_torn=False)
        return scan(data[offset - content.offset :], offset, expected, str(content.path))

    @cached_property
    def oldest(self) -> dict[str, Any] | None:
        """Return the oldest record that can be read; no more is read for it."""
        return next(
            filter(None, map(self._read_first_record, (*self.rotated, self.journal.path))), None
        )

    def _read_first_record(self, path: Path) -> dict[str, Any] | None:
        content = self._contents.get(path)
        if content is None or content.offset:
            return read_first_record(path)
        return find_first_record((content.data or b"").split(b"\n"))

    # --- other evidence of how far the run came ----------------------------------------

    def find_marks(self, run_id: str | None, last: Record | None) -> Iterator[ProgressMark]:
        """Yield the evidence in the folder of the run *run_id*, except its good records.

        *last* is the last good record of the newest journal; None: it has none.

        Raises:
            CorruptState: a folder may not be read, so the evidence is unknown.
        """
        if run_id is not None and run_id.encode() in (data := self.state.data or b""):
            # A head is published only after it was accepted. Search the text: the file may also
            # be another program's, or half of a merge.
            revisions = map(int, _REVISION.findall(data))
            tokens = _find_tokens(data)
            yield ProgressMark(self.state_path, max(tokens, default=0), max(revisions, default=0))
        if last is not None:
            yield from self._find_marks_after(last)
        yield from self._left_behind

    def _find_marks_after(self, last_record: Record) -> Iterator[ProgressMark]:
        """Yield the evidence in the lines after *last_record*, except one that was being written.

        Such a line was not accepted: its writer was stopped in the middle.
        """
        content = self.read_content(self.journal.path, last_record.end)
        for line in (content.data or b"")[last_record.end - content.offset :].split(b"\n"):
            # A complete line has its revision twice; damage may have made one of them larger.
            revision = min(map(int, _REVISION.findall(line)), default=0)
            if revision > last_record.revision + 1:
                # Its writer knew the revision before it, so that one was accepted.
                yield ProgressMark(content.path, revision=revision - 1)

    @cached_property
    def _left_behind(self) -> tuple[ProgressMark, ...]:
        """Return the evidence in the names of heartbeats and results, and in the last rotation."""
        name_matches = [
            ProgressMark(self.folder / name / entry, token=int(match[1]))
            for name, pattern in _NAMED_BY_TOKEN.items()
            for entry in iter_names(self.folder / name)
            if (match := pattern.fullmatch(entry))
        ]
        rotated_contents = map(self.read_content, self.rotated[-1:])
        return (
            *name_matches,
            *(mark for content in rotated_contents for mark in _find_newest_mark(content)),
        )

    @cached_property
    def tokens(self) -> frozenset[int]:
        """Return every number after a "token" in the head and all journals, readable or not."""
        contents = (self.state, *self.journals)
        return frozenset(
            token for content in contents for token in _find_tokens(content.data or b"")
        )

    def find_logged_marks(self, run_id: str) -> tuple[ProgressMark, ...]:
        """Return the evidence in the step logs of the run *run_id*."""
        if run_id not in self._logged:
            self._logged[run_id] = tuple(self._progress_evidence(run_id))
        return self._logged[run_id]

    def find_leftover(self) -> Path | None:
        """Return a path that only a run that had started leaves behind; None: there is none."""
        for name in ("results", "beats"):
            try:
                # Even if it is empty: the first attempt makes this folder.
                entries = folders.open_folder(self.folder / name).entries()
                return self.folder / name / next(entries).name
            except StopIteration:
                return self.folder / name
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                # It can't be read, so it may have entries.
                return self.folder / name
        return None

    def find_wrong_documents(self, head: Head) -> tuple[tuple[Path, str], ...]:
        """Return (path, reason) for each document that *head* needs and that can't be used."""
        return documents.find_problems(self.folder, head)


def unstable_files_error(state_path: Path) -> CorruptState:
    """Return the error for files that were different at each reading."""
    return CorruptState("changes faster than it can be read", where=str(state_path))


def _find_tokens(data: bytes) -> Iterator[int]:
    return map(int, set(_TOKEN.findall(data)))


def iter_names(folder: Path) -> Iterator[str]:
    """Yield the names in *folder*; none if it does not exist.

    A generator, because a long run has a log for each step.

    Raises:
        CorruptState: its permissions do not let this user read it.
    """
    try:
        yield from (entry.name for entry in folders.open_folder(folder).entries())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        reason, hint = explain_refusal(error, folder, "fix its permissions, then try again")
        raise CorruptState(f"can't be read: {reason}", where=str(folder), hint=hint) from error


def _read_content(path: Path, offset: int = 0, max_bytes: int | None = None) -> FileContent:
    try:
        return FileContent(path, read_regular(path, offset, max_bytes), offset)
    except FileNotFoundError:
        return FileContent(path)
    except CorruptState as refusal:
        return FileContent(path, refusal=refusal)


def _find_newest_mark(rotated_content: FileContent) -> Iterator[ProgressMark]:
    """Yield the token and revision of the last good record in *rotated_content*."""
    for line in reversed((rotated_content.data or b"").split(b"\n")):
        try:
            record = decode(line)
        except ValueError:
            continue
        token = record["head"].get("token")
        yield ProgressMark(
            rotated_content.path, token if type(token) is int else 0, record["revision"]
        )
        return
