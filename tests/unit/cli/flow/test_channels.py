from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.views.layout import Channel


def settled(*lines: tuple[int, int], loops: tuple[tuple[int, int], ...] = ()) -> Channel:
    """Return a channel with these lines from above, and what turns back up after them."""
    channel = Channel()
    for number, (start, end) in enumerate(lines):
        channel.add(number, start, end, comes="above", goes="below")
    for number, (start, end) in enumerate(loops, start=len(lines)):
        channel.add(number, start, end, comes="above", goes="above")
    channel.settle({start for start, end in lines if start == end})
    return channel


def tracks(channel: Channel) -> dict[int, int]:
    return {turn.line: turn.track for turn in channel.turns}


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9, unique=True),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200)
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


def test_a_straight_line_needs_no_track() -> None:
    channel = Channel()
    channel.add(0, 4, 4, comes="above", goes="below")
    assert channel.turns == []
    assert channel.settle({4}) == 0


def test_lines_that_have_nothing_to_do_with_each_other_share_a_track() -> None:
    assert set(tracks(settled((0, 3), (8, 5), (10, 14))).values()) == {0}


def test_one_that_ends_where_another_begins_is_below_it() -> None:
    found = tracks(settled((4, 9), (0, 4)))
    assert found[1] > found[0]


def test_nested_turns_do_not_cross() -> None:
    # To the left the leftmost is on top, to the right the rightmost.
    left = tracks(settled((10, 0), (12, 4), (14, 8)))
    assert left[0] < left[1] < left[2]
    right = tracks(settled((0, 10), (2, 12), (4, 14)))
    assert right[2] < right[1] < right[0]


def test_what_turns_back_is_next_to_its_box() -> None:
    found = tracks(settled((2, 12), loops=((6, 20),)))
    assert found[1] < found[0]


def test_the_inner_of_two_that_turn_back_is_nearer() -> None:
    found = tracks(settled(loops=((4, 30), (6, 20))))
    assert found[1] < found[0]
    above = Channel()
    above.add(0, 30, 4, comes="below", goes="below")
    above.add(1, 20, 6, comes="below", goes="below")
    above.settle(set())
    assert tracks(above)[0] < tracks(above)[1]


def test_a_ring_of_three() -> None:
    channel = settled((0, 4), (4, 8), (8, 0))
    assert len(channel.turns) == 4
    twice = [turn for turn in channel.turns if turn.line == 0]
    assert len(twice) == 2
    upper, lower = sorted(twice, key=lambda turn: turn.track)
    assert upper.end == lower.start
    # In a column that nobody else has.
    assert upper.end not in {0, 4, 8}


def test_two_rings_at_once() -> None:
    channel = settled((0, 4), (4, 0), (10, 14), (14, 10))
    assert len(channel.turns) == 6


def test_a_ring_beside_a_line_that_passes() -> None:
    channel = settled((0, 4), (4, 0), (2, 2))
    middle = {turn.end for turn in channel.turns} - {0, 4}
    assert 2 not in middle


def test_an_empty_channel_has_no_height() -> None:
    assert Channel().settle(set()) == 0
