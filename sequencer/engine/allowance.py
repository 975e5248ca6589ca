"""What an attempt may use under the limits of the invocation and the run."""

from __future__ import annotations

from msgspec import Struct

from sequencer.model.outcome import Usage
from sequencer.model.step import Step


def least(*values: float | None) -> float | None:
    """Return the smallest of the limits *values*; None where there is none."""
    found = None
    for value in values:
        if value is not None and (found is None or value < found):
            found = value
    return found


def left(most: float | None, used: float) -> float | None:
    """Return what is left of *most*, where there is a limit."""
    return None if most is None else most - used


class Allowance(Struct, frozen=True):
    """What is left for an attempt under the limits of the invocation and the run."""

    cost_usd: float | None = None
    timeout_s: float | None = None

    def after(self, paid: Usage) -> Allowance:
        """Return what is left after *paid*."""
        if self.cost_usd is None:
            return self
        return Allowance(max(self.cost_usd - paid.cost_usd, 0.0), self.timeout_s)

    def rest(self, step: Step, used: Usage) -> Allowance:
        """Return what is left, also of the time of *step*, for the same try after *used*."""
        most_s, remaining = least(step.timeout_s, self.timeout_s), self.after(used)
        if most_s is None:
            return remaining
        return Allowance(remaining.cost_usd, max(most_s - used.seconds, 1.0))
