"""What the steps of a run have said so far, read from its journal.

Only a prompt that asks for it causes the reading. A journal keeps as much as its rotation
lets it; of an older output only the name is known, and asking for it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from sequencer.errors import StorageFailed
from sequencer.model.transitions import Event
from sequencer.store import results
from sequencer.store.folder import read_regular

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Of one output in a prompt; a client would refuse more anyway."""
_ACCEPTED = {Event.SUCCEEDED, Event.FIXED}
_BEGINNINGS = {Event.INITIALISED, Event.RESET}
_ELSEWHERE = _BEGINNINGS | {Event.SUCCEEDED, Event.SKIPPED, Event.STAMPED, Event.REWOUND}
"""After these the run is at another step, or anew at this one: no rounds of it are left."""
_MOST_TRIED_CHARS = 4_000
"""Of what a fixer said it did; its end is what it came to."""


class Said(Struct, frozen=True):
    """Feedback that a person gave at a gate."""

    gate: str
    round: int
    text: str


class Round(Struct):
    """One "no" of the step that judges now, and what its fixer did about it."""

    number: int
    reason: str
    fix: Mapping[str, Any] | None = None
    """The record of the fixer's attempt; None: there was none yet."""


class Memory(Struct):
    """The newest output of each step, the feedback, and the rounds of the step that judges."""

    folder: Path
    """Of the run; outputs that are too large for the journal lie below it."""
    feedback: list[Said] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    messages: list[tuple[tuple[str, int], str]] = field(default_factory=list)
    """For whom, as `Head.told` has it, and what stands in a prompt."""
    _records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _last: str | None = None

    @property
    def steps(self) -> list[str]:
        """Return the names of the steps that have said something."""
        return sorted(self._records)

    def keep(self, fact: Mapping[str, Any]) -> None:
        """Take one fact of the journal; they come oldest first."""
        event, step, outcome = fact["event"], fact["step"], fact.get("outcome") or {}
        self._keep_round(event, outcome)
        if event in _BEGINNINGS:
            self._records.clear()
            self.feedback.clear()
            self.messages.clear()
            self._last = None
        elif event in _ACCEPTED:
            self._records[step], self._last = outcome, step
        elif event == Event.INVALID:
            # What a judge said, for its fixer; the run's last output is another one.
            self._records[step] = outcome
        elif event == Event.APPROVED:
            # What was said there is settled.
            self.feedback = [said for said in self.feedback if said.gate != step]
        elif event == Event.REWOUND:
            self.feedback.clear()
        elif event == Event.FEEDBACK:
            number = outcome.get("round", 1)
            self.feedback.append(Said(step, number, str(outcome.get("note", ""))))
        elif event == Event.TOLD:
            to, by, text = (str(outcome.get(key) or "") for key in ("to", "by", "note"))
            message = f"- {by}, {fact['at']}:\n\n{text}"
            self.messages.append(((to, fact["token"]), message))

    def _keep_round(self, event: str, outcome: Mapping[str, Any]) -> None:
        verdict = outcome.get("verdict") or {}
        if event in _ELSEWHERE:
            self.rounds.clear()
        elif event == Event.FIXED and self.rounds:
            self.rounds[-1].fix = outcome
        elif verdict.get("pass") is False:
            number, reason = verdict.get("round", 1), str(verdict.get("reason", ""))
            self.rounds.append(Round(number, reason))

    def earlier_rounds(self) -> str:
        """Return what was found and tried before the newest "no", oldest first."""
        return "\n\n".join(map(self._told, self.rounds[:-1]))

    def _told(self, one: Round) -> str:
        found = f"Round {one.number} found: {one.reason or 'no reason was given'}"
        if one.fix is None:
            return found
        try:
            tried = end_of(self._output_in(one.fix))
        except StorageFailed:
            # Results are cleared away in time, and this fixer can do without them.
            tried = "(its output is gone)"
        return f"{found}\n\nThen this was tried: {tried or '(nothing was said about it)'}"

    def last(self) -> str:
        """Return the output of the step before; empty at the beginning."""
        return "" if self._last is None else self.output(self._last)

    def output(self, step: str) -> str:
        """Return the newest output of *step*.

        Raises:
            KeyError: it has not run yet.
            StorageFailed: its file can't be read, or is not as it was written.
            CorruptState: its record names something else than an output, or what lies there
                is no plain file.
        """
        if step not in self._records:
            known = ", ".join(self.steps) or "none"
            message = f"step {step!r} has no output yet; steps that have one: {known}"
            raise KeyError(message)
        return self._output_in(self._records[step])

    def _output_in(self, record: Mapping[str, Any]) -> str:
        name = record.get("output_file")
        if name is None:
            return str(record.get("output", ""))
        return read_output(results.output_path(self.folder, name))


def end_of(said: str) -> str:
    """Return what a fixer *said* it did, as far as later rounds have room for it."""
    text = said.strip()
    return text if len(text) <= _MOST_TRIED_CHARS else f"…{text[-_MOST_TRIED_CHARS:]}"


def read_output(path: Path) -> str:
    """Return the output that an attempt has left at *path*.

    Raises:
        StorageFailed: it can't be read, is not as it was written, or is too large for a
            prompt. A step must not start with less than the one before it has said.
    """
    try:
        data = read_regular(path, max_bytes=MAX_OUTPUT_BYTES)
        is_too_large = len(data) > MAX_OUTPUT_BYTES
        is_whole = is_too_large or results.is_whole(path, data)
    except OSError as error:
        raise StorageFailed(
            f"the output of an earlier step can't be read: {error.strerror}", where=str(path)
        ) from error
    if is_too_large:
        raise StorageFailed(
            f"the output of an earlier step has more than {MAX_OUTPUT_BYTES} bytes",
            where=str(path),
            hint="name the file in the prompt instead",
        )
    if not is_whole:
        raise StorageFailed(
            "the output of an earlier step was changed after it was written",
            where=str(path),
            hint="restore the file, or remove from the prompt what asks for it",
        )
    return data.decode("utf-8", "replace")


def recall(folder: Path, history: Iterable[Mapping[str, Any]]) -> Memory:
    """Return what the run in *folder* with *history* has said."""
    memory = Memory(folder)
    for fact in history:
        memory.keep(fact)
    return memory
