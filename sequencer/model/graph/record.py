"""How a marking is written down: whole while it is small, else as a base and what followed.

The head is part of every journal record, so it must not grow with the graph or with the
length of the run. A base is a document of the run, named by its content; each says which
older one it goes on from, and now and then one has the whole marking again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sequencer.errors import CorruptState, command
from sequencer.frozen.base import as_json
from sequencer.model.graph.graph import Graph, TaskExpansion, grown_graph
from sequencer.model.graph.marking import Active, FlowStatus, Marking, Operation
from sequencer.model.graph.tally import Ledger
from sequencer.model.head import MARKINGS, Flow, Head, Status

INLINE_ENTRIES = 80
INLINE_BYTES = 800
"""Of a marking that stands in the head itself; indented, as there, it takes three times as much."""
SINCE_BYTES = 800
"""Of the operations in the head."""
SHORTEST_CHAIN = 1000
"""Operations after which the whole marking is written again, at the earliest."""
"""Of the documents' names."""
SHOWN_ASKS = 10
SHOWN_ASKS_BYTES = 500
_NOTHING = Flow()


def snapshot(marking: Marking) -> dict[str, Any]:
    """Return *marking* as JSON, without what is empty."""
    once = [name for name, times in marking.done.items() if times == 1]
    found = {
        "waiting": {name: list(sources) for name, sources in marking.waiting.items()},
        "active": {name: active.as_json() for name, active in marking.active.items()},
        "iterations": marking.iterations,
        "outputs": marking.outputs,
        "keys": marking.keys,
        "done": once,
        "repeated": {name: times for name, times in marking.done.items() if times > 1},
        "error": marking.error,
        "failure": marking.failure,
        "ended_at": marking.ended_at,
        "busy_ms": marking.busy_ms,
        "busy_since": marking.busy_since,
        "lost": marking.lost,
        "grown": [growth.as_json() for growth in marking.growths],
        "team": marking.ledger.as_json(),
    }
    # A copy: what was written down must not change with the marking.
    written: dict[str, Any] = json.loads(json.dumps({k: v for k, v in found.items() if v}))
    return written


def restored(graph: Graph, data: Mapping[str, Any], status: str) -> Marking:
    """Return the marking that `snapshot` has written.

    Raises:
        KeyError, TypeError, ValueError: it was not written by `snapshot` for this graph.
    """
    growths = [TaskExpansion.model_validate(one) for one in data.get("grown", ())]
    for growth in growths:
        graph = grown_graph(graph, growth)
    asked = {*data.get("waiting", {}), *data.get("active", {})}
    if unknown := sorted(asked - graph.by_id.keys()):
        raise KeyError(f"node {unknown[0]!r} is not in the graph")
    return Marking(
        graph,
        waiting={name: dict.fromkeys(found) for name, found in data.get("waiting", {}).items()},
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
        growths=growths,
        ledger=Ledger(**data.get("team", {})),
    )


@dataclass(slots=True)
class Chain:
    """The documents that the present head's marking is made of."""

    names: list[str] = field(default_factory=list)
    operations: int = 0
    """In the documents since the last whole marking."""
    _measured: tuple[Operation, ...] = field(default=(), compare=False, repr=False)
    """Operations in a head whose size is known; they are not encoded anew at each transition."""
    _bytes: int = field(default=0, compare=False, repr=False)

    def size_with(self, since: tuple[Operation, ...], more: Sequence[Operation]) -> int:
        """Return the size of *since*, which stands in the head, and of *more* behind it."""
        known = self._bytes if since is self._measured and since else _size(since)
        if not more:
            return known
        # Two lists that become one lose a bracket each, and gain a comma.
        return known + _size(more) - 1 if since else _size(more)

    def has(self, since: tuple[Operation, ...], size: int) -> None:
        """Remember that *since* has *size*."""
        self._measured, self._bytes = since, size


class Written(NamedTuple):
    """What a transition writes down."""

    flow: Flow
    chain: Chain
    document: tuple[str, bytes] | None = None
    """To be kept before the head."""
    starts_anew: bool = False
    """The document has the whole marking; older ones than the last chain's can go."""


