from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given, settings
from msgspec.structs import replace

from sequencer.cli.views.nodes import node_table, nodes_json
from sequencer.cli.views.states import format_state, node_duration_s
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Node, NodeKind
from tests.unit.cli.flow.views import graph, views

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
HALF_A_MINUTE_AGO = "2026-11-22T11:59:30Z"


def node(name: str = "a", **facts: object) -> NodeView:
    return replace(NodeView(Node(id=name, kind=NodeKind.AGENT)), **facts)


def run(status: str = "running", iterations: int = 0, **facts: dict[str, object]) -> FlowView:
    shape = graph("a --> b\nb -->|again| a\nb -->|on| c")
    nodes = tuple(replace(NodeView(n), **facts.get(n.id, {})) for n in shape.nodes)
    return FlowView("demo", shape, nodes, status, iterations, frozenset({0}))


def test_the_table() -> None:
    shown = run(
        iterations=1,
        a={
            "state": NodeState.DONE,
            "runs": 2,
            "attempt": 1,
            "seconds": 75.0,
            "cost_usd": 0.5,
            "last_line": "wrote it",
        },
        b={"state": NodeState.RUNNING, "attempt": 2, "since": "2026-11-22T11:59:30Z"},
    )
    assert node_table(shown, NOW).splitlines() == [
        "NODE  STATE        ATTEMPT  RUNS        TIME    COST  LAST LINE",
        "a     done               1     2  1 min 15 s  0.5000  wrote it",
        "b     running            2     -      30.0 s       -  -",
        "c     not started        -     -           -       -  -",
        "",
        (
            "running · 1 of 3 nodes done · 1 active · 1 loop of at most 50 "
            "· 1 min 45 s of work · 0.5000 USD"
        ),
    ]


def test_titles_have_a_column_where_they_differ_from_ids() -> None:
    shape = graph("A[Compile and lint] --> b[B] --> C{{Ship it?}}")
    shown = FlowView("demo", shape, tuple(map(NodeView, shape.nodes)), "running")
    table = node_table(shown, NOW).splitlines()
    assert table[:4] == [
        "NODE  TITLE             STATE        ATTEMPT  RUNS  TIME  COST  LAST LINE",
        "A     Compile and lint  not started        -     -     -     -  -",
        "b                       not started        -     -     -     -  -",
        "C     Ship it?          not started        -     -     -     -  -",
    ]
    assert "Compile and li" in node_table(shown, NOW, 60)


def test_a_waiting_node_shows_the_time_left() -> None:
    later = "2026-11-22T12:00:20Z"
    assert format_state(node(state=NodeState.RETRYING, due=later), NOW) == "retrying in 20.0 s"
    assert (
        format_state(node(state=NodeState.ASKED, due=later), NOW) == "waiting for you, 20.0 s left"
    )
    assert format_state(node(state=NodeState.ASKED), NOW) == "waiting for you"
    past = "2026-11-22T11:00:00Z"
    assert format_state(node(state=NodeState.RETRYING, due=past), NOW) == "retrying in 0.0 s"
    assert format_state(node(state=NodeState.DONE, due=later), NOW) == "done"


def test_an_abandoned_node_is_interrupted_and_its_clock_stops() -> None:
    gone = node(state=NodeState.RUNNING, since=HALF_A_MINUTE_AGO, seconds=5, is_interrupted=True)
    assert (format_state(gone, NOW), node_duration_s(gone, NOW)) == ("interrupted", 5)
    shown = run(a={"state": NodeState.RUNNING, "since": HALF_A_MINUTE_AGO, "is_interrupted": True})
    assert "interrupted" in node_table(shown, NOW)
    assert nodes_json(shown)["nodes"][0]["state"] == "running", "programs ask `held_by`"


def test_json_has_all_of_it() -> None:
    shown = run(
        iterations=1,
        a={
            "state": NodeState.DONE,
            "runs": 1,
            "attempt": 3,
            "seconds": 1.25,
            "cost_usd": 0.1 + 0.2,
            "last_line": "\x1b[2Jx",
        },
    )
    found = nodes_json(shown)
    assert json.loads(json.dumps(found)) == found
    assert found["nodes"][0] == {
        "id": "a",
        "label": "a",
        "kind": "agent",
        "state": "done",
        "attempt": 3,
        "runs": 1,
        "seconds": 1.25,
        "cost_usd": 0.3,
        "unpriced": 0,
        "estimated_usd": 0.0,
        "tokens": 0,
        "since": None,
        "due": None,
        "last_line": "\x1b[2Jx",
    }
    assert found["edges"][:2] == [
        {"from": "a", "to": "b", "label": "", "is_back": False, "was_followed": True},
        {"from": "b", "to": "a", "label": "again", "is_back": True, "was_followed": False},
    ]
    assert (found["title"], found["status"], found["iterations"]) == ("demo", "running", 1)
    assert (found["done"], found["total"], found["max_iterations"]) == (1, 3, 50)


@given(views())
@settings(max_examples=30)
def test_any_run_is_a_table(shown: FlowView) -> None:
    lines = node_table(shown, NOW).split("\n")
    assert len(lines) == len(shown.nodes) + 3
    assert all(line.isprintable() or not line for line in lines[:1])
    json.dumps(nodes_json(shown))
