"""Calls a project's hooks one by one and checks all their answers.

An exception of a hook, SystemExit included, and an invalid answer become a `HookFailed` that
names the hook and its line; only a KeyboardInterrupt passes. Hooks get copies, so that a hook
can't change our objects through a mapping inside a frozen one. None means "no opinion".

Not checked: whether an answer makes sense in a run (is there a procedure of that name?). The
engine decides that.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from sequencer.engine.hooking import HookContext, HookFailed
from sequencer.errors import ConfigurationError
from sequencer.frozen.base import validate_value
from sequencer.frozen.fields import ValidationError
from sequencer.hooks.loading import find_line, load_entries, load_files, summary
from sequencer.hooks.points import Implementation, implementations
from sequencer.model.head import Head
from sequencer.model.outcome import Decision, Move, Outcome
from sequencer.model.request import Request
from sequencer.model.step import ModelName, Name, Step
from sequencer.model.workflow import Workflow
from sequencer.packages import disable_hint
from sequencer.workflows.verdicts import ensure_schema

MAX_TRACEBACK_CHARS = 20_000

AnswerT = TypeVar("AnswerT")


def make_hooks(
    files: Sequence[str], project: Path, trusted: Mapping[Path, str], entries: Iterable[EntryPoint]
) -> PluggedHooks:
    """Return the hooks of *files* and *entries*; see `project.load_hooks`."""
    plugins = [*load_files(files, project, trusted), *load_entries(entries)]
    return PluggedHooks(implementations(plugins))


class PluggedHooks:
    """The hooks of one project; see `engine.hooking.Hooks`."""

    def __init__(self, points: Mapping[str, Sequence[Implementation]]) -> None:
        """Use *points*, which maps each point to its hooks in the order of their calls."""
        self._points = points

    def procedure(self, request: Request, chosen: str) -> str:
        """Return the procedure for *request*: the first answer of a hook, or else *chosen*."""
        facts = {"request": request, "chosen": chosen}
        return self._find_first_answer("sequencer_procedure", facts, parse_procedure) or chosen

    def steps(self, request: Request, workflow: Workflow) -> Workflow:
        """Return *workflow* with the run's steps; each hook gets the previous hook's result."""
        facts = {"request": request, "workflow": workflow}
        return self._chain_answers("sequencer_steps", facts, "workflow", parse_workflow)

    def prompt(self, context: HookContext, text: str) -> str:
        """Return the prompt of a step; each hook gets the previous hook's result."""
        return self._chain_answers(
            "sequencer_prompt", {"context": context, "text": text}, "text", parse_prompt
        )

    def system_prompt(self, context: HookContext, text: str | None) -> str | None:
        """Return what is added to the client's system prompt.

        Each hook gets the previous hook's result, and "" removes the system prompt.
        """
        facts = {"context": context, "text": text}
        return self._chain_answers("sequencer_system_prompt", facts, "text", parse_system_prompt)

    def model(self, context: HookContext, model: str | None) -> str | None:
        """Return the model for a step: the first answer of a hook, or else *model*."""
        facts = {"context": context, "model": model}
        return self._find_first_answer("sequencer_model", facts, parse_model) or model

    def transition(self, context: HookContext, outcome: Outcome) -> Decision | None:
        """Return where the run goes after *outcome*: the first answer of a hook.

        None: no hook has an opinion, so the run goes where the workflow says.
        """
        facts = {"context": context, "outcome": outcome}
        convert = partial(parse_decision, context=context)
        return self._find_first_answer("sequencer_transition", facts, convert)

    def completed(self, context: HookContext, head: Head) -> None:
        """Call all hooks for the completed run of *head*, even if one of them fails.

        Raises:
            HookFailed: the first failure, with the tracebacks of all.
        """
        failures = []
        for hook in self._points["sequencer_completed"]:
            try:
                _ask(hook, {"context": context, "head": head})
            except HookFailed as failure:
                failures.append(failure)
        if failures:
            first_failure = failures[0]
            first_failure.traceback = "\n".join(failure.traceback for failure in failures)
            raise first_failure

    def _find_first_answer(
        self, point: str, facts: Mapping[str, Any], convert: Callable[[object], AnswerT]
    ) -> AnswerT | None:
        for hook in self._points[point]:
            answer = _ask(hook, facts)
            if answer is not None:
                with _blame(hook):
                    return convert(answer)
        return None

    def _chain_answers(
        self,
        point: str,
        facts: Mapping[str, Any],
        name: str,
        convert: Callable[[object, Any], AnswerT],
    ) -> AnswerT:
        """Return the fact called *name* after all hooks have changed it, one after the other."""
        value: AnswerT = facts[name]
        for hook in self._points[point]:
            answer = _ask(hook, {**facts, name: value})
            if answer is not None:
                with _blame(hook):
                    value = convert(answer, value)
        return value


def _copy(fact: object) -> object:
    """Return a copy of *fact* that shares no mapping with the original."""
    if isinstance(fact, HookContext):
        return replace(fact, step=deepcopy(fact.step))
    return deepcopy(fact)


def _ask(hook: Implementation, facts: Mapping[str, Any]) -> object:
    try:
        return hook(**{name: _copy(fact) for name, fact in facts.items()})
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Even a hook's SystemExit must not end the program.
        line = find_line(hook.file, error) if hook.file else None
        failure = HookFailed(
            f"hook {hook.point} raised {summary(error)}",
            where=f"{hook.file}:{line}" if line else hook.where,
            hint=f"{_describe_fix(hook)}; the traceback is in the step's log",
        )
        failure.traceback = _format_hook_traceback(error)
        raise failure from error


