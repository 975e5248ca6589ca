"""What is wrong with a run's files, and the way out.

`reading` has read everything; here each thing that is wrong is named with its place, the ordinary
reader's judgment of the same bytes is kept, and what would make the run readable is decided;
`repair` acts on it. Only what has a checksum is believed. Nothing raises because of damage.

Not promised: that a record which was lost can be brought back.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from sequencer.errors import CorruptState, EditRefused, SequencerError
from sequencer.model.head import MAX_COUNTER, Head
from sequencer.store.continuity import misfits
from sequencer.store.head import is_legacy, parse_head
from sequencer.store.journal import (
    NAME,
    JournalFile,
    Record,
    Scan,
    lost_between,
    lost_within,
    survey,
)
from sequencer.store.ownership import refused
from sequencer.store.reading import (
    READ_ATTEMPTS,
    FileContent,
    ProgressEvidence,
    ProgressMark,
    RunFiles,
    changing,
    no_progress_evidence,
)
from sequencer.store.recovery import (
    MAX_LOST_TOKENS,
    Recovered,
    beyond,
    ensure_no_older_copy,
    head_of,
    recover,
    unheard_end,
)

Complaints = tuple[object, ...]
_NO_COMPLAINTS: Complaints = (None, None, (), ())


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


class JournalReport(Struct, frozen=True):
    """What one journal file holds."""

    path: Path
    refusal: CorruptState | None = None
    """Why nothing of it can be read."""
    found: Scan = Scan((), 0, is_torn=False)
    misfits: tuple[tuple[int, str], ...] = ()
    """Offset of each place where two histories were merged, and how that is known."""

    @property
    def problem(self) -> str | None:
        """Return why nothing of it can be read, in words."""
        return None if self.refusal is None else self.refusal.message


class Diagnosis(Struct, frozen=True):
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
    traces: tuple[ProgressMark, ...]
    """What the run has left behind beside its good records."""
    shown: ProgressMark | None
    """What of these shows that a run that is refused had come further than its newest state.

    Not asked again: a worker may die while somebody decides what to do.
    """
    tokens: frozenset[int]
    """Every number after a "token" in these files, readable or not."""
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
    def highest_token(self) -> int:
        """Return the largest token that the files show; none up to it may be granted again."""
        last = int(self.chain[-1].data["head"].get("token", 0)) if self.chain else 0
        floor = max(last, self.state.head.token if self.state.head else 0)
        # What an attempt left behind shows its token even where its record is lost.
        shown = (*self.tokens, *(trace.token for trace in self.traces))
        return max((t for t in shown if t <= floor + MAX_LOST_TOKENS), default=floor)

    @property
    def complaints(self) -> Complaints:
        """Return all that is wrong with the files, as far as a writer may have made it seem so."""
        refusal = None if self.refusal is None else str(self.refusal)
        wrong = (one for one in self.journals if one.refusal or one.found.skipped or one.misfits)
        lines = tuple((one.path, one.problem, one.found.skipped, one.misfits) for one in wrong)
        return (refusal, self.pending, self.documents, lines)

    @property
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
        is_sound = not is_journal_gone and _is_sound(self.journals)
        return Action.RESTORE if is_sound else Action.REBUILD


def diagnose(state_path: Path, progress: ProgressEvidence = no_progress_evidence) -> Diagnosis:
    """Return what the files of the run at *state_path* hold.

    The *progress* tells what its step logs show. What only seems wrong because a writer
    continued between two files is no damage.

    Raises:
        NewerSchema: a newer version of the program wrote them; only that one can judge.
        CorruptState: the permissions forbid a look, which is fixed by hand; or writers change the
            files faster than they can be read.
    """
    before: Complaints | None = None
    for _ in range(READ_ATTEMPTS):
        files = RunFiles(state_path, JournalFile(state_path.parent, MAX_COUNTER, 1), progress)
        signature = files.signature()
        found = _diagnosed(files)
        # What two looks in a row complain of is damage, even if a writer continues beside it.
        if files.signature() == signature or found.complaints in (_NO_COMPLAINTS, before):
            return found
        before = found.complaints
    raise changing(state_path)


def _diagnosed(files: RunFiles) -> Diagnosis:
    # The head first, as everywhere: a journal that is newer continues it. Then all of the journal,
    # so that what the ordinary reader asks for is a part of it.
    state = _state_report(files)
    journals = tuple(map(_journal_report, files.journals))
    path = files.journal.path
    chain = _last_chain([r for report in journals for r in report.found.winners])
    refusal, found = _refusal(files, journals)
    is_current = bool(chain and journals[-1].path == path and journals[-1].found.winners)
    base = _newest(state, chain, path)
    run_id = None if base is None else base.run_id
    left = files.traces(run_id, chain[-1] if is_current else None)
    seen = (*left, *(files.witnessed(run_id) if run_id is not None else ()))
    shown = None if base is None or refusal is None else _shown(state, base, seen)
    head = None if found is None else found.head
    wrong = () if head is None else files.wrong_documents(head)
    return Diagnosis(state, journals, chain, refusal, found, seen, shown, files.tokens, wrong)


def _state_report(files: RunFiles) -> StateReport:
    content = files.state
    if content.refusal is not None:
        _ensure_may_look(content.refusal)
        return StateReport(content.path, content.refusal.message)
    if content.data is None:
        return StateReport(content.path, "is missing")
    if (raw := files.head).content is None:
        return StateReport(content.path, f"can't be read ({raw.problem})")
    try:
        return StateReport(content.path, None, parse_head(raw.content, str(content.path)))
    except EditRefused as error:
        return StateReport(content.path, error.message)


def _ensure_may_look(error: CorruptState) -> None:
    """Return unless *error* is one of permissions, where moving the file away loses it."""
    if isinstance(error.__cause__, PermissionError):
        hint = "fix its permissions, then try again"
        _, hint = refused(error.__cause__, error.where or "", hint)
        raise CorruptState(error.message, where=error.where, hint=hint) from error


def _journal_report(content: FileContent) -> JournalReport:
    """Return what a journal file holds, gaps and bad lines included."""
    if content.refusal is not None:
        _ensure_may_look(content.refusal)
    if content.data is None:
        return JournalReport(content.path, content.refusal)
    found = survey(content.data)
    return JournalReport(content.path, None, found, misfits(found, content.data))


def _last_chain(records: Sequence[Record]) -> tuple[Record, ...]:
    """Return the records that lead to the last good one, each revision once and none missing."""
    chain: list[Record] = []
    for record in reversed(records):
        # A rotated file and its successor both hold the record between them.
        if chain and record.revision >= chain[-1].revision:
            continue
        if chain and record.revision != chain[-1].revision - 1:
            break
        chain.append(record)
    return tuple(reversed(chain))


def _refusal(
    files: RunFiles, journals: Sequence[JournalReport]
) -> tuple[SequencerError | None, Recovered | None]:
    """Return why the ordinary reader refuses the run, or what it finds."""
    try:
        found = recover(files)
        ensure_no_older_copy(files, found)
    except (CorruptState, EditRefused) as refusal:
        return refusal, None
    if (broken := _joined(journals)[1]) is not None:
        return broken, None
    if found.legacy is not None and not is_legacy(found.legacy):
        problem = "is not the state of a run, and there is no journal"
        return CorruptState(problem, where=str(files.state_path)), None
    return None, found


def _joined(journals: Sequence[JournalReport]) -> tuple[int | None, CorruptState | None]:
    """Return the newest revision of *journals*, read as one history, and why they are none."""
    newest: int | None = None
    for report in journals:
        where, winners = str(report.path), report.found.winners
        fresh = [record for record in winners if newest is None or record.revision > newest]
        broken = report.refusal or lost_within(report.found, where)
        if (broken := broken or lost_between(newest, fresh, where)) is not None:
            return newest, broken
        newest = fresh[-1].revision if fresh else newest
    return newest, None


def _shown(state: StateReport, base: Head, traces: Sequence[ProgressMark]) -> ProgressMark | None:
    """Return what of *traces* shows that the run had come further than *base*."""
    shown = beyond(base, base.revision, traces)
    if shown is None and (state.head is None or state.head.revision < base.revision):
        shown = unheard_end(base, traces)
    return shown


def _newest(state: StateReport, chain: Sequence[Record], journal: Path) -> Head | None:
    """Return the newest state that can be read.

    Raises:
        NewerSchema: the last record of the *journal* is whole, but not known to this version. It
            is refused, and never dropped as damaged.
    """
    last = head_of(chain[-1], journal) if chain else None
    is_newer = last is None or (state.head is not None and state.head.revision > last.revision)
    return state.head if is_newer else last


def _is_sound(journals: Sequence[JournalReport]) -> bool:
    """Return whether the journals alone would be read without a complaint."""
    *closed, newest = journals
    winners = newest.found.winners
    is_whole = bool(closed) or winners[0].revision == 1
    return is_whole and _joined(journals) == (winners[-1].revision, None)
