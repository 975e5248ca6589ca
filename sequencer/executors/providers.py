"""Whose models an executor has, and how a model is named where it may be anybody's."""

from __future__ import annotations

from sequencer.model.step import Step

ANTHROPIC = frozenset({"anthropic"})
GOOGLE = frozenset({"google"})
OPENAI = frozenset({"openai"})


def qualified_model(step: Step) -> str | None:
    """Return the step's model with its provider in front, if it names one.

    >>> qualified_model(Step(name="a", model="gpt-5", provider="openai"))
    'openai/gpt-5'
    >>> qualified_model(Step(name="a", model="gpt-5"))
    'gpt-5'
    """
    if step.model is None or step.provider is None:
        return step.model
    return f"{step.provider}/{step.model}"
