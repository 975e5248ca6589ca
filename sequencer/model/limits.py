"""Limits of a run and of one invocation, decided from counters that are in the head."""

from __future__ import annotations

from sequencer.errors import TooManyFailures
from sequencer.model.fields import Field
from sequencer.model.frozen import Frozen
from sequencer.model.head import Head


class RunLimits(Frozen, allow_inf_nan=False):
    """What a run as a whole may use; the counters are in its head and survive restarts."""

    max_steps: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)
    max_seconds: float | None = Field(default=None, gt=0)
    """Seconds of agent work, attempts that failed included; not wall time."""
    max_failures_in_row: int = Field(default=3, ge=1)
    max_attempts: int = Field(default=20, ge=1)
    """Attempts at one step, interrupted and crashed ones included."""

    def reached(self, head: Head) -> str | None:
        """Return which limit *head* has reached, in words, or nothing."""
        usage = head.usage
        if self.max_steps is not None and usage.steps >= self.max_steps:
            return f"the run's limit of {self.max_steps} steps is reached"
        if self.max_cost_usd is not None and usage.cost_usd >= self.max_cost_usd:
            return f"the run's limit of {self.max_cost_usd} USD is reached ({usage.cost_usd:.4f})"
        if self.max_seconds is not None and usage.seconds >= self.max_seconds:
            return f"the run's limit of {self.max_seconds:g} s is reached ({usage.seconds:.0f} s)"
        return None

    def ensure_may_try(self, head: Head) -> None:
        """Return if the present step may be tried once more.

        Raises:
            TooManyFailures: it failed max_failures_in_row times, or was begun max_attempts
                times without an end; going on would burn money without a person looking.
        """
        if head.failures_in_row >= self.max_failures_in_row:
            raise TooManyFailures(
                f"step {head.expected_step!r} failed {head.failures_in_row} times in a row "
                f"(limits.max_failures_in_row: {self.max_failures_in_row})",
                hint="look at 'sequencer log', then 'sequencer retry', 'skip' or 'stamp ok'",
            )
        if head.loop is not None and head.loop.exhausted >= self.max_failures_in_row:
            raise TooManyFailures(
                f"step {head.expected_step!r} said no in all its rounds, "
                f"{head.loop.exhausted} times (limits.max_failures_in_row: "
                f"{self.max_failures_in_row})",
                hint="look at 'sequencer log', then 'sequencer retry', 'skip' or 'stamp ok'",
            )
        if head.attempt >= self.max_attempts:
            raise TooManyFailures(
                f"step {head.expected_step!r} was begun {head.attempt} times without an end "
                f"(limits.max_attempts: {self.max_attempts})",
                hint="look at 'sequencer log', then 'sequencer retry', 'skip' or 'stamp ok'",
            )


class InvocationLimits(Frozen, allow_inf_nan=False):
    """What one `run` or one `tick` may use."""

    max_steps: int | None = Field(default=20, ge=1)
    max_cycles: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)
    max_wait_s: float | None = Field(default=None, ge=0)
    """Seconds to wait for a turn; None waits without limit."""
    step_timeout_s: float | None = Field(default=None, gt=0)
