"""Make a damaged run readable again from the rest of its files.

All originals are copied to ``damaged-TIME/`` in the run's folder before anything is replaced. The
repair is itself a transition in the journal. It runs under the run's lock and may be interrupted
at any point: the result can be repaired again.

Not promised: steps whose records are lost. If accepted steps may be lost, a person has to choose
which state to continue from. A token is never granted twice, whatever the choice.
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
from sequencer.model.head import Head, Status
from sequencer.model.transitions import Event, resting_status
from sequencer.model.whole_numbers import MAX_COUNTER
from sequencer.store import folder as folders
from sequencer.store.diagnosis import Action, Diagnosis, diagnose
from sequencer.store.folder import read_regular, sync_folder, write_atomically, write_durably
from sequencer.store.head import parse_head, write_head
from sequencer.store.highwater import HighWaterMark
from sequencer.store.identity import utc_now
from sequencer.store.journal import CLOSING, NAME, JournalFile, encode
from sequencer.store.lock import RunLock
from sequencer.store.ownership import explain_refusal
from sequencer.store.reading import ProgressEvidence, RunFiles, no_progress_evidence
from sequencer.store.recovery import describe_mark, recover


class Choice(StrEnum):
    """Which state a person accepts if the files have two."""

    HEAD = "head"
    """The content of state.json."""
    JOURNAL = "journal"
    """The last good record; later steps run again."""


class Repaired(Struct, frozen=True):
    """The result of a repair."""

    before: Diagnosis
    head: Head | None
    """The new head; None: nothing had to be done."""
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
    """Make the run at *state_path* readable; an undamaged run is not changed.

    *progress* gives the evidence in its step logs: those tokens are not granted again. The *mark*
    is set to the repaired state.

    Raises:
        CorruptState: nothing can be recovered, or a choice is needed and was not made.
        UsageRefused: the *choice* names a state that does not exist.
        NewerSchema: see `diagnose`.
    """
    if not state_path.parent.is_dir():
        return Repaired(diagnose(state_path, progress), None)
    lock = RunLock(Path(f"{state_path}.lock"), allow_network_fs=allow_network_fs)
    with lock:
        diagnosis = diagnose(state_path, progress)
        if diagnosis.action is Action.NOTHING:
            return Repaired(diagnosis, None)
        base = _choose_head(diagnosis, choice)
        try:
            originals = _keep_originals(diagnosis)
            head = _restore(diagnosis, base, originals, is_head=base is diagnosis.state.head)
            if mark is not None:
                mark.overwrite(head)
        except OSError as error:
            location = str(error.filename or state_path.parent)
            hint = "free disk space or fix the permissions, then repair again"
            reason, hint = explain_refusal(error, location, hint)
            raise StorageFailed(
                f"the repair stopped: {reason}", where=location, hint=hint
            ) from error
        new_recovery = recover(
            RunFiles(state_path, JournalFile(state_path.parent, MAX_COUNTER, 1), progress)
        )
        if new_recovery.head != head:
            raise CorruptState("the repair did not work", where=str(state_path.parent))
        return Repaired(diagnosis, head, originals)


def _choose_head(diagnosis: Diagnosis, choice: Choice | None) -> Head:
    """Return the head to continue from."""
    folder = str(diagnosis.state.path.parent)
    if diagnosis.action is Action.HOPELESS:
        raise CorruptState(
            "nothing can be recovered: state.json and the journal have no readable state",
            where=folder,
            hint="restore the folder from a backup; or move it away to start over "
            "('sequencer set step_index=N' then moves the run to where it was)",
        )
    if diagnosis.action is Action.CHOOSE and choice is None:
        raise CorruptState(
            "accepted steps may be lost, so you have to choose",
            where=folder,
            hint=" or ".join(list_options(diagnosis)),
        )
    if choice is Choice.HEAD and (diagnosis.state.head is None or not diagnosis.is_head_ahead):
        raise UsageRefused(
            "state.json has no head that is newer than the journal, so there is none to accept",
            where=str(diagnosis.state.path),
            hint="without --accept-head the last good record of the journal is used",
        )
    if choice is Choice.HEAD and diagnosis.state.head is not None:
        return diagnosis.state.head
    if diagnosis.last_record is None:
        raise UsageRefused(
            "the journal has no good record",
            where=folder,
            hint=" or ".join(list_options(diagnosis)),
        )
    return parse_head(diagnosis.last_record.data["head"], folder)


def list_options(diagnosis: Diagnosis) -> list[str]:
    """Return a sentence for each choice that `Action.CHOOSE` allows."""
    head, record = diagnosis.state.head, diagnosis.last_record
    sentences = []
    if head is not None and diagnosis.is_head_ahead:
        sentences.append(
            f"--accept-head continues from state.json (revision {head.revision}, step_index "
            f"{head.step_index}){_format_evidence(diagnosis, head)}"
        )
    if record is not None:
        last_head = parse_head(record.data["head"], "journal")
        sentences.append(
            f"--accept-journal continues from the last good record (revision {record.revision}, "
            f"step_index {last_head.step_index}){_format_evidence(diagnosis, last_head)}"
        )
    return sentences


def _format_evidence(diagnosis: Diagnosis, head: Head) -> str:
    """Return the evidence against a choice of *head*, as the end of a sentence."""
    mark = diagnosis.lost_mark
    return "" if mark is None else f", although {describe_mark(mark, head)}"


def _keep_originals(diagnosis: Diagnosis) -> Path:
    """Copy all files to a new folder and return it; anything not a regular file is moved there."""
    folder = diagnosis.state.path.parent
    originals = folders.make_numbered_folder(folder / f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    paths = [diagnosis.state.path, *(report.path for report in diagnosis.journals)]
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISREG(mode):
            write_durably(originals / path.name, read_regular(path))
        else:
            folders.move(path, originals / path.name)
    sync_folder(originals)
    sync_folder(folder)
    return originals


def _restore(diagnosis: Diagnosis, base: Head, kept: Path, *, is_head: bool) -> Head:
    """Write journal and head so that the run continues from *base*; return the new head."""
    folder, last_record = diagnosis.state.path.parent, diagnosis.last_record
    journal = JournalFile(folder, MAX_COUNTER, 1)
    if is_head or last_record is None:
        source, lines = "state.json", []
    else:
        source, lines = "the journal", [record.line + b"\n" for record in diagnosis.chain]
    note = f"repair from {source} at revision {base.revision}; the originals are in {kept.name}"
    is_appended = diagnosis.action is Action.RESTORE
    if is_appended:
        journal_scan = diagnosis.journals[-1].scan
        size, is_torn = journal_scan.size, journal_scan.is_torn
        offset = size + len(CLOSING) if is_torn else size
    else:
        is_torn, offset = False, len(lines[-1]) if lines else 0
    head = _repaired_head(diagnosis, base, offset, may_be_older=diagnosis.action is Action.CHOOSE)
    line = _encode_repair_record(head, base, note)
    if is_appended:
        data = CLOSING + line if is_torn else line
        if not journal.append(data, size):
            raise CorruptState("the journal changed while it was repaired", where=str(folder))
        journal.close()
    else:
        _replace_journals(diagnosis, journal, lines or [line], [*lines[-1:], line])
    write_head(diagnosis.state.path, head)
    return head


def _repaired_head(diagnosis: Diagnosis, base: Head, offset: int, *, may_be_older: bool) -> Head:
    update = {
        "revision": base.revision + 1,
        "journal_offset": offset,
        "token": max(base.token, diagnosis.highest_token),
        "last_update": utc_now(),
    }
    head = base.replace(**update)
    if may_be_older and head.claims:
        # The holder of a claim may have ended it in a record that is lost.
        head = head.replace(claims=())
        if head.status is Status.RUNNING:
            head = head.replace(status=resting_status(head))
    return head


def _encode_repair_record(head: Head, base: Head, note: str) -> bytes:
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
    diagnosis: Diagnosis, journal: JournalFile, history: list[bytes], current: list[bytes]
) -> None:
    """Write *history* as a rotated journal and *current* as the journal.

    The same as after a rotation: the journal does not have to start at revision 1, because the
    rotated file ends with the record that it starts with.
    """
    folder = journal.folder
    old_paths = [report.path for report in diagnosis.journals if report.path.name != NAME]
    number = max((int(path.stem.rpartition("-")[2]) for path in old_paths), default=0) + 1
    with _lock_out_appends(journal.path):
        write_atomically(folder / f"journal-{number:06d}.jsonl", b"".join(history))
        write_atomically(journal.path, b"".join(current))
    for path in old_paths:
        folders.remove(path)


@contextlib.contextmanager
def _lock_out_appends(path: Path) -> Iterator[None]:
    """Block appends while the block runs, so that no line lands in a file that is replaced."""
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
