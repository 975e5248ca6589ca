"""What the files of a run hold when the ordinary reader refuses them.

Reads everything, believes only what has a checksum, and names each thing that is wrong
with its place; `repair` acts on it. Nothing here writes, and nothing raises because of
damage: that is what it is there to describe.

Not promised: that a record which was lost can be brought back. What is lost is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from sequencer.errors import CorruptState, EditRefused, NewerSchema, SequencerError
from sequencer.model.decisions import accept_edit
from sequencer.model.head import MAX_COUNTER, Head
from sequencer.store import flow_documents
from sequencer.store import folder as folders
from sequencer.store.continuity import mark_of, misfit
from sequencer.store.headfile import parse_head
from sequencer.store.journal import Record, decode
from sequencer.store.journal_file import NAME, JournalFile, read_regular
from sequencer.store.migration import is_legacy
from sequencer.store.recovery import Found, recover
from sequencer.store.strictjson import MAX_BYTES, parse_object

MAX_LOST_TOKENS = 1_000_000
"""A token found in damaged bytes counts up to here above the last good one."""
_LOOKS = 5
"""At a head and its documents, which others may replace in between."""
_TOKEN = re.compile(rb'"token"\s*:\s*(\d{1,19})(?=[\s,}])')


class Action(StrEnum):
    """What would make the run readable again."""

    NOTHING = "nothing"
    RESTORE = "restore"
    """Replace state.json by the head of the journal's last record."""
    REBUILD = "rebuild"
    """Begin a journal with the last good record, and restore state.json from it."""
    CHOOSE = "choose"
    """Accepted steps may be lost; a person says which of two states to go on from."""
    HOPELESS = "hopeless"


@dataclass(frozen=True, slots=True)
class StateReport:
    """What stands at the path of state.json."""

    path: Path
    problem: str | None = None
    """Why it can't be read."""
    is_there: bool = True
    is_plain: bool = True
    """False: a folder, a link, a pipe or a device."""
    content: dict[str, Any] | None = None
    head: Head | None = None
    """The content, if it is a valid head."""
    tokens: tuple[int, ...] = ()
    """Every number that stands behind "token", readable or not."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Revisions that the journal should have and has not."""

    offset: int
    """Of the first record behind the gap."""
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class JournalReport:
    """What one journal file holds."""

    path: Path
    size: int = 0
    problem: str | None = None
    """Why nothing of it can be read."""
    is_plain: bool = True
    records: tuple[Record, ...] = ()
    bad_lines: tuple[tuple[int, str], ...] = ()
    """Offset in bytes, and why the line does not count."""
    gaps: tuple[Gap, ...] = ()
    misfits: tuple[tuple[int, str], ...] = ()
    """Offset of each place where two histories were merged, and how that is known."""
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The run's files, what the ordinary reader says of them, and the way out."""

    state: StateReport
    journals: tuple[JournalReport, ...]
    """Oldest first; the last is journal.jsonl if that exists."""
    refusal: SequencerError | None
    """Why the run can't be used; None if it can."""
    action: Action
    chain: tuple[Record, ...] = ()
    """The records without a gap that end with the last good one."""
    highest_token: int = 0
    """The largest token that the files show; none up to it may be granted again."""
    pending: str | None = None
    """What the next transition will do with state.json by itself."""
    documents: tuple[tuple[Path, str], ...] = ()
    """Documents that the run goes on from and that can't be used, and why."""

    @property
    def last(self) -> Record | None:
        """Return the last good record."""
        return self.chain[-1] if self.chain else None

    @property
    def is_head_ahead(self) -> bool:
        """Return whether state.json is a valid head that the journal does not reach."""
        head, last = self.state.head, self.last
        return head is not None and (last is None or head.revision > last.revision)


