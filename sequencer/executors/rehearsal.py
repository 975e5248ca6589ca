"""No model and no process: says what an agent would have been asked, and succeeds.

For trying a workflow's order, its prompts and its logs without cost. Every step field is
accepted, because nothing is done with any of them, and the log says so.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sequencer.executors.in_process import wait_like_an_agent
from sequencer.executors.protocol import Cancellation, Kind, Listener, StepRequest
from sequencer.executors.structured import sample, schema_of, with_structured
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Step

_SHOWN_LINES = 5
_SHOWN_CHARS = 200


class RehearsalOptions(BaseModel):
    """Keys of ``agents: {NAME: {kind: rehearsal, …}}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(default=0.0, ge=0, le=86_400)
    """How long each step pretends to work."""


class RehearsalExecutor:
    """Succeeds without doing anything, and says that."""

    kind: ClassVar[str] = "rehearsal"
    supported_fields: ClassVar[frozenset[str]] = frozenset(Step.model_fields)

    def __init__(
        self, name: str, options: RehearsalOptions, *, is_for_command: bool = False
    ) -> None:
        """Use *name*, the agent's name, in what is written."""
        self.name = name
        self.options = options
        self.is_for_command = is_for_command
        """It stands in for a command, whose step needs no prompt."""

    def problems(self) -> list[str]:
        """Return nothing: a rehearsal needs nothing."""
        return []

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Write what was asked, wait, and succeed."""
        listener.write(self._said(request).encode("utf-8", "surrogateescape"), Kind.NOTICE)
        seconds = self.options.seconds
        if seconds or cancellation.is_set():
            stopped = wait_like_an_agent(seconds, request, cancellation)
            if stopped is not None:
                return stopped
        usage = Usage(seconds=seconds, rehearsed=1)
        listener.used(usage)
        output = f"Rehearsal of step {request.step.name!r}: no agent ran."
        outcome = Outcome(status=OutcomeStatus.OK, output=output, usage=usage)
        schema = schema_of(request.step)
        # A step that wants an answer in a form would otherwise never get past its check.
        return outcome if schema is None else with_structured(outcome, sample(schema))

    def _said(self, request: StepRequest) -> str:
        lines = request.prompt.splitlines()
        shown = [f"    {line[:_SHOWN_CHARS]}" for line in lines[:_SHOWN_LINES]]
        if len(lines) > _SHOWN_LINES:
            shown.append(f"    … and {len(lines) - _SHOWN_LINES} more lines")
        size = len(request.prompt.encode("utf-8", "surrogateescape"))
        asked = request.step.model_dump(exclude_defaults=True, exclude={"name"})
        fields = ", ".join(f"{name}={value!r}" for name, value in asked.items()) or "none"
        return "\n".join(
            (
                f"Rehearsal ({self.name}): no agent runs, nothing is changed.",
                f"  step    {request.step.name}",
                f"  fields  {fields}",
                f"  folder  {request.cwd}",
                f"  prompt  {size} bytes, {len(lines)} lines:",
                *shown,
                "",
            )
        )
