"""Finds the implementation of a kind of workflow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sequencer import extensions
from sequencer.engine.patience import Changes
from sequencer.model.line.line import Line
from sequencer.model.workflow import Workflow
from sequencer.store.protocol import Store


def _along(store: Store, workflow: Workflow, kind: Callable[[Workflow], Line] = Line) -> Changes:
    return Changes(store, kind(workflow))


def _among_nodes(store: Store, workflow: Workflow) -> Changes:
    from sequencer.engine.markings import NetChanges  # noqa: PLC0415 - graphs only

    return NetChanges(store, workflow)


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
    kind = partial(extensions.create, extensions.KINDS, workflow.kind, Line, added)
    return _along(store, workflow, kind)