def diagnose(state_path: Path) -> Diagnosis:
    """Return what the files of the run at *state_path* hold.

    Raises:
        NewerSchema: a newer version of the program wrote them; only that one can judge.
        CorruptState: the permissions forbid a look; that is mended by hand.
    """
    state = _look_at_state(state_path)
    folder = state_path.parent
    journal = JournalFile(folder, MAX_COUNTER, 1)
    paths = [*(journal.rotated() if folder.is_dir() else ()), folder / NAME]
    journals = tuple(r for r in map(look_at_journal, paths) if r is not None)
    chain = _last_chain([record for report in journals for record in report.records])
    refusal, found = _refusal(state_path, journal)
    tokens = _highest_token(folder, state, journals, chain)
    draft = Diagnosis(state, journals, refusal, Action.NOTHING, chain, tokens, _pending(found))
    documents = _documents(state_path, journal, found)
    return replace(draft, action=_action(draft), documents=documents)


def _look_at_state(path: Path) -> StateReport:
    try:
        data = read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return StateReport(path, "is missing", is_there=False)
    except CorruptState as error:
        _ensure_may_look(error)
        return StateReport(path, error.message, is_plain=False)
    tokens = _tokens_in(data)
    try:
        content = parse_object(data)
    except ValueError as error:
        return StateReport(path, f"can't be read ({error})", tokens=tokens)
    try:
        head = parse_head(content, str(path))
    except EditRefused as error:
        return StateReport(path, error.message, content=content, tokens=tokens)
    return StateReport(path, content=content, head=head, tokens=tokens)


def _ensure_may_look(error: CorruptState) -> None:
    """Return unless *error* is one of permissions, where moving the file away loses it."""
    if isinstance(error.__cause__, PermissionError):
        raise CorruptState(
            error.message, where=error.where, hint="mend its permissions, then try again"
        ) from error


def look_at_journal(path: Path) -> JournalReport | None:
    """Return what the journal file *path* holds, gaps and bad lines included; None without it."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return None
    except CorruptState as error:
        _ensure_may_look(error)
        return JournalReport(path, problem=error.message, is_plain=False)
    records: list[Record] = []
    bad: list[tuple[int, str]] = []
    gaps: list[Gap] = []
    start = 0
    while (newline := data.find(b"\n", start)) >= 0:
        line, offset = data[start:newline], start
        start = newline + 1
        try:
            content = decode(line)
        except ValueError as error:
            if line:
                bad.append((offset, str(error)))
            continue
        revision = content["revision"]
        expected = records[-1].revision + 1 if records else revision
        if revision < expected:
            bad.append((offset, f"revision {revision} was already taken"))
            continue
        if revision > expected:
            gaps.append(Gap(offset, expected, revision - 1))
        records.append(Record(revision, offset, line, content))
    if start < len(data):
        bad.append((start, "torn: no end of line"))
    return JournalReport(
        path,
        len(data),
        records=tuple(records),
        bad_lines=tuple(bad),
        gaps=tuple(gaps),
        misfits=_misfits(records, bad, data),
        tokens=_tokens_in(data),
    )


def _misfits(
    records: Sequence[Record], bad: Sequence[tuple[int, str]], data: bytes
) -> tuple[tuple[int, str], ...]:
    marks = [(offset, mark_of(data[offset : offset + 8])) for offset, _ in bad]
    built = [
        (record.offset, misfit(before.data["head"], record.data))
        for before, record in pairwise(records)
        if record.revision == before.revision + 1
    ]
    return tuple(sorted((offset, why) for offset, why in (*marks, *built) if why is not None))


def _tokens_in(data: bytes) -> tuple[int, ...]:
    return tuple(int(match) for match in set(_TOKEN.findall(data)))


def _last_chain(records: Sequence[Record]) -> tuple[Record, ...]:
    """Return the records that lead to the last good one, each revision once and none missing."""
    chain: list[Record] = []
    for record in reversed(records):
        # A rotated file and its successor both hold the record between them.
        if chain and record.revision >= chain[-1].revision:
            continue
        if chain and record.revision != chain[-1].revision - 1:
            break
        if not chain and not _holds_a_head(record):
            continue
        chain.append(record)
    return tuple(reversed(chain))


def _holds_a_head(record: Record) -> bool:
    try:
        parse_head(record.data["head"], "journal")
    except EditRefused:
        return False
    return True


def _refusal(state_path: Path, journal: JournalFile) -> tuple[SequencerError | None, Found | None]:
    """Return why the ordinary reader refuses the run, or what it finds."""
    try:
        found = recover(state_path, journal)
        if found.edited is not None and found.head is not None:
            accept_edit(found.head, found.edited, at="")
        if state_path.parent.is_dir():
            for _ in journal.records():
                pass
    except NewerSchema:
        raise
    except (CorruptState, EditRefused) as error:
        return error, None
    if found.legacy is not None and not is_legacy(found.legacy):
        message = "is no state of a run, and there is no journal"
        return CorruptState(message, where=str(state_path)), None
    return None, found


def _documents(
    state_path: Path, journal: JournalFile, found: Found | None
) -> tuple[tuple[Path, str], ...]:
    """Return which documents of the head can't be used; a writer may replace them meanwhile."""
    wrong: tuple[tuple[Path, str], ...] = ()
    for _ in range(_LOOKS):
        if found is None or found.head is None:
            return ()
        wrong = flow_documents.problems(state_path.parent, found.head)
        before = found.head.revision
        if wrong:
            _, found = _refusal(state_path, journal)
        if not wrong or (found and found.head and found.head.revision == before):
            break
    return wrong


