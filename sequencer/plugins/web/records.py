"""The attempts at steps that a run's facts tell of, put together for a page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct, field

from sequencer.history.timeline import BEGINNINGS, CLASSIFICATION, is_failed_by_hand
from sequencer.model.evidence import evidence_of, evidence_words
from sequencer.model.outcome import Usage, error_words, total, used
from sequencer.model.transitions import Event

_BEGIN = frozenset({Event.CLAIMED, Event.ASKED, Event.STARTED})
_STATES: Mapping[str, str] = {
    Event.SUCCEEDED: "done",
    Event.FIXED: "done",
    Event.ANSWERED: "done",
    Event.PASSED: "done",
    Event.STAMPED: "done",
    Event.SKIPPED: "skipped",
    Event.FAILED: "failed",
    Event.INVALID: "failed",
    Event.RELEASED: "released",
    Event.TAKEN_OVER: "released",
    Event.EXPIRED: "released",
}
"""Event that ends an attempt -> how the attempt then stands."""


class Try(Struct):
    """One attempt at a step, or one question to a person."""

    step: str
    step_index: int
    token: int
    number: int
    began: str
    state: str = "running"
    ended: str = ""
    revision: int = 0
    """Of the record that ended it; 0: it runs."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    is_question: bool = False
    host: str = ""
    """The machine that claimed it."""

    @property
    def usage(self) -> Usage:
        """Return what it has used."""
        return used(self.outcome.get("usage") or {})

    @property
    def shown(self) -> str:
        """Return what it has shown, in a line."""
        return evidence_words(evidence_of(self.outcome))

    @property
    def agent(self) -> str:
        """Return who made it, as far as the journal says."""
        return str(self.outcome.get("agent") or ("you" if self.is_question else ""))

    @property
    def said(self) -> str:
        """Return its answer, or its error; long ones are cut to their end in lists."""
        outcome = self.outcome
        parts = (outcome.get(key) for key in ("output", "note", "reason"))
        return error_words(outcome) or next((str(part) for part in parts if part), "")


class Tried(Struct):
    """A step that was begun, with all its attempts since the run began."""

    key: str
    """What names it in an address: a node's id, or the step_index of a step of a line."""
    name: str
    step_index: int
    tries: list[Try] = field(default_factory=list)

    @property
    def last(self) -> Try:
        """Return the newest attempt."""
        return self.tries[-1]

    @property
    def usage(self) -> Usage:
        """Return what all attempts have used."""
        return total(one.usage for one in self.tries)


UNKNOWN = "not known"
"""Who has used something where the journal does not say."""


class Spent(NamedTuple):
    """What one attempt has used, and when."""

    at: float
    usage: Usage
    agent: str
    step: str

    @property
    def tokens(self) -> float:
        """Return its LLM tokens, in and out."""
        return self.usage.input_tokens + self.usage.output_tokens


def spent_in(fact: Mapping[str, Any]) -> Spent:
    """Return what a *fact* with a usage tells of it."""
    outcome = fact["outcome"]
    at = datetime.fromisoformat(fact["at"]).timestamp()
    step = CLASSIFICATION if fact["event"] in BEGINNINGS else fact["step"]
    return Spent(at, used(outcome["usage"]), str(outcome.get("agent") or UNKNOWN), step)


class TriedSteps:
    """The steps that a run's facts tell of, in the order in which they began first."""

    def __init__(self, *, by_name: bool) -> None:
        """Put together what one node of a graph has done if *by_name*, else one step_index."""
        self._by_name = by_name
        self.steps: dict[str, Tried] = {}
        self._open: dict[tuple[str, int], Try] = {}

    def keep(self, fact: Mapping[str, Any]) -> None:
        """Take the next fact."""
        event, name, token = fact["event"], fact["step"], fact.get("token") or 0
        if event in BEGINNINGS:
            self.steps.clear()
            self._open.clear()
        if not name or (event not in _BEGIN and event not in _STATES):
            return
        index = fact.get("step_index") or 0
        key = name if self._by_name else str(index)
        step = self.steps.setdefault(key, Tried(key, name, index))
        step.name = name
        begins = event in _BEGIN
        made = None if begins else self._open.pop((name, token), None)
        if made is None:
            # What a person has said about a step that nobody ran is a try of its own.
            number = (fact.get("attempt") or 1) if begins else len(step.tries) + 1
            made = Try(name, index, token, number, str(fact["at"]))
            step.tries.append(made)
        if begins:
            made.is_question = event == Event.ASKED
            made.host = str(fact.get("host") or "")
            self._open[name, token] = made
            return
        made.state, made.ended = _STATES[event], str(fact["at"])
        made.outcome, made.revision = fact.get("outcome") or {}, fact["revision"]
        if is_failed_by_hand(event, made.outcome):
            made.state = "failed"
