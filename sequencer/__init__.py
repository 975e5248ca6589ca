"""Sequencer: run the steps of a workflow in order, and keep the progress in files.

``__all__`` is the library. Everything is imported on first use, so ``import sequencer`` costs
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Area": "sequencer.project.diagnostics",
    "AttemptResult": "sequencer.model.kind",
    "Cancellation": "sequencer.executors.cancellation",
    "Capacity": "sequencer.model.kind",
    "Change": "sequencer.store.protocol",
    "Check": "sequencer.project.setting_checks",
    "CheckRequest": "sequencer.project.store_requests",
    "Claim": "sequencer.model.head",
    "CommandContext": "sequencer.model.kind",
    "CommandExecutor": "sequencer.executors.command",
    "CommandOptions": "sequencer.executors.command",
    "ConfigSection": "sequencer.project.sections",
    "Continuation": "sequencer.model.sequence.sequence_kind",
    "ContinuationKind": "sequencer.model.sequence.sequence_kind",
    "Contribution": "sequencer.cli.contributions",
    "Decision": "sequencer.model.outcome",
    "Diagnostic": "sequencer.project.diagnostics",
    "Edge": "sequencer.model.graph.graph",
    "Event": "sequencer.model.transitions",
    "Executor": "sequencer.executors.protocol",
    "Fact": "sequencer.model.transitions",
    "FileStore": "sequencer.store.file",
    "Graph": "sequencer.model.graph.graph",
    "Head": "sequencer.model.head",
    "HookContext": "sequencer.engine.hooking",
    "Invocation": "sequencer.cli.context",
    "Identity": "sequencer.executors.protocol",
    "InvocationLimits": "sequencer.model.limits",
    "Level": "sequencer.project.diagnostics",
    "Listener": "sequencer.executors.protocol",
    "Liveness": "sequencer.store.protocol",
    "Mode": "sequencer.engine.invocation_budget",
    "Move": "sequencer.model.outcome",
    "Node": "sequencer.model.graph.graph",
    "NodeKind": "sequencer.model.graph.graph",
    "Outcome": "sequencer.model.outcome",
    "OutcomeStatus": "sequencer.model.outcome",
    "Owner": "sequencer.model.head",
    "Piece": "sequencer.executors.protocol",
    "ProcessCore": "sequencer.executors.process",
    "Project": "sequencer.project.project",
    "ReportsWaiting": "sequencer.store.protocol",
    "Retry": "sequencer.model.step",
    "Review": "sequencer.model.workflow",
    "Run": "sequencer.engine.run",
    "RunLimits": "sequencer.model.limits",
    "Section": "sequencer.project.schema",
    "SequenceChange": "sequencer.model.sequence.sequence_kind",
    "SequenceKind": "sequencer.model.sequence.sequence_kind",
    "SequencerError": "sequencer.errors",
    "Settings": "sequencer.project.settings",
    "Status": "sequencer.model.head",
    "Step": "sequencer.model.step",
    "StepRef": "sequencer.model.transitions",
    "StepRequest": "sequencer.executors.protocol",
    "StopReason": "sequencer.executors.cancellation",
    "Store": "sequencer.store.protocol",
    "StoreKind": "sequencer.project.store_kinds",
    "StoreRequest": "sequencer.project.store_requests",
    "Transition": "sequencer.model.transitions",
    "Usage": "sequencer.model.outcome",
    "View": "sequencer.store.protocol",
    "Workflow": "sequencer.model.workflow",
    "commands": "sequencer.model.commands",
    "events": "sequencer.engine.events",
    "file_store": "sequencer.project.runs",
    "find_step_ref": "sequencer.model.sequence.order",
    "hookimpl": "sequencer.hooks.points",
    "open_project": "sequencer.project.project",
    "open_run": "sequencer.project.project",
    "resolve": "sequencer.model.sequence.order",
}

_MODULES = ("commands", "events")

__all__ = list(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module 'sequencer' has no attribute {name!r}"
        raise AttributeError(message)
    home = import_module(_HOMES[name])
    return home if name in _MODULES else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
