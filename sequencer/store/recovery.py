"""From what lies on disk to the one state that was accepted last.

The journal decides. The head file is believed where it equals its own record, rolled
forward where the journal went on without it, taken as an edit by hand where only its
content differs, and restored where it can't be read, unless something else (a token that was
granted, a revision that was published, a step log with its last line) shows that the run had
come further than the journal does. Nothing here writes, and `reading` reads.

Not promised: that every loss shows. A run whose logs, results and heartbeats are gone too,
or steps that a person accepted by hand, leave nothing to compare with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.errors import CorruptState, EditRefused, NewerSchema
from sequencer.history.facts import meaning_of
from sequencer.model.answers import redacted
from sequencer.model.edits import MAX_NAMED, STOPS, edit_of
from sequencer.model.head import Head
from sequencer.store.folder import read_regular
from sequencer.store.head import content_of, parse_head
from sequencer.store.identity import is_proven_dead
from sequencer.store.journal import JournalFile, Record, Scan
from sequencer.store.reading import ProgressMark, RunFiles
from sequencer.store.strictjson import MAX_BYTES

MAX_LOST_TOKENS = 1_000_000
"""A token counts as granted up to here above the newest one that is known; nobody loses more."""


def beyond(head: Head, revision: int, found: Iterable[ProgressMark]) -> ProgressMark | None:
    """Return what of *found* shows most that the run had come further than *head* at *revision*.

    A token far above every other is somebody's joke and shows nothing.
    """
    most: ProgressMark | None = None
    for trace in found:
        is_token = head.token < trace.token <= head.token + MAX_LOST_TOKENS
        if not is_token and trace.revision <= revision:
            continue
        if most is None or (trace.token, trace.revision) > (most.token, most.revision):
            most = trace
    return most


def unheard_end(head: Head, found: Iterable[ProgressMark]) -> ProgressMark | None:
    """Return what of *found* shows the end of an attempt that *head* has as under way.

    Its worker has to be dead: one that is alive is still to say how it ended.
    """
    dead = {claim.token for claim in head.claims if is_proven_dead(claim.owner)}
    return next((trace for trace in found if trace.has_ended and trace.token in dead), None)


def in_words(trace: ProgressMark, head: Head) -> str:
    """Return what *trace* shows, beside *head*, in one clause."""
    if trace.is_outside:
        return (
            f"this machine has seen revision {trace.revision} and token {trace.token} of it "
            f"({trace.where}), and its newest token here is {head.token}"
        )
    if trace.token in {claim.token for claim in head.claims}:
        return f"{trace.where} shows that the attempt with token {trace.token} had ended"
    if trace.token > head.token:
        return f"{trace.where} shows token {trace.token}, but {head.token} is the newest known"
    return f"{trace.where} shows revision {trace.revision}"


_REPAIR = "'sequencer repair' shows what can be saved"
_ACCEPT = "'sequencer repair --apply --accept-journal'"


class Recovered(Struct, frozen=True):
    """The state of a run as its files tell it."""

    head: Head | None
    """The newest accepted head; None if no run was ever begun."""
    last: Record | None
    """The record of that head."""
    size: int = 0
    """Bytes of the journal."""
    is_torn: bool = False
    edited: Head | None = None
    """What somebody wrote into state.json by hand and may, still to be recorded."""
    legacy: dict[str, Any] | None = None
    """A state file of another program, still to be migrated."""
    needs_publishing: bool = False
    """state.json is missing, unreadable or behind."""
    keep_as: str = ""
    """With this suffix state.json is kept when it is replaced; empty: it has nothing to lose."""
    is_behind: bool = False
    """state.json holds an older accepted head: normal between an append and its publication."""
    notices: tuple[str, ...] = field(default=())


def recover(files: RunFiles) -> Recovered:
    """Return what the *files* of a run say.

    Raises:
        CorruptState: they don't say it unambiguously, or accepted steps are missing.
        EditRefused: state.json was edited in a way that can't be accepted.
        NewerSchema: a newer version of the program wrote them.
    """
    scan = _scan(files)
    if not scan.winners:
        return _without_journal(files, scan)
    found = _judged(files, scan)
    if found.needs_publishing:
        _ensure_newest(files, found)
    return found


def _judged(files: RunFiles, scan: Scan) -> Recovered:
    last, raw, state_path = scan.winners[-1], files.head, files.state_path
    head = head_of(last, files.journal.path)
    found = Recovered(head, last, scan.size, scan.is_torn)
    if raw.content is None:
        why = f"was unreadable ({raw.problem})" if raw.problem else "was missing"
        notice = f"{state_path} {why}; restored from the journal at step_index {head.step_index}"
        return replace(
            found,
            needs_publishing=True,
            keep_as="unreadable" if raw.problem else "",
            notices=(notice,),
        )
    if is_foreign(raw.content) and _is_migrated(raw.content, files.oldest or {}):
        notice = f"{state_path} was migrated, but not replaced; that is done now"
        return replace(found, needs_publishing=True, is_behind=True, notices=(notice,))
    return _compare(files, raw.content, found, scan)


def head_of(record: Record, journal: Path) -> Head:
    """Return the head of *record*, a good line of *journal*.

    Raises:
        NewerSchema: it has a value that this version does not know. The line is as it was
            written, so the step that it accepts is accepted.
    """
    where = f"{journal} at byte {record.offset}"
    try:
        return parse_head(record.data["head"], where)
    except EditRefused as error:
        raise NewerSchema(
            f"revision {record.revision} is intact, but not known to this version: {error.message}",
            where=where,
            hint="update sequencer on this machine; if no newer version wrote it, remove the line",
        ) from None


def _ensure_newest(files: RunFiles, found: Recovered) -> None:
    """Return unless the run had come further than the journal from which it is restored."""
    if found.head is None or found.last is None:
        return
    logs = files.witnessed(found.head.run_id)
    left = (*files.traces(found.head.run_id, found.last), *logs)
    shown = beyond(found.head, found.last.revision, left)
    if shown is None and found.size > found.last.end:
        # Where nothing follows the last record, its worker was killed before it wrote the end.
        shown = unheard_end(found.head, logs)
    if shown is not None:
        raise missing(files.state_path, found.head, found.last.revision, shown)


def ensure_no_older_copy(files: RunFiles, found: Recovered) -> None:
    """Return unless the step logs know a token that the files of the run don't.

    state.json and its journal agree also where both are older copies. Only for who holds the
    lock: to anybody else a log may be newer than what was read.

    Raises:
        CorruptState: steps that were accepted would run again.
    """
    if found.head is not None and found.last is not None and found.head.moved_to is None:
        shown = beyond(found.head, found.last.revision, files.witnessed(found.head.run_id))
        if shown is not None:
            raise missing(files.state_path, found.head, found.last.revision, shown)


def missing(state_path: Path, head: Head, revision: int, shown: ProgressMark) -> CorruptState:
    """Return the refusal to continue from *head* at *revision* in spite of what is *shown*."""
    hint = _REPAIR
    if shown.is_outside:
        hint = (
            "something has put older files in place of the run's (git stash, checkout or reset, a "
            f"backup): put the newer ones back ('git stash pop', say); or {_ACCEPT} continues from "
            "here, and what was done since then is done again"
        )
    return CorruptState(
        f"the journal ends at revision {revision}, step_index {head.step_index}, but "
        f"{in_words(shown, head)}: accepted steps may be missing",
        where=str(state_path),
        hint=hint,
    )


def ensure_shared_is_newest(head: Head, shown: ProgressMark | None, where: str) -> None:
    """Return unless *head*, kept *where* many machines share it, is older than what is *shown*.

    Raises:
        CorruptState: steps that were accepted would run again.
    """
    if shown is not None:
        raise CorruptState(
            f"the run is at revision {head.revision}, step_index {head.step_index} there, but "
            f"{in_words(shown, head)}: accepted steps may be missing",
            where=where,
            hint="something has put an older state there (a backup, a forced push): put the newer "
            f"one back; or remove {shown.where} to continue from it, and what was done since then "
            "is done again",
        )


def follow(state_path: Path, journal: JournalFile, known: Recovered) -> Recovered | None:
    """Return what the files say now, read from where *known* ends; None: read all of them.

    *journal* has to be the file that it was. Only what writers of this program leave behind
    is followed, to the byte; everything else is for `recover` to judge.
    """
    if known.last is None or known.head is None or known.is_torn or known.needs_publishing:
        return None
    try:
        scan = journal.read(known.size, known.last.revision + 1)
        there = read_regular(state_path, max_bytes=MAX_BYTES)
    except (CorruptState, FileNotFoundError):
        return None
    head, last = known.head, known.last
    if scan.winners:
        last = scan.winners[-1]
        head = head_of(last, journal.path)
    found = Recovered(head, last, scan.size, scan.is_torn)
    if there == content_of(head):
        return found
    if scan.winners and there == content_of(known.head):
        return replace(found, needs_publishing=True, is_behind=True)
    return None


def _scan(files: RunFiles) -> Scan:
    """Read the journal from the head's own record on, or all of it if that is not there."""
    content = files.head.content or {}
    offset, revision = content.get("journal_offset"), content.get("revision")
    is_plausible = type(offset) is int and type(revision) is int and offset >= 0 and revision >= 1
    if is_plausible and offset:
        try:
            scan = files.scan(offset, revision)
        except CorruptState:
            # The offset is somebody's mistake, or the gap is real: the whole file tells.
            scan = Scan((), 0, is_torn=False)
        if scan.winners and scan.winners[0].offset == offset:
            return scan
    return files.scan(0, None if files.rotated else 1)


