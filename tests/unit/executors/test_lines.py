from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sequencer.executors.pump import LineSplitter


class Taken:
    def __init__(self, cap: int = 1000) -> None:
        self.lines: list[bytes] = []
        self.raw: list[bytes] = []
        self.splitter = LineSplitter(self.lines.append, self.raw.append, cap)

    def feed(self, *pieces: bytes) -> Taken:
        for piece in pieces:
            self.splitter.feed(piece)
        self.splitter.finish()
        return self


def test_a_line_above_the_cap_is_given_raw_and_the_next_is_a_line_again() -> None:
    taken = Taken(cap=4).feed(b"ok\n12", b"345", b"6789", b"\nok again"[:3], b"ay\nfine")
    assert taken.lines == [b"ok", b"okay", b"fine"]
    assert b"".join(taken.raw) == b"123456789\n"


def test_an_endless_line_is_not_kept() -> None:
    taken = Taken(cap=10)
    for _ in range(100):
        taken.splitter.feed(b"x" * 10)
        assert len(taken.splitter._kept) <= 10
    assert len(b"".join(taken.raw)) >= 990


@given(st.lists(st.binary(max_size=12)), st.integers(min_value=1, max_value=8))
def test_no_byte_is_lost_or_doubled(pieces: list[bytes], cap: int) -> None:
    order: list[bytes] = []
    splitter = LineSplitter(lambda line: order.append(line + b"\n"), order.append, cap)
    for piece in pieces:
        splitter.feed(piece)
    splitter.finish()
    assert b"".join(order).rstrip(b"\n") == b"".join(pieces).rstrip(b"\n")
