"""The request's labels choose the model of every step."""

from __future__ import annotations

import sequencer

MODELS = {"architecture": "opus", "typo": "haiku"}
"""By label; the first of the request's labels that is here counts."""


@sequencer.hookimpl
def sequencer_model(context: sequencer.HookContext) -> str | None:
    """Return the model for the labels of the run's request; None: as the step has it."""
    labels = (label.casefold() for label in context.labels)
    return next((MODELS[label] for label in labels if label in MODELS), None)
