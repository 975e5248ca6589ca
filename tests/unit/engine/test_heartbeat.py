"""The thread that keeps a lease alive: what it writes, when it gives up, what it leaves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine import heartbeat as module
from sequencer.engine.heartbeat import Heartbeat
from sequencer.errors import CorruptState, MachineBusy
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model.head import Claim
from sequencer.model.transitions import Event, Fact, Transition
from sequencer.store.file import FileStore
from sequencer.store.protocol import Store
from tests.contract import store_cases as cases
from tests.memory_store import MemoryRun, MemoryStore

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


def test_it_beats_three_times_a_lease(tmp_path: Path, cancellation: Cancellation) -> None:
    store = FileStore(tmp_path / "state.json", ttl_s=TTL_S)
    claim, heartbeat = held(store), Heartbeat(store)
    heartbeat.begin(claim, cancellation)
    time.sleep(4 * TTL_S)
    beat = json.loads((tmp_path / "beats/1").read_text())
    assert 5 <= beat["beat"] <= 13
    assert not cancellation.is_set()
    heartbeat.end(claim)
    cases.commit(store, claim.token)
    time.sleep(TTL_S)
    assert list((tmp_path / "beats").iterdir()) == []
    heartbeat.close()


def test_a_long_step_after_many_short_ones_beats_in_time(
    tmp_path: Path, cancellation: Cancellation
) -> None:
    store = FileStore(tmp_path / "state.json", ttl_s=LONG_S)
    claim, heartbeat = held(store), Heartbeat(store)
    for _ in range(30):
        heartbeat.begin(claim, cancellation)
        heartbeat.end(claim)
        time.sleep(0.005)
    assert not (tmp_path / "beats").exists(), "a short step has no beat"
    heartbeat.begin(claim, cancellation)
    assert beats_in_time(tmp_path)
    heartbeat.close()


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


def test_a_claim_that_is_gone_is_heard_of(cancellation: Cancellation) -> None:
    run = MemoryRun()
    store, heartbeat = MemoryStore(run, ttl_s=TTL_S), Heartbeat(MemoryStore(run))
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


class Failing(MemoryStore):
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


def test_a_state_that_cannot_be_read_says_nothing_about_the_claim(
    cancellation: Cancellation,
) -> None:
    store = Failing(ttl_s=TTL_S)
    claim, heartbeat = held(store), Heartbeat(store)
    store.can_read = False
    heartbeat.begin(claim, cancellation)
    assert not cancellation.wait(3 * TTL_S)
    heartbeat.close()


def test_ending_and_beginning_at_once_never_mixes_claims() -> None:
    """A thousand turns; a late beat or a late cancellation would be of the wrong one."""
    store = MemoryStore(ttl_s=0.003)
    heartbeat = Heartbeat(store)
    cases.begin(store)
    for _ in range(300):
        claim, cancellation = cases.claim(store), Cancellation()
        heartbeat.begin(claim, cancellation)
        if claim.token % 3 == 0:
            time.sleep(0.002)
        heartbeat.end(claim)
        cases.commit(store, claim.token)
        assert not cancellation.is_set()
        cancellation.close()
    heartbeat.close()
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
    store.close()


def test_several_claims_are_kept_alive_at_once(tmp_path: Path, cancellation: Cancellation) -> None:
    store = FileStore(tmp_path / "state.json", ttl_s=TTL_S)
    first, heartbeat = held(store), Heartbeat(store)
    # Of a graph run one process may hold many; the store does not mind whose step it is.
    head = store.view().head
    assert head is not None
    second = first.replace(token=2, step="other")
    granted = head.replace(token=2, claims=(first, second))
    store.update(lambda _: Transition(granted, (Fact(Event.CLAIMED, "other", 0, 2, 1),)))
    other = Cancellation()
    heartbeat.begin(first, cancellation)
    time.sleep(TTL_S / 6)
    heartbeat.begin(second, other)
    time.sleep(2 * TTL_S)
    beats = {n: json.loads((tmp_path / f"beats/{n}").read_text())["beat"] for n in (1, 2)}
    assert all(3 <= number <= 8 for number in beats.values()), beats
    heartbeat.end(first)
    time.sleep(TTL_S)
    later = {n: json.loads((tmp_path / f"beats/{n}").read_text())["beat"] for n in (1, 2)}
    assert later[1] <= beats[1] + 1
    assert later[2] >= beats[2] + 2
    assert not cancellation.is_set()
    assert not other.is_set()
    heartbeat.close()
    other.close()


class Hanging(MemoryStore):
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


def test_a_beat_that_hangs_holds_nobody_up_for_long(
    cancellation: Cancellation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDING_S", 0.4)
    store = Hanging(ttl_s=TTL_S)
    claim, heartbeat = held(store), Heartbeat(store)
    heartbeat.begin(claim, cancellation)
    assert store.is_asked.wait(2)
    other = claim.replace(token=7)
    heartbeat.begin(other, cancellation)
    assert ended_within(heartbeat, other) < 0.3, "nothing is being written for that one"
    assert 0.3 < ended_within(heartbeat, claim) < 2
    began = time.monotonic()
    heartbeat.close()
    assert time.monotonic() - began < 2
    store.answers.set()


def test_a_claim_has_ended_when_its_beat_is_written(
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


def test_what_a_late_beat_finds_does_not_cancel_what_has_ended(
    cancellation: Cancellation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is gone because its step was accepted, while the thread still looked."""
    monkeypatch.setattr(module, "ENDING_S", 0.1)

    class Slow(MemoryStore):
        looks, goes_on = threading.Event(), threading.Event()

        def view(self) -> Any:
            if threading.current_thread().name == "heartbeat":
                self.looks.set()
                assert self.goes_on.wait(20)
            return super().view()

    store = Slow(ttl_s=TTL_S)
    claim, heartbeat = held(store), Heartbeat(store)
    heartbeat.begin(claim, cancellation)
    assert store.looks.wait(2)
    heartbeat.end(claim)
    cases.commit(store, claim.token)
    store.goes_on.set()
    heartbeat.close()
    time.sleep(0.1)
    assert not cancellation.is_set()


# --- behind the agent ----------------------------------------------------------------------------


class Pushing(MemoryStore):
    """A store that pushes what it is asked to record, as far as a heartbeat can tell."""

    def __init__(self) -> None:
        super().__init__(MemoryRun(), ttl_s=TTL_S)
        self.tell: object = print
        self.stopped: object = bool
        self.numbers: list[int] = []

    def beat(self, claim: Claim, number: int) -> None:
        self.numbers.append(number)
        super().beat(claim, number)


def test_it_goes_on_while_the_end_is_pushed(cancellation: Cancellation) -> None:
    store = Pushing()
    claim, heartbeat = held(store), Heartbeat(store)
    heartbeat.begin(claim, cancellation)
    time.sleep(2 * TTL_S)
    heartbeat.end(claim)
    beaten = len(store.numbers)
    assert beaten > 1
    with heartbeat.going_on(claim):
        time.sleep(2 * TTL_S)
    assert len(store.numbers) > beaten + 1
    # Others see by the number that it was renewed.
    assert store.numbers == sorted(set(store.numbers))
    last = len(store.numbers)
    time.sleep(TTL_S)
    assert len(store.numbers) == last
    heartbeat.close()
    store.close()


def test_without_a_thread_nothing_is_begun_and_it_can_be_tried_again(
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
