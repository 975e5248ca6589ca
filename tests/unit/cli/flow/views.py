"""Runs of graphs to look at, from charts in a few lines and from chance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.workflows.flowfile.reader import read_flow
from sequencer.workflows.mermaid.chart import Chart

FLOWS = Path(__file__).parents[3] / "data" / "flowcharts" / "flows.json"

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07clear",
    "a\rb\nc\td",
    "pay\u202eoff\u2066x\u2069",
    '"></text><script>alert(1)</script>&amp;<!--',
    "計画を立てる人",
    "\U0001f469\u200d\U0001f4bb works",
    "e\u0301\u0301\u0301 ที่นี่",
    "\ufffe\uffff\ud800",
    "%%{init: {}}%% ``` ]] }} |x| --> y; click z",
    "x" * 300,
    " ",
)

RELEASE = """\
    plan[Plan the change] --> build[Write the code]
    build --> sec[Security review] & perf[Performance review] & looks[Style review]
    sec & perf & looks --> join[Merge the reviews]
    join --> gate{{Release this?}}
    gate -->|approve| docs[Write notes]
    gate -->|reject| build
    gate -->|needs info| plan
    docs --> tag[Tag] --> pub[Publish] --> e((End))
    docs --> mail[Send mail] --> e
    tag --> e
    build --> mail
"""


def graph(chart: str, on_error: str | None = None) -> Graph:
    text = f"flowchart TD\n{dedent(chart)}\n"
    found = read_flow(text, file=Path("flow.mmd")).workflow.graph
    assert found is not None
    return found.replace(on_error=on_error) if on_error else found


def drawn_by_hand(direction: str) -> tuple[FlowView, Chart]:
    """Return a graph and the chart of its author, with every stroke and shape."""
    text = (
        f"flowchart {direction}\na[Plan] -.-> b(Build)\na ==> c([Check])\n"
        "b & c --> d{Which?}\nd -->|small| e((End))\nd -->|again| a\n"
    )
    flow = read_flow(text, file=Path("flow.mmd"))
    assert flow.chart is not None
    return of(flow.graph), flow.chart


def of(shape: Graph, status: str = "not-started", title: str = "demo", **states: str) -> FlowView:
    """Return a view in which the named nodes have these states, and the others none."""
    nodes = tuple(NodeView(node, NodeState(states.get(node.id, "pending"))) for node in shape.nodes)
    return FlowView(title, shape, nodes, status)


def view(chart: str, status: str = "not-started", **states: str) -> FlowView:
    return of(graph(chart), status, **states)


@cache
def flows() -> dict[str, Graph]:
    """Return the graphs of the flows with known traces; those that are refused are left out."""
    found = {}
    for flow in json.loads(FLOWS.read_text(encoding="utf-8")):
        if flow["expect"]["status"] != "invalid":
            chart = flow["mermaid"].partition("\n")[2]
            found[flow["name"]] = graph(chart, flow.get("onError"))
    return found


@st.composite
def views(draw: st.DrawFn, most: int = 12) -> FlowView:
    """Return any view: loops, edges to itself, twice the same edge, parts without a way in."""
    count = draw(st.integers(1, most))
    texts = st.one_of(st.sampled_from(["", "yes", "Review it all", *HOSTILE]), st.text(max_size=30))
    kinds = st.sampled_from(list(NodeKind))
    nodes = tuple(Node(id=f"n{n}", kind=draw(kinds), label=draw(texts)) for n in range(count))
    ends = st.integers(0, count - 1)
    drawn = draw(st.lists(st.tuples(ends, ends, texts), max_size=2 * count))
    edges = tuple(Edge(source=f"n{a}", target=f"n{b}", label=text) for a, b, text in drawn)
    jump = draw(st.sampled_from([None, "n0"]))
    shape = Graph(nodes=nodes, edges=edges, entries=("n0",), on_error=jump)
    states = [draw(st.sampled_from(list(NodeState))) for _ in nodes]
    seen = tuple(
        NodeView(node, state, runs=draw(st.integers(0, 3)), last_line=draw(texts))
        for node, state in zip(nodes, states, strict=True)
    )
    followed = frozenset(n for n in range(len(edges)) if draw(st.booleans()))
    return FlowView(
        draw(texts),
        shape,
        seen,
        draw(st.sampled_from(["running", "not-started"])),
        followed=followed,
    )


def chain(count: int) -> Graph:
    nodes = tuple(Node(id=f"n{n}", kind=NodeKind.AGENT) for n in range(count))
    edges = tuple(Edge(source=f"n{n}", target=f"n{n + 1}") for n in range(count - 1))
    return Graph(nodes=nodes, edges=edges, entries=("n0",))


def cells(points: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    """Yield every cell on the way through *points*, each once."""
    x, y = points[0]
    yield x, y
    for to_x, to_y in points[1:]:
        assert x == to_x or y == to_y, "a line goes aslant"
        while (x, y) != (to_x, to_y):
            x += (to_x > x) - (to_x < x)
            y += (to_y > y) - (to_y < y)
            yield x, y


def ok(cost: float = 0.0) -> Outcome:
    return Outcome(status=OutcomeStatus.OK, usage=Usage(cost_usd=cost))


def with_node(view: FlowView, name: str, status: str = "", **facts: Any) -> FlowView:
    nodes = tuple(replace(n, **facts) if n.node.id == name else n for n in view.nodes)
    return replace(view, nodes=nodes, status=status or view.status)
