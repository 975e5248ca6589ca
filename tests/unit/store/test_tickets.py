"""Numbers that are locks of bytes: nobody is passed, and nobody's rubbish holds up anybody."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.store.queue import FlockQueue, TicketQueue, new_queue
from tests.concurrency import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs locks of open files")


class Place:
    """A queue with the descriptor that each of its questions needs."""

    def __init__(self, path: Path, queue: TicketQueue | None = None) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.queue = TicketQueue() if queue is None else queue

    def ask(self) -> bool:
        return self.queue.join(self.fd)

    def stand(self) -> threading.Thread:
        thread = threading.Thread(target=self.queue.wait, args=(self.fd,), daemon=True)
        thread.start()
        return thread

    def is_awaited(self) -> bool:
        return TicketQueue().is_awaited(self.fd)

    def give_back(self) -> None:
        self.queue.leave(self.fd)


class Places:
    """Those at one file, until the test ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[Place] = []

    def __call__(self, queue: TicketQueue | None = None) -> Place:
        self.made.append(Place(self.path, queue))
        return self.made[-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Places]:
    places = Places(tmp_path / "queue.lock")
    yield places
    for one in places.made:
        one.give_back()
        os.close(one.fd)


def test_a_new_number_is_above_all_numbers_in_use(place: Places) -> None:
    one, two, three, four = (place() for _ in range(4))
    assert one.ask()
    assert not two.ask()
    assert not three.ask()
    one.give_back()
    two.give_back()
    # The free numbers below are not given again: whoever had them would be before the third.
    assert not four.ask()
    three.give_back()
    four.give_back()
    assert not four.is_awaited()
    assert one.ask()


def test_a_waiting_process_is_first_once_all_before_it_have_left(place: Places) -> None:
    first, second, third, last = (place() for _ in range(4))
    for one in (first, second, third, last):
        one.ask()
    thread = last.stand()
    for one in (third, first):
        one.give_back()
        thread.join(0.05)
        assert thread.is_alive()
    second.give_back()
    thread.join(5)
    assert not thread.is_alive()
    assert first.is_awaited()


def test_a_process_slow_to_take_its_number_comes_after_faster_ones(
    place: Places,
) -> None:
    """Otherwise the process that was faster and the slow one below it would both be first."""
    before, after = place(), place()

    class Slow(TicketQueue):
        has_looked = False

        def _next_free(self, fd: int, ticket: int) -> int:
            free = super()._next_free(fd, ticket)
            if not self.has_looked:
                self.has_looked = True
                assert before.ask()
                assert not after.ask()
                before.give_back()
            return free

    slow = place(Slow())
    assert not slow.ask()
    thread = slow.stand()
    thread.join(0.05)
    assert thread.is_alive()
    after.give_back()
    thread.join(5)
    assert not thread.is_alive()


def test_the_content_of_the_file_does_not_matter_and_stays(tmp_path: Path, place: Places) -> None:
    rubbish = b"\xff\x00 9999999999\n" * 1000
    (tmp_path / "queue.lock").write_bytes(rubbish)
    one, two = place(), place()
    assert one.ask()
    assert not two.ask()
    assert (tmp_path / "queue.lock").read_bytes() == rubbish
    os.truncate(tmp_path / "queue.lock", 0)
    assert two.is_awaited()


@pytest.mark.parametrize("start", [0, 1, 5, 2**62])
def test_a_foreign_lock_to_the_end_of_the_file_is_an_error(place: Places, start: int) -> None:
    """There is no number above it; who queues takes an error for being the first."""
    foreign, one = place(), place()
    fcntl.fcntl(foreign.fd, fcntl.F_OFD_SETLK, lock_of(start, 0))
    with pytest.raises(OSError, match="too large"):
        one.ask()
    with pytest.raises(OSError, match="too large"):
        one.queue.is_awaited(one.fd)


def test_a_foreign_lock_on_some_bytes_only_means_waiting(place: Places) -> None:
    foreign, one, two = place(), place(), place()
    fcntl.fcntl(foreign.fd, fcntl.F_OFD_SETLK, lock_of(0, 100))
    assert not one.ask()
    assert not two.ask()
    thread = one.stand()
    foreign.give_back()
    thread.join(5)
    assert not thread.is_alive()


def lock_of(start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)


def serve(path: Path, rounds: int) -> None:
    """Come to the front *rounds* times."""
    one = Place(path)
    for _ in range(rounds):
        if not one.ask():
            one.queue.wait(one.fd)
        # Fails if somebody is at the front already.
        os.close(os.open(path.with_name("front"), os.O_CREAT | os.O_EXCL))
        path.with_name("front").unlink()
        children.append(path.with_name("served"), str(os.getpid()))
        one.give_back()


def test_only_one_of_many_processes_is_at_the_front(tmp_path: Path) -> None:
    path = tmp_path / "queue.lock"
    pids = [children.start(lambda: serve(path, 200), tmp_path / "errors") for _ in range(8)]
    left, deadline = set(pids), time.monotonic() + 60
    try:
        while left and time.monotonic() < deadline:
            left -= children.ended(left)
            time.sleep(0.01)
    finally:
        children.end(left)
    assert children.wrong(tmp_path / "errors") == ()
    assert len(children.pairs(tmp_path / "served")) == 8 * 200


def test_a_number_of_a_killed_process_is_free(tmp_path: Path, place: Places) -> None:
    read_fd, write_fd = os.pipe()

    def hold() -> None:
        Place(place.path).ask()
        os.write(write_fd, b"x")
        time.sleep(60)

    child = children.start(hold, tmp_path / "errors")
    os.read(read_fd, 1)
    mine = place()
    try:
        assert mine.is_awaited()
        assert not mine.ask()
        thread = mine.stand()
    finally:
        children.end([child])
        os.close(read_fd)
        os.close(write_fd)
    thread.join(5)
    assert not thread.is_alive()


def test_a_system_without_open_file_locks_queues_with_flock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(new_queue(), TicketQueue)
    with monkeypatch.context() as changed:
        changed.delattr(fcntl, "F_OFD_SETLK")
        assert isinstance(new_queue(), FlockQueue)
    with monkeypatch.context() as changed:
        changed.setattr(sys, "platform", "darwin")
        assert isinstance(new_queue(), FlockQueue)
