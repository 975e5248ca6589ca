"""The layout of a drawing: tracks for the turns of lines between two rows, boxes and frames.

A line comes down in one column, runs along a track and continues in another column. Two lines
never share a part of a track or of a column; they only cross.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.model.graph.graph import Graph
from sequencer.plugins.drawing.columns import Port, assign_columns, assign_ports, extents
from sequencer.plugins.drawing.layers import Group, Rows, arrange_rows


class Bend(Struct, eq=False):
    """A piece of a line that runs along one track."""

    line: int
    start: int
    """Column in which it arrives, in the direction of drawing."""
    end: int
    upper: tuple[int, ...]
    """Columns that it uses from its track up to the row above."""
    lower: tuple[int, ...]
    """Columns that it uses from its track down to the row below."""
    track: int = 0
    later: list[Bend] = field(default_factory=list)
    """Turns that must be in a lower track."""
    missing: int = 0
    """Number of turns without a track yet that must be in a higher track."""

    @property
    def left(self) -> int:
        """Return its leftmost column."""
        return min(self.start, self.end)

    @property
    def right(self) -> int:
        """Return its rightmost column."""
        return max(self.start, self.end)

    @property
    def key(self) -> tuple[int, int, int]:
        """Return its sort key among the possible next turns, so that nested turns don't cross."""
        # A line that turns back stays near the box that it leaves or enters.
        if not self.lower:
            return (0, -self.start, self.line)
        if not self.upper:
            return (3, -self.start, self.line)
        is_leftward = self.end < self.start
        return (1 if is_leftward else 2, self.start if is_leftward else -self.start, self.line)


class Channel(Struct):
    """The turns between two rows."""

    turns: list[Bend] = field(default_factory=list)
    straight: set[int] = field(default_factory=set)
    """Columns in which lines pass without a turn."""

    def add(self, line: int, start: int, end: int, *, comes: str, goes: str) -> None:
        """Add a line from *start* to *end*; *comes* and *goes* are ``above`` or ``below``."""
        if start == end and comes != goes:
            self.straight.add(start)
            return
        ends = ((start, comes), (end, goes))
        upper_columns = tuple(column for column, side in ends if side == "above")
        lower_columns = tuple(column for column, side in ends if side == "below")
        self.turns.append(Bend(line, start, end, upper_columns, lower_columns))

    def assign_tracks(self) -> int:
        """Assign the tracks; return their number."""
        taken_columns = self.straight | {
            column for turn in self.turns for column in (*turn.upper, *turn.lower)
        }
        self._order_turns()
        placed_turns: list[Bend] = []
        queue = [(turn.key, place) for place, turn in enumerate(self.turns) if not turn.missing]
        heapify(queue)
        remaining_places = set(range(len(self.turns)))
        while remaining_places:
            if not queue:
                first_place = min(
                    n for n in remaining_places if self.turns[n].upper and self.turns[n].lower
                )
                self._split(first_place, taken_columns)
                heappush(queue, (self.turns[first_place].key, first_place))
                remaining_places.add(len(self.turns) - 1)
            place = heappop(queue)[1]
            remaining_places.discard(place)
            turn = self.turns[place]
            turn.track = _find_track(turn, placed_turns)
            placed_turns.append(turn)
            for later_turn in turn.later:
                later_turn.missing -= 1
                if not later_turn.missing:
                    heappush(queue, (later_turn.key, self.turns.index(later_turn)))
        return max((turn.track + 1 for turn in self.turns), default=0)

    def _order_turns(self) -> None:
        """Note the order of turns that use the same column from both sides."""
        from_below: dict[int, list[Bend]] = defaultdict(list)
        for turn in self.turns:
            for column in turn.lower:
                from_below[column].append(turn)
        for turn in self.turns:
            for column in turn.upper:
                for lower_turn in from_below[column]:
                    if lower_turn is not turn:
                        turn.later.append(lower_turn)
                        lower_turn.missing += 1

    def _split(self, place: int, taken_columns: set[int]) -> None:
        """Break a ring of turns that each must be above the next one: one of them turns twice.

        Then the first half needs no turn above it, and the second needs no turn below it.
        """
        turn = self.turns[place]
        middle = (turn.left + turn.right) // 2
        column = next(
            column
            for step in range(len(taken_columns) + 1)
            for column in (middle + step, middle - step)
            if column not in taken_columns and column >= 0
        )
        taken_columns.add(column)
        second_turn = Bend(turn.line, column, turn.end, (), turn.lower)
        second_turn.missing = turn.missing + 1
        for earlier_turn in self.turns:
            earlier_turn.later = [
                second_turn if later_turn is turn else later_turn
                for later_turn in earlier_turn.later
            ]
        turn.later.append(second_turn)
        turn.end, turn.lower, turn.missing = column, (), 0
        self.turns.append(second_turn)


