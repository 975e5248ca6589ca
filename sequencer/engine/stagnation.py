"""Counts how many times in a row a step has repeated itself.

The count is part of each attempt's evidence, so it survives restarts and moves to other machines
with the journal. A process reads the newest records once, and then adds its own changes.

Not promised: that an attempt is compared with one whose record was rotated out long ago.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from sequencer.errors import SequencerError
from sequencer.history.facts import EndState, RecordedFact, read_facts
from sequencer.model.evidence import Evidence, read_evidence
from sequencer.model.kind import AttemptResult
from sequencer.model.step import Stagnation, Step
from sequencer.store.protocol import Store

MAX_REVISIONS = 2000
"""How many revisions back a new process reads."""


class Streak(Struct, frozen=True):
    """Attempts in a row at one step with the same result."""

    answer: str
    """Digest of the answer."""
    tree: str | None
    """Digest of the files after the last attempt; None: they were not read."""
    attempts: int
    at: float
    """When the last attempt ended, in seconds since 1970; rounded down, never up."""


def streak_after(shown: Evidence | None, at: float) -> Streak | None:
    """Return the streak of an attempt with the evidence *shown* that ended at the time *at*.

    None: the attempt has no answer to compare.
    """
    answer = None if shown is None else shown.compared
    if shown is None or answer is None or shown.is_idle:
        return None
    return Streak(answer, shown.tree, max(shown.repeats, 1), at)


class Streaks:
    """The newest streak of each step of one run."""

    def __init__(self, store: Store) -> None:
        """Start empty; `read` reads the journal in *store*."""
        self._store = store
        self._seen = 0
        """The revision up to which the journal was read."""
        self._last: dict[str, Streak] = {}
        self._missing: dict[str, str] = {}
        """Step -> what its last attempt lacked."""

    def find_last(self, step: str) -> Streak | None:
        """Return the streak of the last attempt at *step*."""
        return self._last.get(step)

    def find_missing(self, step: str) -> str | None:
        """Return the evidence that the last attempt at *step* lacked; None: it lacked none."""
        return self._missing.get(step)

    def read(self, revision: int) -> None:
        """Read the journal up to *revision*; records that can't be read are ignored."""
        if revision <= self._seen:
            return
        start_revision = max(self._seen, revision - MAX_REVISIONS)
        with contextlib.suppress(SequencerError, OSError):
            for fact in read_facts(self._store.history(start_revision)):
                self._keep(fact)
        self._seen = revision

    def follow(self, revision: int, ended: Mapping[str, AttemptResult] | None = None) -> None:
        """Add this process's change to *revision*, with the attempts that *ended* in it, by step.

        If other processes have changed the run too, `read` reads all these changes later.
        """
        if revision != self._seen + 1:
            return
        self._seen = revision
        for step, result in (ended or {}).items():
            outcome = result.outcome
            self._missing.pop(step, None)
            if outcome.missing is not None:
                self._missing[step] = outcome.missing
            if outcome.is_accepted or result.verdict is not None:
                self._set(step, streak_after(outcome.evidence, time.time()))

    def _keep(self, fact: RecordedFact) -> None:
        meaning, step, outcome = fact.meaning, fact.step, fact.details
        if meaning.starts_over or meaning.changes_course:
            self._last.clear()
        elif meaning.is_output:
            self._set(step, streak_after(read_evidence(outcome), _parse_end_time(fact.at, outcome)))
            self._missing.pop(step, None)
        elif meaning.ends is EndState.FAILED:
            self._missing.pop(step, None)
            if isinstance(missing_text := outcome.get("missing"), str):
                self._missing[step] = missing_text

    def _set(self, step: str, streak: Streak | None) -> None:
        self._last.pop(step, None)
        if streak is not None:
            self._last[step] = streak


def _parse_end_time(at: str, outcome: Mapping[str, Any]) -> float:
    """Return when an attempt ended, in seconds since 1970; *at* is the time of its record."""
    begin_time, usage = outcome.get("began_at"), outcome.get("usage") or {}
    if not isinstance(begin_time, str):
        return datetime.fromisoformat(at).timestamp()
    return datetime.fromisoformat(begin_time).timestamp() + float(usage.get("seconds", 0.0))


def repetition_note(last: Streak | None, step: Step) -> str | None:
    """Return the block of the prompt for the attempt whose repetition would pause the run."""
    limit = (step.stagnation or Stagnation()).attempts
    if last is None or not limit or step.expects == "nothing" or last.attempts < limit - 1:
        return None
    text = "your last answer to this step, and nothing has changed"
    if last.attempts > 1:
        text = f"your last {last.attempts} answers to this step, and nothing changed by them"
    return (
        f"# Do you repeat yourself?\n\nIf your answer is the same as {text}, the run is paused. "
        "Do something else, or say what keeps you from it."
    )


def describe_stagnation(ended: AttemptResult) -> str | None:
    """Return why the run pauses after *ended*; None: it continues."""
    evidence, limit = ended.outcome.evidence, (ended.step.stagnation or Stagnation()).attempts
    if evidence is None or not limit or evidence.repeats < limit:
        return None
    if not ended.outcome.is_accepted and ended.verdict is None:
        return None
    name = ended.step.name
    return (
        f"step {name!r} gave the same answer {evidence.repeats} times in a row and changed nothing "
        "(stagnation.attempts; expects: nothing on a step that only polls)"
    )
