"""Which row of a drawing each node is in, and what stands beside what.

The first half of a layered drawing (Sugiyama, Tagawa and Toda 1981): a node stands below
all that lead to it without closing a loop, and the rows are put in an order in which few
lines cross. An edge that passes a row has a place in it, and so has an edge's label, so
that nothing is drawn over anything else.

Not promised: the fewest crossings there could be; finding them takes for ever.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct, field

from sequencer.model.net.graph import Graph

SWEEPS = 12


class Item(Struct):
    """Something that takes up room in a row: a node, or an edge that passes."""

    row: int
    width: int = 1
    """Odd, so that there is a middle."""
    height: int = 1
    node: str | None = None
    place: int = -1
    """Of the edge in ``graph.edges``; -1 for a node."""
    is_label: bool = False
    path: tuple[int, ...] = ()
    """The groups that it is in, the outermost first."""
    above: list[int] = field(default_factory=list)
    """Items of the row above that a line comes from."""
    below: list[int] = field(default_factory=list)


class Group(Struct, frozen=True):
    """Nodes that stand in one frame."""

    name: str
    title: str
    nodes: frozenset[str]
    """Those of the groups inside it, too."""
    levels: int = 1
    """How many frames are in one another here, itself included."""
    width: int = 0
    """Of its title, in columns of the plan."""


class Rows(Struct):
    """All items, and which of them stand in which row, from left to right."""

    items: list[Item]
    rows: list[list[int]]
    of_node: dict[str, int]
    chains: dict[int, list[int]]
    """For each edge that closes no loop the items that it leads through, its ends included."""
    groups: Sequence[Group] = ()


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
    graph: Graph,
    sizes: dict[str, tuple[int, int]],
    label_room: Callable[[str], tuple[int, int]],
    groups: Sequence[Group] = (),
) -> Rows:
    """Return the rows of *graph* in an order with few crossings; *sizes* are the nodes'.

    What is in one of *groups* stands side by side in its row.
    """
    found = _rows(graph, sizes, label_room)
    found.groups = sorted(groups, key=lambda group: -len(group.nodes))
    for item in found.items:
        edge = graph.edges[item.place] if item.node is None else None
        ends = {item.node} if edge is None else {edge.source, edge.target}
        item.path = tuple(n for n, g in enumerate(found.groups) if g.nodes.issuperset(ends))
    _first_order(found, graph)
    for row in found.rows:
        row[:] = _gathered(row, found.items)
    _untangle(found)
    return found


def _rows(
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

    row[:] = _gathered([number for _, number in sorted(enumerate(row), key=middle)], items)


def _gathered(row: list[int], items: list[Item], level: int = 0) -> list[int]:
    """Return *row* with what is in one group side by side, and so within each group."""
    if all(len(items[number].path) <= level for number in row):
        return row
    together: dict[int, list[tuple[int, int]]] = {}
    for place, number in enumerate(row):
        path = items[number].path
        key = path[level] if len(path) > level else -1 - number
        together.setdefault(key, []).append((place, number))
    clusters = sorted(together.values(), key=lambda one: mean(place for place, _ in one))
    return [n for one in clusters for n in _gathered([n for _, n in one], items, level + 1)]


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


SETTLING_SWEEPS = 10
CLEARING_SWEEPS = 50
GAP = 3
"""Blank columns between two boxes."""
NARROW_GAP = 1
"""Blank columns between two lines."""
PORT_STEP = 2
STRAIGHT = 8.0
"""How much more a line that passes many rows wants to be straight than another."""


def spread(
    wanted: Sequence[float], apart: Sequence[int], weights: Sequence[float] | None = None
) -> list[int]:
    """Return whole numbers near *wanted*, each at least ``apart[i]`` above the one before.

    Least squares under these distances, which are taken out first so that what is left
    need only not fall (pool adjacent violators).

    >>> spread([5.0, 5.0, 20.0], [2, 2])
    [4, 6, 20]
    """
    weight = list(weights) if weights is not None else [1.0] * len(wanted)
    offset, offsets = 0, []
    for place in range(len(wanted)):
        offset += apart[place - 1] if place else 0
        offsets.append(offset)
    pools: list[tuple[float, float, int]] = []
    for place, value in enumerate(wanted):
        level, heavy, count = value - offsets[place], weight[place], 1
        while pools and pools[-1][0] > level:
            other, mass, more = pools.pop()
            level = (level * heavy + other * mass) / (heavy + mass)
            heavy, count = heavy + mass, count + more
        pools.append((level, heavy, count))
    levels = [round(level) for level, _, count in pools for _ in range(count)]
    return [level + offset for level, offset in zip(levels, offsets, strict=True)]


def _apart(left: Item, right: Item) -> int:
    """Return how far the middles of two neighbours are apart at least."""
    are_lines = left.node is None and right.node is None
    is_label = left.is_label or right.is_label
    gap = NARROW_GAP if are_lines and not is_label else GAP - 1 if are_lines else GAP
    shared = sum(1 for a, b in zip(left.path, right.path, strict=False) if a == b)
    frames = len(left.path) + len(right.path) - 2 * shared
    return left.width // 2 + right.width // 2 + gap + frames + 1


def middles(found: Rows) -> list[int]:
    """Return the column of the middle of each item; the leftmost column is 0."""
    items = found.items
    column = [0] * len(items)
    for row in found.rows:
        _settle(items, row, column, [0.0] * len(row), [1.0] * len(row))
    for sweep in range(SETTLING_SWEEPS):
        is_last = sweep >= SETTLING_SWEEPS - 2
        for row in found.rows if sweep % 2 == 0 else reversed(found.rows):
            wanted, weights = [], []
            for number in row:
                above, below = items[number].above, items[number].below
                near = above + below if is_last else below if sweep % 2 else above
                wanted.append(mean(column[n] for n in near) if near else float(column[number]))
                weights.append(_weight(items, number, near))
            _settle(items, row, column, wanted, weights)
        if sweep >= SETTLING_SWEEPS // 2:
            _straighten(found, column)
    _clear(found, column)
    left = min(column[n] - items[n].width // 2 for n in range(len(items)))
    frames = (extent(found, column, group)[0] - group.levels for group in found.groups)
    left = min([left, *frames])
    return [value - left for value in column]


def _clear(found: Rows, column: list[int]) -> None:
    """Move to the right what would stand in a frame that it does not belong to."""
    for _ in range(CLEARING_SWEEPS):
        # Each of them, also after one that was cleared.
        if not sum(_is_cleared(found, column, group) for group in found.groups):
            return


def extent(found: Rows, column: list[int], group: Group) -> tuple[int, int, range]:
    """Return the columns from which and to which *group* reaches, and its rows."""
    inside = [found.of_node[name] for name in group.nodes]
    left = min(column[n] - found.items[n].width // 2 for n in inside)
    right = max(column[n] + found.items[n].width // 2 for n in inside)
    rows = [found.items[n].row for n in inside]
    return left, max(right, left + group.width), range(min(rows), max(rows) + 1)


def _is_cleared(found: Rows, column: list[int], group: Group) -> bool:
    """Return whether something that stood in the frame of *group* was moved out of it."""
    items = found.items
    left, right, rows = extent(found, column, group)
    for row in (found.rows[number] for number in rows):
        members = [p for p, n in enumerate(row) if items[n].node in group.nodes]
        for place, number in enumerate(row):
            item, half = items[number], items[number].width // 2
            if item.node is None or item.node in group.nodes:
                continue
            gap = group.levels + len(item.path) + 1
            if column[number] + half + gap < left or column[number] - half - gap > right:
                continue
            if not members or place > members[0]:
                moved, by = row[place:], right + gap + 1 - (column[number] - half)
            else:
                # The whole group makes room, with all that stands right of it.
                by = column[number] + half + gap + 1 - left
                moved = []
                for other in (found.rows[number] for number in rows):
                    inside = (p for p, n in enumerate(other) if items[n].node in group.nodes)
                    moved += other[next(inside, len(other)) :]
            for one in moved:
                column[one] += by
            return True
    return False


def _weight(items: list[Item], number: int, near: list[int]) -> float:
    if not near:
        return 0.1
    passes = items[number].node is None and any(items[n].node is None for n in near)
    return STRAIGHT if passes else 1.0


def _settle(
    items: list[Item], row: list[int], column: list[int], wanted: list[float], weights: list[float]
) -> None:
    apart = [_apart(items[a], items[b]) for a, b in pairwise(row)]
    for number, value in zip(row, spread(wanted, apart, weights), strict=True):
        column[number] = value


def _straighten(found: Rows, column: list[int]) -> None:
    """Put what follows one another alone into one column, where neighbours leave room for it."""
    items = found.items
    beside: dict[int, tuple[int | None, int | None]] = {}
    for row in found.rows:
        ends = [None, *row, None]
        for place, number in enumerate(row, start=1):
            beside[number] = (ends[place - 1], ends[place + 1])
    far = 10**9
    for run in _straight_runs(items):
        low, high = -far, far
        group: list[int] = []
        for number in run:
            left, right = beside[number]
            at_least = -far if left is None else column[left] + _apart(items[left], items[number])
            at_most = far if right is None else column[right] - _apart(items[number], items[right])
            if group and max(low, at_least) > min(high, at_most):
                _align(items, group, low, high, column)
                group, low, high = [], -far, far
            group.append(number)
            low, high = max(low, at_least), min(high, at_most)
        _align(items, group, low, high, column)


def _straight_runs(items: list[Item]) -> Iterator[list[int]]:
    """Yield the longest ways on which each has one above and one below."""

    def follows(upper: int, lower: int) -> bool:
        return len(items[upper].below) == 1 and len(items[lower].above) == 1

    for first, item in enumerate(items):
        if len(item.above) == 1 and follows(item.above[0], first):
            continue
        run = [first]
        while len(below := items[run[-1]].below) == 1 and follows(run[-1], below[0]):
            run.append(below[0])
        if len(run) > 1:
            yield run


def _align(items: list[Item], group: list[int], low: int, high: int, column: list[int]) -> None:
    """Put *group* where the one with most lines is: the others have nothing to be between."""
    if not group:
        return
    busiest = max(group, key=lambda n: len(items[n].above) + len(items[n].below))
    wanted = min(max(column[busiest], low), high)
    for number in group:
        column[number] = wanted


class Port(Struct, frozen=True):
    """The end of a line at a node's border."""

    place: int
    """Of the edge."""
    wanted: int | None
    """The column of the line's other end; None: it goes off to the right."""
    reach: int = 0
    """Of those that go off to the right: its place among them; the outermost is leftmost."""


