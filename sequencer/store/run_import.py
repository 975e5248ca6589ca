"""Import a run from another store into files, with its journal.

The journal file is put in place last and atomically. Until then the old files count: none, or the
closed copy that stayed here when the run moved away. After a crash the import can be repeated with
the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import TransitionRefused
from sequencer.frozen.base import encode_json
from sequencer.model.head import Head
from sequencer.model.transitions import Transition
from sequencer.store import documents as document_files
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.store.file import FileStore
from sequencer.store.head import encode_head, write_head
from sequencer.store.journal import JournalFile, Record, encode, fact_fields, scan

_NO_FACT = ("revision", "at")


class PastRecord(Struct, frozen=True):
    """The facts and the head of one transition, accepted in any store."""

    revision: int
    at: str
    facts: Sequence[Mapping[str, Any]]
    """As ``history --json`` prints them."""
    head: Head | None
    """None: only the facts are known."""


def encode_journal(records: Iterable[PastRecord], run_id: str) -> list[bytes]:
    """Return the journal lines of *records*, which are of the run *run_id*."""
    return [_encode_record(record, run_id) for record in records]


def _encode_record(past_record: PastRecord, run_id: str) -> bytes:
    facts = [{key: fact[key] for key in fact if key not in _NO_FACT} for fact in past_record.facts]
    if past_record.head is None:
        token = max(fact["token"] for fact in facts)
        head = b'{"run_id":"%s","revision":%d,"token":%d}' % (
            run_id.encode(),
            past_record.revision,
            token,
        )
    else:
        head = encode_json(past_record.head)
    return encode(past_record.revision, past_record.at, facts, head)


class RunImport:
    """Imports one run into the folder of a file store."""

    def __init__(self, store: FileStore, run_id: str) -> None:
        """Import the run *run_id* into *store*."""
        self._store, self._run_id = store, run_id
        self._folder = store.state_path.parent
        self._journal = JournalFile(self._folder, 0, 0)

    def _find_last_of_copy(self) -> Record | None:
        """Return the last record of the run's closed copy; None: the folder is free.

        Raises:
            TransitionRefused: the folder has a run.
            CorruptState: the files in the folder can't be read.
        """
        if self.is_free():
            return None
        head = self._store.view().head
        if head is None:
            return None
        if head.run_id != self._run_id or head.moved_to is None:
            raise TransitionRefused(
                f"a run is already there, at revision {head.revision}",
                where=str(self._store.state_path),
                hint="move its folder away, or give the run another name",
            )
        return self._journal.read(0, None).winners[-1]

    def is_free(self) -> bool:
        """Return whether the folder has no run, or only the start of an interrupted import.

        Results don't count: this folder may have attempts of a run that is in another store.
        """
        if self._journal.path.exists() or self._store.state_path.exists():
            return False
        heads = [
            record.data["head"]
            for path in self._journal.list_rotated()
            for record in _read_winners(path)
        ]
        return all(head.get("run_id") == self._run_id for head in heads)

    def write(
        self,
        lines: Sequence[bytes],
        head: Head,
        arrived: Transition,
        documents: Mapping[str, bytes],
        outputs: Mapping[str, str],
    ) -> Head:
        """Import the run: its history as *lines*, then *arrived* after *head*; return the new head.

        *outputs* maps the name of an attempt's folder to its output.

        Raises:
            TransitionRefused: the folder has another run, or one that has not moved away.
            CorruptState: the files in the folder can't be read.
        """
        folders.make_folder(self._folder)
        with self._store.hold_lock():
            last_record = self._find_last_of_copy()
            winners = scan(b"".join(lines), 0, None, "the imported journal").winners
            base = 0 if last_record is None else last_record.revision
            new_lines = [record.line + b"\n" for record in winners if record.revision > base]
            if base and winners[0].revision > base + 1:
                # The records between the copy and *lines* are lost, so start a new journal.
                base, new_lines = 0, list(lines)
            self._make_room(base)
            for name, data in documents.items():
                document_files.keep(self._folder, name, data)
            folders.write_atomically(self._next_rotated_path(), b"".join(new_lines))
            keep_outputs(self._folder, outputs)
            new_head = arrived.head.replace(
                revision=head.revision + 1, journal_offset=len(new_lines[-1])
            )
            content = encode_head(new_head)
            facts = [fact_fields(fact) for fact in arrived.facts]
            line = encode(
                new_head.revision, new_head.last_update, facts, content.translate(None, b"\n")
            )
            folders.write_atomically(self._journal.path, new_lines[-1] + line)
            self._journal.sync_names()
            self._journal.close()
            write_head(self._store.state_path, new_head, content)
        return new_head

    def _make_room(self, base: int) -> None:
        """Rotate the journal that ends at *base*; 0: move all old files out of the way."""
        if not base:
            self._set_aside()
            return
        rotated_paths = self._journal.list_rotated()
        if not (rotated_paths and rotated_paths[-1].samefile(self._journal.path)):
            folders.link(self._journal.path, self._next_rotated_path())

    def _next_rotated_path(self) -> Path:
        rotated_paths = self._journal.list_rotated()
        newest_number = int(rotated_paths[-1].stem.rpartition("-")[2]) if rotated_paths else 0
        return self._folder / f"journal-{newest_number + 1:06d}.jsonl"

    def _set_aside(self) -> None:
        """Move all old files of the run into a new folder, the newest file last."""
        paths = (self._store.state_path, *self._journal.list_rotated(), self._journal.path)
        if existing_paths := [path for path in paths if path.exists()]:
            time_text = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            aside_folder = folders.make_numbered_folder(self._folder / f"set-aside-{time_text}")
            for path in existing_paths:
                folders.move(path, aside_folder / path.name)
            folders.sync_folder(aside_folder)
            folders.sync_folder(self._folder)


def _read_winners(path: Path) -> tuple[Record, ...]:
    return scan(folders.read_regular(path), 0, None, str(path)).winners


def keep_outputs(folder: Path, outputs: Mapping[str, str]) -> None:
    """Write *outputs* into the *folder* of a run, except those that exist."""
    for name, output in outputs.items():
        attempt = results.find_attempt_folder(folder / results.NAME, name)
        if output and not (attempt / results.OUTPUT).exists():
            results.write_output(attempt, output.encode("utf-8", "replace"))
