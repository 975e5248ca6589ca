from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.history.view import FlowView
from sequencer.plugins.drawing.columns import GAP, Port, assign_columns, assign_ports, spread
from sequencer.plugins.drawing.diagram import DiagramTexts, Drawn
from sequencer.plugins.drawing.layers import Group, Rows, arrange_rows, count_crossings
from sequencer.plugins.drawing.layout import (
    WAYS,
    Channel,
    EdgeLine,
    GroupFrame,
    Layout,
    compute_layout,
)
from tests.unit.cli.flow.views import RELEASE, cells, flows, graph, of, view, views


def layout(shown: FlowView, direction: str = "TB") -> Layout:
    words = DiagramTexts(shown, 18, Drawn(None), is_ascii=False).measure_texts()
    return compute_layout(shown.graph, words, direction)


def boxed(found: Layout) -> dict[tuple[int, int], str]:
    """Return which node each cell belongs to."""
    cells_of: dict[tuple[int, int], str] = {}
    for box in found.boxes:
        assert box.x >= 0
        assert box.x + box.width <= found.width
        for y in range(box.y, box.y + box.height):
            for x in range(box.x, box.x + box.width):
                assert (x, y) not in cells_of, "two boxes overlap"
                cells_of[x, y] = box.node
    return cells_of


def ensure_sound(shown: FlowView, found: Layout) -> None:
    """Fail if anything is drawn over something else, or a line doesn't go where it should."""
    taken = boxed(found)
    ways: dict[frozenset[tuple[int, int]], int] = {}
    visited: dict[tuple[int, int], set[int]] = defaultdict(set)
    for line in found.lines:
        edge, way = shown.graph.edges[line.place], list(cells(line.points))
        assert taken[way[0]] == edge.source
        x, y = way[-1]
        assert taken[x + found.way[0], y + found.way[1]] == edge.target
        assert not any(cell in taken for cell in way[1:]), "a line goes through a box"
        for step in pairwise(way):
            assert frozenset(step) not in ways, "two lines share a piece"
            ways[frozenset(step)] = line.place
        for cell in way:
            visited[cell].add(line.place)
    for line in found.lines:
        for corner in line.points[1:-1]:
            assert visited[corner] == {line.place}, "a turn touches another line"
        for cell in label_cells(line):
            assert 0 <= cell[0] < found.width
            assert cell not in taken, "a label is over a box"
            assert visited[cell] <= {line.place}, "a label is over another line"
    assert {line.place for line in found.lines} == set(range(len(shown.graph.edges)))
    assert {box.node for box in found.boxes} == set(shown.graph.by_id)


def label_cells(line: EdgeLine) -> list[tuple[int, int]]:
    label = line.label
    if label is None:
        return []
    return [(label.x + x, label.y + y) for x in range(label.width) for y in range(label.height)]


@pytest.mark.slow
@given(views(), st.sampled_from(sorted(WAYS)))
@settings(max_examples=60)
def test_nothing_overlaps_in_any_graph(shown: FlowView, direction: str) -> None:
    ensure_sound(shown, layout(shown, direction))


@pytest.mark.parametrize("name", list(flows()))
def test_the_flows_with_known_traces(name: str) -> None:
    shown = of(flows()[name])
    found = layout(shown)
    ensure_sound(shown, found)
    assert found.width <= 60


def test_the_order_of_a_row_saves_crossings() -> None:
    # In text order every line would cross every other one.
    shape = graph("s --> a & b & c\na --> z\nb --> y\nc --> x\nx & y & z --> e")
    sizes = dict.fromkeys(shape.by_id, (5, 3))
    assert count_crossings(arrange_rows(shape, sizes, lambda text: (len(text), 1))) == 0


# --- groups ------------------------------------------------------------------------------


