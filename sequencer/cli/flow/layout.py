"""Where every box, line and label of a drawing of a graph is, from top to bottom.

In columns and rows of one grid, which a terminal shows as characters and a picture as
points. Lines leave a box at its bottom and enter one at its top; what closes a loop goes
back up at the right of all that it goes around.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from sequencer.cli.flow.channels import Channel
from sequencer.cli.flow.columns import Port, middles, ports
from sequencer.cli.flow.layers import Rows, arranged
from sequencer.model.graph import Graph

LOOP_GAP = 2


@dataclass(frozen=True, slots=True)
class Box:
    """A node."""

    node: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Label:
    """The text on an edge."""

    text: str
    x: int
    y: int
    width: int


@dataclass(frozen=True, slots=True)
class Line:
    """An edge."""

    place: int
    """In ``graph.edges``."""
    points: tuple[tuple[int, int], ...]
    """Corners, from the border of one box to right above the border of the other."""
    label: Label | None
    is_loop: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """All of it."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """What the texts of a drawing take up, in columns and rows of its grid."""

    sizes: dict[str, tuple[int, int]]
    """Of each node's box, its border included."""
    label: Callable[[str], str]
    """The text that an edge's label is shown as."""
    loop_label: Callable[[str], str]
    """The same for an edge that closes a loop."""
    width: Callable[[str], int]
    label_rows: int = 1
    head_rows: int = 1
    """Above each row of boxes, for the arrow heads."""


def laid_out(graph: Graph, words: Words) -> Layout:
    """Return the layout of *graph*; the same one for the same arguments."""
    return _Plan(graph, words).layout()


@dataclass(slots=True)
class _Loop:
    """An edge that goes back up."""

    place: int
    top: int
    """Row of the node that it leads to."""
    bottom: int
    text: str
    width: int
    column: int = 0


