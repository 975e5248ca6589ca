"""The edges that a run follows: drawn lines without groups, layout and repetitions.

An edge to a group of nodes goes to each of its entries (members that no other member leads
to; if there is none, the first one), an edge from a group leaves each of its exits (members
that lead to no member). Members of a group within the group are its members too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sequencer.resolution.flowcharts.chart import (
    Chart,
    ChartEdge,
    ChartNode,
    Position,
    drawn,
)
from sequencer.resolution.flowcharts.drawing import MAX_EDGES
from sequencer.resolution.flowcharts.problems import Findings

MAX_DEPTH = 32
_FLOW_TYPE = "arrow_point"
_LAYOUT = "invisible"


@dataclass(frozen=True, slots=True)
class Way:
    """An edge between two nodes, and where the line is that it comes from."""

    source: str
    target: str
    label: str
    position: Position


class Grouping:
    """The nodes, groups and edges of one chart."""

    def __init__(self, chart: Chart, findings: Findings) -> None:
        """Take *chart* apart; what can't be run is added to *findings*."""
        self._findings = findings
        self._groups = {group.id: group.position for group in chart.subgraphs}
        self._order = {name: place for place, name in enumerate(self._groups)}
        self.nodes: tuple[ChartNode, ...] = tuple(
            node for node in chart.nodes if node.id not in self._groups
        )
        """Without groups; in the order of first mention."""
        self._parents = self._found_parents(chart)
        if not self._is_shallow():
            self._parents = {}
        self._lines = [edge for edge in chart.edges if self._is_flow(edge)]
        self.refused: frozenset[str] = frozenset(
            end
            for edge in chart.edges
            if edge.stroke != _LAYOUT and edge.type != _FLOW_TYPE
            for end in (edge.source, edge.target)
        )
        """The ends of lines that were refused; what is missing there is no second problem."""
        self._entries: dict[str, tuple[str, ...]] = {}
        self._exits: dict[str, tuple[str, ...]] = {}
        self._circular: dict[str, str] = {}
        if self._groups:
            self._find_ends()

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the ids of the groups."""
        return tuple(self._groups)

    def entries(self, name: str) -> tuple[str, ...]:
        """Return the nodes where an edge to *name*, a node or a group, arrives."""
        return self._entries.get(name, ()) if name in self._groups else (name,)

    @cached_property
    def ways(self) -> tuple[Way, ...] | None:
        """Return the edges between nodes, in text order; None if there are too many."""
        found: dict[tuple[str, str, str], Way] = {}
        count = 0
        for edge in self._lines:
            label = drawn(edge.label)
            for source, target in self._ends(edge):
                count += 1
                key = (source, target, label)
                if key in found:
                    line = found[key].position[0]
                    detail = f"the same edge is there already, in line {line}; it is one edge"
                    self._findings.warn("W-TWICE", f"{source} {target}", detail, edge.position)
                found.setdefault(key, Way(source, target, label, edge.position))
            # Not what is found: the same edge between two large groups costs as much each time.
            if count > MAX_EDGES:
                detail = f"more than {MAX_EDGES} edges, those of groups counted for each node"
                subject = f"{edge.source} {edge.target}"
                self._findings.error("E-SUBGRAPH", subject, detail, edge.position)
                return None
        return tuple(found.values())

    def _found_parents(self, chart: Chart) -> dict[str, str]:
        """Return the group that each node and each group is in directly."""
        closed: dict[str, str] = {}
        for group in chart.subgraphs:
            for member in group.nodes:
                # A node stays with the group that is closed first. A group that is not closed
                # yet is most often the one around this one, and an edge leads back to it.
                if member not in self._groups or self._order[member] < self._order[group.id]:
                    closed.setdefault(member, group.id)
        self._parents = closed
        for group in chart.subgraphs:
            for member in group.nodes:
                is_around = member == group.id or member in self._above(group.id)
                if member not in closed and not is_around:
                    closed[member] = group.id
        return closed

    def _is_flow(self, edge: ChartEdge) -> bool:
        if edge.stroke == _LAYOUT:
            return False
        if edge.type == _FLOW_TYPE:
            return True
        subject = f"{edge.source} {edge.target}"
        hint = f"write {edge.source} --> {edge.target}, or ~~~ if it is for the layout alone"
        detail = "only -->, -.-> and ==> are executable"
        self._findings.error("E-EDGE", subject, detail, edge.position, hint)
        return False

    def _ends(self, edge: ChartEdge) -> Iterator[tuple[str, str]]:
        subject = f"{edge.source} {edge.target}"
        sources = (
            self._exits.get(edge.source, ()) if edge.source in self._groups else (edge.source,)
        )
        targets = self.entries(edge.target)
        if not targets or not (sources or self._leaves.get(edge.source)):
            empty = edge.source if targets else edge.target
            detail = f"the group {empty!r} has no nodes"
            self._findings.error("E-SUBGRAPH", subject, detail, edge.position)
        elif not sources:
            detail = f"the group {edge.source!r} has no exit: each member leads to another one"
            hint = "draw the edge from the member that it leaves from"
            self._findings.error("E-SUBGRAPH", subject, detail, edge.position, hint)
        elif len(sources) * len(targets) > MAX_EDGES:
            detail = f"more than {MAX_EDGES} edges from each exit to each entry"
            self._findings.error("E-SUBGRAPH", subject, detail, edge.position)
        else:
            yield from ((source, target) for source in sources for target in targets)

    def _is_shallow(self) -> bool:
        """Return whether groups within groups end; says so if they don't."""
        for name, position in self._groups.items():
            if sum(1 for _ in self._above(name)) >= MAX_DEPTH:
                detail = f"groups are nested deeper than {MAX_DEPTH} levels"
                self._findings.error("E-SUBGRAPH", name, detail, position)
                return False
        return True

    def _above(self, name: str) -> Iterator[str]:
        """Yield the groups that *name* is in, from the inside; at most `MAX_DEPTH`."""
        here = self._parents.get(name)
        for _ in range(MAX_DEPTH):
            if here is None:
                return
            yield here
            here = self._parents.get(here)

    @cached_property
    def _leaves(self) -> dict[str, list[str]]:
        """Return the nodes of each group, those of groups within it included, in order."""
        found: dict[str, list[str]] = {name: [] for name in self._groups}
        for node in self.nodes:
            for name in self._above(node.id):
                found[name].append(node.id)
        return found

    def _find_ends(self) -> None:
        """Find the entries and exits of each group, inner groups first."""
        inside: dict[str, set[tuple[str, str]]] = {name: set() for name in self._groups}
        for edge in self._lines:
            over = set(self._above(edge.target))
            for name in self._above(edge.source):
                if name in over:
                    inside[name].add((edge.source, edge.target))
        depths = {name: sum(1 for _ in self._above(name)) for name in self._groups}
        for name in sorted(self._groups, key=depths.__getitem__, reverse=True):
            self._find_ends_of(name, inside[name])

    def _find_ends_of(self, name: str, inside: set[tuple[str, str]]) -> None:
        leading: set[str] = set()
        reached: set[str] = set()
        senders: dict[str, set[tuple[str, ...]]] = {}
        for source, target in inside:
            leaving = self._exits[source] if source in self._groups else (source,)
            if leaving and self.entries(target):
                senders.setdefault(target, set()).add(leaving)
                reached |= {target, *self._above(target)} - {source, *self._above(source)}
        for leaving in {each for found in senders.values() for each in found}:
            leading.update(leaving)
        led_to = {
            node
            for target, found in senders.items()
            for node in self.entries(target)
            # A node that leads to itself may still be where the group begins.
            if len(found) > 1 or (node,) not in found
        }
        leaves = self._leaves[name]
        self._exits[name] = tuple(leaf for leaf in leaves if leaf not in leading)
        begins = {leaf for leaf in leaves if leaf not in led_to}
        for inner, first in self._circular.items():
            if inner not in reached and name in self._above(inner):
                begins.add(first)
        if not begins and leaves:
            self._circular[name] = leaves[0]
            begins = {leaves[0]}
        self._entries[name] = tuple(leaf for leaf in leaves if leaf in begins)
