"""A Mermaid chart whose nodes are coloured by where a run stands.

The author's own text stays as it is, to the letter; what is added stands behind it. What a
``class`` statement can name was tried with Mermaid 11.17: every id but those with a comma,
which get a ``style`` of their own.
"""

from __future__ import annotations

from sequencer.cli.flow.marks import shown
from sequencer.cli.mermaid import quoted
from sequencer.model.flow_view import FlowView, NodeState
from sequencer.model.graph import Graph, NodeKind

PREFIX = "seq"

LOOKS = {
    NodeState.DONE: "fill:#d3f9d8,stroke:#2b8a3e,color:#0b3d17",
    NodeState.RUNNING: "fill:#d0ebff,stroke:#1864ab,color:#0b2e4f,stroke-width:3px",
    NodeState.FAILED: "fill:#ffe3e3,stroke:#c92a2a,color:#5f0f0f,stroke-width:3px",
    NodeState.WAITING: "fill:#f1f3f5,stroke:#495057,color:#212529,stroke-dasharray:4 3",
    NodeState.ASKED: "fill:#f3d9fa,stroke:#862e9c,color:#3b0f47,stroke-width:3px",
    NodeState.RETRYING: "fill:#fff3bf,stroke:#b35900,color:#4d2600",
    NodeState.CANCELLED: "fill:#e9ecef,stroke:#868e96,color:#495057,stroke-dasharray:2 2",
}
"""Fill, line and text together, so that a theme's own text colour can't make it unreadable."""

_SAME = {NodeState.READY: NodeState.WAITING}
_SHAPES = {
    NodeKind.AGENT: ("[", "]"),
    NodeKind.HUMAN: ("{{", "}}"),
    NodeKind.MARKER: ("((", "))"),
    NodeKind.DECISION: ("{", "}"),
}


def classed(text: str, view: FlowView) -> str:
    """Return the chart *text* with the nodes of *view* coloured by their states."""
    ids = {node.id: node.id for node in view.graph.nodes}
    return _with_classes(text, view, ids)


def charted(view: FlowView) -> str:
    """Return a chart of *view*, for a graph that nobody drew; coloured the same way.

    Ids are numbers of our own, because not every name is an id to Mermaid.
    """
    ids = {node.id: f"n{place}" for place, node in enumerate(view.graph.nodes)}
    return _with_classes(_chart(view.graph, ids), view, ids)


def _chart(graph: Graph, ids: dict[str, str]) -> str:
    lines = ["flowchart TD"]
    for node in graph.nodes:
        opens, closes = _SHAPES[node.kind]
        # A label must not be empty.
        label = shown(node.label) or shown(node.id) or "?"
        lines.append(f"    {ids[node.id]}{opens}{quoted(label)}{closes}")
    for edge in graph.edges:
        label = f"|{quoted(shown(edge.label))}|" if shown(edge.label) else ""
        lines.append(f"    {ids[edge.source]} -->{label} {ids[edge.target]}")
    return "\n".join(lines) + "\n"


def _with_classes(text: str, view: FlowView, ids: dict[str, str]) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    prefix = _unused(text)
    named: dict[NodeState, list[str]] = {}
    styled: list[str] = []
    for node in view.nodes:
        state, name = _SAME.get(node.state, node.state), ids[node.node.id]
        if state not in LOOKS:
            continue
        if "," in name:
            styled.append(f"    style {name} {LOOKS[state]}")
        else:
            named.setdefault(state, []).append(name)
    added = [
        f"    classDef {prefix}{state.title()} {LOOKS[state]}" for state in LOOKS if state in named
    ]
    added += [
        f"    class {','.join(named[state])} {prefix}{state.title()}"
        for state in LOOKS
        if state in named
    ]
    added += styled
    if not added:
        return text
    gap = "" if text.endswith("\n") else end
    return text + gap + "".join(f"{line}{end}" for line in added)


def _unused(text: str) -> str:
    """Return a beginning of class names that *text* holds nowhere, in whatever sense."""
    number, prefix = 1, PREFIX
    while any(f"{prefix}{state.title()}" in text for state in LOOKS):
        number += 1
        prefix = f"{PREFIX}{number}"
    return prefix
