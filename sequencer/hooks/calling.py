"""Calls the hooks of a project, one after the other, and believes nothing they answer.

What a hook raises, SystemExit included, and what it answers that has no meaning, is a
`HookFailed` that names the hook and its line; only a KeyboardInterrupt passes. Hooks get
copies, so that one that changes a mapping within a frozen object changes nothing of ours.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from sequencer.engine.hooking import HookContext, HookFailed
from sequencer.hooks import answers
from sequencer.hooks.loading import line_in, summary
from sequencer.hooks.points import Implementation
from sequencer.model.head import Head
from sequencer.model.outcome import Decision, Outcome
from sequencer.model.request import Request
from sequencer.model.workflow import Workflow

MAX_TRACEBACK_CHARS = 20_000

AnswerT = TypeVar("AnswerT")


class PluggedHooks:
    """The hooks of one project; see `engine.hooking.Hooks`."""

    def __init__(self, points: Mapping[str, Sequence[Implementation]]) -> None:
        """Call *points*, each in its order."""
        self._points = points

    def procedure(self, request: Request, chosen: str) -> str:
        """See `Hooks`; the first that has an opinion wins."""
        facts = {"request": request, "chosen": chosen}
        return self._first("sequencer_procedure", facts, answers.as_procedure) or chosen

    def steps(self, request: Request, workflow: Workflow) -> Workflow:
        """See `Hooks`; each gets what the last one made."""

        def given(present: Workflow) -> dict[str, Any]:
            return {"request": request, "workflow": present.model_copy(deep=True)}

        return self._chained("sequencer_steps", workflow, given, answers.as_workflow)

    def prompt(self, context: HookContext, text: str) -> str:
        """See `Hooks`; each gets what the last one made."""

        def given(present: str) -> dict[str, Any]:
            return {"context": _own(context), "text": present}

        return self._chained("sequencer_prompt", text, given, answers.as_prompt)

    def system_prompt(self, context: HookContext, text: str | None) -> str | None:
        """See `Hooks`; each gets what the last one made, and "" takes it away."""

        def given(present: str | None) -> dict[str, Any]:
            return {"context": _own(context), "text": present}

        return self._chained("sequencer_system_prompt", text, given, answers.as_system_prompt)

    def model(self, context: HookContext, model: str | None) -> str | None:
        """See `Hooks`; the first that has an opinion wins."""
        facts = {"context": _own(context), "model": model}
        return self._first("sequencer_model", facts, answers.as_model) or model

    def transition(self, context: HookContext, outcome: Outcome) -> Decision | None:
        """See `Hooks`; the first that has an opinion wins."""
        facts = {"context": _own(context), "outcome": outcome.model_copy(deep=True)}
        taken = partial(answers.as_decision, context=context)
        return self._first("sequencer_transition", facts, taken)

    def completed(self, context: HookContext, head: Head) -> None:
        """See `Hooks`; all are called, and the first that failed is raised behind the last."""
        failures = []
        for hook in self._points["sequencer_completed"]:
            try:
                _asked(hook, {"context": _own(context), "head": head.model_copy(deep=True)})
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
        present: AnswerT,
        given: Callable[[AnswerT], Mapping[str, Any]],
        taken: Callable[[object, AnswerT], AnswerT],
    ) -> AnswerT:
        for hook in self._points[point]:
            answer = _asked(hook, given(present))
            if answer is not None:
                with _understood(hook):
                    present = taken(answer, present)
        return present


def _own(context: HookContext) -> HookContext:
    """Return a copy of *context* that shares no mapping with ours."""
    return replace(context, step=context.step.model_copy(deep=True))


def _asked(hook: Implementation, facts: Mapping[str, Any]) -> object:
    try:
        return hook(**facts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Not even the SystemExit of a hook ends the program.
        line = line_in(hook.file, error) if hook.file else None
        failure = HookFailed(
            f"hook {hook.point} raised {summary(error)}",
            where=f"{hook.file}:{line}" if line else hook.where,
            hint="repair it, or take it out of hooks; the traceback is in the step's log",
        )
        failure.traceback = _told(error)
        raise failure from error


@contextmanager
def _understood(hook: Implementation) -> Iterator[None]:
    """Turn an answer of *hook* that has no meaning into its failure."""
    try:
        yield
    except answers.NoMeaning as refusal:
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
