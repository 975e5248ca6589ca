"""Attempts at once: threads, their ends in order, and a descriptor that wakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.engine.attempt import Prepared
from sequencer.engine.attempts import Attempts, Running
from sequencer.engine.heartbeat import Heartbeat
from sequencer.errors import Interrupted, MachineBusy, StorageFailed
from sequencer.executors.protocol import StopReason
from sequencer.model.head import Claim
from sequencer.model.step import Step
from sequencer.model.transitions import Place
from sequencer.store.memory import MemoryStore
from sequencer.store.watch import readable
from tests.unit.engine.flow.labs import Actor, until


@pytest.fixture
def attempts() -> Iterator[Attempts]:
    store = MemoryStore(ttl_s=1.0)
    heartbeat = Heartbeat(store)
    made = Attempts(heartbeat)
    yield made
    made.cancel(StopReason.INTERRUPTED)
    while made.running:
        if made.next_ended() is None:
            made.wait()
    made.close()
    heartbeat.close()
    store.close()


def running(token: int) -> Running:
    step = Step(name=f"n{token}")
    prepared = Prepared(step, step.name, Place(0, step.name, ""), "actor", Actor(), "")
    owner = MemoryStore().owner()
    claim = Claim(
        token=token,
        step=step.name,
        step_index=0,
        attempt=1,
        owner=owner,
        claimed_at="2026-01-02T03:04:05Z",
        ttl_s=60.0,
    )
    return Running(claim, prepared, "run")


def test_they_end_in_the_order_in_which_they_end(attempts: Attempts) -> None:
    doors = {token: threading.Event() for token in (1, 2, 3)}

    def wait_there(one: Running) -> None:
        doors[one.claim.token].wait(5)

    for token in doors:
        attempts.start(running(token), wait_there)
    order = []
    for token in (2, 3, 1):
        doors[token].set()
        until(lambda: readable((attempts.fileno(),), 0))
        attempts.drain()
        ended = attempts.next_ended()
        assert ended is not None
        order.append(ended.claim.token)
    assert order == [2, 3, 1]
    assert attempts.running == {}
    assert attempts.next_ended() is None


def test_who_has_ended_and_was_not_taken_still_counts_as_running(attempts: Attempts) -> None:
    attempts.start(running(1), lambda _: None)
    until(lambda: readable((attempts.fileno(),), 0))
    assert list(attempts.running) == [1]
    assert attempts.next_ended() is not None
    assert attempts.running == {}


def test_an_exception_is_kept_and_the_rest_goes_on(attempts: Attempts) -> None:
    def perform(one: Running) -> None:
        if one.claim.token == 1:
            raise SystemExit(3)

    attempts.start(running(1), perform)
    attempts.start(running(2), perform)
    found = {}
    while attempts.running:
        ended = attempts.next_ended()
        if ended is None:
            attempts.wait()
            continue
        found[ended.claim.token] = ended.error
    assert isinstance(found[1], SystemExit)
    assert found[2] is None


@pytest.mark.parametrize(
    ("error", "expect"),
    [
        (None, False),
        (ValueError("a bug"), False),
        (StorageFailed("full"), True),
        (Interrupted("end"), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_which_errors_end_the_work(error: BaseException | None, expect: bool) -> None:
    one = running(1)
    one.error = error
    assert one.ends_the_work is expect


def test_a_cancel_reaches_those_that_are_meant(attempts: Attempts) -> None:
    def perform(one: Running) -> None:
        one.cancellation.wait(5)

    for token in (1, 2):
        attempts.start(running(token), perform)
    attempts.cancel(StopReason.CLAIM_LOST, but=frozenset({2}))
    until(lambda: readable((attempts.fileno(),), 0))
    ended = attempts.next_ended()
    assert ended is not None
    assert (ended.claim.token, ended.cancellation.reason) == (1, StopReason.CLAIM_LOST)
    assert list(attempts.running) == [2]
    assert not attempts.running[2].cancellation.is_set()


def test_a_wake_ends_a_wait(attempts: Attempts) -> None:
    before = time.monotonic()
    threading.Timer(0.05, attempts.wake).start()
    attempts.wait()
    assert 0.02 < time.monotonic() - before < 0.9
    assert not readable((attempts.fileno(),), 0)


def test_an_attempt_that_gets_no_thread_has_ended_and_the_next_one_is_made(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        attempts.start(running(1), wait_a_little)
    ended = attempts.next_ended()
    assert ended is not None
    assert isinstance(ended.busy, MachineBusy)
    assert not ended.ends_the_work
    attempts.start(running(2), wait_a_little)
    until(lambda: readable((attempts.fileno(),), 0))
    following = attempts.next_ended()
    while following is None:
        attempts.wait()
        following = attempts.next_ended()
    assert (following.claim.token, following.error) == (2, None)


def test_many_wakes_do_not_block(attempts: Attempts) -> None:
    for _ in range(70_000):
        attempts.wake()
    attempts.drain()
    assert not readable((attempts.fileno(),), 0)


def wait_a_little(one: Running) -> None:
    one.cancellation.wait(0.001)


def test_nothing_is_left_open() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    store = MemoryStore()
    heartbeat = Heartbeat(store)
    made = Attempts(heartbeat)
    for token in range(20):
        made.start(running(token), wait_a_little)
    while made.running:
        if made.next_ended() is None:
            made.wait()
    made.close()
    heartbeat.close()
    store.close()
    assert set(Path("/proc/self/fd").iterdir()) <= before
    assert not [one for one in threading.enumerate() if one.name.startswith("attempt-")]
    # Whoever wakes too late wakes nobody, and no file that has the number by then.
    made.wake()


def test_threads_are_used_again_and_are_as_many_as_attempts_at_once(attempts: Attempts) -> None:
    used: set[str] = set()
    for token in range(1, 41, 2):
        for one in (token, token + 1):
            attempts.start(running(one), lambda _: used.add(threading.current_thread().name))
        while attempts.running:
            if attempts.next_ended() is None:
                attempts.wait()
    assert used <= {"attempt-0", "attempt-1"}
    living = [one.name for one in threading.enumerate() if one.name.startswith("attempt-")]
    assert sorted(living) == ["attempt-0", "attempt-1"]


def test_an_attempt_finds_a_thread_while_all_others_are_busy(attempts: Attempts) -> None:
    everybody = threading.Barrier(5, timeout=10)

    def meet(_: Running) -> None:
        everybody.wait()

    for token in range(1, 6):
        attempts.start(running(token), meet)
    ended = []
    while attempts.running:
        if (one := attempts.next_ended()) is None:
            attempts.wait()
        else:
            ended.append(one.error)
    assert ended == [None] * 5
