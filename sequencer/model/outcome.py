"""What an executor returns about one attempt at a step."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from sequencer.model.frozen import Frozen


class Usage(Frozen):
    """What one attempt, or a run so far, has used."""

    model_config = ConfigDict(extra="ignore")

    steps: int = Field(default=0, ge=0)
    """Accepted steps; 0 or 1 for one attempt."""
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    input_tokens: int = Field(default=0, ge=0)
    """Everything that was sent, cache reads and cache writes included."""
    output_tokens: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def plus(self, other: Usage, *, steps: int | None = None) -> Usage:
        """Return the sum, field by field; *steps* replaces those of *other*."""
        return self.replace(
            steps=self.steps + (other.steps if steps is None else steps),
            cost_usd=round(self.cost_usd + other.cost_usd, 9),
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            seconds=round(self.seconds + other.seconds, 6),
        )


class OutcomeStatus(StrEnum):
    """How an attempt ended."""

    OK = "ok"
    COMPLETE = "complete"
    """Accepted, and the whole run is done."""
    FAILED = "failed"
    LIMITED = "limited"
    """The client's subscription or rate limit is reached: nobody's failure; try after the reset."""
    INTERRUPTED = "interrupted"
    """Stopped by us (signal, lost claim): nobody's failure."""


class Outcome(Frozen):
    """The result of one attempt; frozen."""

    model_config = ConfigDict(extra="forbid")

    status: OutcomeStatus
    output: str = ""
    """The agent's final answer, not its transcript."""
    structured: Any = None
    """The answer as JSON, where the client was asked for it or the agent wrote it to its result
    file as anything but a text; None elsewhere."""
    error: str | None = None
    """Why it failed: what, and what to do; one to three lines."""
    usage: Usage = Usage()
    session_id: str | None = None
    """The client's own id of the conversation, to continue it."""
    denials: tuple[str, ...] = ()
    """Tool calls that the client refused, one short line each."""
    exit_code: int | None = None
    """Of the agent process; negative for a signal, absent for an in-process executor."""
    not_before: str | None = None
    """For ``limited``: ISO 8601 UTC time of the reset."""
    prompt: str | None = None
    """The prompt that was run, where the router chose another one."""

    @property
    def is_accepted(self) -> bool:
        """Return whether the step counts as done."""
        return self.status in (OutcomeStatus.OK, OutcomeStatus.COMPLETE)
