"""Graph workflows from a terse text, without the reader of charts.

``a & b -->|yes| c; h{{Q}}; q{Which}; s((S))``: agents, a person, a decision, a marker; a
statement ends at a newline or ``;``. Nodes stand in the order of their first mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sequencer import Edge, Graph, Node, NodeKind, Retry, Step, Workflow

_NODE = re.compile(
    r"(?P<id>[\w.]+)(?:\{\{(?P<human>[^}]*)\}\}|\(\((?P<marker>[^)]*)\)\)|\{(?P<decision>[^}]*)\}"
    r"|\[(?P<agent>[^\]]*)\])?"
)
_ARROW = re.compile(r"\s*-->(?:\|(?P<label>[^|]*)\|)?\s*")


@dataclass
class _Reading:
    kinds: dict[str, NodeKind] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def statement(self, text: str) -> None:
        parts = _ARROW.split(text.strip())
        groups = [self._group(names) for names in parts[::2]]
        for label, sources, targets in zip(parts[1::2], groups, groups[1:], strict=False):
            self.edges += [
                Edge(source=source, target=target, label=label or "")
                for source in sources
                for target in targets
            ]

    def _group(self, text: str) -> list[str]:
        names = []
        for written in text.split("&"):
            found = _NODE.fullmatch(written.strip())
            assert found is not None, f"{written!r} is no node"
            name = found["id"]
            self.kinds.setdefault(name, NodeKind.AGENT)
            for kind in NodeKind:
                if found[kind] is not None:
                    self.kinds[name] = kind
                    self.labels[name] = found[kind]
            names.append(name)
        return names


def graph(
    text: str,
    *,
    entries: Iterable[str] | None = None,
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Graph:
    """Return the graph of *text*; *nodes* has more fields of some nodes."""
    reading = _Reading()
    for statement in re.split(r"[;\n]", text):
        if statement.strip():
            reading.statement(statement)
    more = nodes or {}
    made = [
        Node(id=name, kind=kind, label=reading.labels.get(name, ""), **more.get(name, {}))
        for name, kind in reading.kinds.items()
    ]
    first = tuple(entries) if entries is not None else (made[0].id,)
    return Graph(nodes=tuple(made), edges=tuple(reading.edges), entries=first, **settings)


def workflow_of(
    made: Graph,
    *,
    retry: Retry | Mapping[str, Retry] | None = None,
    timeouts_ms: Mapping[str, int] | None = None,
) -> Workflow:
    """Return the workflow of *made*; *retry* is every agent's, or by node."""
    limits = timeouts_ms or {}
    retries = retry if isinstance(retry, Mapping) else {}
    every = retry if isinstance(retry, Retry) else None
    steps = [
        Step(
            name=node.id,
            retry=retries.get(node.id, every),
            timeout_s=limits[node.id] / 1000 if node.id in limits else None,
        )
        for node in made.nodes
        if node.kind is NodeKind.AGENT
    ]
    return Workflow("flow", steps, kind="graph", graph=made)


def workflow(
    text: str,
    *,
    retry: Retry | Mapping[str, Retry] | None = None,
    timeouts_ms: Mapping[str, int] | None = None,
    **settings: Any,
) -> Workflow:
    """Return the workflow of *text*; see `graph` for the *settings*."""
    return workflow_of(graph(text, **settings), retry=retry, timeouts_ms=timeouts_ms)


def fan(width: int, **settings: Any) -> Graph:
    """Return a start, *width* agents behind it, and one that joins them."""
    names = [f"n{number}" for number in range(width)]
    agents = [Node(id=name, kind=NodeKind.AGENT) for name in ("s", *names, "j")]
    edges = [Edge(source="s", target=name) for name in names]
    edges += [Edge(source=name, target="j") for name in names]
    return Graph(nodes=tuple(agents), edges=tuple(edges), entries=("s",), **settings)
