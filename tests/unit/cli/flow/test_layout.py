from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.views.diagram import Drawn, Texts
from sequencer.cli.views.layers import arranged, crossings, ranks
from sequencer.cli.views.layout import WAYS, EdgeLine, Layout, laid_out
from sequencer.engine.view import FlowView
from tests.unit.cli.flow.views import RELEASE, cells, flows, graph, of, view, views


def layout(shown: FlowView, direction: str = "TB") -> Layout:
    words = Texts(shown, 18, Drawn(None), is_ascii=False).words()
    return laid_out(shown.graph, words, direction)


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


@given(views(), st.sampled_from(sorted(WAYS)))
@settings(max_examples=150)
def test_nothing_is_over_anything_else_in_any_graph(shown: FlowView, direction: str) -> None:
    ensure_sound(shown, layout(shown, direction))


@pytest.mark.parametrize("name", list(flows()))
def test_the_flows_with_known_traces(name: str) -> None:
    shown = of(flows()[name])
    found = layout(shown)
    ensure_sound(shown, found)
    assert found.width <= 60


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


def test_the_order_of_a_row_saves_crossings() -> None:
    # In text order every line would cross every other one.
    shape = graph("s --> a & b & c\na --> z\nb --> y\nc --> x\nx & y & z --> e")
    sizes = dict.fromkeys(shape.by_id, (5, 3))
    assert crossings(arranged(shape, sizes, lambda text: (len(text), 1))) == 0


def test_the_inner_loop_is_inside_the_outer_one() -> None:
    found = layout(view("p --> h{{R}}\nh -->|ok| e((End))\nh -->|no| p\nh -->|more| p"))
    inner, outer = (line for line in found.lines if line.is_loop)
    assert max(x for x, _ in inner.points) < max(x for x, _ in outer.points)
    assert not set(cells(inner.points)) & set(cells(outer.points)), "they cross"
