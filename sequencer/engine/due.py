"""When a step that was not accepted is to be tried again by itself.

The dates are for the head and for a sleeping process; both compare them with the wall
clock of the machine that looks.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sequencer.engine.standing import parse_time
from sequencer.model.outcome import Outcome
from sequencer.model.step import Step

DEFAULT_PAUSE_S = 300.0
"""Wait after a usage limit whose reset the client did not tell."""
SHORTEST_PAUSE_S = 5.0
"""Wait after a usage limit whose reset is over already, by this machine's clock."""


def limit_end(outcome: Outcome, now: datetime) -> str:
    """Return when to ask again after a usage limit.

    A client may tell no date, one that can't be read, or one that is over; asking again
    at once would go on for ever.
    """
    told = parse_time(outcome.not_before) if outcome.not_before else None
    if told is None:
        return iso(now + timedelta(seconds=DEFAULT_PAUSE_S))
    return iso(max(told, now + timedelta(seconds=SHORTEST_PAUSE_S)))


def retry_at(step: Step, failures: int, now: datetime) -> str | None:
    """Return when *step* is due again after *failures* in a row; None if no try is left."""
    retry = step.retry
    if retry is None or failures >= retry.max_attempts:
        return None
    return iso(now + timedelta(seconds=retry.delay_s(failures)))


def iso(due: datetime) -> str:
    """Return *due* as heads have it: ISO 8601, UTC, milliseconds."""
    in_utc = due.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
