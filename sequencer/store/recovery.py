"""From the files on disk to the last accepted state.

The journal decides. state.json is valid if it equals its own record. It is rolled forward if the
journal has newer records, taken as an edit by hand if only its content differs, and restored if
it can't be read. All of this is refused if other evidence (a granted token, a published revision,
a finished step log) shows that the run had come further than the journal. Nothing here writes;
`reading` does the reading.

Not promised: that every loss is noticed. If logs, results and heartbeats are lost too, or if a
person accepted the steps, there is nothing to compare with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.errors import CorruptState, EditRefused, NewerSchema, StepsMissing
from sequencer.history.facts import find_meaning
from sequencer.model.answers import redact_json
from sequencer.model.edits import MAX_NAMED, STOPS, compute_edit
from sequencer.model.head import Head
from sequencer.store.folder import read_regular
from sequencer.store.head import encode_head, parse_head
from sequencer.store.identity import is_proven_dead
from sequencer.store.journal import JournalFile, Record, Scan
from sequencer.store.reading import ProgressMark, RunFiles
from sequencer.store.strictjson import MAX_BYTES

MAX_LOST_TOKENS = 1_000_000
"""How far above the newest known token a token still counts as granted; no run loses more."""


def find_furthest_mark(
    head: Head, revision: int, marks: Iterable[ProgressMark]
) -> ProgressMark | None:
    """Return the mark that is furthest beyond *head* at *revision*; None: no mark is.

    A token far above all others was invented by someone and proves nothing.
    """
    furthest_mark: ProgressMark | None = None
    for mark in marks:
        is_token = head.token < mark.token <= head.token + MAX_LOST_TOKENS
        if not is_token and mark.revision <= revision:
            continue
        if furthest_mark is None or (mark.token, mark.revision) > (
            furthest_mark.token,
            furthest_mark.revision,
        ):
            furthest_mark = mark
    return furthest_mark


def find_unreported_end(head: Head, marks: Iterable[ProgressMark]) -> ProgressMark | None:
    """Return a mark for the end of an attempt that still runs according to *head*.

    Only for attempts of dead workers: one that is alive will still report the end.
    """
    dead_tokens = {claim.token for claim in head.claims if is_proven_dead(claim.owner)}
    return next((mark for mark in marks if mark.has_ended and mark.token in dead_tokens), None)


def describe_mark(mark: ProgressMark, head: Head) -> str:
    """Return one clause that says how *mark* goes beyond *head*."""
    if mark.is_outside:
        return (
            f"this machine has seen revision {mark.revision} and token {mark.token} of it "
            f"({mark.where}), and its newest token here is {head.token}"
        )
    if mark.token in {claim.token for claim in head.claims}:
        return f"{mark.where} shows that the attempt with token {mark.token} had ended"
    if mark.token > head.token:
        return f"{mark.where} shows token {mark.token}, but {head.token} is the newest known"
    return f"{mark.where} shows revision {mark.revision}"


_REPAIR = "'sequencer repair' shows what can be saved"
_ACCEPT = "'sequencer repair --apply --accept-journal'"


class Recovered(Struct, frozen=True):
    """The state of a run according to its files."""

    head: Head | None
    """The newest accepted head; None: no run was ever started."""
    last: Record | None
    """The record of that head."""
    size: int = 0
    """Bytes of the journal."""
    is_torn: bool = False
    edited: Head | None = None
    """An allowed edit of state.json by hand that is not recorded yet."""
    legacy: dict[str, Any] | None = None
    """A state file of another program that is not migrated yet."""
    needs_publishing: bool = False
    """state.json is missing, unreadable or out of date."""
    keep_as: str = ""
    """The suffix for a copy of state.json before it is replaced; empty: no copy is needed."""
    is_behind: bool = False
    """state.json has an older accepted head: normal between an append and its publication."""
    notices: tuple[str, ...] = field(default=())


def recover(files: RunFiles) -> Recovered:
    """Return the state of a run from its *files*.

    Raises:
        CorruptState: they do not give one clear state, or accepted steps are missing.
        EditRefused: state.json was edited in a way that can't be accepted.
        NewerSchema: a newer version of the program wrote them.
    """
    scan = _scan(files)
    if not scan.winners:
        return _recover_without_journal(files, scan)
    recovery = _recover_with_journal(files, scan)
    if recovery.needs_publishing:
        _ensure_newest(files, recovery)
    return recovery


def _recover_with_journal(files: RunFiles, scan: Scan) -> Recovered:
    last_record, raw, state_path = scan.winners[-1], files.head, files.state_path
    head = parse_record_head(last_record, files.journal.path)
    recovery = Recovered(head, last_record, scan.size, scan.is_torn)
    if raw.content is None:
        reason = f"was unreadable ({raw.problem})" if raw.problem else "was missing"
        place = f"step_index {head.step_index}"
        notice = f"{state_path} {reason}; the state was read from the journal, at {place}"
        return replace(
            recovery,
            needs_publishing=True,
            keep_as="unreadable" if raw.problem else "",
            notices=(notice,),
        )
    if is_foreign(raw.content) and _is_migrated(raw.content, files.oldest or {}):
        notice = f"{state_path} was migrated but not replaced; it is replaced now"
        return replace(recovery, needs_publishing=True, is_behind=True, notices=(notice,))
    return _compare(files, raw.content, recovery, scan)


def parse_record_head(record: Record, journal: Path) -> Head:
    """Return the head of *record*, a good line of *journal*.

    Raises:
        NewerSchema: it has a value that this version does not know. The line is intact, so the
            step that it accepts is accepted.
    """
    location = f"{journal} at byte {record.offset}"
    try:
        return parse_head(record.data["head"], location)
    except EditRefused as error:
        raise NewerSchema(
            f"revision {record.revision} is intact, but not known to this version: {error.message}",
            where=location,
            hint="update sequencer on this machine; if no newer version wrote it, remove the line",
        ) from None


def _ensure_newest(files: RunFiles, recovery: Recovered) -> None:
    """Check that the run had not come further than the journal that it is restored from.

    Raises:
        CorruptState: it had, so accepted steps may be missing.
    """
    if recovery.head is None or recovery.last is None:
        return
    logged_marks = files.find_logged_marks(recovery.head.run_id)
    marks = (*files.find_marks(recovery.head.run_id, recovery.last), *logged_marks)
    later_mark = find_furthest_mark(recovery.head, recovery.last.revision, marks)
    if later_mark is None and recovery.size > recovery.last.end:
        # If nothing follows the last record, its worker was killed before it wrote the end.
        later_mark = find_unreported_end(recovery.head, logged_marks)
    if later_mark is not None:
        raise missing_steps_error(
            files.state_path, recovery.head, recovery.last.revision, later_mark
        )


def ensure_no_older_copy(files: RunFiles, recovered: Recovered) -> None:
    """Check that the step logs have no token that the files of the run don't have.

    state.json and its journal agree even if both are older copies. Only for the process that
    holds the lock: for any other, a log may be newer than the files it read.

    Raises:
        CorruptState: steps that were accepted would run again.
    """
    head, last_record = recovered.head, recovered.last
    if head is not None and last_record is not None and head.moved_to is None:
        later_mark = find_furthest_mark(
            head, last_record.revision, files.find_logged_marks(head.run_id)
        )
        if later_mark is not None:
            raise missing_steps_error(files.state_path, head, last_record.revision, later_mark)


def missing_steps_error(
    state_path: Path, head: Head, revision: int, shown: ProgressMark
) -> StepsMissing:
    """Return the error for a run at *revision* whose evidence *shown* goes beyond *head*."""
    hint = _REPAIR
    if shown.is_outside:
        hint = (
            "something has put older files in place of the run's (git stash, checkout or reset, a "
            f"backup): put the newer ones back (for example with 'git stash pop'); or {_ACCEPT} "
            "continues from here, and the later steps run again"
        )
    return StepsMissing(
        f"the journal ends at revision {revision}, step_index {head.step_index}, but "
        f"{describe_mark(shown, head)}: accepted steps may be missing",
        where=str(state_path),
        hint=hint,
    )


def ensure_shared_is_newest(head: Head, shown: ProgressMark | None, where: str) -> None:
    """Check that *head*, from a shared place *where*, is not older than the evidence *shown*.

    Raises:
        CorruptState: steps that were accepted would run again.
    """
    if shown is not None:
        raise CorruptState(
            f"the run is at revision {head.revision}, step_index {head.step_index} there, but "
            f"{describe_mark(shown, head)}: accepted steps may be missing",
            where=where,
            hint="something has put an older state there (a backup, a forced push): put the newer "
            f"one back; or remove {shown.where} to continue from it, and the later steps run again",
        )


def follow(state_path: Path, journal: JournalFile, known: Recovered) -> Recovered | None:
    """Return the state now, by reading only from the end of *known*; None: call `recover`.

    *journal* must be the same file as before. This accepts only the exact bytes that writers of
    this program leave; `recover` judges everything else.
    """
    if known.last is None or known.head is None or known.is_torn or known.needs_publishing:
        return None
    try:
        scan = journal.read(known.size, known.last.revision + 1)
        published_content = read_regular(state_path, max_bytes=MAX_BYTES)
    except (CorruptState, FileNotFoundError):
        return None
    head, last_record = known.head, known.last
    if scan.winners:
        last_record = scan.winners[-1]
        head = parse_record_head(last_record, journal.path)
    recovery = Recovered(head, last_record, scan.size, scan.is_torn)
    if published_content == encode_head(head):
        return recovery
    if scan.winners and published_content == encode_head(known.head):
        return replace(recovery, needs_publishing=True, is_behind=True)
    return None


def _scan(files: RunFiles) -> Scan:
    """Read the journal from the record of the head on, or all of it if that is not found."""
    content = files.head.content or {}
    offset, revision = content.get("journal_offset"), content.get("revision")
    is_plausible = type(offset) is int and type(revision) is int and offset >= 0 and revision >= 1
    if is_plausible and offset:
        try:
            scan = files.scan(offset, revision)
        except CorruptState:
            # The offset is wrong, or the gap is real: the complete file shows which.
            scan = Scan((), 0, is_torn=False)
        if scan.winners and scan.winners[0].offset == offset:
            return scan
    return files.scan(0, None if files.rotated else 1)


def _recover_without_journal(files: RunFiles, scan: Scan) -> Recovered:
    """Return the state of a run whose journal has no valid record.

    Raises:
        CorruptState: something shows that there were records.
    """
    raw, location = files.head, str(files.state_path)
    if raw.problem is not None:
        raise CorruptState(
            f"can't be read ({raw.problem}), and there is no journal to restore it from",
            where=location,
            hint=_REPAIR,
        )
    if raw.content is not None:
        if is_foreign(raw.content):
            return Recovered(None, None, scan.size, scan.is_torn, legacy=raw.content)
        raise CorruptState(
            f"is at revision {raw.content.get('revision')}, but the journal has no record of it",
            where=location,
            hint=_REPAIR,
        )
    journal = files.journal.path
    if files.rotated:
        raise CorruptState("is missing or empty", where=str(journal), hint=_REPAIR)
    if scan.size and not _is_first_append(files.read_content(journal).data or b""):
        raise CorruptState(
            "has no readable record, and state.json is missing", where=str(journal), hint=_REPAIR
        )
    if (evidence := files.find_leftover()) is not None:
        raise CorruptState(
            f"is missing, and so is the journal, but {evidence} shows that the run had started",
            where=location,
            hint="restore the folder, or remove all of it to start over",
        )
    return Recovered(None, None, scan.size, scan.is_torn)


def _is_first_append(data: bytes) -> bool:
    """Return whether *data* is only the torn first line of a run that never started."""
    start = b'{"revision":1,'
    return b"\n" not in data and start.startswith(data[: len(start)])


def _compare(files: RunFiles, content: dict[str, Any], state: Recovered, scan: Scan) -> Recovered:
    """Compare the *content* of state.json with *state*, the state according to the journal."""
    end = scan.winners[-1]
    revision, path = content.get("revision"), str(files.state_path)
    head = end.data["head"]
    # Compare the texts too: Python says that True equals 1 and 3.0 equals 3.
    if content == head and json.dumps(content) == json.dumps(head):
        return state
    if is_foreign(content) and not content.keys() <= STOPS:
        problem = f"is another program's state, but its journal is at revision {end.revision}"
        raise EditRefused(problem, where=path, hint=_REPAIR)
    is_same_run = content.get("run_id", head["run_id"]) == head["run_id"]
    if is_same_run and (type(revision) is not int or revision < 1):
        return _apply_edit(state, content, head, files)
    if type(revision) is not int:
        raise EditRefused("revision is not a number", where=path, hint=_REPAIR)
    run_id = end.data["head"].get("run_id")
    # A reset changes run_id. A head from before it is only older, not from another run.
    is_earlier = any(record.data["head"] == content for record in scan.winners)
    if content.get("run_id") != run_id and not is_earlier:
        raise EditRefused(
            "belongs to a different run than the journal (their run_id differs)",
            where=path,
            hint=_REPAIR,
        )
    if revision > end.revision:
        raise CorruptState(
            f"is at revision {revision}, but the journal ends at {end.revision}",
            where=path,
            hint=_REPAIR,
        )
    if revision == end.revision:
        return _apply_edit(state, content, head, files)
    records = [record for record in scan.winners if record.revision >= revision]
    record = records[0] if records and records[0].revision == revision else None
    is_same = record is None or record.data["head"] == content
    if record is not None and not is_same and not _is_recorded(content, records[1], files.redact):
        raise EditRefused(
            f"was edited at revision {revision}, but the run is now at {end.revision}",
            where=path,
            hint="make the edit again on the newest state; 'sequencer repair' restores that",
        )
    notice = f"{path} was at revision {revision}; rolled forward to {end.revision}"
    return replace(
        state,
        needs_publishing=True,
        keep_as="unreadable" if record is None else "",
        is_behind=record is not None,
        notices=(notice,),
    )


def _apply_edit(
    recovery: Recovered, content: dict[str, Any], head: dict[str, Any], files: RunFiles
) -> Recovered:
    """Return *recovery* with the allowed changes that a person made in state.json.

    Changes that are not allowed are undone, with a notice.
    """
    location = str(files.state_path)
    schema = content.get("schema_version")
    if type(schema) is int and schema > head["schema_version"]:
        parse_head(content, location)  # raises NewerSchema
    edit = compute_edit(head, content, files.redact)
    edited_head = None if edit.content == head else parse_head(edit.content, location)
    if not edit.refused:
        return replace(recovery, edited=edited_head)
    names, run_name = ", ".join(edit.refused[:MAX_NAMED]), head.get("run_name")
    notice = f"{location} was edited by hand, but {names} can't be changed there, so the last "
    notice += f"accepted state is restored; {edit.format_hint(run_name)}"
    return replace(
        recovery, edited=edited_head, needs_publishing=True, keep_as="edited", notices=(notice,)
    )


def is_foreign(content: dict[str, Any]) -> bool:
    """Return whether *content* is the state of another program and not a head."""
    return "schema_version" not in content and "run_id" not in content


def digest(content: dict[str, Any]) -> str:
    """Return the digest of *content* that a migration writes into its record."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{sha256(canonical.encode()).hexdigest()}"