def grouped(shown: FlowView, cuts: list[int]) -> list[Group]:
    """Return groups of neighbors in the text, the first of them with another one inside."""
    names = [node.node.id for node in shown.nodes]
    bounds = sorted({0, *(cut % (len(names) + 1) for cut in cuts), len(names)})
    parts = [frozenset(names[a:b]) for a, b in pairwise(bounds)]
    found = [Group(f"g{n}", f"Group {n}", part, 1, 9) for n, part in enumerate(parts)]
    inner = frozenset(names[: max(1, len(parts[0]) // 2)])
    return [
        Group("in", "The title of an inner group", inner, 1, 29),
        replace(found[0], levels=2),
        *found[1:],
    ]


@pytest.mark.slow
@given(views(), st.lists(st.integers(0, 30), max_size=3), st.sampled_from(sorted(WAYS)))
@settings(max_examples=60)
def test_frames_contain_their_own_boxes_and_no_others(
    shown: FlowView, cuts: list[int], direction: str
) -> None:
    words = DiagramTexts(shown, 18, Drawn(None), is_ascii=False).measure_texts()
    groups = grouped(shown, cuts)
    found = compute_layout(shown.graph, words, direction, groups)
    ensure_sound(shown, found)
    assert {frame.group.name for frame in found.frames} == {group.name for group in groups}
    for one, other in combinations(found.frames, 2):
        if one.group.nodes & other.group.nodes:
            assert one.x < other.x
            assert other.x + other.width < one.x + one.width, "a frame sticks out of another"
        else:
            assert are_apart(one, other), "two frames cross"
    # Never wider than all of it side by side, with its frames, titles, lines and labels.
    sizes = words.sizes.values()
    wide = sum(max(size) + 8 for size in sizes) + sum(group.width + 8 for group in groups)
    assert min(found.width, found.height) <= wide + 60 * (1 + len(shown.graph.edges))
    for frame in found.frames:
        assert 0 <= frame.x <= frame.x + frame.width <= found.width
        assert 0 <= frame.y <= frame.y + frame.height <= found.height
        for box in found.boxes:
            across = frame.x < box.x and box.x + box.width < frame.x + frame.width
            down = frame.y < box.y and box.y + box.height < frame.y + frame.height
            assert (across and down) is (box.node in frame.group.nodes), (frame, box)


def are_apart(one: GroupFrame, other: GroupFrame) -> bool:
    across = one.x + one.width <= other.x or other.x + other.width <= one.x
    return across or one.y + one.height <= other.y or other.y + other.height <= one.y


@pytest.mark.parametrize("direction", sorted(WAYS))
def test_groups_whose_lines_cross_have_room_in_a_small_drawing(direction: str) -> None:
    # Each group once pushed the other to the right, and so on: 2,936,012,707 columns.
    shown = view("s --> a & b\na --> x --> d\nb --> y --> c\nc & d --> e")
    words = DiagramTexts(shown, 18, Drawn(None), is_ascii=False).measure_texts()
    groups = [Group("g", "One", frozenset("axc"), 1, 5), Group("h", "Two", frozenset("byd"), 1, 5)]
    found = compute_layout(shown.graph, words, direction, groups)
    ensure_sound(shown, found)
    assert [frame.group.name for frame in found.frames] == ["g", "h"]
    assert max(found.width, found.height) <= 60


def test_a_long_title_does_not_make_a_frame_taller() -> None:
    shown = view("a --> b")
    words = DiagramTexts(shown, 18, Drawn(None), is_ascii=False).measure_texts()
    (frame,) = compute_layout(
        shown.graph, words, "LR", [Group("g", "x" * 40, frozenset("ab"), 1, 42)]
    ).frames
    assert frame.height <= 8
    (frame,) = compute_layout(
        shown.graph, words, "TB", [Group("g", "x" * 40, frozenset("ab"), 1, 42)]
    ).frames
    assert frame.width >= 42


@pytest.mark.parametrize("direction", sorted(WAYS))
def test_a_branch_beside_a_group_stands_outside(direction: str) -> None:
    shown = view("a --> b & x\nb --> c --> d\nx --> y --> d")
    group = Group("g", "Two steps", frozenset("bc"), 1, 11)
    words = DiagramTexts(shown, 18, Drawn(None), is_ascii=False).measure_texts()
    (frame,) = compute_layout(shown.graph, words, direction, [group]).frames
    assert frame.group is group
    # What stands between the members makes room.
    apart = Group("h", "Both ends", frozenset("ad"), 1, 11)
    found = compute_layout(shown.graph, words, direction, [apart])
    assert [one.group for one in found.frames] == [apart]
    ensure_sound(shown, found)


def test_without_groups_nothing_is_moved() -> None:
    shown = view(RELEASE)
    words = DiagramTexts(shown, 18, Drawn(None), is_ascii=False).measure_texts()
    assert compute_layout(shown.graph, words) == layout(shown)


def settled(*lines: tuple[int, int], loops: tuple[tuple[int, int], ...] = ()) -> Channel:
    """Return a channel with these lines from above, and what turns back up after them."""
    channel = Channel()
    for number, (start, end) in enumerate(lines):
        channel.add(number, start, end, comes="above", goes="below")
    for number, (start, end) in enumerate(loops, start=len(lines)):
        channel.add(number, start, end, comes="above", goes="above")
    channel.assign_tracks()
    return channel


def tracks(channel: Channel) -> dict[int, int]:
    return {turn.line: turn.track for turn in channel.turns}


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9, unique=True),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200)
def test_no_two_turns_of_a_channel_touch(starts: list[int], chance: object) -> None:
    ends = list(starts)
    chance.shuffle(ends)  # type: ignore[attr-defined]
    channel = Channel()
    for line, (start, end) in enumerate(zip(starts, ends, strict=True)):
        channel.add(line, start, end, comes="above", goes="below")
    height = channel.assign_tracks()
    seen: set[tuple[int, int]] = set()
    for turn in channel.turns:
        run = {(x, turn.track) for x in range(turn.left, turn.right + 1)}
        assert not run & seen
        seen |= run
        assert turn.track < height
    columns: dict[tuple[int, int], int] = {}
    for line, (start, end) in enumerate(zip(starts, ends, strict=True)):
        mine = sorted((t for t in channel.turns if t.line == line), key=lambda t: t.track)
        corners = [c for t in mine for c in ((t.start, t.track), (t.end, t.track))]
        way = [(start, -1), *corners, (end, height)]
        for (x, y), (to_x, to_y) in pairwise(way):
            assert x == to_x or y == to_y
            for row in range(min(y, to_y), max(y, to_y) + 1) if x == to_x else ():
                assert columns.setdefault((x, row), line) == line, "two lines share a column"


def test_nested_turns_do_not_cross() -> None:
    # To the left the leftmost is on top, to the right the rightmost.
    left = tracks(settled((10, 0), (12, 4), (14, 8)))
    assert left[0] < left[1] < left[2]
    right = tracks(settled((0, 10), (2, 12), (4, 14)))
    assert right[2] < right[1] < right[0]


def room(text: str) -> tuple[int, int]:
    return len(text), 1


def rows_of(chart: str, width: int = 7) -> Rows:
    shape = graph(chart)
    return arrange_rows(shape, dict.fromkeys(shape.by_id, (width, 3)), room)


@given(st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 9)), min_size=1, max_size=12))
def test_spread_values_keep_their_distances(wanted: list[tuple[float, int]]) -> None:
    apart = [distance for _, distance in wanted[1:]]
    found = spread([value for value, _ in wanted], apart)
    assert all(b - a >= least for (a, b), least in zip(pairwise(found), apart, strict=True))
    if len(wanted) == 1:
        assert found == [round(wanted[0][0])]


@given(st.lists(st.one_of(st.none(), st.integers(-20, 40)), max_size=7))
def test_ports_are_inside_the_border_and_apart(wanted: list[int | None]) -> None:
    width = 2 * max(1, len(wanted)) + 1
    lines = [Port(place, column, place) for place, column in enumerate(wanted)]
    found = sorted(assign_ports(10, width, lines).values())
    assert len(found) == len(wanted)
    assert all(b - a >= 2 for a, b in pairwise(found))
    assert all(10 - width // 2 < column < 10 + width // 2 for column in found)


@pytest.mark.parametrize("chart", [RELEASE, "a --> b & c & d --> e\na --> e", "a --> b --> c"])
def test_neighbours_of_a_row_keep_their_distance(chart: str) -> None:
    found = rows_of(chart)
    column = assign_columns(found)
    assert min(column[n] - item.width // 2 for n, item in enumerate(found.items)) == 0
    for row in found.rows:
        for left, right in pairwise(row):
            inner = found.items[left], found.items[right]
            blank = column[right] - column[left] - 1 - sum(item.width // 2 for item in inner)
            are_boxes = all(item.node is not None for item in inner)
            assert blank >= (GAP if are_boxes else 1)
