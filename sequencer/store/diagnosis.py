"""What is wrong with a run's files, and what would make the run readable.

`reading` reads the files. This module lists each problem with its place, runs the ordinary reader
on the same bytes, and decides what a repair has to do; `repair` does it. Only data with a valid
checksum is trusted. Damage does not raise an exception.

Not promised: that a lost record can be recovered.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from sequencer.errors import CorruptState, EditRefused, SequencerError
from sequencer.model.head import Head
from sequencer.model.whole_numbers import MAX_COUNTER
from sequencer.store.continuity import find_misfits
from sequencer.store.head import is_legacy, parse_head
from sequencer.store.journal import (
    NAME,
    JournalFile,
    Record,
    Scan,
    find_gap_between,
    find_gap_within,
    survey,
)
from sequencer.store.ownership import explain_refusal
from sequencer.store.reading import (
    READ_ATTEMPTS,
    FileContent,
    ProgressEvidence,
    ProgressMark,
    RunFiles,
    no_progress_evidence,
    unstable_files_error,
)
from sequencer.store.recovery import (
    MAX_LOST_TOKENS,
    Recovered,
    ensure_no_older_copy,
    find_furthest_mark,
    find_unreported_end,
    parse_record_head,
    recover,
)

Findings = tuple[object, ...]
"""Only compared; see `Diagnosis.findings`."""
_NO_FINDINGS: Findings = (None, None, (), ())


class Action(StrEnum):
    """What would make the run readable again."""

    NOTHING = "nothing"
    RESTORE = "restore"
    """Replace state.json with the head of the journal's last record."""
    REBUILD = "rebuild"
    """Start a journal with the last good record, and restore state.json from it."""
    CHOOSE = "choose"
    """Accepted steps may be lost; a person has to choose which state to continue from."""
    HOPELESS = "hopeless"


class StateReport(Struct, frozen=True):
    """The content of state.json."""

    path: Path
    problem: str | None = None
    """Why it can't be read."""
    head: Head | None = None
    """Its content, if it is a valid head."""


class JournalReport(Struct, frozen=True):
    """The content of one journal file."""

    path: Path
    refusal: CorruptState | None = None
    """Why the file can't be read."""
    scan: Scan = Scan((), 0, is_torn=False)
    """Its records, bad lines and gaps."""
    misfits: tuple[tuple[int, str], ...] = ()
    """Offset of each place where the journal does not continue, and the evidence."""

    @property
    def problem(self) -> str | None:
        """Return why the file can't be read, in words."""
        return None if self.refusal is None else self.refusal.message


