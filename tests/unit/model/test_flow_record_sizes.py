"""How large the operations in the head are: told without encoding them all at each transition."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from sequencer.model.net.graph import Edge, Graph, Node, NodeKind
from sequencer.model.net.record import Chain

OPERATIONS = some.lists(
    some.lists(some.text(max_size=5) | some.integers(0, 99) | some.none(), min_size=1, max_size=4),
    max_size=5,
)


def encoded(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


@settings(max_examples=30)
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
