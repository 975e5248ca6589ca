from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.flow.channels import Channel
from sequencer.cli.flow.columns import Port, ports, spread
from sequencer.cli.flow.drawing import Texts
from sequencer.cli.flow.layers import arranged, crossings, place_count, ranks
from sequencer.cli.flow.layout import Layout, Line, Words, laid_out
from sequencer.model.flow_view import FlowView
from sequencer.model.graph import Edge, Graph, Node, NodeKind
from tests.unit.cli.flow.views import RELEASE, cells, chain, flows, graph, of, view, views


def layout(shown: FlowView) -> Layout:
    return laid_out(shown.graph, Texts(shown, 18, is_ascii=False).words())


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
        assert taken[way[-1][0], way[-1][1] + 1] == edge.target
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


def label_cells(line: Line) -> list[tuple[int, int]]:
    label = line.label
    return [(label.x + n, label.y) for n in range(label.width)] if label is not None else []


@given(views())
@settings(max_examples=150, deadline=None)
def test_nothing_is_over_anything_else_in_any_graph(shown: FlowView) -> None:
    ensure_sound(shown, layout(shown))


@pytest.mark.parametrize("name", list(flows()))
def test_the_flows_with_known_traces(name: str) -> None:
    shown = of(flows()[name])
    found = layout(shown)
    ensure_sound(shown, found)
    assert found.width <= 60


def test_a_dense_graph_and_a_large_one() -> None:
    nodes = tuple(Node(id=f"n{n}", kind=NodeKind.AGENT) for n in range(7))
    every = tuple(Edge(source=a.id, target=b.id) for a in nodes for b in nodes)
    dense = of(Graph(nodes=nodes, edges=every, entries=("n0",)))
    ensure_sound(dense, layout(dense))
    steps = chain(200)
    more = tuple(Edge(source=f"n{n}", target=f"n{n + 3}") for n in range(0, 190, 7))
    large = of(Graph(nodes=steps.nodes, edges=(*steps.edges, *more), entries=("n0",)))
    ensure_sound(large, layout(large))


def test_the_same_graph_is_laid_out_the_same_way() -> None:
    assert layout(view(RELEASE)) == layout(view(RELEASE))


def test_a_node_is_below_all_that_lead_to_it() -> None:
    shape = graph(RELEASE)
    depth = ranks(shape)
    for place, edge in enumerate(shape.edges):
        is_back = place in shape.back_edges
        assert (depth[edge.source] < depth[edge.target]) is not is_back
    assert depth["plan"] == 0


def test_what_errors_jump_to_stands_right_above_what_it_leads_to() -> None:
    depth = ranks(graph("a --> b --> c --> d\nh --> d", on_error="h"))
    assert depth == {"a": 0, "b": 1, "c": 2, "d": 3, "h": 2}


def test_passing_lines_are_counted() -> None:
    assert place_count(graph("a --> b --> c\na --> c")) == 3 + 4


def test_the_order_of_a_row_saves_crossings() -> None:
    # In text order every line would cross every other one.
    shape = graph("s --> a & b & c\na --> z\nb --> y\nc --> x\nx & y & z --> e")
    sizes = dict.fromkeys(shape.by_id, (5, 3))
    assert crossings(arranged(shape, sizes, len)) == 0


def test_a_chain_is_one_straight_line() -> None:
    found = layout(of(chain(9)))
    assert len({x for line in found.lines for x, _ in line.points}) == 1


def test_a_fork_stands_over_the_middle_of_its_branches() -> None:
    found = layout(view("a --> b & c & d\nb & c & d --> j"))
    middle = {box.node: box.x + box.width // 2 for box in found.boxes}
    assert middle["a"] == middle["c"] == middle["j"]
    assert middle["c"] - middle["b"] == middle["d"] - middle["c"]


def test_a_loop_goes_around_on_the_right() -> None:
    found = layout(view("a --> b --> c\nc -->|again| a\nc --> d"))
    loop = next(line for line in found.lines if line.is_loop)
    right = max(box.x + box.width for box in found.boxes)
    assert max(x for x, _ in loop.points) >= right
    assert loop.label is not None
    assert loop.label.text == "↺ again"
    # It goes up.
    assert loop.points[-1][1] < loop.points[0][1]


def test_the_inner_loop_is_inside_the_outer_one() -> None:
    found = layout(view("p --> h{{R}}\nh -->|ok| e((End))\nh -->|no| p\nh -->|more| p"))
    inner, outer = (line for line in found.lines if line.is_loop)
    assert max(x for x, _ in inner.points) < max(x for x, _ in outer.points)
    assert not set(cells(inner.points)) & set(cells(outer.points)), "they cross"


@given(st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 9)), min_size=1, max_size=12))
def test_what_is_spread_keeps_its_distances(wanted: list[tuple[float, int]]) -> None:
    apart = [distance for _, distance in wanted[1:]]
    found = spread([value for value, _ in wanted], apart)
    assert all(b - a >= least for (a, b), least in zip(pairwise(found), apart, strict=True))
    if len(wanted) == 1:
        assert found == [round(wanted[0][0])]


def test_what_weighs_more_moves_less() -> None:
    assert spread([10, 10], [4], [100, 1]) == [10, 14]
    assert spread([10, 10], [4], [1, 100]) == [6, 10]


@given(st.lists(st.one_of(st.none(), st.integers(-20, 40)), max_size=7))
def test_ports_are_inside_the_border_and_apart(wanted: list[int | None]) -> None:
    width = 2 * max(1, len(wanted)) + 1
    lines = [Port(place, column, place) for place, column in enumerate(wanted)]
    found = sorted(ports(10, width, lines).values())
    assert len(found) == len(wanted)
    assert all(b - a >= 2 for a, b in pairwise(found))
    assert all(10 - width // 2 < column < 10 + width // 2 for column in found)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9, unique=True),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_no_two_turns_of_a_channel_touch(starts: list[int], chance: object) -> None:
    ends = list(starts)
    chance.shuffle(ends)  # type: ignore[attr-defined]
    channel, straight = Channel(), set()
    for line, (start, end) in enumerate(zip(starts, ends, strict=True)):
        channel.add(line, start, end, comes="above", goes="below")
        straight |= {start} if start == end else set()
    height = channel.settle(straight)
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


def test_two_lines_that_change_places() -> None:
    channel = Channel()
    channel.add(0, 2, 8, comes="above", goes="below")
    channel.add(1, 8, 2, comes="above", goes="below")
    channel.settle(set())
    # Neither can be above the other as a whole: one of them turns twice.
    assert len(channel.turns) == 3


def test_words_say_what_a_drawing_takes_up() -> None:
    words = Words({"a": (4, 3), "b": (9, 5)}, str, str, len, label_rows=2, head_rows=3)
    found = laid_out(graph("a -->|next| b"), words)
    boxes = {box.node: box for box in found.boxes}
    # Odd, so that there is a middle.
    assert (boxes["a"].width, boxes["b"].width) == (5, 9)
    assert boxes["b"].y == 3 + 2 + 3