def write(
    marking: Marking,
    rest: Status,
    before: Flow | None,
    chain: Chain,
    operations: Sequence[Operation],
) -> Written:
    """Return how *marking*, which *operations* have led to from *before*, is written down."""
    told = {"status": str(marking.status), "rest": rest, "asks": _asks(marking)}
    previous = before or _NOTHING
    entries = len(marking.waiting) + len(marking.active) + len(marking.ended_at)
    entries += len(marking.outputs) + len(marking.keys) + len(marking.done)
    entries += len(marking.growths) + len(marking.ledger.spent)
    if entries <= INLINE_ENTRIES:
        whole = snapshot(marking)
        if _size(whole) <= INLINE_BYTES:
            flow = previous.replace(**told, marking=whole, base=None, since=())
            return Written(flow, Chain())
    if previous.base is not None:
        since = (*previous.since, *operations)
        size = chain.size_with(previous.since, operations)
        if size <= SINCE_BYTES:
            chain.has(since, size)
            return Written(previous.replace(**told, marking=None, since=since), chain)
        length = chain.operations + len(since)
        if length <= max(SHORTEST_CHAIN, 2 * entries):
            name, data = _document({"base": previous.base, "since": since})
            flow = previous.replace(**told, marking=None, base=name, since=())
            return Written(flow, Chain([*chain.names, name], length), (name, data))
    name, data = _document({"marking": snapshot(marking)})
    flow = previous.replace(**told, marking=None, base=name, since=())
    return Written(flow, Chain([name]), (name, data), starts_anew=True)


def _asks(marking: Marking) -> tuple[str, ...]:
    names = [name for name, active in marking.active.items() if active.since][:SHOWN_ASKS]
    while len(names) > 1 and _size(names) > SHOWN_ASKS_BYTES:
        names.pop()
    return tuple(names)


def _size(value: Any) -> int:
    return len(as_json(value))


def _document(content: Mapping[str, Any]) -> tuple[str, bytes]:
    data = as_json(content)
    return f"{MARKINGS}{hashlib.sha256(data).hexdigest()[:20]}.json", data


def read(graph: Graph, flow: Flow, document: Callable[[str], bytes]) -> tuple[Marking, Chain]:
    """Return the marking that *flow* stands for, with the documents that it is made of.

    Raises:
        KeyError, TypeError, ValueError: they are damaged, or not of this graph.
    """
    try:
        return _read(graph, flow, document)
    except (AttributeError, IndexError, RecursionError) as error:
        # What they say about damaged content is of no use to anybody.
        raise ValueError(f"a part of the marking is not what it should be: {error}") from error


def _read(graph: Graph, flow: Flow, document: Callable[[str], bytes]) -> tuple[Marking, Chain]:
    if flow.base is None:
        return restored(graph, flow.marking or {}, flow.status), Chain()
    names: list[str] = []
    seen: set[str] = set()
    segments, name = [list(flow.since)], flow.base
    while True:
        if name in seen:
            raise ValueError(f"{name} continues itself")
        seen.add(name)
        content = json.loads(document(name))
        names.append(name)
        if "marking" in content:
            break
        segments.append(content["since"])
        name = content["base"]
    marking = restored(graph, content["marking"], FlowStatus.RUNNING)
    for operations in reversed(segments):
        for operation in operations:
            marking.apply(operation)
    # A base that was written at the run's end does not say how it ended.
    marking.status = FlowStatus(flow.status)
    count = sum(map(len, segments[1:]))
    return marking, Chain(names[::-1], count)


def flow_of(head: Head, where: str) -> Flow:
    """Return the progress of the graph's run of *head*, which stands in the file *where*.

    Raises:
        CorruptState: it has none.
    """
    if head.flow is None:
        again = command(head.run_name, "reset")
        message = f"the run of {head.workflow_name!r} has no marking"
        raise CorruptState(message, where=where, hint=f"{again} starts it again")
    return head.flow