def _without_journal(files: RunFiles, scan: Scan) -> Recovered:
    """Decide what it means that the journal has no record that counts."""
    raw, where = files.head, str(files.state_path)
    if raw.problem is not None:
        raise CorruptState(
            f"can't be read ({raw.problem}), and there is no journal to restore it from",
            where=where,
            hint=_REPAIR,
        )
    if raw.content is not None:
        if is_foreign(raw.content):
            return Recovered(None, None, scan.size, scan.is_torn, legacy=raw.content)
        raise CorruptState(
            f"is at revision {raw.content.get('revision')}, but the journal has no record of it",
            where=where,
            hint=_REPAIR,
        )
    journal = files.journal.path
    if files.rotated:
        raise CorruptState("is missing or empty", where=str(journal), hint=_REPAIR)
    if scan.size and not _is_first_append(files.content(journal).data or b""):
        raise CorruptState(
            "has no readable record, and state.json is missing", where=str(journal), hint=_REPAIR
        )
    if (left := files.left_over()) is not None:
        raise CorruptState(
            f"and its journal are gone, but {left} shows that the run had started",
            where=where,
            hint="restore the folder, or remove all of it to start over",
        )
    return Recovered(None, None, scan.size, scan.is_torn)


def _is_first_append(data: bytes) -> bool:
    """Return whether *data* is only the torn first line of a run that never began."""
    start = b'{"revision":1,'
    return b"\n" not in data and start.startswith(data[: len(start)])


