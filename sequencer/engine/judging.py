"""What a step's answer has to be, and whether it is: its schema, and the verdict of a judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sequencer.engine.prepared import Prepared
from sequencer.model.kind import Performed
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Output, Step
from sequencer.workflows.templates import parsed
from sequencer.workflows.verdicts import check_schema, verdict_of

VERDICT_OUTPUT = Output(
    format="json",
    schema={
        "type": "object",
        "properties": {"pass": {"type": "boolean"}, "reason": {"type": "string"}},
        "required": ["pass", "reason"],
        "additionalProperties": False,
    },
)
"""What a step that judges is to answer, for clients that can be told."""


def judged(performed: Performed, *, is_command: bool) -> Performed:
    """Return *performed* with the verdict of a step that judges.

    A "no" reads as a failure in log and journal; what follows is the loop's to say.
    """
    step, outcome = performed.step, performed.outcome
    if step.validation is None or performed.place.stage == "fix":
        return performed
    has_ended = outcome.exit_code is not None and outcome.exit_code >= 0
    if not outcome.is_accepted and not (is_command and has_ended):
        return performed
    verdict = verdict_of(outcome, is_command=is_command)
    if not verdict.is_pass:
        error = f"the answer is no: {verdict.reason}"
        outcome = outcome.replace(status=OutcomeStatus.FAILED, error=error)
    return replace(performed, outcome=outcome, verdict=verdict)


def as_asked(prepared: Prepared) -> tuple[Step, str, str | None]:
    """Return the step, the prompt and the added system prompt as the executor gets them."""
    step, prompt, added = prepared.step, prepared.prompt, prepared.append_system_prompt
    if step.validation is not None and step.output is None and prepared.place.stage == "step":
        step = step.model_copy(update={"output": VERDICT_OUTPUT})
    if added and "append_system_prompt" not in prepared.executor.supported_fields:
        # A client without a place for it hears it first.
        prompt, added = f"{added}\n\n---\n\n{prompt}", None
    return step, prompt, added


def checked(step: Step, outcome: Outcome) -> Outcome:
    """Return *outcome*, failed if its answer is not what the step's schema asks for."""
    schema = step.output.json_schema if step.output is not None else None
    if schema is None or not outcome.is_accepted:
        return outcome
    try:
        value = outcome.structured if outcome.structured is not None else parsed(outcome.output)
        problem = check_schema(schema, value)
    except KeyError:
        problem = "it is no JSON"
    if problem is None:
        return outcome
    error = f"the answer does not fit to the step's schema: {problem}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error)


def redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """Return a structured answer without secrets, as its text is.

    Where a secret ended in its grammar as JSON, it is the text itself.
    """
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    hidden = redact(text)
    if hidden == text:
        return value
    try:
        return json.loads(hidden)
    except ValueError:
        return hidden
