"""A chart while it is read: what is declared so far, and what a later mention changes.

The last label and the last shape of a node win, its place is its first mention. A name
that already belongs to an edge is never a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from sequencer.resolution.flowcharts.chart import (
    Chart,
    ChartEdge,
    ChartNode,
    ChartSubgraph,
    Position,
)
from sequencer.resolution.flowcharts.links import Link
from sequencer.resolution.flowcharts.preparation import SPACES, reveal
from sequencer.resolution.flowcharts.properties import Unreadable, as_text
from sequencer.resolution.flowcharts.shapes import SHAPES

MAX_EDGES = 100_000
"""Ten times those of the widest charts that are run; ``a & b --> c & d`` are four of them."""
MAX_DECLARED = 40_000
"""Nodes and groups; a workflow has at most half as many nodes."""


class TooLarge(Exception):
    """The chart goes past a limit, at the offset *start*."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


@dataclass(slots=True)
class _Node:
    label: str
    shape: str | None
    start: int


class Drawing:
    """Collects nodes, edges and groups; places are offsets in the text until the end."""

    def __init__(self) -> None:
        self.direction = "TB"
        self.classes: set[str] = set()
        self._edges: list[tuple[str, str, str, Link, int]] = []
        self._nodes: dict[str, _Node] = {}
        self._edge_ids: set[str] = set()
        self._pairs: dict[tuple[str, str], int] = {}
        self._subgraphs: list[tuple[str, str, tuple[str, ...], str | None, int]] = []
        self._subgraph_ids: set[str] = set()
        self._members: set[str] = set()

    @property
    def edge_count(self) -> int:
        """How many edges there are so far."""
        return len(self._edges)

    def add_node(
        self, name: str, start: int, label: str | None = None, shape: str | None = None
    ) -> None:
        """Declare the node *name*, or give it another *label* and *shape*.

        Raises:
            TooLarge: it would be one node too many.
        """
        if name in self._edge_ids:
            return
        node = self._nodes.get(name)
        if node is None:
            self._ensure_room(start)
            node = self._nodes[name] = _Node(name, None, start)
        if label is not None:
            node.label = clean_label(label)
        if shape is not None:
            node.shape = shape

    def add_properties(self, name: str, properties: Any) -> None:
        """Apply ``@{ … }`` to the node *name*; edges and groups have nothing that counts.

        Raises:
            Unreadable: the properties name no shape that exists.
        """
        if (name in self._subgraph_ids and properties) or name in self._edge_ids:
            return
        if properties is None:
            raise Unreadable("it says nothing")
        node = self._nodes[name]
        if not isinstance(properties, dict):
            return
        shape = properties.get("shape")
        if shape:
            if not isinstance(shape, str) or shape not in SHAPES:
                raise Unreadable(_no_shape(as_text(shape)))
            node.shape = shape
        label = properties.get("label")
        if label:
            node.label = reveal(as_text(label))
        if properties.get("icon") or properties.get("img"):
            if label is not None and not isinstance(label, str):
                raise Unreadable("the label is not text; put it in double quotes")
            if not (label or "").strip(SPACES) and node.label == name:
                node.label = ""

    def add_edges(
        self,
        sources: list[str],
        targets: list[str],
        link: Link,
        *,
        label: str | None,
        name: str | None,
        start: int,
    ) -> None:
        """Join each of *sources* with each of *targets*.

        Raises:
            TooLarge: those would be too many; nothing is kept of them, because a line of a
                few hundred characters can ask for millions.
        """
        if len(self._edges) + len(sources) * len(targets) > MAX_EDGES:
            text = "the edges between nodes that & joins counted each"
            raise TooLarge(f"the chart has more than {MAX_EDGES:,} edges, {text}", start)
        text = "" if label is None else clean_label(label)
        for source in sources:
            for target in targets:
                is_named = source == sources[-1] and target == targets[0]
                self._name_edge(source, target, name if is_named else None)
                self._edges.append((source, target, text, link, start))

    def _name_edge(self, source: str, target: str, name: str | None) -> None:
        before = self._pairs.get((source, target), 0)
        self._pairs[source, target] = before + 1
        if not name or name in self._edge_ids:
            name = f"L_{source}_{target}_{before + 1 if before else 0}"
        self._edge_ids.add(name)

    def add_subgraph(
        self,
        name: str | None,
        title: str,
        mentioned: Iterable[str],
        direction: str | None,
        start: int,
    ) -> str:
        """Close a group and return its id; a member of an earlier group stays there.

        Raises:
            TooLarge: it would be one group too many.
        """
        self._ensure_room(start)
        if name is None:
            name = f"subGraph{len(self._subgraphs)}"
        members = tuple(
            member
            for member in dict.fromkeys(mentioned)
            if member.strip(SPACES) and member not in self._members
        )
        self._members.update(members)
        shown = reveal(title).strip(SPACES)
        self._subgraphs.append((name, shown, members, direction, start))
        self._subgraph_ids.add(name)
        return name

    def _ensure_room(self, start: int) -> None:
        if len(self._nodes) + len(self._subgraphs) >= MAX_DECLARED:
            raise TooLarge(f"the chart has more than {MAX_DECLARED:,} nodes and groups", start)

    def chart(self, position: Callable[[int], Position]) -> Chart:
        """Return everything that was collected, with places by *position*."""
        return Chart(
            self.direction,
            tuple(
                ChartNode(name, node.label, node.shape, position(node.start))
                for name, node in self._nodes.items()
            ),
            tuple(
                ChartEdge(source, target, label, *link, position(start))
                for source, target, label, link, start in self._edges
            ),
            tuple(
                ChartSubgraph(name, title, members, direction, position(start))
                for name, title, members, direction, start in self._subgraphs
            ),
            frozenset(self.classes),
        )


def _no_shape(name: str) -> str:
    near = get_close_matches(name.lower().replace("_", "-"), SHAPES, n=1)
    return f"there is no shape {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def clean_label(text: str) -> str:
    """Return *text* without blanks around it and, if they enclose it, without its quotes.

    >>> clean_label('  "a b" ')
    'a b'
    """
    text = text.strip(SPACES)
    if text.startswith('"') and text.endswith('"'):
        text = text[1:-1] or text[:1]
    return reveal(text)
