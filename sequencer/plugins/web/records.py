"""What the attempts of a run have used, and when."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sequencer.history.facts import RecordedFact
from sequencer.history.totals import CLASSIFICATION
from sequencer.model.outcome import Usage

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


def spent_in(fact: RecordedFact, usage: Usage) -> Spent:
    """Return the *usage* of *fact*, and whose it is."""
    at = datetime.fromisoformat(fact.at).timestamp()
    step = CLASSIFICATION if fact.meaning.starts_over else fact.step
    return Spent(at, usage, str(fact.details.get("agent") or UNKNOWN), step)