class Diagnosis(Struct, frozen=True):
    """The run's files, the result of the ordinary reader, and what a repair has to do."""

    state: StateReport
    journals: tuple[JournalReport, ...]
    """Oldest first; the last is journal.jsonl if that exists."""
    chain: tuple[Record, ...]
    """The longest sequence of records without a gap that ends with the last good one."""
    refusal: SequencerError | None
    """Why the run can't be used; None if it can."""
    recovered: Recovered | None
    """The result of the ordinary reader; None: it refuses the files."""
    marks: tuple[ProgressMark, ...]
    """Evidence of progress other than the good records."""
    lost_mark: ProgressMark | None
    """Evidence that a refused run had come further than its newest state; None: there is none.

    Stored, because a worker may die while a person decides what to do.
    """
    tokens: frozenset[int]
    """Every number after a "token" in these files, readable or not."""
    documents: tuple[tuple[Path, str], ...]
    """(path, reason) for each document that the run needs and that can't be used."""

    @property
    def last_record(self) -> Record | None:
        """Return the last good record."""
        return self.chain[-1] if self.chain else None

    @property
    def is_head_ahead(self) -> bool:
        """Return whether state.json is a valid head that the journal does not reach."""
        head, last_record = self.state.head, self.last_record
        return head is not None and (last_record is None or head.revision > last_record.revision)

    @property
    def pending(self) -> str | None:
        """Return what the next transition will do with state.json without a repair."""
        recovery = self.recovered
        if recovery is None:
            return None
        if recovery.legacy is not None:
            return "another program wrote it; the next step migrates it and keeps the original"
        if recovery.keep_as == "edited":
            return f"{recovery.notices[0]}; the next step keeps the file"
        if recovery.edited is not None:
            return "it was edited by hand; the next step accepts the edit"
        if recovery.needs_publishing and recovery.notices:
            return "the next step restores it from the journal"
        return None

    @property
    def highest_token(self) -> int:
        """Return the highest token in the files; no token up to it may be granted again."""
        last_token = int(self.chain[-1].data["head"].get("token", 0)) if self.chain else 0
        floor = max(last_token, self.state.head.token if self.state.head else 0)
        # The files of an attempt show its token even if its record is lost.
        tokens = (*self.tokens, *(mark.token for mark in self.marks))
        return max((token for token in tokens if token <= floor + MAX_LOST_TOKENS), default=floor)

    @property
    def findings(self) -> Findings:
        """Return the problems that may exist only because a writer was active during the reading.

        They are compared with those of the next reading: damage shows up in both.
        """
        refusal = None if self.refusal is None else str(self.refusal)
        damaged_reports = (
            report
            for report in self.journals
            if report.refusal or report.scan.skipped or report.misfits
        )
        lines = tuple(
            (report.path, report.problem, report.scan.skipped, report.misfits)
            for report in damaged_reports
        )
        return (refusal, self.pending, self.documents, lines)

    @property
    def action(self) -> Action:
        """Return what would make the run readable again."""
        state, last_record = self.state, self.last_record
        if self.refusal is None:
            is_lost = state.problem is not None and last_record is not None
            return Action.RESTORE if is_lost else Action.NOTHING
        if last_record is None:
            return Action.HOPELESS if state.head is None else Action.CHOOSE
        newest_journal = self.journals[-1]
        is_journal_gone = newest_journal.path.name != NAME or not newest_journal.scan.winners
        is_head_last = state.head is not None and state.head.revision == last_record.revision
        if self.is_head_ahead or self.lost_mark or (is_journal_gone and not is_head_last):
            return Action.CHOOSE
        is_sound = not is_journal_gone and _is_sound(self.journals)
        return Action.RESTORE if is_sound else Action.REBUILD


def diagnose(state_path: Path, progress: ProgressEvidence = no_progress_evidence) -> Diagnosis:
    """Return the diagnosis of the run at *state_path*.

    *progress* gives the evidence in its step logs. A problem that appears only because a writer
    continued between two files is not damage.

    Raises:
        NewerSchema: a newer version of the program wrote the files; only that can judge them.
        CorruptState: this user may not read the files, which a person has to fix; or writers
            change them faster than they can be read.
    """
    old_findings: Findings | None = None
    for _ in range(READ_ATTEMPTS):
        files = RunFiles(state_path, JournalFile(state_path.parent, MAX_COUNTER, 1), progress)
        signature = files.signature()
        diagnosis = _diagnose_files(files)
        # Problems that two readings in a row have are damage, even if a writer is active.
        if files.signature() == signature or diagnosis.findings in (
            _NO_FINDINGS,
            old_findings,
        ):
            return diagnosis
        old_findings = diagnosis.findings
    raise unstable_files_error(state_path)


def _diagnose_files(files: RunFiles) -> Diagnosis:
    # The head first, as everywhere: a newer journal continues it. Then the complete journal, so
    # that the ordinary reader gets a part of the same bytes.
    state = _build_state_report(files)
    journals = tuple(map(_build_journal_report, files.journals))
    path = files.journal.path
    chain = _find_last_chain([record for report in journals for record in report.scan.winners])
    refusal, recovery = _try_recover(files, journals)
    is_current = bool(chain and journals[-1].path == path and journals[-1].scan.winners)
    base = _choose_newest_head(state, chain, path)
    run_id = None if base is None else base.run_id
    in_folder = files.find_marks(run_id, chain[-1] if is_current else None)
    marks = (*in_folder, *(files.find_logged_marks(run_id) if run_id is not None else ()))
    later_mark = None if base is None or refusal is None else _find_later_mark(state, base, marks)
    head = None if recovery is None else recovery.head
    wrong_documents = () if head is None else files.find_wrong_documents(head)
    return Diagnosis(
        state, journals, chain, refusal, recovery, marks, later_mark, files.tokens, wrong_documents
    )


