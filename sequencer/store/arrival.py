"""A run that comes into files from another store, with its journal.

The journal's own file is put in place last and at once: until then whatever was there counts,
which is nothing, or the closed copy that the run has left when it went away. Doing it again
after a crash does the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sequencer.errors import TransitionRefused
from sequencer.model.head import Head
from sequencer.model.transitions import Transition
from sequencer.store import documents as kept_documents
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.store.file import FileStore
from sequencer.store.head import content_of, write_head
from sequencer.store.journal import JournalFile, Record, encode, fact_fields, scan

_NO_FACT = ("revision", "at")


class PastRecord(NamedTuple):
    """What one transition of a run has left, wherever it was accepted."""

    revision: int
    at: str
    facts: Sequence[Mapping[str, Any]]
    """As ``history --json`` prints them."""
    head: Head | None
    """None: nobody knows more of it than the facts."""


def journal_of(records: Iterable[PastRecord], run_id: str) -> list[bytes]:
    """Return the lines of the journal that *records* of the run *run_id* make."""
    return [_line(one, run_id) for one in records]


def _line(one: PastRecord, run_id: str) -> bytes:
    facts = [{key: fact[key] for key in fact if key not in _NO_FACT} for fact in one.facts]
    if one.head is None:
        token = max(fact["token"] for fact in facts)
        head = b'{"run_id":"%s","revision":%d,"token":%d}' % (run_id.encode(), one.revision, token)
    else:
        head = content_of(one.head).translate(None, b"\n")
    return encode(one.revision, one.at, facts, head)


class Arrival:
    """Brings one run into the folder of a store of files."""

    def __init__(self, store: FileStore, run_id: str) -> None:
        """Bring the run *run_id* into *store*."""
        self._store, self._run_id = store, run_id
        self._folder = store.state_path.parent
        self._journal = JournalFile(self._folder, 0, 0)

    def _left(self) -> Record | None:
        """Return the last record of the copy that the run has left; None: nothing is there.

        Raises:
            TransitionRefused: a run is there.
            CorruptState: nobody can say what is there.
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
        """Return whether no run is here, or only what a killed process has begun to bring.

        Results don't count: attempts at a run that is elsewhere may have been made here.
        """
        if self._journal.path.exists() or self._store.state_path.exists():
            return False
        heads = [one.data["head"] for path in self._journal.rotated() for one in _winners(path)]
        return all(head.get("run_id") == self._run_id for head in heads)

    def bring(
        self,
        lines: Sequence[bytes],
        head: Head,
        told: Transition,
        documents: Mapping[str, bytes],
        outputs: Mapping[str, str],
    ) -> Head:
        """Put the run here: its past as *lines*, and *told* after *head*.

        With its *documents*, and *outputs* by the names of their attempts. Returns the head
        that stands afterwards.

        Raises: see `_left`.
        """
        folders.made(self._folder)
        with self._store.locked():
            last = self._left()
            past = scan(b"".join(lines), 0, None, "the journal that arrives").winners
            base = 0 if last is None else last.revision
            fresh = [one.line + b"\n" for one in past if one.revision > base]
            if base and past[0].revision > base + 1:
                # What was between the two is known nowhere any more.
                base, fresh = 0, list(lines)
            self._make_room(base)
            for name, data in documents.items():
                kept_documents.keep(self._folder, name, data)
            folders.put(self._next(), b"".join(fresh))
            keep_outputs(self._folder, outputs)
            new = told.head.replace(revision=head.revision + 1, journal_offset=len(fresh[-1]))
            content = content_of(new)
            facts = [fact_fields(fact) for fact in told.facts]
            line = encode(new.revision, new.last_update, facts, content.translate(None, b"\n"))
            folders.put(self._journal.path, fresh[-1] + line)
            self._journal.sync_names()
            self._journal.close()
            write_head(self._store.state_path, new, content)
        return new

    def _make_room(self, base: int) -> None:
        """Put aside the journal that ends at *base*; 0: whatever is here of one."""
        if not base:
            self._set_aside()
            return
        rotated = self._journal.rotated()
        if not (rotated and rotated[-1].samefile(self._journal.path)):
            folders.link(self._journal.path, self._next())

    def _next(self) -> Path:
        rotated = self._journal.rotated()
        newest = int(rotated[-1].stem.rpartition("-")[2]) if rotated else 0
        return self._folder / f"journal-{newest + 1:06d}.jsonl"

    def _set_aside(self) -> None:
        """Move what is here of a journal into a folder of its own, the newest file last."""
        names = (self._store.state_path, *self._journal.rotated(), self._journal.path)
        if found := [path for path in names if path.exists()]:
            now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            aside = folders.make_another(self._folder / f"set-aside-{now}")
            for path in found:
                folders.move(path, aside / path.name)
            folders.sync_folder(aside)
            folders.sync_folder(self._folder)


def _winners(path: Path) -> tuple[Record, ...]:
    return scan(folders.read_regular(path), 0, None, str(path)).winners


def keep_outputs(folder: Path, outputs: Mapping[str, str]) -> None:
    """Keep *outputs* in the *folder* of a run, but those that are there."""
    for name, output in outputs.items():
        kept = results.kept(folder / results.NAME, name)
        if output and not (kept / results.OUTPUT).exists():
            results.keep(kept, output.encode("utf-8", "replace"))
