"""The queue in a file: who is killed in it, what lies in its way, and what it leaves open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import pytest

from sequencer.store.queue import WaitQueue, queue_file_name
from sequencer.store.watch import wait_readable
from tests.concurrency import children


def wait_and_note(path: Path, name: str) -> None:
    """Queue at *path* and write down when it is this process's turn; then leave."""
    read_fd, _ = os.pipe()
    wait_queue = WaitQueue(path)
    wait_queue.enter()
    children.append(path.with_name("queued"), name)
    while not wait_queue.wait(5.0, read_fd):
        pass
    children.append(path.with_name("order"), name)
    wait_queue.leave()


def queue_of(path: Path, names: str) -> list[int]:
    pids = []
    for number, name in enumerate(names, 1):
        pids.append(children.start(partial(wait_and_note, path, name), path.with_name("errors")))
        while len(children.pairs(path.with_name("queued"))) < number:
            time.sleep(0.005)
        time.sleep(0.03)  # the note is written before the kernel has been asked
    return pids


def test_processes_are_served_in_order_and_the_killed_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / queue_file_name(())
    mine = WaitQueue(path)
    assert mine.enter()
    pids = queue_of(path, "abcdef")
    try:
        children.end([pids[0], pids[3]])
        mine.leave()
        deadline = time.monotonic() + 10
        while len(children.pairs(tmp_path / "order")) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        children.end(pids)
    assert children.wrong(tmp_path / "errors") == ()
    served = [name for (name,) in children.pairs(tmp_path / "order")]
    assert served == ["b", "c", "e", "f"]


def test_a_file_locked_as_a_whole_keeps_no_one_waiting(tmp_path: Path) -> None:
    path = tmp_path / queue_file_name(())
    read_fd, write_fd = os.pipe()

    def hold() -> None:
        with path.open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(write_fd, b"x")
            time.sleep(60)

    child = children.start(hold, tmp_path / "errors")
    one, two = WaitQueue(path), WaitQueue(path)
    try:
        os.read(read_fd, 1)
        assert not one.is_awaited()
        assert one.enter()
        assert two.enter()
    finally:
        children.end([child])
        one.leave()
        two.leave()
        os.close(read_fd)
        os.close(write_fd)


def a_link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def a_folder(path: Path) -> None:
    path.mkdir()


def no_folder(path: Path) -> None:
    path.parent.rmdir()


@pytest.mark.parametrize("obstacle", [a_link, a_folder, no_folder])
def test_without_a_file_every_process_is_first(
    tmp_path: Path, obstacle: Callable[[Path], None]
) -> None:
    path = tmp_path / "sync" / queue_file_name(())
    path.parent.mkdir()
    obstacle(path)
    one, two = WaitQueue(path), WaitQueue(path)
    assert one.enter()
    assert not two.is_awaited()
    assert two.enter()
    one.leave()
    two.leave()
    assert not path.with_name("elsewhere").exists()


def test_a_fifo_in_place_of_the_file_blocks_no_one(tmp_path: Path) -> None:
    path = tmp_path / queue_file_name(())
    os.mkfifo(path)
    started = time.monotonic()
    one = WaitQueue(path)
    assert one.enter()
    assert not WaitQueue(tmp_path / queue_file_name(["a"])).is_awaited()
    one.leave()
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("limit_s", [2_147_484, 1e10, 1e308])
def test_a_waker_ends_a_wait_of_any_length(tmp_path: Path, limit_s: float) -> None:
    path = tmp_path / queue_file_name(())
    first, second, (read_fd, write_fd) = WaitQueue(path), WaitQueue(path), os.pipe()
    os.write(write_fd, b"x")
    assert wait_readable((read_fd,), limit_s) == {read_fd}
    assert first.enter()
    assert not second.wait(limit_s, read_fd)
    first.leave()
    second.leave()
    os.close(read_fd)
    os.close(write_fd)


def test_a_deleted_file_keeps_no_one_waiting(tmp_path: Path) -> None:
    path = tmp_path / queue_file_name(())
    before, after = WaitQueue(path), WaitQueue(path)
    assert before.enter()
    path.unlink()
    assert not after.is_awaited()
    assert after.enter()
    before.leave()
    after.leave()


def test_a_process_that_can_start_no_thread_does_not_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (WaitQueue(tmp_path / queue_file_name(())) for _ in range(2))
    assert one.enter()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert two.enter()
    monkeypatch.undo()
    one.leave()
    assert not one.is_awaited()
    two.leave()


def until_no_thread_waits(but: Collection[threading.Thread]) -> None:
    deadline = time.monotonic() + 20
    while any(one.name == "wait-queue" for one in {*threading.enumerate()} - {*but}):
        assert time.monotonic() < deadline
        time.sleep(0.01)


OWN_FDS = Path("/proc/self/fd")


def opened_here(folder: Path) -> list[str]:
    """Return this process's pipes, and what it has open in *folder*."""
    links = []
    for fd in OWN_FDS.iterdir():
        with contextlib.suppress(OSError):
            links.append(str(fd.readlink()))
    return sorted(link for link in links if link.startswith(("pipe:", str(folder))))


@pytest.mark.skipif(not OWN_FDS.is_dir(), reason="needs /proc")
def test_nothing_stays_open(tmp_path: Path) -> None:
    # A run of another test that nobody closed may still have one.
    of_others = threading.enumerate()
    first = WaitQueue(tmp_path / queue_file_name(()))
    asleep, write_fd = os.pipe()
    # The folder stays open for the next time.
    assert first.wait(5.0, asleep)
    first.leave()
    before = opened_here(tmp_path)
    for _ in range(20):
        # Those of the round before give the lock back when they get it.
        assert first.wait(5.0, asleep)
        others = [WaitQueue(tmp_path / queue_file_name(())) for _ in range(3)]
        for other in others:
            assert not other.enter()
            assert other.is_awaited()
        for wait_queue in (*others, first):
            wait_queue.leave()
    until_no_thread_waits(of_others)
    assert Counter(opened_here(tmp_path)) <= Counter(before)
    os.close(asleep)
    os.close(write_fd)
