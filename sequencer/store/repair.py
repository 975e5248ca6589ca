"""Make a damaged run readable again, from what its files still hold.

Every original is kept in ``damaged-TIME/`` beside the run before anything is replaced, and
the repair is itself a journalled transition. It runs under the run's lock and may be
interrupted anywhere: what is left then can be repaired again.

Not promised: steps whose records are lost. Where accepted steps may be lost, a person has
to say which state to go on from; tokens are never granted again in any case.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from sequencer.errors import CorruptState, StorageFailed, UsageRefused
from sequencer.model.head import MAX_COUNTER, Head, Status
from sequencer.model.transitions import Event, resting_status
from sequencer.store import folder as folders
from sequencer.store.diagnosis import Action, Diagnosis, diagnose
from sequencer.store.folder import put, read_regular, sync_folder, write_durably
from sequencer.store.head import parse_head, write_head
from sequencer.store.highwater import HighWaterMark
from sequencer.store.identity import utc_now
from sequencer.store.journal import CLOSING, NAME, JournalFile, encode
from sequencer.store.lock import RunLock
from sequencer.store.ownership import refused
from sequencer.store.reading import ProgressEvidence, RunFiles, no_progress_evidence
from sequencer.store.recovery import in_words, recover


class Choice(StrEnum):
    """Which state a person accepts where the files name two."""

    HEAD = "head"
    """What stands in state.json."""
    JOURNAL = "journal"
    """The last good record; later steps run again."""


class Repaired(Struct, frozen=True):
    """What a repair did."""

    before: Diagnosis
    head: Head | None
    """The head that stands; None if nothing had to be done."""
    kept: Path | None = None
    """The folder with the originals."""


def repair(
    state_path: Path,
    choice: Choice | None = None,
    *,
    allow_network_fs: bool = False,
    progress: ProgressEvidence = no_progress_evidence,
    mark: HighWaterMark | None = None,
) -> Repaired:
    """Make the run at *state_path* readable; a sound run is left alone.

    *progress* says what its step logs show: tokens that are not granted again. The *mark* takes
    the repaired state for the newest.

    Raises:
        CorruptState: nothing can be saved, or a choice is needed and was not made.
        UsageRefused: the *choice* names a state that is not there.
        NewerSchema: see `diagnose`.
    """
    if not state_path.parent.is_dir():
        return Repaired(diagnose(state_path, progress), None)
    lock = RunLock(Path(f"{state_path}.lock"), allow_network_fs=allow_network_fs)
    with lock:
        found = diagnose(state_path, progress)
        if found.action is Action.NOTHING:
            return Repaired(found, None)
        base = _chosen(found, choice)
        try:
            kept = _keep_originals(found)
            head = _mend(found, base, kept, is_head=base is found.state.head)
            if mark is not None:
                mark.put(head)
        except OSError as error:
            where = str(error.filename or state_path.parent)
            hint = "free disk space or fix the permissions, then repair again"
            why, hint = refused(error, where, hint)
            raise StorageFailed(f"the repair stopped: {why}", where=where, hint=hint) from error
        after = recover(
            RunFiles(state_path, JournalFile(state_path.parent, MAX_COUNTER, 1), progress)
        )
        if after.head != head:
            raise CorruptState("the repair did not work", where=str(state_path.parent))
        return Repaired(found, head, kept)


def _chosen(found: Diagnosis, choice: Choice | None) -> Head:
    """Return the head to go on from."""
    folder = str(found.state.path.parent)
    if found.action is Action.HOPELESS:
        raise CorruptState(
            "nothing can be saved: state.json and the journal hold no readable state",
            where=folder,
            hint="restore the folder from a backup; or move it away to start over "
            "('sequencer set step_index=N' then moves the run to where it was)",
        )
    if found.action is Action.CHOOSE and choice is None:
        raise CorruptState(
            "accepted steps may be lost, so you have to choose",
            where=folder,
            hint=" or ".join(options(found)),
        )
    if choice is Choice.HEAD and (found.state.head is None or not found.is_head_ahead):
        raise UsageRefused(
            "state.json has no head that the journal lacks, so there is none to accept",
            where=str(found.state.path),
            hint="without --accept-head the last good record of the journal is used",
        )
    if choice is Choice.HEAD and found.state.head is not None:
        return found.state.head
    if found.last is None:
        raise UsageRefused(
            "the journal has no good record", where=folder, hint=" or ".join(options(found))
        )
    return parse_head(found.last.data["head"], folder)


def options(found: Diagnosis) -> list[str]:
    """Return the choices that `Action.CHOOSE` leaves, in words."""
    head, last = found.state.head, found.last
    said = []
    if head is not None and found.is_head_ahead:
        said.append(
            f"--accept-head continues from state.json (revision {head.revision}, step_index "
            f"{head.step_index}){_although(found, head)}"
        )
    if last is not None:
        there = parse_head(last.data["head"], "journal")
        said.append(
            f"--accept-journal continues from the last good record (revision {last.revision}, "
            f"step_index {there.step_index}){_although(found, there)}"
        )
    return said


def _although(found: Diagnosis, head: Head) -> str:
    """Return what a choice of *head* ignores, as the end of a sentence."""
    return "" if found.shown is None else f", although {in_words(found.shown, head)}"


def _keep_originals(found: Diagnosis) -> Path:
    """Copy every file aside; what is no plain file is moved, because it is in the way."""
    folder = found.state.path.parent
    kept = folders.make_another(folder / f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    paths = [found.state.path, *(report.path for report in found.journals)]
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISREG(mode):
            write_durably(kept / path.name, read_regular(path))
        else:
            folders.move(path, kept / path.name)
    sync_folder(kept)
    sync_folder(folder)
    return kept


def _mend(found: Diagnosis, base: Head, kept: Path, *, is_head: bool) -> Head:
    """Write journal and head so that the run goes on from *base*; return the new head."""
    folder, last = found.state.path.parent, found.last
    journal = JournalFile(folder, MAX_COUNTER, 1)
    if is_head or last is None:
        source, lines = "state.json", []
    else:
        source, lines = "the journal", [record.line + b"\n" for record in found.chain]
    note = f"repair from {source} at revision {base.revision}; the originals are in {kept.name}"
    is_appended = found.action is Action.RESTORE
    if is_appended:
        there = found.journals[-1].found
        size, is_torn = there.size, there.is_torn
        offset = size + len(CLOSING) if is_torn else size
    else:
        is_torn, offset = False, len(lines[-1]) if lines else 0
    head = _repaired_head(found, base, offset, may_be_behind=found.action is Action.CHOOSE)
    line = _line(head, base, note)
    if is_appended:
        data = CLOSING + line if is_torn else line
        if not journal.append(data, size):
            raise CorruptState("the journal changed while it was repaired", where=str(folder))
        journal.close()
    else:
        _replace_journals(found, journal, lines or [line], [*lines[-1:], line])
    write_head(found.state.path, head)
    return head


def _repaired_head(found: Diagnosis, base: Head, offset: int, *, may_be_behind: bool) -> Head:
    update = {
        "revision": base.revision + 1,
        "journal_offset": offset,
        "token": max(base.token, found.highest_token),
        "last_update": utc_now(),
    }
    head = base.replace(**update)
    if may_be_behind and head.claims:
        # Whoever holds one may have ended it in a record that is lost.
        head = head.replace(claims=())
        if head.status is Status.RUNNING:
            head = head.replace(status=resting_status(head))
    return head


def _line(head: Head, base: Head, note: str) -> bytes:
    fact = {
        "event": str(Event.EDITED),
        "step": base.expected_step,
        "step_index": base.step_index,
        "token": head.token,
        "attempt": base.attempt,
        "outcome": {"note": note},
    }
    return encode(head.revision, head.last_update, [fact], head.model_dump_json().encode())


def _replace_journals(
    found: Diagnosis, journal: JournalFile, history: list[bytes], current: list[bytes]
) -> None:
    """Put *history* aside as a rotated journal, and *current* in the journal's place.

    That is what a rotation leaves: a journal that need not begin at revision 1, behind a
    file that ends with the record that it begins with.
    """
    folder = journal.folder
    old = [report.path for report in found.journals if report.path.name != NAME]
    number = max((int(path.stem.rpartition("-")[2]) for path in old), default=0) + 1
    with _excluding_appends(journal.path):
        put(folder / f"journal-{number:06d}.jsonl", b"".join(history))
        put(journal.path, b"".join(current))
    for path in old:
        folders.remove(path)


@contextlib.contextmanager
def _excluding_appends(path: Path) -> Iterator[None]:
    """Hold the lock that an append shares, so that no line lands in a file that goes."""
    try:
        fd = folders.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
