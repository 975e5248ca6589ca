"""The dates of a schedule, also in the nights in which a clock is changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

import pytest

from sequencer.plugins.schedules.dates import Schedule


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_clock_changes() -> None:
    def at(text: str) -> float:
        return datetime.fromisoformat(text).timestamp()

    nightly = Schedule(workflow="two", at="30 2 * * *")
    # 2027-03-28 has no 2:30.
    assert nightly.find_next_date(at("2027-03-28T00:00+01:00")) == at("2027-03-28T03:30+02:00")
    assert nightly.find_next_date(at("2027-03-28T03:31+02:00")) == at("2027-03-29T02:30+02:00")
    # 2027-10-31 has two.
    first, second = at("2027-10-31T02:30+02:00"), at("2027-10-31T02:30+01:00")
    assert nightly.find_next_date(at("2027-10-31T00:00+02:00")) == first
    assert nightly.find_last_date(second + 60) == first
    assert nightly.find_last_date(at("2027-11-01T02:30+01:00")) == at("2027-11-01T02:30+01:00")


CHANGES = (
    ("Europe/Berlin", "2027-03-27T21:00Z", 60),
    ("Europe/Berlin", "2027-10-30T21:00Z", -60),
    ("America/New_York", "2027-03-14T03:00Z", 60),
    ("America/New_York", "2027-11-07T02:00Z", -60),
    ("America/St_Johns", "2027-03-14T02:00Z", 60),
    ("America/St_Johns", "2027-11-07T01:00Z", -60),
    ("Australia/Lord_Howe", "2027-10-02T12:00Z", 30),
    ("Australia/Lord_Howe", "2027-04-03T11:00Z", -30),
    ("Pacific/Chatham", "2027-09-25T10:00Z", 60),
    ("Pacific/Chatham", "2027-04-03T10:00Z", -60),
    ("Antarctica/Troll", "2027-03-27T21:00Z", 120),
    ("Antarctica/Troll", "2027-10-30T21:00Z", -120),
)
"""Zones, an hour before the night of a change, and by how many minutes the clock is moved on."""
WINDOW_S = 9 * 60 * 60


@pytest.fixture(params=CHANGES, ids=lambda change: f"{change[0]} {change[2]}")
def change(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[float, int]]:
    zone, begin, minutes = request.param
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    start = datetime.fromisoformat(begin).timestamp()
    moved = time.localtime(start + WINDOW_S).tm_gmtoff - time.localtime(start).tm_gmtoff
    assert moved == 60 * minutes, "this machine knows another change"
    yield start, minutes
    monkeypatch.undo()
    time.tzset()


def starts(at: str, begin: float) -> list[float]:
    """Return the dates at which a tick every ten minutes starts a run, as the tick decides."""
    schedule, known, found = Schedule(workflow="two", at=at), begin, []
    for now in (begin + tick + 1 for tick in range(0, WINDOW_S, 600)):
        newest = schedule.find_last_date(now)
        assert newest <= now < schedule.find_next_date(now)
        assert schedule.find_last_date(schedule.find_next_date(now)) == schedule.find_next_date(now)
        if known < newest:
            found.append(newest)
            known = now
    assert found == sorted(set(found))
    return found


def shown(dates: list[float]) -> list[str]:
    return [time.strftime("%H:%M", time.localtime(date)) for date in dates]


@pytest.mark.slow(sample=2)
def test_a_date_at_fixed_hours_starts_a_run_once(change: tuple[float, int]) -> None:
    begin, _ = change
    for minute in (0, 20):
        for hour in (1, 2):
            assert len(starts(f"{minute} {hour} * * *", begin)) == 1
    # On Lord Howe 2:10 is at 2:40 when half an hour is skipped, which is after 2:30.
    assert len(starts("10,30 2 * * *", begin)) == 2


@pytest.mark.slow(sample=2)
def test_hourly_dates_follow_elapsed_time(change: tuple[float, int]) -> None:
    begin, minutes = change
    # Each half hour on the wall: the clock moves by whole ones.
    dates = starts("*/30 * * * *", begin)
    assert {after - before for before, after in pairwise(dates)} == {1800.0}
    # What is on the wall twice comes twice, and what is never there does not come.
    every = Counter(shown(starts("*/10 * * * *", begin)))
    assert set(every.values()) == ({1} if minutes > 0 else {1, 2})
    assert sum(count - 1 for count in every.values()) == max(-minutes, 0) // 10
    assert {date[3:] for date in shown(starts("10 * * * *", begin))} == {"10"}