def _compare(files: RunFiles, content: dict[str, Any], found: Recovered, scan: Scan) -> Recovered:
    """Decide what the *content* of state.json is, beside what the journal *found*."""
    last = scan.winners[-1]
    revision, where = content.get("revision"), str(files.state_path)
    accepted = last.data["head"]
    # Python takes true for 1 and 3.0 for 3.
    if content == accepted and json.dumps(content) == json.dumps(accepted):
        return found
    if is_foreign(content) and not content.keys() <= STOPS:
        problem = f"is another program's state, but its journal is at revision {last.revision}"
        raise EditRefused(problem, where=where, hint=_REPAIR)
    is_own = content.get("run_id", accepted["run_id"]) == accepted["run_id"]
    if is_own and (type(revision) is not int or revision < 1):
        return _with_edit(found, content, accepted, files)
    if type(revision) is not int:
        raise EditRefused("revision is not a number", where=where, hint=_REPAIR)
    run_id = last.data["head"].get("run_id")
    # A reset writes its record first: what an earlier one has is older, and no other run's.
    is_earlier = any(one.data["head"] == content for one in scan.winners)
    if content.get("run_id") != run_id and not is_earlier:
        raise EditRefused(
            "belongs to a different run than the journal (their run_id differs)",
            where=where,
            hint=_REPAIR,
        )
    if revision > last.revision:
        raise CorruptState(
            f"is at revision {revision}, but the journal ends at {last.revision}",
            where=where,
            hint=_REPAIR,
        )
    if revision == last.revision:
        return _with_edit(found, content, accepted, files)
    since = [r for r in scan.winners if r.revision >= revision]
    own = since[0] if since and since[0].revision == revision else None
    is_own = own is None or own.data["head"] == content
    if own is not None and not is_own and not _is_recorded(content, since[1], files.redact):
        raise EditRefused(
            f"was edited at revision {revision}, but the run is now at {last.revision}",
            where=where,
            hint="make the edit again on the newest state; 'sequencer repair' restores that",
        )
    notice = f"{where} was at revision {revision}; rolled forward to {last.revision}"
    return replace(
        found,
        needs_publishing=True,
        keep_as="unreadable" if own is None else "",
        is_behind=own is not None,
        notices=(notice,),
    )


