from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sequencer.executors.pump import LineSplitter


@given(st.lists(st.binary(max_size=12)), st.integers(min_value=1, max_value=8))
def test_no_byte_is_lost_or_doubled(pieces: list[bytes], cap: int) -> None:
    order: list[bytes] = []
    splitter = LineSplitter(lambda line: order.append(line + b"\n"), order.append, cap)
    for piece in pieces:
        splitter.feed(piece)
    splitter.finish()
    assert b"".join(order).rstrip(b"\n") == b"".join(pieces).rstrip(b"\n")