def _pending(found: Found | None) -> str | None:
    if found is None:
        return None
    if found.legacy is not None:
        return "it is of another program; the next step migrates it and keeps the original"
    if found.edited is not None:
        return "it was edited by hand; the next step accepts the edit"
    if found.needs_publishing and found.notices:
        return "the next step restores it from the journal"
    return None


def _highest_token(
    folder: Path,
    state: StateReport,
    journals: Sequence[JournalReport],
    chain: Sequence[Record],
) -> int:
    last = int(chain[-1].data["head"].get("token", 0)) if chain else 0
    floor = max(last, state.head.token if state.head else 0)
    shown = [*state.tokens, *(token for report in journals for token in report.tokens)]
    for part, pattern in (
        ("beats", r"(\d+)(?:\..*)?"),
        ("results", r"\d+-(\d+)(?:-[0-9a-f]+)?"),
    ):
        # What an attempt left behind shows its token even where its record is lost.
        shown += [
            int(m[1]) for name in _names_in(folder / part) if (m := re.fullmatch(pattern, name))
        ]
    return max((t for t in shown if t <= floor + MAX_LOST_TOKENS), default=floor)


def _names_in(folder: Path) -> list[str]:
    try:
        return folders.names(folder)
    except OSError as error:
        raise CorruptState(
            f"can't be looked at: {error.strerror}",
            where=str(folder),
            hint="mend its permissions, then try again",
        ) from error


def _action(found: Diagnosis) -> Action:
    state, last = found.state, found.last
    if found.refusal is None:
        is_lost = state.problem is not None and last is not None
        return Action.RESTORE if is_lost else Action.NOTHING
    if last is None:
        return Action.HOPELESS if state.head is None else Action.CHOOSE
    is_journal_gone = not (found.journals[-1].path.name == NAME and found.journals[-1].records)
    is_head_last = state.head is not None and state.head.revision == last.revision
    if found.is_head_ahead or (is_journal_gone and not is_head_last):
        return Action.CHOOSE
    return Action.RESTORE if is_journal_sound(found) else Action.REBUILD


def is_journal_sound(found: Diagnosis) -> bool:
    """Return whether the journal alone would be read without a complaint."""
    journal = JournalFile(found.state.path.parent, MAX_COUNTER, 1)
    try:
        scan = journal.read(0, None if journal.has_rotated() else 1)
        newest = list(journal.records())[-1:]
    except CorruptState:
        return False
    return bool(scan.winners) and [r.revision for r in newest] == [scan.winners[-1].revision]
