"""Assigns columns to the items of a drawing, and sides to the frames of groups.

The second half of a layered drawing: the rows and their order are given. Connected items are
above each other where their neighbors leave room, and a frame contains only its own items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from itertools import groupby, pairwise

from msgspec import Struct, field

from sequencer.plugins.drawing.layers import Item, Rows, group_key, mean

SETTLING_SWEEPS = 10
GAP = 3
"""Blank columns between two boxes."""
NARROW_GAP = 1
"""Blank columns between two lines."""
PORT_STEP = 2
STRAIGHT = 8.0
"""Weight for keeping a line straight that passes many rows."""


def spread(
    wanted: Sequence[float], apart: Sequence[int], weights: Sequence[float] | None = None
) -> list[int]:
    """Return whole numbers near *wanted*, each at least ``apart[i]`` above the one before.

    Least squares under these distances: they are subtracted first, so that the rest only has to
    be non-decreasing (pool adjacent violators).

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
        level, mass, count = value - offsets[place], weight[place], 1
        while pools and pools[-1][0] > level:
            last_level, last_mass, last_count = pools.pop()
            level = (level * mass + last_level * last_mass) / (mass + last_mass)
            mass, count = mass + last_mass, count + last_count
        pools.append((level, mass, count))
    levels = [round(level) for level, _, count in pools for _ in range(count)]
    return [level + offset for level, offset in zip(levels, offsets, strict=True)]


def _min_distance(left: Item, right: Item) -> int:
    """Return the minimum distance between the middles of two neighbors."""
    are_lines = left.node is None and right.node is None
    is_label = left.is_label or right.is_label
    gap = NARROW_GAP if are_lines and not is_label else GAP - 1 if are_lines else GAP
    shared_levels = sum(1 for a, b in zip(left.path, right.path, strict=False) if a == b)
    frames = len(left.path) + len(right.path) - 2 * shared_levels
    return left.width // 2 + right.width // 2 + gap + frames + 1


def assign_columns(found: Rows) -> list[int]:
    """Return the column of the middle of each item; the leftmost column is 0."""
    items = found.items
    column = [0] * len(items)
    for row in found.rows:
        _place_row(items, row, column, [0.0] * len(row), [1.0] * len(row))
    for sweep in range(SETTLING_SWEEPS):
        is_last = sweep >= SETTLING_SWEEPS - 2
        for row in found.rows if sweep % 2 == 0 else reversed(found.rows):
            targets, weights = [], []
            for number in row:
                uppers, lowers = items[number].above, items[number].below
                neighbors = uppers + lowers if is_last else lowers if sweep % 2 else uppers
                targets.append(
                    mean(column[n] for n in neighbors) if neighbors else float(column[number])
                )
                weights.append(_weight(items, number, neighbors))
            _place_row(items, row, column, targets, weights)
        if sweep >= SETTLING_SWEEPS // 2:
            _straighten(found, column)
    if found.groups:
        _separate_groups(found, column, found.rows)
    left_edge = min(
        column[n] - item.width // 2 for n, item in enumerate(items) if not item.is_blank
    )
    frames = zip(extents(found, column), found.groups, strict=True)
    left_edge = min([left_edge, *(start - group.levels for (start, _, _), group in frames)])
    return [value - left_edge for value in column]