def _is_migrated(content: dict[str, Any], first_record: Mapping[str, Any]) -> bool:
    """Return whether the run started, in the record *first_record*, with a migration of *content*.

    If state.json can't be replaced, it keeps the old content while the journal continues.
    """
    outcome = first_record.get("outcome")
    is_noted = isinstance(outcome, dict) and outcome.get("migrated_from") == digest(content)
    return is_noted and first_record.get("revision") == 1


def _is_recorded(
    content: dict[str, Any], next_record: Record, redact: Callable[[str], str]
) -> bool:
    """Return whether *next_record* is the record of *content*, an edit of the head before it.

    A writer that is stopped between its append and its rename leaves the edit in state.json.
    """
    recorded_head = next_record.data["head"]
    # Compare only these: an earlier version may have derived other fields from them.
    is_edit = find_meaning(next_record.data.get("event", "")).is_edit
    names = [*_CHANGED_BY_EDITS, *(content.keys() - Head.model_fields.keys())]
    pairs = ((recorded_head.get(name), content.get(name)) for name in names)
    return is_edit and all(
        new_value in (old_value, redact_json(old_value, redact)) for new_value, old_value in pairs
    )


_CHANGED_BY_EDITS = ("run_id", "step_index", "exit", "failures_in_row", "not_before")
"""Fields that an edit can change, and whose values its record then has unchanged."""
