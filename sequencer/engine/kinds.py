"""Finds the implementation of each kind of workflow, built in or from a package."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from sequencer import extensions
from sequencer.engine.changes import Changes
from sequencer.errors import ConfigurationError
from sequencer.model.head import Head
from sequencer.model.kind import AttemptResult, Kind
from sequencer.model.outcome import OutcomeStatus
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
    return _sequence_changes(store, workflow, partial(_make_checked_kind, kind_class))


_CHECKED = (
    *("apply", "build_start_document", "check_readiness", "close", "create_head", "expire"),
    *("expire_waits", "find_following", "get_workflow", "list_upcoming", "open"),
    *("refusal", "resolve_positions"),
)
"""The methods whose results are checked if a package overrides them, as `make_judge` does."""


def _make_checked_kind(kind_class: Any, workflow: Workflow) -> SequenceKind:
    """Return the kind of *workflow* from a package; it raises `PackageFailed` for its mistakes."""
    kind = extensions.create(extensions.KINDS, workflow.kind, SequenceKind, kind_class, workflow)
    for name in _CHECKED:
        own = getattr(SequenceKind, name)
        if getattr(type(kind), name) is not own:
            setattr(kind, name, _check_method(kind, name, get_type_hints(own)["return"]))
    return kind  # type: ignore[no-any-return]


def _check_method(kind: SequenceKind, name: str, expected: Any) -> Callable[..., Any]:
    """Wrap the method *name* of *kind* so that its result must be of the type *expected*."""
    method, group, kind_name = getattr(kind, name), extensions.KINDS, kind.workflow.kind

    def call(*args: Any, **options: Any) -> Any:
        with extensions.package_code(group, kind_name):
            result = method(*args, **options)
        problem = describe_mismatch(result, expected, f"{name}()")
        if problem is not None:
            raise extensions.make_package_error(group, kind_name, f"returned {problem}")
        return result

    return call


def describe_mismatch(value: Any, expected: Any, name: str) -> str | None:
    """Return what is wrong if *value*, called *name*, is not of the type *expected*; None: it is.

    Also checks the items of a list or tuple, and the fields of a Struct, which msgspec does not.

    >>> expected = str | None
    >>> describe_mismatch(5, expected, "close()"), describe_mismatch("x", expected, "close()")
    ('5, which is not a str | None, from close()', None)
    """
    if not _fits(value, expected):
        what = getattr(expected, "__name__", expected)
        return f"{describe(value)}, which is not a {what}, from {name}"
    parts: Iterable[tuple[str, Any, Any]] = []
    if isinstance(value, Struct):
        hints = get_type_hints(type(value)).items()
        parts = ((f"{name}.{key}", getattr(value, key), hint) for key, hint in hints)
    else:
        match get_origin(expected), get_args(expected):
            case (builtins.list, (hint,)) | (builtins.tuple, (hint, builtins.Ellipsis)):
                parts = ((f"{name}[{index}]", item, hint) for index, item in enumerate(value))
    problems = (describe_mismatch(part, hint, part_name) for part_name, part, hint in parts)
    return next((problem for problem in problems if problem is not None), None)


def _fits(value: Any, expected: Any) -> bool:
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(expected))
    if expected is Any or not isinstance(origin or expected, type):
        return True
    return isinstance(value, origin or expected) or (expected is float and isinstance(value, int))


def make_readable_kind(store: Store, workflow: Workflow) -> Kind:
    """Return the kind of *workflow*, for looking at its run in *store*.

    If the package that provides the kind is missing or fails, the steps keep their listed order.
    """
    try:
        return make_changes(store, workflow).kind
    except ConfigurationError:
        return SequenceKind(workflow)


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
    problem = describe_mismatch(result, AttemptResult, "judge()") or describe_mismatch(
        result.ending, Continuation, "judge().ending"
    )
    if problem is not None:
        raise TypeError(f"it returned {problem}")
    if result.ending.kind is ContinuationKind.ACCEPT and result.ending.following is None:
        raise TypeError("judge accepted the step, but did not say where the run goes")
    return result  # type: ignore[no-any-return]
