"""Finds the implementation of a kind of workflow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from sequencer import extensions
from sequencer.engine.patience import Changes
from sequencer.model.line.line import Line
from sequencer.model.workflow import Workflow
from sequencer.store.protocol import Store

if TYPE_CHECKING:
    from sequencer.model.net.source import FlowSource


def _along(store: Store, workflow: Workflow, kind: Callable[[Workflow], Line] = Line) -> Changes:
    return Changes(store, kind(workflow))


def _markings() -> ModuleType:
    from sequencer.engine import markings  # noqa: PLC0415 - graphs only

    return markings


def _among_nodes(store: Store, workflow: Workflow) -> Changes:
    changes: Changes = _markings().NetChanges(store, workflow)
    return changes


def flow_source_of(store: Store) -> FlowSource:
    """Return what the graph run in *store* says that it was started with.

    Raises:
        CorruptState: it does not say it.
    """
    source: FlowSource = _markings().source_of(store)
    return source


KINDS: dict[str, Callable[[Store, Workflow], Changes]] = {
    "cycle": _along,
    "procedure": _along,
    "graph": _among_nodes,
}
"""Kind of workflow -> what changes its runs."""


def changes_of(store: Store, workflow: Workflow) -> Changes:
    """Return what changes the run of *workflow* in *store*, and has its kind.

    Raises:
        UnknownName: the package that provides the kind is not installed.
        ConfigurationError: it can't be loaded, or fails.
    """
    if (make := KINDS.get(workflow.kind)) is not None:
        return make(store, workflow)
    where = f"workflow {workflow.name!r}"
    added = extensions.needed(
        extensions.KINDS, workflow.kind, "workflow kind", known=KINDS, where=where
    )
    kind = partial(extensions.made_by, extensions.KINDS, workflow.kind, Line, added)
    return _along(store, workflow, kind)
