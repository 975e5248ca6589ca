"""The real Mermaid package colors the nodes that are meant, whatever their ids are.

Run with ``pytest -m mermaid``, as the comparison of graphs, which installs the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequencer import Graph, Node, NodeKind
from sequencer.cli.views.states import PICTURES
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.plugins.drawing.mermaid import add_state_classes, format_view_chart
from sequencer.workflows.mermaid.parser import read_chart
from tests.unit.cli.flow.views import HOSTILE, RELEASE, of, view
from tests.unit.workflows.mermaid_peer.asking import ask, installed_peer

pytestmark = [pytest.mark.mermaid, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
CHARTS = HERE.parents[2] / "data" / "flowcharts" / "charts.json"
STATES = [state for state in NodeState if state is not NodeState.PENDING]


@pytest.fixture(scope="module")
def peer(pytestconfig: pytest.Config) -> Path:
    return installed_peer(pytestconfig, "classes.mjs")


def answers(peer: Path, texts: list[str]) -> list[dict[str, Any]]:
    return ask("classes.mjs", peer, texts, timeout_s=250)


def everywhere(ids: list[str]) -> FlowView:
    """Return a run in which each node is in another state."""
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in ids)
    states = (STATES[place % len(STATES)] for place in range(len(ids)))
    seen = tuple(NodeView(node, state) for node, state in zip(nodes, states, strict=True))
    return FlowView("t", Graph(nodes=nodes, entries=(ids[0],)), seen, "running")


def test_every_valid_chart_gets_its_classes(peer: Path) -> None:
    entries = json.loads(CHARTS.read_text(encoding="utf-8"))
    texts, runs = [], []
    for entry in entries:
        text = entry if isinstance(entry, str) else entry.get("text") or entry.get("mermaid")
        try:
            ids = [node.id for node in read_chart(text).nodes]
        except Exception:  # noqa: BLE001, S112 - a chart that is none is not drawn
            continue
        if ids and all(0 < len(name) <= 100 for name in ids):
            texts.append(text)
            runs.append(everywhere(ids))
    assert len(texts) > 50
    coloured = [add_state_classes(text, run) for text, run in zip(texts, runs, strict=True)]
    bare = answers(peer, texts)
    for text, run, before, found in zip(coloured, runs, bare, answers(peer, coloured), strict=True):
        assert "invalid" not in found, (text, found)
        assert [node[0] for node in found["nodes"]] == [node[0] for node in before["nodes"]]
        ensure_colored(run, before, found)


def ensure_colored(run: FlowView, before: dict[str, Any], found: dict[str, Any]) -> None:
    """Fail unless each node has its own classes or styles, and one more."""
    was = {name: (classes, styles) for name, classes, styles in before["nodes"]}
    now = {name: (classes, styles) for name, classes, styles in found["nodes"]}
    for node in run.nodes:
        name = node.node.id
        state = NodeState.WAITING if node.state is NodeState.READY else node.state
        classes, styles = now[name]
        if "," in name:
            assert styles[-len(PICTURES[state].split(",")) :] == PICTURES[state].split(",")
        else:
            assert classes[: len(was[name][0])] == was[name][0]
            assert [one[-len(state) :].casefold() for one in classes][-1] == str(state)


def test_drawn_charts_are_valid_whatever_they_contain(peer: Path) -> None:
    nodes = tuple(
        Node(id=f"n {n}", kind=kind, label=label)
        for n, (label, kind) in enumerate((label, kind) for label in HOSTILE for kind in NodeKind)
    )
    hostile = of(Graph(nodes=nodes, entries=("n 0",)), "running", **{"n 0": "done"})
    for found in answers(
        peer, [format_view_chart(hostile), format_view_chart(view(RELEASE, "running", plan="done"))]
    ):
        assert "invalid" not in found, found
        assert found["nodes"][0][1] == ["seqDone"]
        assert [node[1] for node in found["nodes"][1:]] == [[] for _ in found["nodes"][1:]]
