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
    channel.settle()
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
    channel = Channel()
    for line, (start, end) in enumerate(zip(starts, ends, strict=True)):
        channel.add(line, start, end, comes="above", goes="below")
    height = channel.settle()
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
