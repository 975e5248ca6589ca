"""What a Mermaid flowchart says, before anybody asks whether it can be run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from sequencer.errors import ConfigurationError

Position = tuple[int, int]
"""Line and column, both from 1."""
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


class ChartError(ConfigurationError):
    """The text is no flowchart; ``where`` has file, line and column."""


def drawn(label: str) -> str:
    """Return *label* as people read it in the picture: that is what they answer with.

    >>> drawn("it&#39;s<br/>5 &lt; 6 &amp; ok")
    "it's 5 < 6 & ok"
    """
    return unescape(_BREAK.sub(" ", label)) if "&" in label or "<" in label else label


@dataclass(frozen=True, slots=True)
class ChartNode:
    """A node as the chart declares it."""

    id: str
    label: str
    shape: str | None
    """Mermaid's name of the shape; None: a bare id, drawn as a rectangle."""
    position: Position = (1, 1)
    """Of the first mention."""


@dataclass(frozen=True, slots=True)
class ChartEdge:
    """A drawn line between two nodes or groups."""

    source: str
    target: str
    label: str
    stroke: str
    """normal, dotted, thick or invisible."""
    type: str
    """arrow_point, arrow_open, arrow_circle, arrow_cross or double_arrow_…"""
    length: int
    position: Position = (1, 1)


@dataclass(frozen=True, slots=True)
class ChartSubgraph:
    """A group of nodes."""

    id: str
    title: str
    nodes: tuple[str, ...]
    """Members: nodes, and the ids of nested groups."""
    dir: str | None
    position: Position = (1, 1)


@dataclass(frozen=True, slots=True)
class Chart:
    """A whole flowchart."""

    direction: str
    nodes: tuple[ChartNode, ...]
    """In the order of first mention."""
    edges: tuple[ChartEdge, ...]
    subgraphs: tuple[ChartSubgraph, ...] = ()
    """In closing order."""
    classes: frozenset[str] = field(default=frozenset())
    """Names that classDef, class or ``:::`` use, so that others can avoid them."""

    @property
    def names(self) -> frozenset[str]:
        """Return the ids of the nodes and of the groups."""
        return frozenset(n.id for n in self.nodes) | {group.id for group in self.subgraphs}

    def as_json(self) -> dict[str, Any]:
        """Return the graph as ``show --chart FILE --json`` prints it."""
        return {
            "direction": self.direction,
            "nodes": [
                {"id": node.id, "label": node.label, "shape": node.shape} for node in self.nodes
            ],
            "edges": [
                {
                    "from": edge.source,
                    "to": edge.target,
                    "label": edge.label,
                    "stroke": edge.stroke,
                    "type": edge.type,
                    # Mermaid gives a line whose halves don't fit no length.
                    **({"length": edge.length} if edge.length else {}),
                }
                for edge in self.edges
            ],
            "subgraphs": [
                {
                    "id": group.id,
                    "title": group.title,
                    "nodes": list(group.nodes),
                    "dir": group.dir,
                }
                for group in self.subgraphs
            ],
        }
