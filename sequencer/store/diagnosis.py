"""What the files of a run hold when the ordinary reader refuses them.

Reads everything, believes only what has a checksum, and names each thing that is wrong
with its place; `repair` acts on it. Each record says what it was built on, so a file that git
made of two branches shows. Nothing here writes, and nothing raises because of damage.

Not promised: that a record which was lost can be brought back, or that every merge is seen:
two branches in which nothing was measured are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import CorruptState, EditRefused, NewerSchema, SequencerError
from sequencer.history.facts import RecordedFact, StartKind, read
from sequencer.model.head import MAX_COUNTER, Head
from sequencer.store import documents as flow_documents
from sequencer.store.folder import read_regular
from sequencer.store.head import is_legacy, parse_head, signature
from sequencer.store.journal import NAME, JournalFile, Record, Scan, facts_of, survey
from sequencer.store.ownership import refused
from sequencer.store.recovery import (
    MAX_LOST_TOKENS,
    Recovered,
    Trace,
    Witness,
    beyond,
    ensure_no_older_copy,
    head_of,
    no_witness,
    recover,
    tokens_in,
    traces,
    unheard_end,
)
from sequencer.store.strictjson import MAX_BYTES, parse_object

_LOOKS = 5
"""At a head and its documents, which others may replace in between."""


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


class StateReport(Struct, frozen=True):
    """What stands at the path of state.json."""

    path: Path
    problem: str | None = None
    """Why it can't be read."""
    head: Head | None = None
    """What stands there, if it is a valid head."""
    tokens: tuple[int, ...] = ()
    """Every number that stands behind "token", readable or not."""


class JournalReport(Struct, frozen=True):
    """What one journal file holds."""

    path: Path
    problem: str | None = None
    """Why nothing of it can be read."""
    found: Scan = Scan((), 0, is_torn=False)
    misfits: tuple[tuple[int, str], ...] = ()
    """Offset of each place where two histories were merged, and how that is known."""
    tokens: tuple[int, ...] = ()


class Diagnosis(Struct, frozen=True, dict=True):
    """The run's files, what the ordinary reader says of them, and the way out."""

    state: StateReport
    journals: tuple[JournalReport, ...]
    """Oldest first; the last is journal.jsonl if that exists."""
    chain: tuple[Record, ...]
    """The records without a gap that end with the last good one."""
    refusal: SequencerError | None
    """Why the run can't be used; None if it can."""
    found: Recovered | None
    """What the ordinary reader finds, if it refuses nothing."""
    traces: tuple[Trace, ...]
    """What the run has left behind beside its good records."""
    documents: tuple[tuple[Path, str], ...]
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

    @property
    def pending(self) -> str | None:
        """Return what the next transition will do with state.json by itself."""
        found = self.found
        if found is None:
            return None
        if found.legacy is not None:
            return "another program wrote it; the next step migrates it and keeps the original"
        if found.keep_as == "edited":
            return f"{found.notices[0]}; the next step keeps the file"
        if found.edited is not None:
            return "it was edited by hand; the next step accepts the edit"
        if found.needs_publishing and found.notices:
            return "the next step restores it from the journal"
        return None

    @property
    def shown(self) -> Trace | None:
        """Return what shows that the run had come further than the newest state to be read."""
        base = _newest(self.state, self.chain)
        if base is None or self.refusal is None:
            return None
        shown = beyond(base, base.revision, self.traces)
        if shown is None and (self.state.head is None or self.state.head.revision < base.revision):
            shown = unheard_end(base, self.traces)
        return shown

    @property
    def highest_token(self) -> int:
        """Return the largest token that the files show; none up to it may be granted again."""
        last = int(self.chain[-1].data["head"].get("token", 0)) if self.chain else 0
        floor = max(last, self.state.head.token if self.state.head else 0)
        shown = [*self.state.tokens, *(token for one in self.journals for token in one.tokens)]
        # What an attempt left behind shows its token even where its record is lost.
        shown += [trace.token for trace in self.traces]
        return max((t for t in shown if t <= floor + MAX_LOST_TOKENS), default=floor)

    @cached_property
    def action(self) -> Action:
        """Return what would make the run readable again."""
        state, last = self.state, self.last
        if self.refusal is None:
            is_lost = state.problem is not None and last is not None
            return Action.RESTORE if is_lost else Action.NOTHING
        if last is None:
            return Action.HOPELESS if state.head is None else Action.CHOOSE
        newest = self.journals[-1]
        is_journal_gone = newest.path.name != NAME or not newest.found.winners
        is_head_last = state.head is not None and state.head.revision == last.revision
        if self.is_head_ahead or self.shown or (is_journal_gone and not is_head_last):
            return Action.CHOOSE
        return Action.RESTORE if _is_journal_sound(state.path.parent) else Action.REBUILD


