"""Fake agents: executors without a model and without a process.

A rehearsal shows the input of an agent and succeeds with an answer in the form that the step
asks for: one of its labels, or a simple value of its schema. It accepts every step field,
because it does nothing with them, and the log says so. The scripted executor returns outcomes
from its entry, for tests and simulations. Outcomes without a condition on step_index or attempt
are used in order, separately for each step; only this executor remembers earlier calls.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from sequencer.executors.answers import build_answer_schema, with_answer_digest, with_structured
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import Listener, Piece, StepRequest, timeout_message
from sequencer.executors.samples import sample
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.evidence import Evidence
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Name, Step

_SHOWN_LINES = 5
_SHOWN_CHARS = 200


class RehearsalOptions(Frozen):
    """Keys of ``agents: {NAME: {kind: rehearsal, …}}``."""

    seconds: float = Field(default=0.0, ge=0, le=86_400)
    """How long each step pretends to work."""


class RehearsalExecutor:
    """Succeeds without doing any work, and says so in the log."""

    kind: ClassVar[str] = "rehearsal"
    supported_fields: ClassVar[frozenset[str]] = frozenset(Step.model_fields)

    def __init__(
        self, name: str, options: RehearsalOptions, *, is_for_command: bool = False
    ) -> None:
        """Use *name*, the agent's name, in the log."""
        self.name = name
        self.options = options
        self.is_for_command = is_for_command
        """It replaces a command, whose step needs no prompt."""

    def problems(self) -> list[str]:
        """Return nothing: a rehearsal needs nothing."""
        return []

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Write the request to the log, wait, and succeed."""
        listener.write(self._describe(request).encode("utf-8", "surrogateescape"), Piece.NOTICE)
        seconds = self.options.seconds
        if seconds or cancellation.is_set():
            stopped = wait_like_an_agent(seconds, request, cancellation)
            if stopped is not None:
                return stopped
        usage = Usage(seconds=seconds, rehearsed=1)
        listener.report_usage(usage)
        output = f"Rehearsal of step {request.step.name!r}: no agent ran."
        outcome = Outcome(status=OutcomeStatus.OK, usage=usage, evidence=Evidence())
        # Without a value of its schema, the step would never pass its check.
        if (schema := build_answer_schema(request.step)) is not None:
            value = sample(schema, request.label, f"{request.step.name}-a")
            return with_answer_digest(with_structured(outcome.replace(output=output), value))
        if request.label is not None:
            output = f"{output}\n\n{request.label}"
        return with_answer_digest(outcome.replace(output=output))

    def _describe(self, request: StepRequest) -> str:
        lines = request.prompt.splitlines()
        shown_lines = [f"    {line[:_SHOWN_CHARS]}" for line in lines[:_SHOWN_LINES]]
        if len(lines) > _SHOWN_LINES:
            shown_lines.append(f"    … and {len(lines) - _SHOWN_LINES} more lines")
        size = len(request.prompt.encode("utf-8", "surrogateescape"))
        values = request.step.model_dump(exclude_defaults=True, exclude={"name"}, mode="json")
        fields = ", ".join(f"{name}: {_format_value(value)}" for name, value in values.items())
        return "\n".join(
            (
                f"Rehearsal ({self.name}): no agent runs, and nothing is changed.",
                f"  step    {request.step.name}",
                f"  fields  {fields or 'none'}",
                f"  folder  {request.cwd}",
                f"  prompt  {size} bytes, {len(lines)} line{'s' * (len(lines) != 1)}:",
                *shown_lines,
                "",
            )
        )


def _format_value(value: object) -> str:
    """Return *value* on one line, in the form of orchestration.yaml.

    >>> _format_value({"max_attempts": 3, "backoff": "fixed", "tags": ["a", None, True]})
    '{max_attempts: 3, backoff: fixed, tags: [a, null, true]}'
    """
    if isinstance(value, Mapping):
        items_text = ", ".join(f"{key}: {_format_value(item)}" for key, item in value.items())
        return f"{{{items_text}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)


class ScriptedOutcome(Frozen):
    """One entry of the script: when it applies, and the outcome."""

    step: Name | None = None
    """Only for this step; None: for any step."""
    step_index: int | None = Field(default=None, ge=0)
    attempt: int | None = Field(default=None, ge=1)
    status: OutcomeStatus = OutcomeStatus.OK
    output: str = ""
    """The final answer; also written to the listener."""
    structured: Any = None
    """The answer as JSON, like from a client that got a schema."""
    error: str | None = None
    delay_s: float = Field(default=0.0, ge=0, le=86_400)
    usage: Usage = Usage()
    session_id: str | None = None
    denials: tuple[str, ...] = ()
    evidence: Evidence | None = None
    """Evidence in addition to the answer; None: the answer is enough."""
    not_before: str | None = None
    """For ``limited``: ISO 8601 UTC time of the reset."""

    def is_applicable(self, step: str, step_index: int, attempt: int) -> bool:
        """Return whether all conditions of the entry are met."""
        return (
            self.step in (None, step)
            and self.step_index in (None, step_index)
            and self.attempt in (None, attempt)
        )

    @property
    def is_placed(self) -> bool:
        """Return whether the entry has a condition on step_index or attempt."""
        return self.step_index is not None or self.attempt is not None


class ScriptedOptions(Frozen):
    """Keys of ``agents: {NAME: {kind: scripted, …}}``."""

    outcomes: tuple[ScriptedOutcome, ...] = Field(min_length=1)
    """The first placed entry that fits wins, or else the next of the others; the last repeats."""


class ScriptedExecutor:
    """Returns the outcomes of its script."""

    kind: ClassVar[str] = "scripted"
    supported_fields: ClassVar[frozenset[str]] = frozenset(Step.model_fields)

    def __init__(self, name: str, options: ScriptedOptions) -> None:
        """Start at the beginning of the script."""
        self.name = name
        self.options = options
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def problems(self) -> list[str]:
        """Return nothing: a script needs nothing."""
        return []

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Wait for the delay of the entry and return its outcome."""
        entry = self._choose_entry(request)
        if entry is None:
            problem = f"agents.{self.name}.outcomes has no entry for step {request.step.name!r}"
            return Outcome(status=OutcomeStatus.FAILED, error=problem)
        if entry.delay_s or cancellation.is_set():
            stopped = wait_like_an_agent(entry.delay_s, request, cancellation)
            if stopped is not None:
                return stopped
        if entry.output:
            listener.write(entry.output.encode("utf-8", "replace") + b"\n", Piece.RESPONSE)
        listener.report_usage(entry.usage)
        error = entry.error
        if error is None and entry.status is OutcomeStatus.FAILED:
            error = "the script says that this attempt fails"
        outcome = Outcome(
            status=entry.status,
            output=entry.output,
            structured=entry.structured,
            error=error,
            usage=entry.usage,
            session_id=entry.session_id,
            denials=entry.denials,
            not_before=entry.not_before,
            evidence=entry.evidence or Evidence(has_text=bool(entry.output), is_stated=True),
        )
        return outcome if entry.evidence is None else with_answer_digest(outcome)

    def _choose_entry(self, request: StepRequest) -> ScriptedOutcome | None:
        step = request.step.name
        identity = request.identity
        fitting_entries = [
            entry
            for entry in self.options.outcomes
            if entry.is_applicable(step, identity.step_index, identity.attempt)
        ]
        placed_entry = next((entry for entry in fitting_entries if entry.is_placed), None)
        other_entries = [entry for entry in fitting_entries if not entry.is_placed]
        if placed_entry is not None or not other_entries:
            return placed_entry
        with self._lock:
            call = self._calls[step]
            self._calls[step] += 1
        return other_entries[min(call, len(other_entries) - 1)]


def wait_like_an_agent(
    seconds: float, request: StepRequest, cancellation: Cancellation
) -> Outcome | None:
    """Wait *seconds* without output; return an outcome if a limit or a stop ends the wait."""
    start = time.monotonic()
    timeout = _min_seconds(request.timeout_s, seconds)
    idle_s = _min_seconds(request.idle_timeout_s, seconds)
    cancellation.wait(min(timeout, idle_s))
    usage = Usage(seconds=round(time.monotonic() - start, 6))
    if cancellation.reason is not None:
        error = f"stopped: {cancellation.reason}"
        return Outcome(status=OutcomeStatus.INTERRUPTED, error=error, usage=usage)
    if idle_s < min(timeout, seconds):
        error = f"no progress for {idle_s:g} s\nraise idle_timeout_s of step {request.step.name!r}"
        return Outcome(status=OutcomeStatus.FAILED, error=error, usage=usage)
    if timeout < seconds:
        error = timeout_message(request, "nothing was done")
        return Outcome(status=OutcomeStatus.FAILED, error=error, usage=usage, is_timed_out=True)
    return None


def _min_seconds(limit_s: float | None, seconds: float) -> float:
    return seconds if limit_s is None else min(limit_s, seconds)
