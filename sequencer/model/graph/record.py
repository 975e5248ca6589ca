"""How a marking is stored: in the head while it is small, else as a base and later operations.

The head is part of every journal record, so it must not grow with the graph or the length of the
run. A base is a document of the run that is named by its content. Each base refers to the older
one that it continues, and from time to time one has the whole marking again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from sequencer.errors import CorruptState, format_command
from sequencer.frozen.base import encode_json
from sequencer.model.graph.graph import Graph, TaskExpansion, expand_graph
from sequencer.model.graph.marking import Active, FlowStatus, Marking, Operation
from sequencer.model.graph.tally import Ledger
from sequencer.model.head import MARKINGS, Flow, Head, Status

INLINE_ENTRIES = 80
INLINE_BYTES = 800
"""Limit for a marking in the head itself; there it is indented, which triples its size."""
SINCE_BYTES = 800
"""Limit for the operations in the head."""
SHORTEST_CHAIN = 1000
"""How many operations there must be before the whole marking is written again."""
SHOWN_ASKS = 10
SHOWN_ASKS_BYTES = 500
"""Limits for the names of open questions in the head; it always has the first one."""
_NOTHING = Flow()


def snapshot(marking: Marking) -> dict[str, Any]:
    """Return *marking* as plain JSON data without empty values."""
    names_done_once = [name for name, times in marking.done.items() if times == 1]
    data = {
        "waiting": {name: list(sources) for name, sources in marking.waiting.items()},
        "active": {name: execution.as_json() for name, execution in marking.active.items()},
        "iterations": marking.iterations,
        "outputs": marking.outputs,
        "keys": marking.keys,
        "done": names_done_once,
        "repeated": {name: times for name, times in marking.done.items() if times > 1},
        "error": marking.error,
        "failure": marking.failure,
        "ended_at": marking.ended_at,
        "busy_ms": marking.busy_ms,
        "busy_since": marking.busy_since,
        "lost": marking.lost,
        "grown": [expansion.as_json() for expansion in marking.growths],
        "team": marking.ledger.as_json(),
    }
    # A copy, because the snapshot must not change with the marking.
    document: dict[str, Any] = json.loads(
        json.dumps({key: value for key, value in data.items() if value})
    )
    return document


def restore(graph: Graph, data: Mapping[str, Any], status: str) -> Marking:
    """Return the marking that `snapshot` has stored.

    Raises:
        KeyError, TypeError, ValueError: *data* is not a snapshot for this graph.
    """
    expansions = [TaskExpansion.model_validate(item) for item in data.get("grown", ())]
    for expansion in expansions:
        graph = expand_graph(graph, expansion)
    used_names = {*data.get("waiting", {}), *data.get("active", {})}
    if unknown_names := sorted(used_names - graph.by_id.keys()):
        raise KeyError(f"node {unknown_names[0]!r} is not in the graph")
    return Marking(
        graph,
        waiting={name: dict.fromkeys(sources) for name, sources in data.get("waiting", {}).items()},
        active={name: Active.from_json(entry) for name, entry in data.get("active", {}).items()},
        iterations=data.get("iterations", 0),
        outputs=dict(data.get("outputs", {})),
        keys=dict(data.get("keys", {})),
        done={**dict.fromkeys(data.get("done", ()), 1), **data.get("repeated", {})},
        error=data.get("error"),
        failure=data.get("failure"),
        status=FlowStatus(status),
        ended_at=list(data.get("ended_at", ())),
        busy_ms=data.get("busy_ms", 0),
        busy_since=data.get("busy_since"),
        lost=dict(data.get("lost", {})),
        growths=expansions,
        ledger=Ledger(**data.get("team", {})),
    )


class Chain(Struct):
    """The documents that contain the marking of the current head."""

    names: list[str] = field(default_factory=list)
    operations: int = 0
    """The number of operations in the documents after the last whole marking."""
    _measured: tuple[Operation, ...] = ()
    """Operations in a head whose size is known, so that each transition need not encode them."""
    _bytes: int = 0

    def size_with(self, since: tuple[Operation, ...], more: Sequence[Operation]) -> int:
        """Return the size of *since*, the operations in the head, followed by *more*."""
        known_bytes = self._bytes if since is self._measured and since else _size(since)
        if not more:
            return known_bytes
        # Joining two lists removes two brackets and adds a comma.
        return known_bytes + _size(more) - 1 if since else _size(more)

    def remember_size(self, since: tuple[Operation, ...], size: int) -> None:
        """Remember that *since* has *size*."""
        self._measured, self._bytes = since, size


class StoredMarking(Struct, frozen=True):
    """What a transition stores of its marking."""

    flow: Flow
    chain: Chain
    document: tuple[str, bytes] | None = None
    """Name and content, to store before the head."""
    is_whole: bool = False
    """The document has the whole marking; documents before the last chain can be removed."""


def write(
    marking: Marking,
    rest: Status,
    before: Flow | None,
    chain: Chain,
    operations: Sequence[Operation],
) -> StoredMarking:
    """Return how to store *marking*, the result of *operations* after *before*, which has *chain*.

    *rest* is the status of the run while no process works on it.
    """
    fields = {"status": str(marking.status), "rest": rest, "asks": _first_questions(marking)}
    previous_flow = before or _NOTHING
    entries = len(marking.waiting) + len(marking.active) + len(marking.ended_at)
    entries += len(marking.outputs) + len(marking.keys) + len(marking.done)
    entries += len(marking.growths) + len(marking.ledger.spent)
    if entries <= INLINE_ENTRIES:
        inline = snapshot(marking)
        if _size(inline) <= INLINE_BYTES:
            flow = previous_flow.replace(**fields, marking=inline, base=None, since=())
            return StoredMarking(flow, Chain())
    if previous_flow.base is not None:
        new_operations = (*previous_flow.since, *operations)
        size = chain.size_with(previous_flow.since, operations)
        if size <= SINCE_BYTES:
            chain.remember_size(new_operations, size)
            return StoredMarking(
                previous_flow.replace(**fields, marking=None, since=new_operations), chain
            )
        length = chain.operations + len(new_operations)
        if length <= max(SHORTEST_CHAIN, 2 * entries):
            name, data = _build_document({"base": previous_flow.base, "since": new_operations})
            flow = previous_flow.replace(**fields, marking=None, base=name, since=())
            return StoredMarking(flow, Chain([*chain.names, name], length), (name, data))
    name, data = _build_document({"marking": snapshot(marking)})
    flow = previous_flow.replace(**fields, marking=None, base=name, since=())
    return StoredMarking(flow, Chain([name]), (name, data), is_whole=True)


def _first_questions(marking: Marking) -> tuple[str, ...]:
    """Return the nodes whose questions are open: as many as the head may list."""
    names = [name for name, execution in marking.active.items() if execution.since][:SHOWN_ASKS]
    while len(names) > 1 and _size(names) > SHOWN_ASKS_BYTES:
        names.pop()
    return tuple(names)


def _size(value: Any) -> int:
    """Return the length of *value* as JSON, in bytes."""
    return len(encode_json(value))


def _build_document(content: Mapping[str, Any]) -> tuple[str, bytes]:
    data = encode_json(content)
    return f"{MARKINGS}{hashlib.sha256(data).hexdigest()[:20]}.json", data


def read(graph: Graph, flow: Flow, document: Callable[[str], bytes]) -> tuple[Marking, Chain]:
    """Return the marking of *flow*, with the chain of documents that contain it.

    Raises:
        KeyError, TypeError, ValueError: they are damaged, or belong to another graph.
    """
    try:
        return _read(graph, flow, document)
    except (AttributeError, IndexError, RecursionError) as error:
        # Their own messages about damaged content don't help anyone.
        raise ValueError(f"a part of the marking is not what it should be: {error}") from error


def _read(graph: Graph, flow: Flow, document: Callable[[str], bytes]) -> tuple[Marking, Chain]:
    if flow.base is None:
        return restore(graph, flow.marking or {}, flow.status), Chain()
    names: list[str] = []
    seen_names: set[str] = set()
    segments, name = [list(flow.since)], flow.base
    while True:
        if name in seen_names:
            raise ValueError(f"{name} continues itself")
        seen_names.add(name)
        content = json.loads(document(name))
        names.append(name)
        if "marking" in content:
            break
        segments.append(content["since"])
        name = content["base"]
    marking = restore(graph, content["marking"], FlowStatus.RUNNING)
    for operations in reversed(segments):
        for operation in operations:
            marking.apply(operation)
    # A base that was written at the end of the run does not say how the run ended.
    marking.status = FlowStatus(flow.status)
    count = sum(map(len, segments[1:]))
    return marking, Chain(names[::-1], count)


def require_flow(head: Head, where: str) -> Flow:
    """Return the progress of the graph run of *head*, which is in the file *where*.

    Raises:
        CorruptState: the head has no progress.
    """
    if head.flow is None:
        reset_command = format_command(head.run_name, "reset")
        message = f"the run of {head.workflow_name!r} has no marking"
        raise CorruptState(message, where=where, hint=f"{reset_command} starts it again")
    return head.flow
