"""What the queue of every store promises."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from sequencer.store.file import FileStore
from sequencer.store.queue import FlockQueue, WaitQueue, queue_file_name

Peers = Callable[..., WaitQueue]
Come = Callable[[WaitQueue, int], None]
WITHOUT = "file of a system without locks of open files"


@pytest.fixture(params=["file", WITHOUT])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peers]:
    """A function that gives one more process's way into the queue of *positions*."""
    made = list[WaitQueue]()

    def make(*positions: str) -> WaitQueue:
        made.append(one_more(frozenset(positions)))
        return made[-1]

    def one_more(positions: frozenset[str]) -> WaitQueue:
        if request.param == "file":
            return FileStore(tmp_path / "state.json").wait_queue(positions)
        return WaitQueue(tmp_path / queue_file_name(positions), FlockQueue)

    yield make
    for wait_queue in made:
        wait_queue.leave()


@pytest.fixture
def come(request: pytest.FixtureRequest, tmp_path: Path) -> Come:
    """A function that lets somebody enter behind so many, and returns when its place is taken."""
    is_asked_on_a_thread = request.node.callspec.params["peer"] == WITHOUT

    def come(wait_queue: WaitQueue, before: int) -> None:
        wait_queue.enter()
        deadline = time.monotonic() + 60
        while is_asked_on_a_thread and asleep_at(tmp_path / queue_file_name(())) < before:
            assert time.monotonic() < deadline, "it does not ask"
            time.sleep(0.002)

    return come


def asleep_at(path: Path) -> int:
    """Return how many the kernel lets wait for the lock of *path*."""
    name = f":{path.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sum(1 for line in lines if "-> FLOCK" in line and name in line)


def test_the_first_process_in_the_queue_stays_first(peer: Peers, asleep: int) -> None:
    one, two = peer(), peer()
    assert not one.is_awaited()
    assert one.enter()
    assert two.is_awaited()
    assert not two.enter()
    assert one.enter()
    assert one.wait(10.0, asleep)
    assert not two.wait(0.05, asleep)


def test_the_queue_is_first_come_first_served(peer: Peers, come: Come, asleep: int) -> None:
    queue = [peer() for _ in range(5)]
    for number, wait_queue in enumerate(queue):
        come(wait_queue, number)
    for wait_queue, following in pairwise(queue):
        assert not following.enter()
        wait_queue.leave()
        assert following.wait(5.0, asleep)
    queue[-1].leave()
    assert not peer().is_awaited()


def test_a_process_that_leaves_the_middle_is_not_waited_for(
    peer: Peers, come: Come, asleep: int
) -> None:
    one, two, three = peer(), peer(), peer()
    for number, wait_queue in enumerate((one, two, three)):
        come(wait_queue, number)
    two.leave()
    assert not three.enter()
    one.leave()
    assert three.wait(5.0, asleep)


def test_a_process_that_comes_back_is_last(peer: Peers, come: Come, asleep: int) -> None:
    one, two = peer(), peer()
    come(one, 0)
    come(two, 1)
    one.leave()
    assert two.wait(5.0, asleep)
    assert not one.enter()
    two.leave()
    assert one.wait(5.0, asleep)


def test_leaving_is_harmless_at_any_time(peer: Peers, asleep: int) -> None:
    one, two = peer(), peer()
    one.leave()
    one.enter()
    two.enter()
    for _ in range(2):
        two.leave()
        one.leave()
    # A thread that stood there for the other one may hold the place until it notices.
    assert one.wait(5.0, asleep)


def test_each_position_has_its_own_queue(peer: Peers) -> None:
    queues = [peer(), peer("a"), peer("a", "b"), peer("\udcff/../x")]
    assert all(wait_queue.enter() for wait_queue in queues)
    assert peer("b", "a").is_awaited()
    assert not peer("b").is_awaited()


def test_waiting_ends_at_the_timeout_or_by_the_descriptor(peer: Peers, asleep: int) -> None:
    one, two = peer(), peer()
    one.enter()
    started = time.monotonic()
    assert not two.wait(0.2, asleep)
    assert 0.15 < time.monotonic() - started < 2
    read_fd, write_fd = os.pipe()
    timer = threading.Timer(0.1, os.write, (write_fd, b"x"))
    timer.start()
    started = time.monotonic()
    assert not two.wait(10.0, read_fd)
    assert time.monotonic() - started < 2
    timer.join()
    os.close(read_fd)
    os.close(write_fd)


def test_a_waiting_process_is_woken_when_its_turn_comes(peer: Peers, asleep: int) -> None:
    one, two = peer(), peer()
    one.enter()
    timer = threading.Timer(0.1, one.leave)
    started = time.monotonic()
    timer.start()
    assert two.wait(10.0, asleep)
    assert 0.05 < time.monotonic() - started < 1
    timer.join()
