"""Assigns a row to each node of a drawing, and the order of the items in each row.

The first half of a layered drawing (Sugiyama, Tagawa and Toda 1981): a node is below all nodes
that lead to it without closing a loop, and the rows are ordered so that few lines cross. An edge
that passes a row and an edge's label have their own items in it, so that nothing is drawn over
anything else.

Not promised: the minimum number of crossings; finding it takes too long.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from msgspec import Struct, field

from sequencer.model.graph.graph import Graph

SWEEPS = 12


class Item(Struct):
    """An item of a row: a node, an edge that passes, or a blank."""

    row: int
    width: int = 1
    """Odd, so that it has a middle column."""
    height: int = 1
    node: str | None = None
    place: int = -1
    """Index of the edge in ``graph.edges``; -1 for a node and a blank."""
    is_label: bool = False
    path: tuple[int, ...] = ()
    """Its groups, the outermost first."""
    above: list[int] = field(default_factory=list)
    """Items of the row above from which a line comes."""
    below: list[int] = field(default_factory=list)

    @property
    def is_blank(self) -> bool:
        """Return whether it only reserves space for a group without other items in this row."""
        return self.node is None and self.place < 0


class Group(Struct, frozen=True):
    """Nodes inside one frame."""

    name: str
    title: str
    nodes: frozenset[str]
    """Its nodes, including those of inner groups."""
    levels: int = 1
    """Number of nested frames, including this one."""
    width: int = 0
    """Width of its title in columns of the plan."""


class Rows(Struct):
    """All items, and the items of each row from left to right."""

    items: list[Item]
    rows: list[list[int]]
    of_node: dict[str, int]
    chains: dict[int, list[int]]
    """For each edge that closes no loop: its items from start to end."""
    groups: Sequence[Group] = ()


def ranks(graph: Graph) -> dict[str, int]:
    """Return the depth of each node; entries and nodes without a predecessor are at 0.

    A node that is not an entry and has no predecessor (the target of errors) is right above its
    first successor.
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


def item_count(graph: Graph) -> int:
    """Return the number of items in the drawing of *graph*, without rows for labels."""
    depth = ranks(graph)
    forward = (edge for index, edge in enumerate(graph.edges) if index not in graph.back_edges)
    return len(graph.nodes) + sum(depth[edge.target] - depth[edge.source] for edge in forward)


def arrange_rows(
    graph: Graph,
    sizes: dict[str, tuple[int, int]],
    label_room: Callable[[str], tuple[int, int]],
    groups: Sequence[Group] = (),
) -> Rows:
    """Return the rows of *graph* in an order with few crossings; *sizes*: of the nodes.

    Items of the same group in *groups* are side by side in their row.
    """
    found = _build_rows(graph, sizes, label_room)
    found.groups = sorted(groups, key=lambda group: (-len(group.nodes), -group.levels))
    _note_groups(found, graph)
    _fill_rows(found, graph)
    _add_blanks(found)
    _gather(found)
    _untangle(found)
    return found


def _note_groups(found: Rows, graph: Graph) -> None:
    paths: dict[str, list[int]] = {name: [] for name in found.of_node}
    for number, group in enumerate(found.groups):
        for name in group.nodes:
            paths[name].append(number)
    for item in found.items:
        edge = graph.edges[item.place] if item.node is None else None
        ends = (item.node, item.node) if edge is None else (edge.source, edge.target)
        both = zip(*(paths[end or ""] for end in ends), strict=False)
        item.path = tuple(a for a, b in both if a == b)


def _add_blanks(found: Rows) -> None:
    """Give each group an item in every row of its frame, so that each row has its position."""
    for number, group in reversed(list(enumerate(found.groups))):
        nodes = [found.items[found.of_node[name]] for name in group.nodes]
        path = nodes[0].path[: nodes[0].path.index(number) + 1]
        rows = [item.row for item in nodes]
        inside = {
            row: [n for n in found.rows[row] if number in found.items[n].path]
            for row in range(min(rows), max(rows) + 1)
        }
        for row, members in inside.items():
            if not members:
                below = inside[row + 1]
                blank = Item(row, path=path, above=inside[row - 1], below=below)
                members.append(len(found.items))
                found.rows[row].append(len(found.items))
                found.items.append(blank)


def _build_rows(
    graph: Graph, sizes: dict[str, tuple[int, int]], label_room: Callable[[str], tuple[int, int]]
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
            width, height = label_room(edge.label) if is_label else (1, 1)
            chain.append(len(items))
            items.append(Item(row, width | 1, height, place=place, is_label=is_label))
        chain.append(last)
        chains[place] = chain
        for upper, lower in pairwise(chain):
            items[upper].below.append(lower)
            items[lower].above.append(upper)
    return Rows(items, [[] for _ in range(count)], of_node, chains)


def _fill_rows(found: Rows, graph: Graph) -> None:
    """Fill the rows depth-first from the entries, so that branches start side by side."""
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
    """Sort each row by the middle of its neighbors, down and up; keep the best order."""
    items, rows = found.items, found.rows
    best, fewest = [list(row) for row in rows], count_crossings(found)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            _sort(row, rows, items, is_down=is_down)
        _gather(found)
        if (count := count_crossings(found)) < fewest:
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

    row[:] = _gather_row([number for _, number in sorted(enumerate(row), key=middle)], items)


def _gather(found: Rows) -> None:
    """Put items of one group side by side, and give the groups the same order in all rows.

    Then a frame can be drawn around each group: no group is left of another one in one row and
    right of it in the next.
    """
    if not found.groups:
        return
    places: dict[int, list[float]] = {}
    for row in found.rows:
        row[:] = _gather_row(row, found.items)
        for place, number in enumerate(row):
            for group in found.items[number].path:
                places.setdefault(group, []).append((place + 0.5) / len(row))
    order = {group: (mean(values), group) for group, values in places.items()}
    for row in found.rows:
        row[:] = _gather_row(row, found.items, order)


_Order = dict[int, tuple[float, int]]
"""The order of groups, from left to right."""


def group_key(item: Item, number: int, level: int) -> int:
    """Return the group that an item is in at *level*, or a number of its own below 0."""
    return item.path[level] if len(item.path) > level else -1 - number


def _gather_row(
    row: list[int], items: list[Item], order: _Order | None = None, level: int = 0
) -> list[int]:
    """Return *row* with items of one group side by side, at every level of groups.

    Neighboring groups follow *order*, or the order of their middles.
    """
    if all(len(items[number].path) <= level for number in row):
        return row
    together: dict[int, list[tuple[int, int]]] = {}
    for place, number in enumerate(row):
        together.setdefault(group_key(items[number], number, level), []).append((place, number))
    keys = sorted(together, key=lambda key: mean(place for place, _ in together[key]))
    if order is not None:
        ordered = iter(sorted((key for key in keys if key >= 0), key=order.__getitem__))
        keys = [key if key < 0 else next(ordered) for key in keys]
    inner = ([number for _, number in together[key]] for key in keys)
    return [n for one in inner for n in _gather_row(one, items, order, level + 1)]


def mean(values: Iterable[float]) -> float:
    """Return the mean of *values*, which must not be empty."""
    known = list(values)
    return sum(known) / len(known)


def count_crossings(found: Rows) -> int:
    """Return the number of line crossings between neighboring rows."""
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
