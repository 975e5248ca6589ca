"""``schedules:`` in orchestration.yaml: the dates at which a run starts by itself.

Dates follow cron, in the machine's local time. When the clock changes, a date at a fixed hour
comes exactly once: if its hour is skipped, right after the change; if its hour comes twice, the
first time. A date of every hour (``*``) follows real time: it comes in both of the repeated hours,
and not in a skipped hour. Debian's cron does the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import AfterValidator, Field
from sequencer.model.step import Name

_FIELDS = 5
_MINUTE_S = 60
_SHIFT_S = 3 * 60 * 60
"""Longer than any clock change."""


def _ensure_cron(value: str) -> str:
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - few projects have schedules

    if len(value.split()) != _FIELDS:
        raise ValueError("is not 'MINUTE HOUR DAY MONTH WEEKDAY', such as \"0 2 * * *\"")
    try:
        next(CronSim(value, datetime(2027, 1, 1)))  # noqa: DTZ001 - cron's dates have no zone
    except (CronSimError, StopIteration) as error:
        reason = str(error) or "it never comes"
        raise ValueError(
            f'is not a cron schedule: {reason}; "0 2 * * *" is 2:00 each day'
        ) from None
    return value


class Schedule(Frozen):
    """One of ``schedules:``; its name is the name of its run."""

    workflow: Name
    """The workflow of the run."""
    at: Annotated[str, Field(max_length=200), AfterValidator(_ensure_cron)]
    """The five fields of cron: minute, hour, day, month, weekday."""

    def find_last_date(self, now: float) -> float:
        """Return the newest date up to *now*; both in seconds since 1970."""
        newest_date = next(
            date for date in self._iterate_dates(now, is_reverse=True) if date <= now
        )
        return max(date for date in self._list_nearby_dates(newest_date) if date <= now)

    def find_next_date(self, now: float) -> float:
        """Return the first date after *now*."""
        first_date = next(date for date in self._iterate_dates(now, is_reverse=False) if date > now)
        return min(date for date in self._list_nearby_dates(first_date) if date > now)

    def _list_nearby_dates(self, date: float) -> Iterator[float]:
        """Yield *date*, and near a clock change also later dates, which may be out of order."""
        yield date
        if _has_clock_change_near(date):
            for nearby_date in self._iterate_dates(date, is_reverse=False):
                if nearby_date > date + _SHIFT_S:
                    return
                yield nearby_date

    def _iterate_dates(self, now: float, *, is_reverse: bool) -> Iterator[float]:
        """Yield dates from *now*, forward or in reverse, in the order of local clock times.

        It starts a little earlier than *now*, and near a clock change on the other side of it.
        """
        from cronsim import CronSim  # noqa: PLC0415 - see above

        # CronSim leaves out the date at which it starts, so start earlier.
        margin_s = _SHIFT_S if _has_clock_change_near(now) else _MINUTE_S
        now += margin_s if is_reverse else -margin_s
        # `fold` marks the second of two repeated hours; each date is checked with both values.
        start = datetime.fromtimestamp(now).replace(fold=0)  # noqa: DTZ006 - local
        is_of_every_hour = self.at.split()[1].startswith("*")
        for date in CronSim(self.at, start, reverse=is_reverse):
            # Without a zone, the system applies the machine's zone rules of that day.
            first_time, second_time = date.timestamp(), date.replace(fold=1).timestamp()
            if not is_of_every_hour or first_time == second_time:
                yield first_time
            elif first_time < second_time:  # otherwise this local time is skipped
                yield from (second_time, first_time) if is_reverse else (first_time, second_time)


def _has_clock_change_near(date: float) -> bool:
    """Return whether the local clock changes in the hours around *date*."""
    start_time, end_time = time.localtime(date - _SHIFT_S), time.localtime(date + _SHIFT_S)
    return start_time.tm_gmtoff != end_time.tm_gmtoff