def diagnose(state_path: Path, witness: Witness = no_witness) -> Diagnosis:
    """Return what the files of the run at *state_path* hold.

    The *witness* tells what its step logs show.

    Raises:
        NewerSchema: a newer version of the program wrote them; only that one can judge.
        CorruptState: the permissions forbid a look; that is mended by hand.
    """
    state = _look_at_state(state_path)
    folder = state_path.parent
    journal = JournalFile(folder, MAX_COUNTER, 1)
    paths = [*(journal.rotated() if folder.is_dir() else ()), folder / NAME]
    journals = tuple(r for r in map(_look_at_journal, paths) if r is not None)
    chain = _last_chain([r for report in journals for r in report.found.winners], journal.path)
    refusal, found = _refusal(state_path, journal, witness)
    is_current = bool(chain and journals[-1].path == journal.path and journals[-1].found.winners)
    base = _newest(state, chain)
    run_id = None if base is None else base.run_id
    left = traces(state_path, journal, run_id, chain[-1] if is_current else None)
    seen = (*left, *(witness(run_id) if run_id is not None else ()))
    documents = _documents(state_path, journal, found)
    made = Diagnosis(state, journals, chain, refusal, found, seen, documents)
    # While the files are as they were.
    _ = made.action
    return made


def _look_at_state(path: Path) -> StateReport:
    try:
        data = read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return StateReport(path, "is missing")
    except CorruptState as error:
        _ensure_may_look(error)
        return StateReport(path, error.message)
    tokens = tokens_in(data)
    try:
        return StateReport(path, None, parse_head(parse_object(data), str(path)), tokens)
    except ValueError as error:
        return StateReport(path, f"can't be read ({error})", tokens=tokens)
    except EditRefused as error:
        return StateReport(path, error.message, tokens=tokens)


def _ensure_may_look(error: CorruptState) -> None:
    """Return unless *error* is one of permissions, where moving the file away loses it."""
    if isinstance(error.__cause__, PermissionError):
        hint = "fix its permissions, then try again"
        _, hint = refused(error.__cause__, error.where or "", hint)
        raise CorruptState(error.message, where=error.where, hint=hint) from error


def _look_at_journal(path: Path) -> JournalReport | None:
    """Return what the journal file *path* holds, gaps and bad lines included; None without it."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return None
    except CorruptState as error:
        _ensure_may_look(error)
        return JournalReport(path, error.message)
    found = survey(data)
    return JournalReport(path, None, found, _misfits(found, data), tokens_in(data))


def _misfits(found: Scan, data: bytes) -> tuple[tuple[int, str], ...]:
    marks = [(offset, mark_of(data[offset : offset + 8])) for offset, _ in found.skipped]
    built = [
        (record.offset, misfit(before.data["head"], record.data))
        for before, record in pairwise(found.winners)
        if record.revision == before.revision + 1
    ]
    return tuple(sorted((offset, why) for offset, why in (*marks, *built) if why is not None))


def _last_chain(records: Sequence[Record], path: Path) -> tuple[Record, ...]:
    """Return the records that lead to the last good one, each revision once and none missing.

    Raises:
        NewerSchema: the last one is whole, but not known to this version.
    """
    chain: list[Record] = []
    for record in reversed(records):
        # A rotated file and its successor both hold the record between them.
        if chain and record.revision >= chain[-1].revision:
            continue
        if chain and record.revision != chain[-1].revision - 1:
            break
        if not chain:
            # What this version does not know is refused, and never dropped as damaged.
            head_of(record, path)
        chain.append(record)
    return tuple(reversed(chain))


def _refusal(
    state_path: Path, journal: JournalFile, witness: Witness
) -> tuple[SequencerError | None, Recovered | None]:
    """Return why the ordinary reader refuses the run, or what it finds."""
    error: SequencerError | None = None
    for _ in range(_LOOKS):
        before = _marks(state_path, journal)
        try:
            return None, _read(state_path, journal, witness)
        except NewerSchema:
            raise
        except (CorruptState, EditRefused) as refused:
            error = refused
        # A worker may have continued between two of these looks.
        if _marks(state_path, journal) == before:
            break
    return error, None


def _marks(state_path: Path, journal: JournalFile) -> object:
    try:
        return signature(state_path), journal.signature()
    except OSError:
        return None


def _read(state_path: Path, journal: JournalFile, witness: Witness) -> Recovered:
    found = recover(state_path, journal, witness)
    ensure_no_older_copy(state_path, found, witness)
    if state_path.parent.is_dir():
        for _ in journal.records():
            pass
    if found.legacy is not None and not is_legacy(found.legacy):
        raise CorruptState(
            "is not the state of a run, and there is no journal", where=str(state_path)
        )
    return found


def _documents(
    state_path: Path, journal: JournalFile, found: Recovered | None
) -> tuple[tuple[Path, str], ...]:
    """Return which documents of the head can't be used; a writer may replace them meanwhile."""
    wrong: tuple[tuple[Path, str], ...] = ()
    for _ in range(_LOOKS):
        if found is None or found.head is None:
            return ()
        wrong = flow_documents.problems(state_path.parent, found.head)
        before = found.head.revision
        if wrong:
            _, found = _refusal(state_path, journal, no_witness)
        if not wrong or (found and found.head and found.head.revision == before):
            break
    return wrong