class _Clusters(Struct):
    """Neighbors in some rows; each one is a group or a single item."""

    parts: dict[int, list[list[int]]] = field(default_factory=dict)
    """Cluster -> its rows."""
    touching: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Cluster -> its left neighbors, each with the two items that meet."""
    framed: dict[int, set[int]] = field(default_factory=dict)
    """Cluster -> left neighbors that must end before it in all rows; lines may cross frames."""

    def add(self, row: list[int], items: list[Item], level: int) -> None:
        """Add a row, from left to right."""
        pieces = [
            (key, list(numbers))
            for key, numbers in groupby(row, key=lambda n: group_key(items[n], n, level))
        ]
        for key, numbers in pieces:
            self.parts.setdefault(key, []).append(numbers)
        for (left_key, left), (key, right) in pairwise(pieces):
            self.touching.setdefault(key, []).append((left_key, left[-1], right[0]))
        solid_keys = [
            key for key, (number, *_) in pieces if key >= 0 or items[number].node is not None
        ]
        for left_key, key in pairwise(solid_keys):
            self.framed.setdefault(key, set()).add(left_key)

    def iter_left_to_right(self) -> Iterator[int]:
        """Yield the clusters from left to right."""
        predecessors = {
            key: {neighbor for neighbor, _, _ in self.touching.get(key, ())}
            | self.framed.get(key, set())
            for key in self.parts
        }
        yield from TopologicalSorter(predecessors).static_order()


def _separate_groups(
    arrangement: Rows, column: list[int], rows: list[list[int]], level: int = 0
) -> tuple[int, int]:
    """Move the items in *rows* apart, so that a frame holds only its own; return both ends.

    One pass from left to right: the result is never wider than all items side by side.
    """
    items, clusters = arrangement.items, _Clusters()
    for row in rows:
        clusters.add(row, items, level)
    starts, ends = [], []
    edges: dict[int, int] = {}
    for key in clusters.iter_left_to_right():
        parts, pad = clusters.parts[key], 0
        if key < 0:
            number = parts[0][0]
            half_width = items[number].width // 2
            left, right = column[number] - half_width, column[number] + half_width
        else:
            left, right = _separate_groups(arrangement, column, parts, level + 1)
            right, pad = (
                max(right, left + arrangement.groups[key].width),
                arrangement.groups[key].levels,
            )
        lower_bounds = [
            edges[neighbor] + 2 + pad - left for neighbor in clusters.framed.get(key, ())
        ]
        for _, a, b in clusters.touching.get(key, ()):
            lower_bounds.append(column[a] + _min_distance(items[a], items[b]) - column[b])
        shift = max([0, *lower_bounds])
        for part in parts:
            for number in part:
                column[number] += shift
        edges[key] = right + shift + pad
        if key >= 0 or items[number].node is not None:
            starts.append(left + shift)
            ends.append(right + shift)
    return min(starts), max(ends)


def extents(found: Rows, column: list[int]) -> list[tuple[int, int, range]]:
    """Return the first and the last column of each group, and its rows."""
    far = 10**9
    lefts, rights = [far] * len(found.groups), [-far] * len(found.groups)
    rows: list[list[int]] = [[] for _ in found.groups]
    parents: dict[int, int] = {}
    for item, middle in zip(found.items, column, strict=True):
        for number in item.path if item.node is not None else ():
            lefts[number] = min(lefts[number], middle - item.width // 2)
            rights[number] = max(rights[number], middle + item.width // 2)
            rows[number].append(item.row)
        if item.node is not None:
            parents.update((child, number) for number, child in pairwise(item.path))
    # Inner groups first: a frame must be wide enough for the titles inside it.
    for number in reversed(range(len(found.groups))):
        rights[number] = max(rights[number], lefts[number] + found.groups[number].width)
        if number in parents:
            rights[parents[number]] = max(rights[parents[number]], rights[number])
    reach = [range(min(columns), max(columns) + 1) for columns in rows]
    return list(zip(lefts, rights, reach, strict=True))


def _weight(items: list[Item], number: int, neighbors: list[int]) -> float:
    if not neighbors:
        return 0.1
    passes = items[number].node is None and any(items[n].node is None for n in neighbors)
    return STRAIGHT if passes else 1.0


def _place_row(
    items: list[Item], row: list[int], column: list[int], targets: list[float], weights: list[float]
) -> None:
    apart = [_min_distance(items[a], items[b]) for a, b in pairwise(row)]
    for number, value in zip(row, spread(targets, apart, weights), strict=True):
        column[number] = value


def _straighten(arrangement: Rows, column: list[int]) -> None:
    """Put each chain of items into one column where its neighbors leave room."""
    items = arrangement.items
    neighbors: dict[int, tuple[int | None, int | None]] = {}
    for row in arrangement.rows:
        ends = [None, *row, None]
        for place, number in enumerate(row, start=1):
            neighbors[number] = (ends[place - 1], ends[place + 1])
    far = 10**9
    for run in _straight_runs(items):
        low, high = -far, far
        group: list[int] = []
        for number in run:
            left, right = neighbors[number]
            at_least = (
                -far if left is None else column[left] + _min_distance(items[left], items[number])
            )
            at_most = (
                far if right is None else column[right] - _min_distance(items[number], items[right])
            )
            if group and max(low, at_least) > min(high, at_most):
                _align(items, group, low, high, column)
                group, low, high = [], -far, far
            group.append(number)
            low, high = max(low, at_least), min(high, at_most)
        _align(items, group, low, high, column)


def _straight_runs(items: list[Item]) -> Iterator[list[int]]:
    """Yield the longest chains in which each item has one above and one below."""

    def follows(upper: int, lower: int) -> bool:
        return len(items[upper].below) == 1 and len(items[lower].above) == 1

    for start, item in enumerate(items):
        if len(item.above) == 1 and follows(item.above[0], start):
            continue
        run = [start]
        while len(successors := items[run[-1]].below) == 1 and follows(run[-1], successors[0]):
            run.append(successors[0])
        if len(run) > 1:
            yield run


def _align(items: list[Item], group: list[int], low: int, high: int, column: list[int]) -> None:
    """Put *group* at its item with the most lines: the others have no lines to be between."""
    if not group:
        return
    busiest = max(group, key=lambda n: len(items[n].above) + len(items[n].below))
    target = min(max(column[busiest], low), high)
    for number in group:
        column[number] = target


class Port(Struct, frozen=True):
    """The end of a line at a node's border."""

    place: int
    """Index of the edge."""
    wanted: int | None
    """The column of the line's other end; None: the line leaves to the right."""
    reach: int = 0
    """Its place among the columns that go off to the right; the outermost is leftmost."""


def assign_ports(middle: int, width: int, lines: Sequence[Port]) -> dict[int, int]:
    """Return the column in which each line meets the border of a box.

    A line that can go straight does; the others keep their order, so that they don't cross.

    >>> assign_ports(5, 9, [Port(0, 4), Port(1, None), Port(2, -9)])
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

    sorted_ports = sorted(lines, key=rank)
    # Lines that can't be straight make room for lines that can.
    weights = [100.0 if low <= (port.wanted or -1) <= high else 1.0 for port in sorted_ports]
    apart = [PORT_STEP] * (len(sorted_ports) - 1)
    columns = spread([wish(port) for port in sorted_ports], apart, weights)
    result, last_place = {}, len(sorted_ports) - 1
    for place, (port, column) in enumerate(zip(sorted_ports, columns, strict=True)):
        bottom, top = low + PORT_STEP * place, high - PORT_STEP * (last_place - place)
        result[port.place] = min(max(column, bottom), top)
    return result
