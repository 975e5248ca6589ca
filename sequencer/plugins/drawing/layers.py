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
    forward_edges = [
        edge for place, edge in enumerate(graph.edges) if place not in graph.back_edges
    ]
    waiting = {node.id: 0 for node in graph.nodes}
    after: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for edge in forward_edges:
        waiting[edge.target] += 1
        after[edge.source].append(edge.target)
    roots = [name for name, count in waiting.items() if not count]
    rank_of = dict.fromkeys(waiting, 0)
    queue = list(roots)
    while queue:
        name = queue.pop()
        for target in after[name]:
            rank_of[target] = max(rank_of[target], rank_of[name] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                queue.append(target)
    for name in roots:
        if name not in graph.entries and after[name]:
            rank_of[name] = min(rank_of[target] for target in after[name]) - 1
    return rank_of


def item_count(graph: Graph) -> int:
    """Return the number of items in the drawing of *graph*, without rows for labels."""
    depth = ranks(graph)
    forward_edges = (
        edge for index, edge in enumerate(graph.edges) if index not in graph.back_edges
    )
    return len(graph.nodes) + sum(depth[edge.target] - depth[edge.source] for edge in forward_edges)


def arrange_rows(
    graph: Graph,
    sizes: dict[str, tuple[int, int]],
    label_room: Callable[[str], tuple[int, int]],
    groups: Sequence[Group] = (),
) -> Rows:
    """Return the rows of *graph* in an order with few crossings; *sizes*: of the nodes.

    Items of the same group in *groups* are side by side in their row.
    """
    arrangement = _build_rows(graph, sizes, label_room)
    arrangement.groups = sorted(groups, key=lambda group: (-len(group.nodes), -group.levels))
    _note_groups(arrangement, graph)
    _fill_rows(arrangement, graph)
    _add_blanks(arrangement)
    _gather(arrangement)
    _untangle(arrangement)
    return arrangement


def _note_groups(arrangement: Rows, graph: Graph) -> None:
    paths: dict[str, list[int]] = {name: [] for name in arrangement.of_node}
    for number, group in enumerate(arrangement.groups):
        for name in group.nodes:
            paths[name].append(number)
    for item in arrangement.items:
        edge = graph.edges[item.place] if item.node is None else None
        ends = (item.node, item.node) if edge is None else (edge.source, edge.target)
        both = zip(*(paths[end or ""] for end in ends), strict=False)
        item.path = tuple(a for a, b in both if a == b)


def _add_blanks(arrangement: Rows) -> None:
    """Give each group an item in every row of its frame, so that each row has its position."""
    for number, group in reversed(list(enumerate(arrangement.groups))):
        nodes = [arrangement.items[arrangement.of_node[name]] for name in group.nodes]
        path = nodes[0].path[: nodes[0].path.index(number) + 1]
        rows = [item.row for item in nodes]
        members_by_row = {
            row: [n for n in arrangement.rows[row] if number in arrangement.items[n].path]
            for row in range(min(rows), max(rows) + 1)
        }
        for row, members in members_by_row.items():
            if not members:
                lower_members = members_by_row[row + 1]
                blank = Item(row, path=path, above=members_by_row[row - 1], below=lower_members)
                members.append(len(arrangement.items))
                arrangement.rows[row].append(len(arrangement.items))
                arrangement.items.append(blank)


def _build_rows(
    graph: Graph, sizes: dict[str, tuple[int, int]], label_room: Callable[[str], tuple[int, int]]
) -> Rows:
    depth = ranks(graph)
    forward_places = [place for place in range(len(graph.edges)) if place not in graph.back_edges]
    labelled_ranks = {
        depth[graph.edges[place].source] for place in forward_places if graph.edges[place].label
    }
    row_of, count = {}, 0
    for rank in range(max(depth.values()) + 1):
        row_of[rank] = count
        count += 2 if rank in labelled_ranks else 1
    items: list[Item] = []
    of_node, chains = {}, {}
    for node in graph.nodes:
        of_node[node.id] = len(items)
        width, height = sizes[node.id]
        items.append(Item(row_of[depth[node.id]], width | 1, height, node=node.id))
    for place in forward_places:
        edge = graph.edges[place]
        source, target = of_node[edge.source], of_node[edge.target]
        chain = [source]
        for row in range(items[source].row + 1, items[target].row):
            is_label = bool(edge.label) and row == items[source].row + 1
            width, height = label_room(edge.label) if is_label else (1, 1)
            chain.append(len(items))
            items.append(Item(row, width | 1, height, place=place, is_label=is_label))
        chain.append(target)
        chains[place] = chain
        for upper, lower in pairwise(chain):
            items[upper].below.append(lower)
            items[lower].above.append(upper)
    return Rows(items, [[] for _ in range(count)], of_node, chains)


def _fill_rows(arrangement: Rows, graph: Graph) -> None:
    """Fill the rows depth-first from the entries, so that branches start side by side."""
    seen_numbers: set[int] = set()
    for root in (*graph.entries, *arrangement.of_node):
        stack = [arrangement.of_node[root]]
        while stack:
            number = stack.pop()
            if number in seen_numbers:
                continue
            seen_numbers.add(number)
            arrangement.rows[arrangement.items[number].row].append(number)
            stack += reversed(arrangement.items[number].below)


def _untangle(arrangement: Rows) -> None:
    """Sort each row by the middle of its neighbors, down and up; keep the best order."""
    items, rows = arrangement.items, arrangement.rows
    best_rows, min_count = [list(row) for row in rows], count_crossings(arrangement)
    for sweep in range(SWEEPS):
        if not min_count:
            break
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            _sort(row, rows, items, is_down=is_down)
        _gather(arrangement)
        if (count := count_crossings(arrangement)) < min_count:
            best_rows, min_count = [list(row) for row in rows], count
    arrangement.rows = best_rows


def _sort(row: list[int], rows: list[list[int]], items: list[Item], *, is_down: bool) -> None:
    if not row:
        return
    other_row = items[row[0]].row + (-1 if is_down else 1)
    if not 0 <= other_row < len(rows):
        return
    places = {number: place for place, number in enumerate(rows[other_row])}
    scale = len(places) / len(row)

    def middle(pair: tuple[int, int]) -> float:
        place, number = pair
        neighbors = items[number].above if is_down else items[number].below
        return mean(places[n] for n in neighbors) if neighbors else place * scale

    row[:] = _gather_row([number for _, number in sorted(enumerate(row), key=middle)], items)


def _gather(arrangement: Rows) -> None:
    """Put items of one group side by side, and give the groups the same order in all rows.

    Then a frame can be drawn around each group: no group is left of another one in one row and
    right of it in the next.
    """
    if not arrangement.groups:
        return
    places: dict[int, list[float]] = {}
    for row in arrangement.rows:
        row[:] = _gather_row(row, arrangement.items)
        for place, number in enumerate(row):
            for group in arrangement.items[number].path:
                places.setdefault(group, []).append((place + 0.5) / len(row))
    order = {group: (mean(values), group) for group, values in places.items()}
    for row in arrangement.rows:
        row[:] = _gather_row(row, arrangement.items, order)


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
    clusters: dict[int, list[tuple[int, int]]] = {}
    for place, number in enumerate(row):
        clusters.setdefault(group_key(items[number], number, level), []).append((place, number))
    keys = sorted(clusters, key=lambda key: mean(place for place, _ in clusters[key]))
    if order is not None:
        group_keys = iter(sorted((key for key in keys if key >= 0), key=order.__getitem__))
        keys = [key if key < 0 else next(group_keys) for key in keys]
    parts = ([number for _, number in clusters[key]] for key in keys)
    return [n for part in parts for n in _gather_row(part, items, order, level + 1)]


def mean(values: Iterable[float]) -> float:
    """Return the mean of *values*, which must not be empty."""
    numbers = list(values)
    return sum(numbers) / len(numbers)


def count_crossings(found: Rows) -> int:
    """Return the number of line crossings between neighboring rows."""
    total = 0
    for row, lower_row in pairwise(found.rows):
        places = {number: place for place, number in enumerate(lower_row)}
        seen_ends: list[int] = []
        for number in row:
            ends = [places[n] for n in found.items[number].below]
            total += sum(len(seen_ends) - bisect_right(seen_ends, end) for end in ends)
            for end in ends:
                insort(seen_ends, end)
    return total