def _newest(state: StateReport, chain: Sequence[Record]) -> Head | None:
    """Return the newest state that can be read."""
    last = parse_head(chain[-1].data["head"], "journal") if chain else None
    is_newer = last is None or (state.head is not None and state.head.revision > last.revision)
    return state.head if is_newer else last


def _is_journal_sound(folder: Path) -> bool:
    """Return whether the journal alone would be read without a complaint."""
    journal = JournalFile(folder, MAX_COUNTER, 1)
    try:
        scan = journal.read(0, None if journal.has_rotated() else 1)
        newest = list(journal.records())[-1:]
    except CorruptState:
        return False
    return bool(scan.winners) and [r.revision for r in newest] == [scan.winners[-1].revision]


MARKS = (b"<<<<<<<", b"=======", b">>>>>>>")
"""What git puts into a file that it could not merge."""
_USED = ("cost_usd", "seconds")
_ROUNDING = 5e-6
"""A head counts millionths of a second."""


def mark_of(line: bytes) -> str | None:
    """Return what is wrong with *line* if git has left it in a conflict."""
    is_mark = line.startswith(MARKS)
    return f"git left {line[:7].decode()!r} from a merge" if is_mark else None


def misfit(head: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """Return why *record* was not built on *head*, the one before it; None if it may have been."""
    facts = [*read(facts_of(dict(record)))]
    if any(fact.meaning.sets_fields for fact in facts):
        return None
    return (
        _of_another_run(head, record["head"])
        or _elsewhere(head, facts[0])
        or _unknown_token(head, facts)
        or _unexplained(head, record, facts)
    )


def _of_another_run(head: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    old, new = head.get("run_id"), after.get("run_id")
    if old is None or new is None or old == new:
        return None
    return f"it is of run {new}, but the record before it is of run {old}"


def _elsewhere(head: Mapping[str, Any], fact: RecordedFact) -> str | None:
    """Return how *fact* is about another place than the run's, or than its own claim's."""
    at = head.get("step_index")
    if head.get("flow") is not None and fact.meaning.starts is not StartKind.ATTEMPT:
        # Nodes run side by side: each claim keeps the step_index at which it was granted.
        claims = head.get("claims")
        held = [c for c in claims if isinstance(c, dict)] if isinstance(claims, list) else []
        own = [c.get("step_index") for c in held if c.get("token") == fact.token]
        at = own[0] if own else fact.step_index
    if fact.step_index == at:
        return None
    return (
        f"it is about step_index {fact.step_index}, but the record before it leaves the run at {at}"
    )


def _unknown_token(head: Mapping[str, Any], facts: Sequence[RecordedFact]) -> str | None:
    """Return which token is granted out of turn, or used though nobody holds it."""
    newest, claims = head.get("token"), head.get("claims")
    if not isinstance(newest, int) or not isinstance(claims, list):
        return None
    held = {claim.get("token") for claim in claims if isinstance(claim, dict)}
    for fact in facts:
        token, meaning = fact.token, fact.meaning
        if meaning.starts in (StartKind.ATTEMPT, StartKind.QUESTION):
            newest += 1
            held.add(newest)
            if token != newest:
                return f"it grants token {token}, but the next token is {newest}"
        elif head.get("flow") is not None and not fact.attempt:
            # A person's node, or one that does no work: no claim was needed to end it.
            continue
        elif meaning.by_holder and token not in held:
            return f"it ends token {token}, which the record before it does not hold"
    return None


def _unexplained(
    head: Mapping[str, Any], record: Mapping[str, Any], facts: Sequence[RecordedFact]
) -> str | None:
    """Return which counter has grown by something that no fact of *record* tells."""
    told = [
        fact.details.get("usage") for fact in facts if fact.meaning.starts is not StartKind.ATTEMPT
    ]
    if not all(isinstance(usage, dict) for usage in told):
        return None
    before, after = head.get("usage"), record["head"].get("usage")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None
    for name in _USED:
        grown = after.get(name, 0) - before.get(name, 0)
        spent = sum(usage.get(name, 0) for usage in told if usage is not None)
        if abs(grown - spent) > _ROUNDING:
            return f"usage.{name} grew by {grown:g}, but its events used {spent:g}"
    return None