def _find_track(turn: Bend, placed_turns: list[Bend]) -> int:
    """Return the first free track below all turns that must be above *turn*."""
    track, taken_tracks = 0, set()
    for placed_turn in placed_turns:
        if any(turn is later_turn for later_turn in placed_turn.later):
            track = max(track, placed_turn.track + 1)
        if placed_turn.left <= turn.right and turn.left <= placed_turn.right:
            taken_tracks.add(placed_turn.track)
            if placed_turn.key[0] == turn.key[0]:
                # The sort key put the other turn first so that they don't cross.
                track = max(track, placed_turn.track + 1)
    while track in taken_tracks:
        track += 1
    return track


LOOP_GAP = 2


class Box(Struct, frozen=True):
    """A node."""

    node: str
    x: int
    y: int
    width: int
    height: int


class Label(Struct, frozen=True):
    """The text on an edge."""

    lines: tuple[str, ...]
    x: int
    y: int
    width: int
    height: int


class EdgeLine(Struct, frozen=True):
    """An edge."""

    place: int
    """Index in ``graph.edges``."""
    points: tuple[tuple[int, int], ...]
    """Corners, from the border of one box to right above the border of the other."""
    label: Label | None
    is_loop: bool


class GroupFrame(Struct, frozen=True):
    """The frame of a group, around its boxes."""

    group: Group
    x: int
    y: int
    width: int
    height: int
    title: int = 1
    """Where the title starts in the upper edge: where no line crosses it, if possible."""


class Layout(Struct, frozen=True):
    """The complete layout."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[EdgeLine, ...]
    frames: tuple[GroupFrame, ...] = ()
    """Frames of groups, the outermost first, without those that would hold other nodes."""
    way: tuple[int, int] = (0, 1)
    """Columns and rows of a step in the direction in which the graph goes: down."""


class TextSizes(Struct, frozen=True):
    """The sizes of the texts in a drawing, in columns and rows of its grid."""

    sizes: dict[str, tuple[int, int]]
    """Size of each node's box, including the border."""
    label: Callable[[str], tuple[str, ...]]
    """The lines of an edge's label."""
    loop_label: Callable[[str], tuple[str, ...]]
    """The same for an edge that closes a loop."""
    width: Callable[[str], int]
    """The width of a line."""
    label_rows: int = 1
    """Rows for each line of a label."""
    head_rows: int = 1
    """Rows above each row of boxes, for the arrow heads."""
    is_across: bool = False
    """The graph goes to the right, so that the plan's columns are rows of the drawing."""

    def measure_label(self, lines: tuple[str, ...]) -> tuple[int, int]:
        """Return width and height of a label in the plan, which always goes down."""
        size = (max(map(self.width, lines), default=0), self.label_rows * len(lines))
        return size[::-1] if self.is_across else size


WAYS = {"TB": (0, 1), "TD": (0, 1), "BT": (0, -1), "LR": (1, 0), "RL": (-1, 0)}


def compute_layout(
    graph: Graph, words: TextSizes, direction: str = "TB", groups: Sequence[Group] = ()
) -> Layout:
    """Return the layout of *graph* and its *groups*; the same one for the same arguments."""
    way = WAYS.get(direction, WAYS["TB"])
    is_across = way[0] != 0
    if is_across:
        sizes = {name: size[::-1] for name, size in words.sizes.items()}
        words = replace(words, sizes=sizes, is_across=True)
    # A title is horizontal, and in a turned drawing the plan's columns become rows.
    plan_groups = [replace(group, width=0) for group in groups] if is_across else groups
    plan = _Plan(graph, words, plan_groups).build_layout()
    layout = plan if way == WAYS["TB"] else _turn_layout(plan, way)
    by_name = {group.name: group for group in groups}
    frames = (_place_title(layout, frame, by_name[frame.group.name]) for frame in layout.frames)
    return replace(layout, frames=tuple(frames))


