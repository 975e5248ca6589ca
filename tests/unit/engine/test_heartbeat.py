"""The thread that keeps a lease alive: what it writes, when it gives up, what it leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.heartbeat import Heartbeat
from sequencer.errors import CorruptState, MachineBusy
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.model.head import Claim
from sequencer.store.file import FileStore
from sequencer.store.protocol import Store
from tests.contract import store_cases as cases
from tests.played import PlayedRun, PlayedStore

TTL_S = 0.3
LONG_S = 1.5
"""A lease where it matters what comes before its end: a busy machine wakes nobody in time."""


@pytest.fixture
def cancellation() -> Iterator[Cancellation]:
    made = Cancellation()
    yield made
    made.close()


def held(store: Store) -> Claim:
    cases.begin(store)
    return cases.claim(store)


def beats_in_time(folder: Path) -> bool:
    """Return whether the first beat comes before the lease, a long one, has run out."""
    began = time.monotonic()
    while not (folder / "beats/1").exists():
        if time.monotonic() - began >= LONG_S:
            return False
        time.sleep(0.005)
    return True


def test_a_shorter_lease_wakes_the_thread_earlier(
    tmp_path: Path, cancellation: Cancellation
) -> None:
    store = FileStore(tmp_path / "state.json", ttl_s=LONG_S)
    claim, heartbeat = held(store), Heartbeat(store)
    heartbeat.begin(claim.replace(ttl_s=600.0), cancellation)
    time.sleep(0.05)
    heartbeat.begin(claim, cancellation)
    assert beats_in_time(tmp_path)
    heartbeat.close()


def test_a_lost_claim_is_noticed(cancellation: Cancellation) -> None:
    run = PlayedRun()
    store, heartbeat = PlayedStore(run, ttl_s=TTL_S), Heartbeat(PlayedStore(run))
    claim = held(store)
    heartbeat.begin(claim, cancellation)
    cases.release(store, claim.token)
    assert cancellation.wait(2)
    assert cancellation.reason is StopReason.CLAIM_LOST
    # The thread goes on to the next claim.
    following, other = cases.claim(store), Cancellation()
    heartbeat.begin(following, other)
    cases.release(store, following.token)
    assert other.wait(2)
    heartbeat.close()
    other.close()


class Failing(PlayedStore):
    """Fails where it is told to."""

    can_beat = True
    can_read = True

    def beat(self, claim: Claim, number: int) -> None:
        if not self.can_beat:
            raise OSError(28, "No space left on device")
        super().beat(claim, number)

    def view(self) -> Any:
        if not self.can_read:
            raise CorruptState("half written")
        return super().view()


def test_beats_that_cannot_be_written_stop_the_step_before_the_lease_ends(
    cancellation: Cancellation,
) -> None:
    store = Failing(ttl_s=LONG_S)
    claim, heartbeat = held(store), Heartbeat(store)
    store.can_beat = False
    started = time.monotonic()
    heartbeat.begin(claim, cancellation)
    assert cancellation.wait(10)
    assert 0.7 * LONG_S < time.monotonic() - started < LONG_S
    assert cancellation.reason is StopReason.LEASE_LOST
    heartbeat.close()


def test_an_unreadable_state_does_not_end_the_claim(
    cancellation: Cancellation,
) -> None:
    store = Failing(ttl_s=TTL_S)
    claim, heartbeat = held(store), Heartbeat(store)
    store.can_read = False
    heartbeat.begin(claim, cancellation)
    assert not cancellation.wait(3 * TTL_S)
    heartbeat.close()


class Hanging(PlayedStore):
    """Its beats go to a remote that does not answer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_asked, self.answers = threading.Event(), threading.Event()
        self.written: list[int] = []

    def beat(self, claim: Claim, number: int) -> None:
        self.is_asked.set()
        assert self.answers.wait(20)
        super().beat(claim, number)
        self.written.append(claim.token)


def ended_within(heartbeat: Heartbeat, claim: Claim) -> float:
    began = time.monotonic()
    heartbeat.end(claim)
    return time.monotonic() - began


def test_a_claim_ends_only_after_its_beat_is_written(
    cancellation: Cancellation,
) -> None:
    store = Hanging(ttl_s=TTL_S)
    claim, heartbeat = held(store), Heartbeat(store)
    heartbeat.begin(claim, cancellation)
    assert store.is_asked.wait(2)
    threading.Timer(0.2, store.answers.set).start()
    assert 0.1 < ended_within(heartbeat, claim) < 2
    assert store.written == [claim.token]
    time.sleep(TTL_S)
    assert store.written == [claim.token]
    heartbeat.close()


# --- behind the agent ----------------------------------------------------------------------------


class Pushing(PlayedStore):
    """A store that pushes what it is asked to record, as far as a heartbeat can tell."""

    def __init__(self) -> None:
        super().__init__(PlayedRun(), ttl_s=TTL_S)
        self.numbers: list[int] = []

    def report_waiting(self, notify: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        """Say nothing: it never waits."""

    def beat(self, claim: Claim, number: int) -> None:
        self.numbers.append(number)
        super().beat(claim, number)


def test_the_heartbeat_continues_while_the_end_is_pushed(cancellation: Cancellation) -> None:
    store = Pushing()
    claim, heartbeat = held(store), Heartbeat(store)
    heartbeat.begin(claim, cancellation)
    time.sleep(2 * TTL_S)
    heartbeat.end(claim)
    beaten = len(store.numbers)
    assert beaten > 1
    with heartbeat.keep_alive_while_pushing(claim):
        time.sleep(2 * TTL_S)
    assert len(store.numbers) > beaten + 1
    # Others see by the number that it was renewed.
    assert store.numbers == sorted(set(store.numbers))
    last = len(store.numbers)
    time.sleep(TTL_S)
    assert len(store.numbers) == last
    heartbeat.close()
    store.close()


def test_without_a_thread_nothing_starts_and_it_can_be_tried_again(
    tmp_path: Path, cancellation: Cancellation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = FileStore(tmp_path / "state.json", ttl_s=LONG_S)
    claim, heartbeat = held(store), Heartbeat(store)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(MachineBusy, match="threads"):
            heartbeat.begin(claim, cancellation)
    heartbeat.begin(claim, cancellation)
    assert beats_in_time(tmp_path)
    heartbeat.end(claim)
    heartbeat.close()
