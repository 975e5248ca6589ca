"""How large the operations in the head are: told without encoding them all at each transition."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from sequencer.model.head import Flow, Status
from sequencer.model.net import record as flow_record
from sequencer.model.net.graph import Edge, Graph, Node, NodeKind
from sequencer.model.net.marking import Marking
from sequencer.model.net.record import SINCE_BYTES, Chain
from sequencer.model.net.rules import Course

OPERATIONS = some.lists(
    some.lists(some.text(max_size=5) | some.integers(0, 99) | some.none(), min_size=1, max_size=4),
    max_size=5,
)


def encoded(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


@given(OPERATIONS, OPERATIONS)
def test_the_size_is_that_of_all_of_them(before: list[list[Any]], more: list[list[Any]]) -> None:
    since, chain = tuple(before), Chain()
    whole = encoded([*before, *more])
    assert chain.size_with(since, more) == whole
    chain.has(since, encoded(before))
    assert chain.size_with(since, more) == whole


def fan(width: int) -> Graph:
    names = ["first", *(f"näme-{i}" for i in range(width)), "last"]
    edges = [Edge(source="first", target=name) for name in names[1:-1]]
    edges += [Edge(source=name, target="last") for name in names[1:-1]]
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    return Graph(nodes=nodes, edges=tuple(edges), entries=("first",))


def test_a_head_is_never_larger_than_allowed_and_a_document_is_full() -> None:
    marking, flow, chain = Marking(fan(300)), Flow(), Chain()
    course, token, sizes = Course(marking), 0, []
    course.begin()
    while (name := marking.next_startable()) is not None:
        token += 1
        course.start(name, token)
        course.succeed(name, "")
        written = flow_record.write(marking, Status.RUNNING, flow, chain, course.operations)
        assert encoded(written.flow.since) <= SINCE_BYTES
        if written.document is not None and not written.starts_anew:
            added = encoded([*flow.since, *course.operations])
            assert added > SINCE_BYTES, "there was room in the head"
            sizes.append(len(json.loads(written.document[1])["since"]))
        assert written.flow.marking is None or written.flow.base is None
        flow, chain = written.flow, written.chain
        course.operations.clear()
    assert len(sizes) > 5
    assert marking.is_over
    assert flow.base in chain.names
