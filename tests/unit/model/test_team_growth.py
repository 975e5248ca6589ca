"""Graphs that grow: what an addition may be, and what it does to a marking."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind, TaskExpansion, expand_graph
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.record import read
from sequencer.model.graph.rules import MarkingEditor
from sequencer.model.graph.task import TaskTraits
from sequencer.model.head import Flow
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow, expand_workflow
from tests.flows import graph


def agent(name: str, **traits: Any) -> Node:
    return Node(id=name, kind=NodeKind.AGENT, task=TaskTraits.model_validate(traits))


def growth(*names: str, edges: str = "", **more: Any) -> TaskExpansion:
    """Return *names* and *edges*, as ``"a>b c>d"``."""
    made = [Edge(source=s, target=t) for s, _, t in (e.partition(">") for e in edges.split())]
    return TaskExpansion(nodes=tuple(map(agent, names)), edges=tuple(made), **more)


def crew(text: str = "a --> b", **more: Any) -> Graph:
    return graph(text, is_team=True, **more)


def begun(made: Graph) -> MarkingEditor:
    editor = MarkingEditor(Marking(made))
    editor.begin()
    return editor


# --- the graph ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [growth("a"), growth("x", "x"), growth("x", edges="x>nobody"), growth("x", edges="nobody>x")],
)
def test_invalid_additions_are_refused(wrong: TaskExpansion) -> None:
    with pytest.raises(ValueError, match=r"two nodes have the same id|there is no node"):
        expand_graph(crew(), wrong)


def test_an_addition_has_a_node() -> None:
    with pytest.raises(ValueError, match="at least one item"):
        TaskExpansion(nodes=())


def test_an_addition_is_written_without_defaults() -> None:
    made = growth("x", edges="a>x", steps=(Step(name="x", text="go"),))
    written = made.as_json()
    assert written == {
        "nodes": [{"id": "x", "kind": "agent", "task": {}}],
        "edges": [{"source": "a", "target": "x"}],
        "steps": [{"name": "x", "text": "go"}],
    }
    assert TaskExpansion.model_validate(json.loads(json.dumps(written))) == made


def test_additions_extend_the_steps_and_the_graph() -> None:
    before = Workflow("w", (Step(name="a"), Step(name="b")), kind="graph", graph=crew())
    first = growth("x", edges="a>x", steps=(Step(name="x"),))
    second = growth("y", edges="x>y y>b", steps=(Step(name="y"),))
    after = expand_workflow(before, [first, second])
    assert list(after.steps_by_name) == ["a", "b", "x", "y"]
    assert after.graph is not None
    assert after.graph.incoming["b"] == ("a", "y")
    assert expand_workflow(before, []) is before


@pytest.mark.parametrize(
    ("made", "by"),
    [
        (growth("x", edges="a>x x>b"), "a"),
        (growth("x", "y", edges="y>x a>x a>y b>y"), "a"),
        (growth("x", "y", edges="c>x y>x a>y"), "a"),
        # Of a fix: no answer has asked for it.
        (growth("fix", edges="fix>b"), None),
        (growth("x"), None),
    ],
)
def test_an_addition_names_the_node_that_asked_for_it(made: TaskExpansion, by: str | None) -> None:
    assert made.added_by == by


# --- the marking -------------------------------------------------------------------------


def test_closed_nodes_are_skipped_and_stay() -> None:
    editor = begun(crew("a --> x --> y; b --> z; c", entries=["a", "b", "c"]))
    marking = editor.marking
    assert marking.find_next_startable(closed={"a"}) == "b"
    assert marking.find_next_startable(closed={"a", "b"}) == "c"
    assert marking.find_next_startable(closed={"a", "b", "c"}) is None
    assert marking.find_next_startable() == "a"


# --- tasks that have failed --------------------------------------------------------------


# --- what is written ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {"grown": [{"nodes": []}]},
        {"grown": [{"nodes": [{"id": "a", "kind": "agent"}]}]},
        {"grown": [{"nodes": [{"id": "x", "kind": "agent"}], "edges": [{"source": "x"}]}]},
        {"grown": ["x"]},
        {"waiting": {"x": []}},
        {"team": {"nobody": 1}},
        {"active": {"a": {"from": [], "nobody": 1}}},
    ],
)
def test_damaged_markings_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read(crew(), Flow(marking=data), lambda _: b"")
