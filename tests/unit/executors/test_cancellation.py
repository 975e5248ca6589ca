"""The flag that ends a step: for who looks, who waits, and who polls a descriptor."""

from __future__ import annotations

import os
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from sequencer.executors.protocol import Cancellation, StopReason


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def is_readable(cancellation: Cancellation) -> bool:
    return bool(select.select([cancellation], [], [], 0)[0])


def test_a_descriptor_that_is_asked_for_later_is_readable_too() -> None:
    cancellation = Cancellation()
    cancellation.set(StopReason.CLAIM_LOST)
    assert is_readable(cancellation)
    cancellation.close()


def test_the_first_reason_stays() -> None:
    cancellation = Cancellation()
    assert not cancellation.is_set()
    assert not cancellation.wait(0)
    cancellation.set(StopReason.LEASE_LOST)
    cancellation.set(StopReason.INTERRUPTED)
    assert cancellation.reason is StopReason.LEASE_LOST
    assert cancellation.wait(0)
    cancellation.close()
    assert cancellation.reason is StopReason.LEASE_LOST


def test_without_a_reader_it_opens_no_descriptor() -> None:
    before = descriptors()
    cancellations = [Cancellation() for _ in range(20)]
    for cancellation in cancellations:
        cancellation.set(StopReason.INTERRUPTED)
        cancellation.close()
    assert descriptors() <= before


def test_closed_it_has_no_descriptor_and_can_still_be_set() -> None:
    cancellation = Cancellation()
    fd = cancellation.fileno()
    cancellation.close()
    cancellation.close()
    assert cancellation.fileno() == -1
    cancellation.set(StopReason.INTERRUPTED)
    assert cancellation.is_set()
    assert not os.path.lexists(f"/dev/fd/{fd}")


def test_a_signal_in_the_middle_of_everything_is_heard() -> None:
    """A handler may come while the pipe is made or waited for, in the very thread that does it."""
    cancellation = Cancellation()
    main = threading.get_ident()

    def handler(number: int, frame: FrameType | None) -> None:
        del number, frame
        cancellation.set(StopReason.INTERRUPTED)

    # Not SIGALRM, which ends a test that hangs.
    previous = signal.signal(signal.SIGUSR2, handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            for _ in range(500):
                cancellation = Cancellation()
                sent = pool.submit(signal.pthread_kill, main, signal.SIGUSR2)
                assert cancellation.wait(30)
                assert is_readable(cancellation)
                sent.result()
                cancellation.close()
    finally:
        signal.signal(signal.SIGUSR2, previous)


def test_threads_that_ask_for_the_descriptor_at_once_get_the_same() -> None:
    for _ in range(50):
        cancellation = Cancellation()
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(cancellation.fileno) for _ in range(4)]
        assert len({future.result() for future in found}) == 1
        cancellation.close()