def _build_state_report(files: RunFiles) -> StateReport:
    content = files.state
    if content.refusal is not None:
        _ensure_may_read(content.refusal)
        return StateReport(content.path, content.refusal.message)
    if content.data is None:
        return StateReport(content.path, "is missing")
    raw = files.head
    if raw.content is None:
        return StateReport(content.path, f"can't be read ({raw.problem})")
    try:
        return StateReport(content.path, None, parse_head(raw.content, str(content.path)))
    except EditRefused as error:
        return StateReport(content.path, error.message)


def _ensure_may_read(error: CorruptState) -> None:
    """Raise *error* again if permissions caused it: moving such a file away would lose it."""
    if isinstance(error.__cause__, PermissionError):
        hint = "fix its permissions, then try again"
        _, hint = explain_refusal(error.__cause__, error.where or "", hint)
        raise CorruptState(error.message, where=error.where, hint=hint) from error


def _build_journal_report(content: FileContent) -> JournalReport:
    """Return the report on one journal file, with its gaps and bad lines."""
    if content.refusal is not None:
        _ensure_may_read(content.refusal)
    if content.data is None:
        return JournalReport(content.path, content.refusal)
    scan = survey(content.data)
    return JournalReport(content.path, None, scan, find_misfits(scan, content.data))


def _find_last_chain(records: Sequence[Record]) -> tuple[Record, ...]:
    """Return the records up to the last good one, each revision once and none missing."""
    chain: list[Record] = []
    for record in reversed(records):
        # A rotated file and its successor share one record.
        if chain and record.revision >= chain[-1].revision:
            continue
        if chain and record.revision != chain[-1].revision - 1:
            break
        chain.append(record)
    return tuple(reversed(chain))


def _try_recover(
    files: RunFiles, journals: Sequence[JournalReport]
) -> tuple[SequencerError | None, Recovered | None]:
    """Return (why the ordinary reader refuses the run, None) or (None, its result)."""
    try:
        recovery = recover(files)
        ensure_no_older_copy(files, recovery)
    except (CorruptState, EditRefused) as refusal:
        return refusal, None
    if (gap := _join_journals(journals)[1]) is not None:
        return gap, None
    if recovery.legacy is not None and not is_legacy(recovery.legacy):
        problem = "is not the state of a run, and there is no journal"
        return CorruptState(problem, where=str(files.state_path)), None
    return None, recovery


def _join_journals(journals: Sequence[JournalReport]) -> tuple[int | None, CorruptState | None]:
    """Return the newest revision of *journals* as one history, and the error if they are not."""
    revision: int | None = None
    for report in journals:
        path, winners = str(report.path), report.scan.winners
        records = [record for record in winners if revision is None or record.revision > revision]
        error = report.refusal or find_gap_within(report.scan, path)
        if (error := error or find_gap_between(revision, records, path)) is not None:
            return revision, error
        revision = records[-1].revision if records else revision
    return revision, None


def _find_later_mark(
    state: StateReport, base: Head, marks: Sequence[ProgressMark]
) -> ProgressMark | None:
    """Return the mark that shows that the run had come further than *base*; None: none does."""
    later_mark = find_furthest_mark(base, base.revision, marks)
    if later_mark is None and (state.head is None or state.head.revision < base.revision):
        later_mark = find_unreported_end(base, marks)
    return later_mark


def _choose_newest_head(state: StateReport, chain: Sequence[Record], journal: Path) -> Head | None:
    """Return the newest state that can be read.

    Raises:
        NewerSchema: the last record of the *journal* is intact, but unknown to this version. It
            is refused, not dropped as damaged.
    """
    last_head = parse_record_head(chain[-1], journal) if chain else None
    is_newer = last_head is None or (
        state.head is not None and state.head.revision > last_head.revision
    )
    return state.head if is_newer else last_head


def _is_sound(journals: Sequence[JournalReport]) -> bool:
    """Return whether the journals alone can be read without a problem."""
    *rotated_journals, newest_journal = journals
    winners = newest_journal.scan.winners
    is_whole = bool(rotated_journals) or winners[0].revision == 1
    return is_whole and _join_journals(journals) == (winners[-1].revision, None)