def ports(middle: int, width: int, lines: Sequence[Port]) -> dict[int, int]:
    """Return the column in which each line meets the border of a box.

    A line that can go straight does; the others keep their order, so that they don't cross.

    >>> ports(5, 9, [Port(0, 4), Port(1, None), Port(2, -9)])
    {2: 2, 0: 4, 1: 7}
    """
    low, high = middle - width // 2 + 1, middle + width // 2 - 1

    def wish(port: Port) -> float:
        if port.wanted is None:
            return middle + PORT_STEP
        if low <= port.wanted <= high:
            return port.wanted
        return middle + (PORT_STEP if port.wanted > high else -PORT_STEP) * (len(lines) > 1)

    def rank(port: Port) -> tuple[float, int, int]:
        far = float("inf")
        return (far if port.wanted is None else port.wanted, -port.reach, port.place)

    ordered = sorted(lines, key=rank)
    # What can't go straight makes room for what can.
    weights = [100.0 if low <= (port.wanted or -1) <= high else 1.0 for port in ordered]
    apart = [PORT_STEP] * (len(ordered) - 1)
    columns = spread([wish(port) for port in ordered], apart, weights)
    result, last = {}, len(ordered) - 1
    for place, (port, column) in enumerate(zip(ordered, columns, strict=True)):
        bottom, top = low + PORT_STEP * place, high - PORT_STEP * (last - place)
        result[port.place] = min(max(column, bottom), top)
    return result
