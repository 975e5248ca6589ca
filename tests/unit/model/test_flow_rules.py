from __future__ import annotations

from typing import Any

import pytest

from sequencer.frozen.fields import ValidationError
from sequencer.history.trace import trace_line
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.graph.marking import FlowStatus, Marking
from sequencer.model.graph.rules import MarkingEditor
from tests.flows import graph


def editor(text: str, **settings: Any) -> MarkingEditor:
    return MarkingEditor(Marking(graph(text, **settings)))


def begun(text: str, *names: str, **settings: Any) -> MarkingEditor:
    """Return a course whose entries have begun, in order, and nothing more."""
    made = editor(text, **settings)
    made.begin()
    for name in names or made.graph.entries:
        made.start(name)
    made.facts.clear()
    return made


def lines(made: MarkingEditor) -> list[str | None]:
    return [trace_line(fact.event, fact.node, fact.details) for fact in made.facts]


# --- the state -----------------------------------------------------------------------------


# --- loops ---------------------------------------------------------------------------------


def test_one_loop_too_many_ends_the_run_and_a_retry_continues_after_it() -> None:
    made = begun("s --> x; a --> b; b --> a", "s", "a", entries=["s", "a"], max_iterations=0)
    made.succeed("a", "")
    made.start("b")
    made.facts.clear()
    made.succeed("b", "")
    assert lines(made) == ["done b", "maxIterations 0 exceeded at b -> a; cancelled s"]
    assert made.marking.status is FlowStatus.MAX_ITERATIONS
    assert made.marking.ended_at == [["s", [], True], ["a", ["b"], False]]
    assert made.marking.iterations == 1
    made.do("restore")
    # What was accepted does not run again.
    assert (list(made.marking.active), made.marking.waiting) == (["s"], {"a": {"b": None}})


# --- failures ------------------------------------------------------------------------------


# --- people and time -----------------------------------------------------------------------


def test_the_second_of_two_mutual_jumps_is_a_loop() -> None:
    jumps = {
        "g": {"timeout_ms": 5, "on_timeout": "h"},
        "h": {"timeout_ms": 5, "on_timeout": "g"},
    }
    made = begun("g{{G}}; h{{H}}", "g", entries=["g"], nodes=jumps, max_iterations=1)
    for name, following in (("g", "h"), ("h", "g"), ("g", "h")):
        made.expire(name)
        made.start(following)
    made.expire("h")
    told = [line for line in lines(made) if line and line.startswith(("loop", "max"))]
    assert told == ["loop h -> g #1", "maxIterations 1 exceeded at h -> g"]
    assert made.marking.status is FlowStatus.MAX_ITERATIONS


@pytest.mark.parametrize(
    ("end", "status", "line"),
    [
        ("time_out", "timed_out", "workflow timeout; cancelled a, b"),
        ("cancel", "cancelled", "stopped by hand; cancelled a, b"),
    ],
)
def test_the_run_can_be_ended_from_outside(end: str, status: str, line: str) -> None:
    made = begun("a; b --> c", "b", "a", entries=["b", "a"])
    getattr(made, end)()
    assert (lines(made), str(made.marking.status)) == ([line], status)
    assert made.marking.is_over


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"entries": ("x",)}, "there is no node 'x'"),
        ({"on_error": "y"}, "there is no node 'y'"),
        ({"entries": ()}, "at least one item"),
        ({"edges": (Edge(source="a", target="z"),)}, "there is no node 'z'"),
        ({"edges": (Edge(source="w", target="a"),)}, "there is no node 'w'"),
        ({"nodes": ()}, "at least one item"),
        ({"nodes": (Node(id="a", kind=NodeKind.AGENT),) * 2}, "two nodes have the same id"),
        (
            {"nodes": (Node(id="a", kind=NodeKind.HUMAN, on_timeout="v"),)},
            "there is no node 'v'",
        ),
        ({"max_iterations": -1}, "greater than or equal to 0"),
        ({"timeout_ms": 0}, "greater than 0"),
        ({"max_parallel": 0}, "greater than or equal to 1"),
        ({"unknown": 1}, "unknown: is not known here"),
    ],
)
def test_an_invalid_graph_is_refused(wrong: dict[str, Any], said: str) -> None:
    fields: dict[str, Any] = {"nodes": (Node(id="a", kind=NodeKind.AGENT),), "entries": ("a",)}
    with pytest.raises(ValidationError, match=said):
        Graph(**{**fields, **wrong})


def test_reachable_nodes_include_jumps_and_the_error_path() -> None:
    jump = {"h": {"timeout_ms": 5, "on_timeout": "t"}}
    text = "begin((B)) --> a; a --> h{{H}} --> b; t --> t2; e --> e2; lost --> a"
    made = graph(text, entries=["a"], nodes=jump, on_error="e")
    assert made.reachable == {"a", "h", "b", "t", "t2", "e", "e2"}
    assert graph(text, entries=["a"]).reachable == {"a", "h", "b"}