def _place_title(layout: Layout, frame: GroupFrame, group: Group) -> GroupFrame:
    """Return the *frame* of *group* with its title in a free place."""
    taken_columns: set[int] = set()
    for line in layout.lines:
        for (x, y), (to_x, to_y) in pairwise(line.points):
            if min(y, to_y) <= frame.y <= max(y, to_y):
                taken_columns.update(range(min(x, to_x), max(x, to_x) + 1))
    title_width = min(group.width, frame.width - 2)
    places = range(1, frame.width - title_width)
    free_places = (
        place
        for place in places
        if not taken_columns & set(range(frame.x + place, frame.x + place + title_width))
    )
    return replace(frame, group=group, title=next(free_places, 1))


def _turn_layout(plan: Layout, way: tuple[int, int]) -> Layout:
    """Return *plan*, which goes down, turned so that it goes in the direction *way*."""
    is_across = way[0] != 0
    full_width, full_height = (plan.height, plan.width) if is_across else (plan.width, plan.height)

    def place(x: int, y: int, width: int = 1, height: int = 1) -> tuple[int, int, int, int]:
        if is_across:
            x, y, width, height = y, x, height, width
        x = full_width - x - width if way[0] < 0 else x
        return x, full_height - y - height if way[1] < 0 else y, width, height

    def label(source: Label | None) -> Label | None:
        return source and Label(
            source.lines, *place(source.x, source.y, source.width, source.height)
        )

    boxes = tuple(Box(b.node, *place(b.x, b.y, b.width, b.height)) for b in plan.boxes)
    lines = tuple(
        replace(
            line, points=tuple(place(x, y)[:2] for x, y in line.points), label=label(line.label)
        )
        for line in plan.lines
    )
    frames = tuple(GroupFrame(f.group, *place(f.x, f.y, f.width, f.height)) for f in plan.frames)
    return Layout(full_width, full_height, boxes, lines, frames, way)


def _is_overlapping(frame: GroupFrame, box: Box) -> bool:
    return (
        frame.x < box.x + box.width
        and box.x < frame.x + frame.width
        and frame.y < box.y + box.height
        and box.y < frame.y + frame.height
    )


class _Loop(Struct):
    """An edge that goes back up."""

    place: int
    top: int
    """Row of its target node."""
    bottom: int
    lines: tuple[str, ...]
    width: int
    height: int
    column: int = 0


