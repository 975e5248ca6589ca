"""Changes of a store that is out of reach for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sequencer.engine import changes as module
from sequencer.engine.changes import RetryPolicy
from sequencer.engine.events import RunEvent, Waiting
from sequencer.errors import RemoteUnreachable, WorkTreeBusy
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.model import transitions
from sequencer.model.head import Head
from sequencer.model.transitions import Transition
from sequencer.store.protocol import Change
from tests.contract import store_cases as cases
from tests.played import PlayedStore


class Remote(PlayedStore):
    """A store that is away for so many calls, and may have done what it was asked for."""

    def __init__(self, away: int, *, is_denied: bool = False) -> None:
        super().__init__()
        self.retry_for_s = 60.0
        self.away, self.is_denied = away, is_denied
        self.asked: list[Change] = []
        self.notify: Callable[[str], None] = lambda _: None
        self.is_stopped: Callable[[], bool] = lambda: False

    def report_waiting(self, notify: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        self.notify, self.is_stopped = notify, is_stopped

    def update(self, change: Change) -> Head:
        self.asked.append(change)
        if len(self.asked) <= self.away:
            raise RemoteUnreachable("remote 'origin' can't be reached", is_denied=self.is_denied)
        return super().update(change)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    return []


def patient(store: Remote, told: list[str]) -> tuple[RetryPolicy, Cancellation]:
    def hear(event: RunEvent) -> None:
        assert isinstance(event, Waiting)
        told.append(event.reason)

    stop = Cancellation()
    return RetryPolicy(store, stop, hear), stop


def begin(head: Head | None) -> Transition | None:
    return None if head is not None else transitions.initialize(cases.new_head())


def test_denied_credentials_end_the_wait_before_a_step_but_not_after(told: list[str]) -> None:
    store = Remote(2, is_denied=True)
    waiting, stop = patient(store, told)
    with pytest.raises(RemoteUnreachable):
        waiting.update_before_step(begin)
    assert len(store.asked) == 1
    assert waiting.update_after_step(begin, 1.0).revision == 1
    stop.close()


def test_notices_from_a_store_are_passed_on(told: list[str]) -> None:
    store = Remote(0)
    _, stop = patient(store, told)
    store.notify("it is away")
    assert told == ["it is away"]
    stop.close()


def test_a_store_that_waits_by_itself_learns_of_a_stop(told: list[str]) -> None:
    store = Remote(0)
    waiting, stop = patient(store, told)
    assert waiting.update_before_step(begin).revision == 1
    assert not store.is_stopped()
    stop.set(StopReason.INTERRUPTED)
    assert store.is_stopped()
    store.notify("the remote is slow")
    assert told == ["the remote is slow"]
    stop.close()


# --- a work tree in which others work ------------------------------------------------------------


def busy_until(free_at: int) -> Callable[[], int]:
    calls = iter(range(10**6))

    def act() -> int:
        number = next(calls)
        if number < free_at:
            raise WorkTreeBusy(
                f"agents of process {number // 2} are still working in this work tree"
            )
        return number

    return act


def test_a_busy_work_tree_is_waited_for_and_each_holder_reported_once(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_PAUSE_S", 0.01)
    waiting, stop = patient(Remote(0), told)
    # Also where a remote would not be waited for.
    waiting.wait_s = 0.0
    assert waiting.retry(busy_until(4)) == 4
    assert told == [
        *(f"agents of process {number} are still working in this work tree" for number in (0, 1)),
        "the work tree is free",
    ]
    stop.close()


def test_the_wait_for_a_busy_work_tree_ends_in_time_or_at_a_stop(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "BUSY_S", 0.2)
    waiting, stop = patient(Remote(0), told)
    waiting.wait_s = 0.0
    began = time.monotonic()
    with pytest.raises(WorkTreeBusy):
        waiting.retry(busy_until(10**6))
    assert 0.15 <= time.monotonic() - began < 5
    waiting.wait_s = 60.0
    stop.set(StopReason.INTERRUPTED)
    with pytest.raises(WorkTreeBusy):
        waiting.retry(busy_until(10**6))
    stop.close()
