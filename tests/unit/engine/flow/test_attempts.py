"""Attempts at once: threads, their ends in order, and a descriptor that wakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sequencer.engine.attempt import Prepared, Running
from sequencer.engine.attempts import Attempts
from sequencer.engine.heartbeat import Heartbeat
from sequencer.errors import MachineBusy
from sequencer.executors.protocol import StopReason
from sequencer.model.head import Claim
from sequencer.model.step import Step
from sequencer.model.transitions import Place
from sequencer.store.watch import readable
from tests.contract.store_cases import new_head
from tests.played import PlayedStore
from tests.unit.engine.flow.labs import Actor, until


@pytest.fixture
def attempts() -> Iterator[Attempts]:
    store = PlayedStore(ttl_s=1.0)
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
    owner = PlayedStore().owner()
    claim = Claim(
        token=token,
        step=step.name,
        step_index=0,
        attempt=1,
        owner=owner,
        claimed_at="2026-01-02T03:04:05Z",
        ttl_s=60.0,
    )
    return Running(claim, prepared, new_head())


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


def wait_a_little(one: Running) -> None:
    one.cancellation.wait(0.001)
