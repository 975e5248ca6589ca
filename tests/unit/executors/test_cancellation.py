"""The flag that ends a step: for who looks, who waits, and who polls a descriptor."""

from __future__ import annotations

import select

from sequencer.executors.protocol import Cancellation, StopReason


def is_readable(cancellation: Cancellation) -> bool:
    return bool(select.select([cancellation], [], [], 0)[0])


def test_a_descriptor_that_is_asked_for_later_is_readable_too() -> None:
    cancellation = Cancellation()
    cancellation.set(StopReason.CLAIM_LOST)
    assert is_readable(cancellation)
    cancellation.close()
