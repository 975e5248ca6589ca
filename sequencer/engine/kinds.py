"""Finds the implementation of each kind of workflow, built in or from a package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from sequencer import extensions
from sequencer.engine.changes import Changes
from sequencer.errors import ConfigurationError
from sequencer.model.head import Head
from sequencer.model.kind import AttemptResult, Kind
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.sequence.order import Description
from sequencer.model.sequence.sequence_kind import Continuation, ContinuationKind, SequenceKind
from sequencer.model.workflow import Workflow
from sequencer.packages import describe
from sequencer.store.protocol import Store


def _sequence_changes(
    store: Store, workflow: Workflow, kind: Callable[[Workflow], SequenceKind] = SequenceKind
) -> Changes:
    return Changes(store, kind(workflow))


def _graph_changes(store: Store, workflow: Workflow) -> Changes:
    from sequencer.engine.graph_changes import GraphChanges  # noqa: PLC0415 - graphs only

    return GraphChanges(store, workflow)


KINDS: dict[str, Callable[[Store, Workflow], Changes]] = {
    "cycle": _sequence_changes,
    "procedure": _sequence_changes,
    "graph": _graph_changes,
}
"""Kind of workflow -> the function that makes the `Changes` of its runs."""


def make_changes(store: Store, workflow: Workflow) -> Changes:
    """Return the `Changes` for the run of *workflow* in *store*.

    Raises:
        UnknownName: the package that provides the kind is not installed.
        ConfigurationError: it can't be loaded, or fails.
    """
    if (factory := KINDS.get(workflow.kind)) is not None:
        return factory(store, workflow)
    location = f"workflow {workflow.name!r}"
    kind_class = extensions.require(
        extensions.KINDS, workflow.kind, "workflow kind", known=KINDS, where=location
    )
    kind = partial(extensions.create, extensions.KINDS, workflow.kind, SequenceKind, kind_class)
    return _sequence_changes(store, workflow, kind)


def make_readable_kind(store: Store, workflow: Workflow) -> Kind:
    """Return the kind of *workflow*, for looking at its run in *store*.

    If the package that provides the kind is missing or fails, the steps keep their listed order.
    """
    try:
        return make_changes(store, workflow).kind
    except ConfigurationError:
        return SequenceKind(workflow)


def list_upcoming(
    kind: Kind, head: Head | None, count: int, step_index: int | None = None
) -> list[Description]:
    """Return `Kind.list_upcoming` of *kind*, which may come from a package.

    Raises:
        PackageFailed: the package's kind returned something that is not a step.
    """
    steps = kind.list_upcoming(head, count, step_index)
    for step in steps:
        if not isinstance(step, Description):
            name = kind.workflow.kind
            raise extensions.wrong_type_error(Description, step, extensions.KINDS, name)
    return steps


Judge = Callable[[Head, AttemptResult, int], AttemptResult]
"""The type of `SequenceKind.judge`."""


def make_judge(kind: SequenceKind) -> Judge:
    """Return `SequenceKind.judge` of *kind*, which may come from a package.

    If the package's code fails, the attempt fails: its output and its cost are kept, and the
    claim ends.
    """
    if type(kind) is SequenceKind:
        return kind.judge

    def judge(head: Head, ended: AttemptResult, max_attempts: int) -> AttemptResult:
        try:
            return _check_result(kind.judge(head, ended, max_attempts))
        except BaseException as error:
            workflow = kind.workflow
            if (
                fault := extensions.find_package_fault(error, extensions.KINDS, workflow.kind)
            ) is None:
                raise
            outcome = ended.outcome.replace(status=OutcomeStatus.FAILED, error=str(fault))
            failed_result = replace(ended, outcome=outcome, verdict=None, decision=None)
            return SequenceKind(workflow).judge(head, failed_result, max_attempts)

    return judge


def _check_result(result: Any) -> AttemptResult:
    match result:
        case AttemptResult(ending=Continuation(kind=ContinuationKind.ACCEPT, following=None)):
            raise TypeError("judge accepted the step, but did not say where the run goes")
        case AttemptResult(ending=Continuation()):
            return result
    message = f"judge returned {describe(result)}, and not what SequenceKind.judge returns"
    raise TypeError(message)
