from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.cli.views.layers import GAP, Port, Rows, arranged, middles, ports, spread
from tests.unit.cli.flow.views import RELEASE, graph


def room(text: str) -> tuple[int, int]:
    return len(text), 1


def rows_of(chart: str, width: int = 7) -> Rows:
    shape = graph(chart)
    return arranged(shape, dict.fromkeys(shape.by_id, (width, 3)), room)


@given(st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 9)), min_size=1, max_size=12))
def test_what_is_spread_keeps_its_distances(wanted: list[tuple[float, int]]) -> None:
    apart = [distance for _, distance in wanted[1:]]
    found = spread([value for value, _ in wanted], apart)
    assert all(b - a >= least for (a, b), least in zip(pairwise(found), apart, strict=True))
    if len(wanted) == 1:
        assert found == [round(wanted[0][0])]


@given(st.lists(st.one_of(st.none(), st.integers(-20, 40)), max_size=7))
def test_ports_are_inside_the_border_and_apart(wanted: list[int | None]) -> None:
    width = 2 * max(1, len(wanted)) + 1
    lines = [Port(place, column, place) for place, column in enumerate(wanted)]
    found = sorted(ports(10, width, lines).values())
    assert len(found) == len(wanted)
    assert all(b - a >= 2 for a, b in pairwise(found))
    assert all(10 - width // 2 < column < 10 + width // 2 for column in found)


@pytest.mark.parametrize("chart", [RELEASE, "a --> b & c & d --> e\na --> e", "a --> b --> c"])
def test_neighbours_of_a_row_keep_their_distance(chart: str) -> None:
    found = rows_of(chart)
    column = middles(found)
    assert min(column[n] - item.width // 2 for n, item in enumerate(found.items)) == 0
    for row in found.rows:
        for left, right in pairwise(row):
            inner = found.items[left], found.items[right]
            blank = column[right] - column[left] - 1 - sum(item.width // 2 for item in inner)
            are_boxes = all(item.node is not None for item in inner)
            assert blank >= (GAP if are_boxes else 1)
