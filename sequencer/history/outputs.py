"""The outputs of a run's steps, for the prompts of later steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from sequencer.history.facts import RecordedFact
from sequencer.model.transitions import Event


class GateFeedback(Struct, frozen=True):
    """Feedback that a person gave at a gate."""

    gate: str
    round: int
    text: str


class Round(Struct):
    """One "no" from the current judging step, and the result of its fixer."""

    number: int
    reason: str
    fix: Mapping[str, Any] | None = None
    """The outcome of the fixer's attempt; None: there was none yet."""


class StepOutputs(Struct):
    """The newest output of each step, the feedback, and the rounds of the judging step."""

    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By step: the outcome with its newest output."""
    newest: str | None = None
    """The step that was accepted last."""
    feedback: list[GateFeedback] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    messages: list[tuple[tuple[str, int], str]] = field(default_factory=list)
    """(recipient as in `Head.waiting_messages`, text for a prompt)."""

    def add_fact(self, fact: RecordedFact) -> None:
        """Add one fact of the journal; call it with the oldest fact first."""
        meaning, details = fact.meaning, fact.details
        self._add_round(fact)
        if meaning.starts_over:
            self.records.clear()
            self.feedback.clear()
            self.messages.clear()
            self.newest = None
        elif meaning.is_output:
            self.records[fact.step] = details
            # A judge's "no" is for its fixer; the run's newest output is still another step's.
            self.newest = fact.step if meaning.accepts else self.newest
        elif fact.event is Event.APPROVED:
            self.feedback = [entry for entry in self.feedback if entry.gate != fact.step]
        elif fact.event is Event.REWOUND:
            self.feedback.clear()
        elif fact.event is Event.FEEDBACK:
            text = str(details.get("note", ""))
            self.feedback.append(GateFeedback(fact.step, details.get("round", 1), text))
        elif fact.event is Event.TOLD:
            target, author, text = (str(details.get(key) or "") for key in ("to", "by", "note"))
            self.messages.append(((target, fact.token), f"- {author}, {fact.at}:\n\n{text}"))

    def _add_round(self, fact: RecordedFact) -> None:
        verdict = fact.details.get("verdict") or {}
        if fact.meaning.leaves_step:
            self.rounds.clear()
        elif fact.event is Event.FIXED and self.rounds:
            self.rounds[-1].fix = fact.details
        elif verdict.get("pass") is False:
            number, reason = verdict.get("round", 1), str(verdict.get("reason", ""))
            self.rounds.append(Round(number, reason))
