"""What a hook may answer at each point, and nothing that only looks like it.

None never arrives here: it means "no opinion". Whether an answer makes sense in a run (is
there a procedure of that name?) is the engine's to say.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from sequencer.engine.hooking import HookContext
from sequencer.errors import ConfigurationError
from sequencer.model.outcome import Decision, Move
from sequencer.model.step import ModelName, Name, Step
from sequencer.model.workflow import Workflow
from sequencer.workflows.verdicts import ensure_schema

_SHOWN_CHARS = 80
_REASON_CHARS = 1000


class NoMeaning(ValueError):
    """An answer has the wrong type or an impossible value; the message shows it."""


def as_procedure(answer: object) -> str:
    """Return the name of a procedure."""
    return _validated(Name, answer, "the name of a procedure")


def as_workflow(answer: object, before: Workflow) -> Workflow:
    """Return *before* with the steps of *answer*, a workflow or a sequence of steps.

    The name, the kind and the review stay: what a run is called must not depend on a hook.
    """
    if isinstance(answer, Workflow):
        if (answer.name, answer.kind) != (before.name, before.kind):
            raise NoMeaning(
                f"a {answer.kind} called {answer.name!r}, and it was asked for the steps of the "
                f"{before.kind} {before.name!r}"
            )
        steps: object = answer.steps
    else:
        steps = answer
    if not isinstance(steps, (list, tuple)) or not all(isinstance(one, Step) for one in steps):
        raise _wrong(answer, "a Workflow, or a list or tuple of Step")
    try:
        made = Workflow(
            before.name,
            tuple(steps),
            before.review,
            before.kind,
            description=before.description,
        )
        for step in made.steps:
            _ensure_schemas(step)
    except ValidationError as error:
        raise NoMeaning(f"steps that make no workflow: {error.errors()[0]['msg']}") from error
    except ConfigurationError as error:
        raise NoMeaning(f"a step with a wrong schema: {error}") from error
    return made


def _ensure_schemas(step: Step) -> None:
    if step.output is not None and step.output.json_schema is not None:
        ensure_schema(step.output.json_schema, f"step {step.name!r}: output.schema")
    if step.validation is not None and step.validation.fixer is not None:
        _ensure_schemas(step.validation.fixer)


def as_prompt(answer: object, before: str) -> str:
    """Return a text that a file can hold, instead of *before*."""
    del before
    if not isinstance(answer, str):
        raise _wrong(answer, "a text")
    try:
        answer.encode()
    except UnicodeEncodeError as error:
        raise NoMeaning(f"a text that is no UTF-8 at character {error.start}") from error
    return str(answer)


def as_system_prompt(answer: object, before: str | None) -> str | None:
    """Return a text instead of *before*; an empty one takes it away."""
    return as_prompt(answer, before or "") or None


def as_model(answer: object) -> str:
    """Return the name of a model; it reaches command lines, so it is no option."""
    return _validated(ModelName, answer, "the name of a model")


def as_decision(answer: object, context: HookContext) -> Decision:
    """Return a decision that can be carried out in the workflow of *context*."""
    if not isinstance(answer, Decision) or not isinstance(answer.move, Move):
        raise _wrong(answer, "a sequencer.Decision")
    move, target, reason = answer.move, answer.target, answer.reason
    if not isinstance(reason, str):
        raise _wrong(reason, "a text as its reason")
    if move is Move.GOTO:
        if target is None:
            raise NoMeaning("a goto without the name of a step")
        if not isinstance(target, str) or (context.steps and target not in context.steps):
            known = ", ".join(context.steps)
            raise NoMeaning(f"a goto to {_shown(target)}, which is no step; steps: {known}")
    elif target is not None:
        raise NoMeaning(f"a target ({_shown(target)}) for {move.value}, which has none")
    line = " ".join(reason[: 4 * _REASON_CHARS].split())[:_REASON_CHARS]
    return Decision(move, target, line.encode("utf-8", "replace").decode())


def _validated(kind: Any, answer: object, expected: str) -> str:
    if not isinstance(answer, str):
        raise _wrong(answer, expected)
    try:
        return str(TypeAdapter(kind).validate_python(answer))
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise NoMeaning(f"{_shown(answer)}, expected {expected}: {message}") from error


def _wrong(answer: object, expected: str) -> NoMeaning:
    return NoMeaning(f"{_shown(answer)}, expected {expected}")


def _shown(answer: object) -> str:
    """Return *answer* in a few words; an object's own repr may raise or be endless."""
    if isinstance(answer, (str, int, float)):
        text = ascii(answer[:_SHOWN_CHARS] if isinstance(answer, str) else answer)
        return f"{text[:_SHOWN_CHARS]} ({type(answer).__name__})"
    return f"a value of type {type(answer).__name__}"
