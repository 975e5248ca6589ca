"""Sequencer: run the steps of a workflow in order, and keep the progress in files.

``__all__`` is the library. Everything is imported on first use, so ``import sequencer`` costs
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Decision": "sequencer.model.outcome",
    "Executor": "sequencer.executors.protocol",
    "Head": "sequencer.model.head",
    "HookContext": "sequencer.engine.hooking",
    "InvocationLimits": "sequencer.model.limits",
    "Mode": "sequencer.engine.invocation_budget",
    "Move": "sequencer.model.outcome",
    "Outcome": "sequencer.model.outcome",
    "OutcomeStatus": "sequencer.model.outcome",
    "Review": "sequencer.model.workflow",
    "Run": "sequencer.engine.run",
    "SequencerError": "sequencer.errors",
    "Status": "sequencer.model.head",
    "Step": "sequencer.model.step",
    "Store": "sequencer.store.protocol",
    "Usage": "sequencer.model.outcome",
    "Workflow": "sequencer.model.workflow",
    "commands": "sequencer.model.commands",
    "hookimpl": "sequencer.hooks.points",
    "open_project": "sequencer.project.project",
    "open_run": "sequencer.project.project",
    "resolve": "sequencer.model.sequence.order",
}

__all__ = list(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module 'sequencer' has no attribute {name!r}"
        raise AttributeError(message)
    home = import_module(_HOMES[name])
    return home if name == "commands" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