def _with_edit(
    found: Recovered, content: dict[str, Any], accepted: dict[str, Any], files: RunFiles
) -> Recovered:
    """Return *found* with what somebody has changed in state.json; the rest is restored."""
    where = str(files.state_path)
    schema = content.get("schema_version")
    if type(schema) is int and schema > accepted["schema_version"]:
        parse_head(content, where)  # which raises
    edit = edit_of(accepted, content, files.redact)
    edited = None if edit.content == accepted else parse_head(edit.content, where)
    if not edit.refused:
        return replace(found, edited=edited)
    names, run_name = ", ".join(edit.refused[:MAX_NAMED]), accepted.get("run_name")
    notice = f"{where} was edited by hand, but {names} can't be changed there, so the last "
    notice += f"accepted state is restored; {edit.hint(run_name)}"
    return replace(found, edited=edited, needs_publishing=True, keep_as="edited", notices=(notice,))


def is_foreign(content: dict[str, Any]) -> bool:
    """Return whether *content* is no head of ours, but another program's state."""
    return "schema_version" not in content and "run_id" not in content


def digest(content: dict[str, Any]) -> str:
    """Return the digest by which a record remembers what it was migrated from."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{sha256(canonical.encode()).hexdigest()}"


def _is_migrated(content: dict[str, Any], first: Mapping[str, Any]) -> bool:
    """Return whether the run began, in *first*, with a migration of *content*, which is still here.

    Where state.json can't be replaced, the run goes on in the journal, and perhaps far.
    """
    outcome = first.get("outcome")
    is_noted = isinstance(outcome, dict) and outcome.get("migrated_from") == digest(content)
    return is_noted and first.get("revision") == 1


def _is_recorded(content: dict[str, Any], following: Record, redact: Callable[[str], str]) -> bool:
    """Return whether *following* has recorded *content*, an edit of the head before it.

    A writer that is stopped between its append and its rename leaves the edit in place.
    """
    kept = following.data["head"]
    # Where an earlier version has recorded it, other fields may have followed from these.
    is_edit = meaning_of(following.data.get("event", "")).is_edit
    names = [*_CHANGED_BY_EDITS, *(content.keys() - Head.model_fields.keys())]
    known = ((kept.get(name), content.get(name)) for name in names)
    return is_edit and all(new in (old, redacted(old, redact)) for new, old in known)


_CHANGED_BY_EDITS = ("run_id", "step_index", "exit", "failures_in_row", "not_before")
"""Fields that an edit can have changed, and that are then in its record as it says."""