def _describe_fix(hook: Implementation) -> str:
    if hook.package is None:
        return "fix it, or remove it from hooks"
    return disable_hint(hook.package)


@contextmanager
def _blame(hook: Implementation) -> Iterator[None]:
    """Turn an `InvalidAnswer` into a failure of *hook*."""
    try:
        yield
    except InvalidAnswer as refusal:
        failure = HookFailed(
            f"hook {hook.point} answered {refusal}",
            where=hook.where,
            hint="None means that it has no opinion",
        )
        failure.traceback = str(failure)
        raise failure from refusal


def _format_hook_traceback(error: BaseException) -> str:
    """Return the traceback without our own two frames; a long one is cut to its end."""
    details = traceback.TracebackException.from_exception(error, compact=True)
    del details.stack[:2]
    return "".join(details.format())[-MAX_TRACEBACK_CHARS:]


_SHOWN_CHARS = 80
_REASON_CHARS = 1000


class InvalidAnswer(ValueError):
    """An answer has the wrong type or an impossible value; the message shows it."""


def parse_procedure(answer: object) -> str:
    """Return *answer* as the name of a procedure."""
    return _validate(Name, answer, "the name of a procedure")


def parse_workflow(answer: object, before: Workflow) -> Workflow:
    """Return *before* with the steps of *answer*, a workflow or a sequence of steps.

    Name, kind and review stay: the name of a run must not depend on a hook.
    """
    if isinstance(answer, Workflow):
        if (answer.name, answer.kind) != (before.name, before.kind):
            raise InvalidAnswer(
                f"a {answer.kind} called {answer.name!r}, but it was asked for the steps of the "
                f"{before.kind} {before.name!r}"
            )
        steps: object = answer.steps
    else:
        steps = answer
    if not isinstance(steps, (list, tuple)) or not all(isinstance(step, Step) for step in steps):
        raise _make_invalid_answer(answer, "a Workflow, or a list or tuple of Step")
    try:
        workflow = Workflow(
            before.name,
            tuple(steps),
            before.review,
            before.kind,
            description=before.description,
        )
        for step in workflow.steps:
            _ensure_schemas(step)
    except ValidationError as error:
        message = f"steps that do not make a workflow: {error.errors()[0]['msg']}"
        raise InvalidAnswer(message) from error
    except ConfigurationError as error:
        raise InvalidAnswer(f"a step with a wrong schema: {error}") from error
    return workflow


def _ensure_schemas(step: Step) -> None:
    if step.output is not None and step.output.json_schema is not None:
        ensure_schema(step.output.json_schema, f"step {step.name!r}: output.schema")
    if step.validation is not None and step.validation.fixer is not None:
        _ensure_schemas(step.validation.fixer)


def parse_prompt(answer: object, before: str) -> str:
    """Return *answer* as a prompt, which has to be text that a UTF-8 file can store."""
    del before
    if not isinstance(answer, str):
        raise _make_invalid_answer(answer, "text")
    try:
        answer.encode()
    except UnicodeEncodeError as error:
        raise InvalidAnswer(f"text that is not UTF-8 at character {error.start}") from error
    return str(answer)


def parse_system_prompt(answer: object, before: str | None) -> str | None:
    """Return *answer* as a system prompt; None if it is empty, which removes the prompt."""
    return parse_prompt(answer, before or "") or None


def parse_model(answer: object) -> str:
    """Return *answer* as the name of a model; it must not look like a command-line option."""
    return _validate(ModelName, answer, "the name of a model")


def parse_decision(answer: object, context: HookContext) -> Decision:
    """Return *answer* as a decision that is possible in the workflow of *context*."""
    if not isinstance(answer, Decision) or not isinstance(answer.move, Move):
        raise _make_invalid_answer(answer, "a sequencer.Decision")
    move, target, reason = answer.move, answer.target, answer.reason
    if not isinstance(reason, str):
        raise _make_invalid_answer(reason, "text as its reason")
    if move not in context.moves:
        choices = ", ".join(context.moves)
        step = f"step {context.step.name!r} of {context.workflow!r}"
        raise InvalidAnswer(f"{move.value}, which {step} can't do; it can {choices}")
    if move is Move.GOTO:
        if target is None:
            raise InvalidAnswer("a goto without the name of a step")
        if not isinstance(target, str) or (context.steps and target not in context.steps):
            choices = ", ".join(context.steps)
            raise InvalidAnswer(
                f"a goto to {_format_answer(target)}, which is not a step; steps: {choices}"
            )
    elif target is not None:
        raise InvalidAnswer(
            f"a target ({_format_answer(target)}) for {move.value}, which takes none"
        )
    line = " ".join(reason[: 4 * _REASON_CHARS].split())[:_REASON_CHARS]
    return Decision(move, target, line.encode("utf-8", "replace").decode())


def _validate(kind: Any, answer: object, expectation: str) -> str:
    if not isinstance(answer, str):
        raise _make_invalid_answer(answer, expectation)
    try:
        return str(validate_value(kind, answer))
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise InvalidAnswer(
            f"{_format_answer(answer)}, expected {expectation}: {message}"
        ) from error


def _make_invalid_answer(answer: object, expectation: str) -> InvalidAnswer:
    return InvalidAnswer(f"{_format_answer(answer)}, expected {expectation}")


def _format_answer(answer: object) -> str:
    """Return *answer* in a few words; the repr of an unknown object may raise or never end."""
    if isinstance(answer, (str, int, float)):
        text = ascii(answer[:_SHOWN_CHARS] if isinstance(answer, str) else answer)
        return f"{text[:_SHOWN_CHARS]} ({type(answer).__name__})"
    return f"a value of type {type(answer).__name__}"