class _Plan:
    def __init__(self, graph: Graph, words: Words) -> None:
        self.graph, self.words = graph, words
        sizes = self._roomy(words.sizes)
        self.rows: Rows = arranged(graph, sizes, lambda text: words.width(words.label(text)))
        self.items = self.rows.items
        for item in self.items:
            if item.is_label:
                item.height = words.label_rows
        self.column = middles(self.rows)
        self.loops = self._loops()
        self.leaves: dict[int, int] = {}
        self.enters: dict[int, int] = {}
        self._place_ports()
        self._place_loops()
        self.channels = [Channel() for _ in range(len(self.rows.rows) + 1)]
        self._turn()

    def _roomy(self, sizes: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Widen the boxes in which not all lines would find a place, a loop's twice."""
        leaving: dict[str, int] = defaultdict(int)
        entering: dict[str, int] = defaultdict(int)
        for place, edge in enumerate(self.graph.edges):
            room = 2 if place in self.graph.back_edges else 1
            leaving[edge.source] += room
            entering[edge.target] += room
        return {
            name: (max(width | 1, 2 * max(leaving[name], entering[name]) + 1), height)
            for name, (width, height) in sizes.items()
        }

    def _row(self, name: str) -> int:
        return self.items[self.rows.of_node[name]].row

    def _loops(self) -> list[_Loop]:
        """Return what goes back up, the shortest first."""
        found = []
        for place in sorted(self.graph.back_edges):
            edge = self.graph.edges[place]
            text = self.words.loop_label(edge.label)
            width = self.words.width(text)
            found.append(_Loop(place, self._row(edge.target), self._row(edge.source), text, width))
        return sorted(found, key=lambda loop: (loop.bottom - loop.top, loop.place))

    def _place_ports(self) -> None:
        reach = dict.fromkeys(range(len(self.graph.edges)), 0)
        for rank, loop in enumerate(self.loops):
            reach[loop.place] = rank
        for node in self.graph.nodes:
            lines = [Port(p, self._below(p), reach[p]) for p in self.graph.outgoing[node.id]]
            self.leaves |= self._ports(node.id, lines)
        incoming: dict[str, list[Port]] = defaultdict(list)
        for place, edge in enumerate(self.graph.edges):
            incoming[edge.target].append(Port(place, self._above(place), reach[place]))
        for name, lines in incoming.items():
            self.enters |= self._ports(name, lines)

    def _ports(self, name: str, lines: list[Port]) -> dict[int, int]:
        number = self.rows.of_node[name]
        return ports(self.column[number], self.items[number].width, lines)

    def _below(self, place: int) -> int | None:
        chain = self.rows.chains.get(place)
        return None if chain is None else self.column[chain[1]]

    def _above(self, place: int) -> int | None:
        chain = self.rows.chains.get(place)
        if chain is None:
            return None
        return self.leaves[place] if len(chain) == 2 else self.column[chain[-2]]  # noqa: PLR2004 - its two ends

    def _place_loops(self) -> None:
        """Give each loop a column right of all in its rows, and of the loops inside it."""
        edges = [
            max((self.column[n] + self.items[n].width // 2 for n in row), default=0)
            for row in self.rows.rows
        ]
        placed: list[_Loop] = []
        for loop in self.loops:
            inside = [
                other.column + 1 + other.width
                for other in placed
                if other.top <= loop.bottom + 1 and loop.top <= other.bottom + 1
            ]
            right = max(edges[loop.top : loop.bottom + 1])
            loop.column = max([right, *inside]) + LOOP_GAP
            placed.append(loop)

    def _turn(self) -> None:
        for place, chain in self.rows.chains.items():
            columns = self._columns(place, chain)
            for step, number in enumerate(chain[:-1]):
                channel = self.channels[self.items[number].row + 1]
                channel.add(place, *columns[step : step + 2], comes="above", goes="below")
        for loop in self.loops:
            start, end, away = self.leaves[loop.place], self.enters[loop.place], loop.column
            self.channels[loop.bottom + 1].add(loop.place, start, away, comes="above", goes="above")
            self.channels[loop.top].add(loop.place, away, end, comes="below", goes="below")

    def _columns(self, place: int, chain: list[int]) -> list[int]:
        """Return the column of a line at each row that it meets, both its ends included."""
        inner = [self.column[number] for number in chain[1:-1]]
        return [self.leaves[place], *inner, self.enters[place]]

    def layout(self) -> Layout:
        """Return it, with the rows as high as what is in them."""
        tops, track_tops, height = self._heights()
        boxes = tuple(self._box(node.id, tops) for node in self.graph.nodes)
        by_name = {box.node: box for box in boxes}
        drawn = [self._line(place, tops, track_tops, by_name) for place in self.rows.chains]
        drawn += [self._loop_line(loop, track_tops, by_name) for loop in self.loops]
        right = max([box.x + box.width for box in boxes])
        right = max([right, *(loop.column + 2 + loop.width for loop in self.loops)])
        corners = [x + 1 for line in drawn for x, _ in line.points]
        labels = [line.label.x + line.label.width for line in drawn if line.label]
        lines = tuple(sorted(drawn, key=lambda line: line.place))
        return Layout(max([right, *corners, *labels]), height, boxes, lines)

    def _heights(self) -> tuple[list[int], list[int], int]:
        straight = self._straight()
        entered = {self._row(edge.target) for edge in self.graph.edges}
        tops, track_tops, y = [], [], 0
        for number, row in enumerate(self.rows.rows):
            track_tops.append(y)
            y += self.channels[number].settle(straight[number])
            y += self.words.head_rows if number in entered else 0
            tops.append(y)
            y += max((self.items[n].height for n in row), default=0)
        track_tops.append(y)
        y += self.channels[-1].settle(straight[len(self.rows.rows)])
        return tops, track_tops, y

    def _straight(self) -> dict[int, set[int]]:
        """Return the columns in which lines pass each channel without a turn."""
        found: dict[int, set[int]] = defaultdict(set)
        for place, chain in self.rows.chains.items():
            columns = self._columns(place, chain)
            for step, number in enumerate(chain[:-1]):
                if columns[step] == columns[step + 1]:
                    found[self.items[number].row + 1].add(columns[step])
        for loop in self.loops:
            for channel in range(loop.top + 1, loop.bottom + 1):
                found[channel].add(loop.column)
        return found

    def _box(self, name: str, tops: list[int]) -> Box:
        number = self.rows.of_node[name]
        item = self.items[number]
        room = max(self.items[n].height for n in self.rows.rows[item.row])
        x = self.column[number] - item.width // 2
        return Box(name, x, tops[item.row] + (room - item.height) // 2, item.width, item.height)

    def _corners(self, channel: int, place: int, track_tops: list[int]) -> list[tuple[int, int]]:
        turns = [turn for turn in self.channels[channel].turns if turn.line == place]
        corners = []
        for turn in sorted(turns, key=lambda one: one.track):
            y = track_tops[channel] + turn.track
            corners += [(turn.start, y), (turn.end, y)]
        return corners

    def _line(
        self, place: int, tops: list[int], track_tops: list[int], boxes: dict[str, Box]
    ) -> Line:
        edge, chain = self.graph.edges[place], self.rows.chains[place]
        source, target = boxes[edge.source], boxes[edge.target]
        points = [(self.leaves[place], source.y + source.height - 1)]
        label = None
        for number in chain[:-1]:
            item = self.items[number]
            if item.is_label:
                text = self.words.label(edge.label)
                width = self.words.width(text)
                label = Label(text, self.column[number] - width // 2, tops[item.row], width)
            points += self._corners(item.row + 1, place, track_tops)
        points.append((self.enters[place], target.y - 1))
        return Line(place, tuple(points), label, is_loop=False)

    def _loop_line(self, loop: _Loop, track_tops: list[int], boxes: dict[str, Box]) -> Line:
        edge = self.graph.edges[loop.place]
        source, target = boxes[edge.source], boxes[edge.target]
        points = [(self.leaves[loop.place], source.y + source.height - 1)]
        points += self._corners(loop.bottom + 1, loop.place, track_tops)
        points += self._corners(loop.top, loop.place, track_tops)
        points.append((self.enters[loop.place], target.y - 1))
        row = source.y + source.height // 2
        label = Label(loop.text, loop.column + 2, row, loop.width)
        return Line(loop.place, tuple(points), label, is_loop=True)
