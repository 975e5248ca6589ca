"""Which row of a drawing each node is in, and what stands beside what.

The first half of a layered drawing (Sugiyama, Tagawa and Toda 1981): a node stands below
all that lead to it without closing a loop, and the rows are put in an order in which few
lines cross. An edge that passes a row has a place in it, and so has an edge's label, so
that nothing is drawn over anything else.

Not promised: the fewest crossings there could be; finding them takes for ever.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from sequencer.model.graph import Graph

SWEEPS = 12


@dataclass(slots=True)
class Item:
    """Something that takes up room in a row: a node, or an edge that passes."""

    row: int
    width: int = 1
    """Odd, so that there is a middle."""
    height: int = 1
    node: str | None = None
    place: int = -1
    """Of the edge in ``graph.edges``; -1 for a node."""
    is_label: bool = False
    above: list[int] = field(default_factory=list)
    """Items of the row above that a line comes from."""
    below: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Rows:
    """All items, and which of them stand in which row, from left to right."""

    items: list[Item]
    rows: list[list[int]]
    of_node: dict[str, int]
    chains: dict[int, list[int]]
    """For each edge that closes no loop the items that it leads through, its ends included."""


def ranks(graph: Graph) -> dict[str, int]:
    """Return how deep each node stands; the entries, and what nothing leads to, at 0.

    What nothing leads to but isn't an entry (what errors jump to) stands right above the
    first that it leads to.
    """
    forward = [e for place, e in enumerate(graph.edges) if place not in graph.back_edges]
    waiting = {node.id: 0 for node in graph.nodes}
    after: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for edge in forward:
        waiting[edge.target] += 1
        after[edge.source].append(edge.target)
    loose = [name for name, count in waiting.items() if not count]
    found = dict.fromkeys(waiting, 0)
    pending = list(loose)
    while pending:
        name = pending.pop()
        for target in after[name]:
            found[target] = max(found[target], found[name] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                pending.append(target)
    for name in loose:
        if name not in graph.entries and after[name]:
            found[name] = min(found[target] for target in after[name]) - 1
    return found


def place_count(graph: Graph) -> int:
    """Return how many items the drawing of *graph* would have, labels' rows left out."""
    depth = ranks(graph)
    forward = (e for place, e in enumerate(graph.edges) if place not in graph.back_edges)
    return len(graph.nodes) + sum(depth[e.target] - depth[e.source] for e in forward)


def arranged(
    graph: Graph, sizes: dict[str, tuple[int, int]], label_width: Callable[[str], int]
) -> Rows:
    """Return the rows of *graph* in an order with few crossings; *sizes* are the nodes'."""
    found = _rows(graph, sizes, label_width)
    _first_order(found, graph)
    _untangle(found)
    return found


def _rows(
    graph: Graph, sizes: dict[str, tuple[int, int]], label_width: Callable[[str], int]
) -> Rows:
    depth = ranks(graph)
    forward = [p for p in range(len(graph.edges)) if p not in graph.back_edges]
    labelled = {depth[graph.edges[p].source] for p in forward if graph.edges[p].label}
    row_of, count = {}, 0
    for rank in range(max(depth.values()) + 1):
        row_of[rank] = count
        count += 2 if rank in labelled else 1
    items: list[Item] = []
    of_node, chains = {}, {}
    for node in graph.nodes:
        of_node[node.id] = len(items)
        width, height = sizes[node.id]
        items.append(Item(row_of[depth[node.id]], width | 1, height, node=node.id))
    for place in forward:
        edge = graph.edges[place]
        first, last = of_node[edge.source], of_node[edge.target]
        chain = [first]
        for row in range(items[first].row + 1, items[last].row):
            is_label = bool(edge.label) and row == items[first].row + 1
            width = label_width(edge.label) | 1 if is_label else 1
            chain.append(len(items))
            items.append(Item(row, width, place=place, is_label=is_label))
        chain.append(last)
        chains[place] = chain
        for upper, lower in pairwise(chain):
            items[upper].below.append(lower)
            items[lower].above.append(upper)
    return Rows(items, [[] for _ in range(count)], of_node, chains)


def _first_order(found: Rows, graph: Graph) -> None:
    """Fill the rows depth-first from the entries, so that branches begin side by side."""
    seen: set[int] = set()
    for root in (*graph.entries, *found.of_node):
        stack = [found.of_node[root]]
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            found.rows[found.items[number].row].append(number)
            stack += reversed(found.items[number].below)


def _untangle(found: Rows) -> None:
    """Sort each row by the middle of its neighbours, to and fro; keep the best order."""
    items, rows = found.items, found.rows
    best, fewest = [list(row) for row in rows], crossings(found)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            _sort(row, rows, items, is_down=is_down)
        if (count := crossings(found)) < fewest:
            best, fewest = [list(row) for row in rows], count
    found.rows = best


def _sort(row: list[int], rows: list[list[int]], items: list[Item], *, is_down: bool) -> None:
    if not row:
        return
    other = items[row[0]].row + (-1 if is_down else 1)
    if not 0 <= other < len(rows):
        return
    places = {number: place for place, number in enumerate(rows[other])}
    scale = len(places) / len(row)

    def middle(pair: tuple[int, int]) -> float:
        place, number = pair
        near = items[number].above if is_down else items[number].below
        return mean(places[n] for n in near) if near else place * scale

    row[:] = [number for _, number in sorted(enumerate(row), key=middle)]


def mean(values: Iterable[float]) -> float:
    """Return the middle of *values*, of which there is one at least."""
    known = list(values)
    return sum(known) / len(known)


def crossings(found: Rows) -> int:
    """Return how often lines cross between neighbouring rows."""
    total = 0
    for row, lower in pairwise(found.rows):
        places = {number: place for place, number in enumerate(lower)}
        seen: list[int] = []
        for number in row:
            ends = [places[n] for n in found.items[number].below]
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total