class _Plan:
    def __init__(self, graph: Graph, words: TextSizes, groups: Sequence[Group]) -> None:
        self.graph, self.words = graph, words
        sizes = self._widen_boxes(words.sizes)
        self.rows: Rows = arrange_rows(
            graph, sizes, lambda text: words.measure_label(words.label(text)), groups
        )
        self.items = self.rows.items
        self.column = assign_columns(self.rows)
        self.extents = extents(self.rows, self.column)
        self.loops = self._find_loops()
        self.leaves: dict[int, int] = {}
        self.enters: dict[int, int] = {}
        self._place_ports()
        self._place_loops()
        self.high: list[int] = []
        """Height of each row, as soon as it is known."""
        self.head_rows: list[int] = []
        """Above the boxes of each row."""
        self.channels = [Channel() for _ in range(len(self.rows.rows) + 1)]
        self._fill_channels()

    def _widen_boxes(self, sizes: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Widen the boxes that are too narrow for their lines; a loop needs two columns."""
        leaving_room: dict[str, int] = defaultdict(int)
        entering_room: dict[str, int] = defaultdict(int)
        for place, edge in enumerate(self.graph.edges):
            room = 2 if place in self.graph.back_edges else 1
            leaving_room[edge.source] += room
            entering_room[edge.target] += room
        return {
            name: (max(width | 1, 2 * max(leaving_room[name], entering_room[name]) + 1), height)
            for name, (width, height) in sizes.items()
        }

    def _row(self, name: str) -> int:
        return self.items[self.rows.of_node[name]].row

    def _find_loops(self) -> list[_Loop]:
        """Return the edges that go back up, the shortest first."""
        loops = []
        for place in sorted(self.graph.back_edges):
            edge = self.graph.edges[place]
            lines = self.words.loop_label(edge.label)
            ends = self._row(edge.target), self._row(edge.source)
            loops.append(_Loop(place, *ends, lines, *self.words.measure_label(lines)))
        return sorted(loops, key=lambda loop: (loop.bottom - loop.top, loop.place))

    def _place_ports(self) -> None:
        reach = {loop.place: rank for rank, loop in enumerate(self.loops)}
        incoming_places: dict[str, list[int]] = defaultdict(list)
        for place, edge in enumerate(self.graph.edges):
            incoming_places[edge.target].append(place)
        # The end of a line that passes no row depends on its start.
        for ports, places, end in (
            (self.leaves, self.graph.outgoing, 1),
            (self.enters, incoming_places, -2),
        ):
            for name, number in self.rows.of_node.items():
                lines = [
                    Port(p, self._neighbor_column(p, end), reach.get(p, 0)) for p in places[name]
                ]
                ports.update(assign_ports(self.column[number], self.items[number].width, lines))

    def _neighbor_column(self, place: int, end: int) -> int | None:
        """Return the column that a line comes from or leads to, next to the box at its *end*."""
        chain = self.rows.chains.get(place)
        if chain is None:
            return None
        is_direct = end < 0 and len(chain) == 2  # noqa: PLR2004 - its two ends
        return self.leaves[place] if is_direct else self.column[chain[end]]

    def _place_loops(self) -> None:
        """Give each loop a column right of all in its rows, and of the loops inside it."""
        edges = [
            max((self.column[n] + self.items[n].width // 2 for n in row), default=0)
            for row in self.rows.rows
        ]
        for group, (_, right, rows) in zip(self.rows.groups, self.extents, strict=True):
            for number in rows:
                edges[number] = max(edges[number], right + group.levels)
        placed_loops: list[_Loop] = []
        for loop in self.loops:
            inner_columns = [
                inner_loop.column + 1 + inner_loop.width
                for inner_loop in placed_loops
                if inner_loop.top <= loop.bottom + 1 and loop.top <= inner_loop.bottom + 1
            ]
            right = max(edges[loop.top : loop.bottom + 1])
            loop.column = max([right, *inner_columns]) + LOOP_GAP
            placed_loops.append(loop)

    def _fill_channels(self) -> None:
        for place, chain in self.rows.chains.items():
            inner_columns = [self.column[number] for number in chain[1:-1]]
            columns = pairwise((self.leaves[place], *inner_columns, self.enters[place]))
            for number, (start, end) in zip(chain, columns, strict=False):
                channel = self.channels[self.items[number].row + 1]
                channel.add(place, start, end, comes="above", goes="below")
        for loop in self.loops:
            start, end, loop_column = self.leaves[loop.place], self.enters[loop.place], loop.column
            self.channels[loop.bottom + 1].add(
                loop.place, start, loop_column, comes="above", goes="above"
            )
            self.channels[loop.top].add(loop.place, loop_column, end, comes="below", goes="below")
            for channel in self.channels[loop.top + 1 : loop.bottom + 1]:
                channel.straight.add(loop_column)

    def build_layout(self) -> Layout:
        """Return the layout, with each row as high as its contents."""
        tops, track_tops, height = self._heights()
        boxes = tuple(self._box(node.id, tops) for node in self.graph.nodes)
        by_name = {box.node: box for box in boxes}
        all_lines = [self._line(place, tops, track_tops, by_name) for place in self.rows.chains]
        all_lines += [self._loop_line(loop, tops, track_tops, by_name) for loop in self.loops]
        right = max([box.x + box.width for box in boxes])
        right = max([right, *(loop.column + 2 + loop.width for loop in self.loops)])
        corners = [x + 1 for line in all_lines for x, _ in line.points]
        labels = [line.label for line in all_lines if line.label]
        frames = self._frames(tops, boxes)
        right = max([right, *corners, *(label.x + label.width for label in labels)])
        right = max([right, *(frame.x + frame.width for frame in frames)])
        height = max([height, *(label.y + label.height for label in labels)])
        sorted_lines = tuple(sorted(all_lines, key=lambda line: line.place))
        return Layout(right, height, boxes, sorted_lines, frames)

    def _frames(self, tops: list[int], boxes: tuple[Box, ...]) -> tuple[GroupFrame, ...]:
        frames = []
        for group, (left, right, rows) in zip(self.rows.groups, self.extents, strict=True):
            pad, top = group.levels, tops[rows[0]] - self.head_rows[rows[0]]
            height = tops[rows[-1]] + self.high[rows[-1]] - top + 2 * pad
            frame = GroupFrame(group, left - pad, top - pad, right - left + 1 + 2 * pad, height)
            strangers = (box for box in boxes if box.node not in group.nodes)
            if not any(_is_overlapping(frame, box) for box in strangers):
                frames.append(frame)
        return tuple(frames)

    def _heights(self) -> tuple[list[int], list[int], int]:
        entered_rows = {self._row(edge.target) for edge in self.graph.edges}
        tops, track_tops, y = [], [], 0
        for number, row in enumerate(self.rows.rows):
            track_tops.append(y)
            y += self.channels[number].assign_tracks()
            y += self._levels(number, 0)
            self.head_rows.append(self.words.head_rows if number in entered_rows else 0)
            y += self.head_rows[number]
            tops.append(y)
            # The label is next to the row from which its loop goes back.
            labels = (loop.height for loop in self.loops if loop.bottom == number)
            self.high.append(max([0, *labels, *(self.items[n].height for n in row)]))
            y += self.high[-1] + self._levels(number, -1)
        track_tops.append(y)
        y += self.channels[-1].assign_tracks()
        return tops, track_tops, y

    def _levels(self, row: int, end: int) -> int:
        """Return the number of nested frames that start (0) or end (-1) at *row*."""
        pairs = zip(self.rows.groups, self.extents, strict=True)
        return max((group.levels for group, (_, _, rows) in pairs if rows[end] == row), default=0)

    def _box(self, name: str, tops: list[int]) -> Box:
        number = self.rows.of_node[name]
        item = self.items[number]
        room = self.high[item.row]
        x = self.column[number] - item.width // 2
        return Box(name, x, tops[item.row] + (room - item.height) // 2, item.width, item.height)

    def _line(
        self, place: int, tops: list[int], track_tops: list[int], boxes: dict[str, Box]
    ) -> EdgeLine:
        edge, chain, label = self.graph.edges[place], self.rows.chains[place], None
        for item, middle in ((self.items[n], self.column[n]) for n in chain[:-1]):
            if item.is_label:
                lines = self.words.label(edge.label)
                width, height = self.words.measure_label(lines)
                label = Label(lines, middle - width // 2, tops[item.row], width, height)
        channels = [self.items[number].row + 1 for number in chain[:-1]]
        points = self._trace_edge(place, channels, track_tops, boxes)
        return EdgeLine(place, points, label, is_loop=False)

    def _loop_line(
        self, loop: _Loop, tops: list[int], track_tops: list[int], boxes: dict[str, Box]
    ) -> EdgeLine:
        row = tops[loop.bottom] + (self.high[loop.bottom] - loop.height + 1) // 2
        label = Label(loop.lines, loop.column + 2, row, loop.width, loop.height)
        points = self._trace_edge(loop.place, (loop.bottom + 1, loop.top), track_tops, boxes)
        return EdgeLine(loop.place, points, label, is_loop=True)

    def _trace_edge(
        self, place: int, channels: Sequence[int], track_tops: list[int], boxes: dict[str, Box]
    ) -> tuple[tuple[int, int], ...]:
        """Return the corners of an edge that turns in *channels*."""
        edge = self.graph.edges[place]
        source, target = boxes[edge.source], boxes[edge.target]
        points = [(self.leaves[place], source.y + source.height - 1)]
        for channel in channels:
            turns = [turn for turn in self.channels[channel].turns if turn.line == place]
            for turn in sorted(turns, key=lambda turn: turn.track):
                y = track_tops[channel] + turn.track
                points += [(turn.start, y), (turn.end, y)]
        return (*points, (self.enters[place], target.y - 1))
