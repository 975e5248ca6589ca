"""A step that one process holds, with what it needs to perform it."""

from __future__ import annotations

from dataclasses import dataclass

from sequencer.engine.prepared import Prepared
from sequencer.model.head import Claim, Head
from sequencer.model.step import Step
from sequencer.model.transitions import Place


@dataclass(frozen=True, slots=True)
class Turn:
    """A step that this worker holds."""

    claim: Claim
    step: Step
    position: str
    place: Place
    head: Head
    """As it was right after the claim."""
    prepared: Prepared | None = None
    """None where the caller performs the step itself."""

    @classmethod
    def of(cls, head: Head, claim: Claim, prepared: Prepared) -> Turn:
        """Return the turn in which *prepared* is to be performed."""
        return cls(claim, prepared.step, prepared.position, prepared.place, head, prepared)
