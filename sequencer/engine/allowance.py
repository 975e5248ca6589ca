"""The cost and time that an attempt may use under the limits of the invocation and the run."""

from __future__ import annotations

from msgspec import Struct

from sequencer.model.outcome import Usage
from sequencer.model.step import Step


def smallest_limit(*values: float | None) -> float | None:
    """Return the smallest of *values*; None: there is no limit."""
    limit = None
    for value in values:
        if value is not None and (limit is None or value < limit):
            limit = value
    return limit


def subtract_used(most: float | None, used: float) -> float | None:
    """Return *most* minus *used*; None: there is no limit."""
    return None if most is None else most - used


class Allowance(Struct, frozen=True):
    """The cost and time that are left for an attempt; None: no limit."""

    cost_usd: float | None = None
    timeout_s: float | None = None

    def subtract(self, paid: Usage) -> Allowance:
        """Return the allowance that is left after *paid*."""
        if self.cost_usd is None:
            return self
        return Allowance(max(self.cost_usd - paid.cost_usd, 0.0), self.timeout_s)

    def compute_rest(self, step: Step, used: Usage) -> Allowance:
        """Return the allowance for the rest of the same try after *used*.

        The time limit of *step* counts too.
        """
        most_s, rest = smallest_limit(step.timeout_s, self.timeout_s), self.subtract(used)
        if most_s is None:
            return rest
        return Allowance(rest.cost_usd, max(most_s - used.seconds, 1.0))
