"""Calls the hooks of a project, one after the other, and believes nothing they answer.

What a hook raises, SystemExit included, and what it answers that has no meaning, is a
`HookFailed` that names the hook and its line; only a KeyboardInterrupt passes. Hooks get
copies, so that one that changes a mapping within a frozen object changes nothing of ours.
None means "no opinion". Whether an answer makes sense in a run (is there a procedure of that
name?) is the engine's to say.
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
from sequencer.frozen.base import checked
from sequencer.frozen.fields import ValidationError
from sequencer.hooks.loading import line_in, load_entries, load_files, summary
from sequencer.hooks.points import Implementation, implementations
from sequencer.model.head import Head
from sequencer.model.outcome import Decision, Move, Outcome
from sequencer.model.request import Request
from sequencer.model.step import ModelName, Name, Step
from sequencer.model.workflow import Workflow
from sequencer.packages import how_to_disable
from sequencer.workflows.verdicts import ensure_schema

MAX_TRACEBACK_CHARS = 20_000

AnswerT = TypeVar("AnswerT")


def plugged(
    files: Sequence[str], project: Path, trusted: Mapping[Path, str], entries: Iterable[EntryPoint]
) -> PluggedHooks:
    """Return the hooks of *files* and *entries*; see `project.load_hooks`."""
    plugins = [*load_files(files, project, trusted), *load_entries(entries)]
    return PluggedHooks(implementations(plugins))


class PluggedHooks:
    """The hooks of one project; see `engine.hooking.Hooks`."""

    def __init__(self, points: Mapping[str, Sequence[Implementation]]) -> None:
        """Call *points*, each in its order."""
        self._points = points

    def procedure(self, request: Request, chosen: str) -> str:
        """Return the procedure for *request*: the first answer of a hook, or else *chosen*."""
        facts = {"request": request, "chosen": chosen}
        return self._first("sequencer_procedure", facts, as_procedure) or chosen

    def steps(self, request: Request, workflow: Workflow) -> Workflow:
        """Return *workflow* with the run's steps; each hook gets the result of the last one."""
        facts = {"request": request, "workflow": workflow}
        return self._chained("sequencer_steps", facts, "workflow", as_workflow)

    def prompt(self, context: HookContext, text: str) -> str:
        """Return the prompt of a step; each hook gets the result of the last one."""
        return self._chained(
            "sequencer_prompt", {"context": context, "text": text}, "text", as_prompt
        )

    def system_prompt(self, context: HookContext, text: str | None) -> str | None:
        """Return what is added to the client's system prompt.

        Each hook gets the result of the last one, and "" removes it.
        """
        facts = {"context": context, "text": text}
        return self._chained("sequencer_system_prompt", facts, "text", as_system_prompt)

    def model(self, context: HookContext, model: str | None) -> str | None:
        """Return the model for a step: the first answer of a hook, or else *model*."""
        facts = {"context": context, "model": model}
        return self._first("sequencer_model", facts, as_model) or model

    def transition(self, context: HookContext, outcome: Outcome) -> Decision | None:
        """Return where the run goes after *outcome*: the first answer of a hook.

        None: no hook has one, so the run goes where the workflow says.
        """
        facts = {"context": context, "outcome": outcome}
        taken = partial(as_decision, context=context)
        return self._first("sequencer_transition", facts, taken)

    def completed(self, context: HookContext, head: Head) -> None:
        """Call all hooks for the completed run of *head*, also after one has failed.

        Raises:
            HookFailed: the first failure, with the tracebacks of all.
        """
        failures = []
        for hook in self._points["sequencer_completed"]:
            try:
                _asked(hook, {"context": context, "head": head})
            except HookFailed as failure:
                failures.append(failure)
        if failures:
            first = failures[0]
            first.traceback = "\n".join(failure.traceback for failure in failures)
            raise first

    def _first(
        self, point: str, facts: Mapping[str, Any], taken: Callable[[object], AnswerT]
    ) -> AnswerT | None:
        for hook in self._points[point]:
            answer = _asked(hook, facts)
            if answer is not None:
                with _understood(hook):
                    return taken(answer)
        return None

    def _chained(
        self,
        point: str,
        facts: Mapping[str, Any],
        name: str,
        taken: Callable[[object, Any], AnswerT],
    ) -> AnswerT:
        """Return the fact called *name* as the hooks, one after the other, have made it."""
        present: AnswerT = facts[name]
        for hook in self._points[point]:
            answer = _asked(hook, {**facts, name: present})
            if answer is not None:
                with _understood(hook):
                    present = taken(answer, present)
        return present


