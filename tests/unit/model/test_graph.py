from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.fields import ValidationError
from sequencer.model.net.graph import Edge, Graph, Node, NodeKind
from tests.flows import graph


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"entries": ("x",)}, "there is no node 'x'"),
        ({"on_error": "y"}, "there is no node 'y'"),
        ({"entries": ()}, "at least 1 item"),
        ({"edges": (Edge(source="a", target="z"),)}, "there is no node 'z'"),
        ({"edges": (Edge(source="w", target="a"),)}, "there is no node 'w'"),
        ({"nodes": ()}, "at least 1 item"),
        ({"nodes": (Node(id="a", kind=NodeKind.AGENT),) * 2}, "two nodes have the same id"),
        (
            {"nodes": (Node(id="a", kind=NodeKind.HUMAN, on_timeout="v"),)},
            "there is no node 'v'",
        ),
        ({"max_iterations": -1}, "greater than or equal to 0"),
        ({"timeout_ms": 0}, "greater than 0"),
        ({"max_parallel": 0}, "greater than or equal to 1"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_what_can_not_be_a_graph_is_refused(wrong: dict[str, Any], said: str) -> None:
    fields: dict[str, Any] = {"nodes": (Node(id="a", kind=NodeKind.AGENT),), "entries": ("a",)}
    with pytest.raises(ValidationError, match=said):
        Graph(**{**fields, **wrong})


def test_all_unknown_names_are_said_at_once_but_not_thousands() -> None:
    edges = tuple(Edge(source="a", target=f"x{number:02}") for number in range(30))
    with pytest.raises(ValidationError, match=r"no node 'x00', 'x01'.*'x09' \["):
        Graph(nodes=(Node(id="a", kind=NodeKind.AGENT),), entries=("a",), edges=edges)


def test_a_deep_graph_needs_no_deep_stack() -> None:
    count = 5_000
    edges = [f"n{number} --> n{number + 1}" for number in range(count)]
    made = graph("\n".join([*edges, f"n{count} --> n0"]))
    assert made.back_edges == {count}
    assert len(made.reachable) == count + 1


def test_what_a_run_can_get_to() -> None:
    jump = {"h": {"timeout_ms": 5, "on_timeout": "t"}}
    text = "begin((B)) --> a; a --> h{{H}} --> b; t --> t2; e --> e2; lost --> a"
    made = graph(text, entries=["a"], nodes=jump, on_error="e")
    assert made.reachable == {"a", "h", "b", "t", "t2", "e", "e2"}
    assert graph(text, entries=["a"]).reachable == {"a", "h", "b"}
