"""What the attempts of a run used, and when."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from sequencer.history.facts import RecordedFact
from sequencer.history.totals import CLASSIFICATION
from sequencer.model.outcome import Usage

UNKNOWN = "not known"
"""Name of the agent if the journal has none."""


class Spent(Struct, frozen=True):
    """What one attempt used, and when."""

    at: float
    usage: Usage
    agent: str
    step: str

    @property
    def tokens(self) -> float:
        """Return its LLM tokens, input plus output."""
        return self.usage.input_tokens + self.usage.output_tokens


def to_spent(fact: RecordedFact, usage: Usage) -> Spent:
    """Return the *usage* of *fact* with its time, agent and step."""
    timestamp = datetime.fromisoformat(fact.at).timestamp()
    step = CLASSIFICATION if fact.meaning.starts_over else fact.step
    return Spent(timestamp, usage, str(fact.details.get("agent") or UNKNOWN), step)