def _own(fact: object) -> object:
    """Return a copy of *fact* that shares no mapping with ours."""
    if isinstance(fact, HookContext):
        return replace(fact, step=deepcopy(fact.step))
    return deepcopy(fact)


def _asked(hook: Implementation, facts: Mapping[str, Any]) -> object:
    try:
        return hook(**{name: _own(fact) for name, fact in facts.items()})
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Not even the SystemExit of a hook ends the program.
        line = line_in(hook.file, error) if hook.file else None
        failure = HookFailed(
            f"hook {hook.point} raised {summary(error)}",
            where=f"{hook.file}:{line}" if line else hook.where,
            hint=f"{_how_to_fix(hook)}; the traceback is in the step's log",
        )
        failure.traceback = _told(error)
        raise failure from error


def _how_to_fix(hook: Implementation) -> str:
    if hook.package is None:
        return "fix it, or remove it from hooks"
    return how_to_disable(hook.package)


@contextmanager
def _understood(hook: Implementation) -> Iterator[None]:
    """Turn an answer of *hook* that has no meaning into its failure."""
    try:
        yield
    except NoMeaning as refusal:
        failure = HookFailed(
            f"hook {hook.point} answered {refusal}",
            where=hook.where,
            hint="None means that it has no opinion",
        )
        failure.traceback = str(failure)
        raise failure from refusal


def _told(error: BaseException) -> str:
    """Return the traceback without our own two frames; its end where it is long."""
    told = traceback.TracebackException.from_exception(error, compact=True)
    del told.stack[:2]
    return "".join(told.format())[-MAX_TRACEBACK_CHARS:]


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
                f"a {answer.kind} called {answer.name!r}, but it was asked for the steps of the "
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
        raise NoMeaning(f"steps that do not make a workflow: {error.errors()[0]['msg']}") from error
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
        raise _wrong(answer, "text")
    try:
        answer.encode()
    except UnicodeEncodeError as error:
        raise NoMeaning(f"text that is not UTF-8 at character {error.start}") from error
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
        raise _wrong(reason, "text as its reason")
    if move not in context.moves:
        known = ", ".join(context.moves)
        place = f"step {context.step.name!r} of {context.workflow!r}"
        raise NoMeaning(f"{move.value}, which {place} can't do; it can {known}")
    if move is Move.GOTO:
        if target is None:
            raise NoMeaning("a goto without the name of a step")
        if not isinstance(target, str) or (context.steps and target not in context.steps):
            known = ", ".join(context.steps)
            raise NoMeaning(f"a goto to {_shown(target)}, which is not a step; steps: {known}")
    elif target is not None:
        raise NoMeaning(f"a target ({_shown(target)}) for {move.value}, which takes none")
    line = " ".join(reason[: 4 * _REASON_CHARS].split())[:_REASON_CHARS]
    return Decision(move, target, line.encode("utf-8", "replace").decode())


def _validated(kind: Any, answer: object, expected: str) -> str:
    if not isinstance(answer, str):
        raise _wrong(answer, expected)
    try:
        return str(checked(kind, answer))
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise NoMeaning(f"{_shown(answer)}, expected {expected}: {message}") from error


def _wrong(answer: object, expected: str) -> NoMeaning:
    return NoMeaning(f"{_shown(answer)}, expected {expected}")


def _shown(answer: object) -> str:
    """Return *answer* in a few words; an object's own repr may raise or be endless."""
    if isinstance(answer, (str, int, float)):
        text = ascii(answer[:_SHOWN_CHARS] if isinstance(answer, str) else answer)
        return f"{text[:_SHOWN_CHARS]} ({type(answer).__name__})"
    return f"a value of type {type(answer).__name__}"
