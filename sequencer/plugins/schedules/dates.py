"""``schedules:`` in orchestration.yaml: at which dates a run starts by itself.

Dates are those of cron, in the machine's local time. In the hour that a clock change skips, a
date comes when the clock has moved on; in the hour that comes twice, only the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from sequencer.model.fields import AfterValidator, Field
from sequencer.model.frozen import Frozen
from sequencer.model.step import Name

_FIELDS = 5
_SHIFT_S = 3 * 60 * 60
"""More than any clock change takes back."""


def _is_cron(value: str) -> str:
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
    """One of ``schedules:``; its name is that of its run."""

    workflow: Name
    """What the run works on."""
    at: Annotated[str, Field(max_length=200), AfterValidator(_is_cron)]
    """Five fields of cron: minute, hour, day, month, weekday."""

    def last(self, now: float) -> float:
        """Return the newest date up to *now*; both in seconds since 1970."""
        return next(date for date in self._from(now + _SHIFT_S, is_reverse=True) if date <= now)

    def next(self, now: float) -> float:
        """Return the first date after *now*."""
        return next(date for date in self._from(now, is_reverse=False) if date > now)

    def _from(self, now: float, *, is_reverse: bool) -> Iterator[float]:
        """Yield dates from *now* on, in the order of the clock on the wall.

        In an hour that comes twice, that is not the order of time.
        """
        from cronsim import CronSim  # noqa: PLC0415 - see above

        start = datetime.fromtimestamp(now)  # noqa: DTZ006 - local
        # Without a zone: what it is on this machine that day is the system's to say.
        return (date.timestamp() for date in CronSim(self.at, start, reverse=is_reverse))
