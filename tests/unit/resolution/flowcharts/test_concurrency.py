from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.model.net.graph import Edge, Graph, Node, NodeKind
from sequencer.workflows.flowfile.rules import MAX_COMPARED, at_once


def graph_of(*edges: str, entries: tuple[str, ...] = ()) -> Graph:
    """Return a graph of agents; an edge is ``ab`` or, with a label, ``ab:x``."""
    found = [Edge(source=e[0], target=e[1], label=e[3:]) for e in edges]
    names = list(dict.fromkeys(name for e in found for name in (e.source, e.target)))
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    return Graph(nodes=nodes, edges=tuple(found), entries=entries or (names[0],))


def meet(graph: Graph, *names: str) -> bool:
    return list(at_once(graph, {"k": names})) != []


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        (("sa", "sb"), True),
        (("sm", "sn", "ma", "nb"), True),
        (("sa", "ab"), False),
        (("sa", "sm", "ab", "mb"), False),
        (("sa:x", "sb:y"), False),
        (("sa:x", "sb:x", "sc:y"), True),
        (("sq", "qa:x", "qb:y"), False),
        (("sq", "sr", "qa:x", "qm:y", "rb:x", "rm:y"), True),
        (("sa", "as:again", "ab:on"), False),
        (("sm", "sn", "mc", "nc", "ca", "cb:x", "cd:y"), False),
    ],
)
def test_only_what_a_split_leads_to_by_several_ways_meets(
    edges: tuple[str, ...], *, expected: bool
) -> None:
    assert meet(graph_of(*edges), "a", "b") is expected


def test_the_first_two_of_each_key_are_named() -> None:
    graph = graph_of("sa", "sb", "sc", "sd")
    assert list(at_once(graph, {"k": ("b", "c"), "l": ("a", "d")})) == [
        ("k", "b", "c"),
        ("l", "a", "d"),
    ]


def test_several_entries_are_a_split() -> None:
    assert meet(graph_of("ax", "bx", entries=("a", "b")), "a", "b")
    assert not meet(graph_of("ax", "bx", entries=("a",)), "a", "b")


def test_very_many_nodes_are_not_compared_for_ever() -> None:
    names = [f"n{place}" for place in range(4_000)]
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    edges = tuple(
        Edge(source=names[place], target=names[place + step])
        for place in range(len(names) - 2)
        for step in (1, 2)
    )
    graph = Graph(nodes=nodes, edges=edges, entries=(names[0],))
    begin = time.process_time()
    assert list(at_once(graph, {"k": names})) == []
    assert time.process_time() - begin < 5
    assert len(names) > MAX_COMPARED


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=14))
def test_what_leads_to_the_other_never_meets_it(pairs: set[tuple[int, int]]) -> None:
    letters = "abcdefg"
    graph = graph_of(*sorted(f"{letters[one]}{letters[other]}" for one, other in pairs))
    names = sorted(graph.by_id)
    for _, one, other in at_once(graph, {"k": names}):
        assert one != other
        assert not _leads(graph, one, other)
        assert not _leads(graph, other, one)


def _leads(graph: Graph, one: str, other: str) -> bool:
    seen, pending = {one}, [one]
    while pending:
        for place in graph.outgoing[pending.pop()]:
            target = graph.edges[place].target
            if place not in graph.back_edges and target not in seen:
                seen.add(target)
                pending.append(target)
    return other in seen
