"""How long a graph's agents were at work, and when something is due."""

from __future__ import annotations

from datetime import datetime, timedelta

from sequencer.model.marking import Marking


def busy_ms(marking: Marking, now: datetime, lease_s: float = 0.0) -> int:
    """Return how long agents have been at work until *now*, in milliseconds.

    A process that was taken over with a lease of *lease_s* worked no longer than that, for
    all that is known.
    """
    if marking.busy_since is None:
        return marking.busy_ms
    spent = (now - datetime.fromisoformat(marking.busy_since)).total_seconds()
    if lease_s:
        spent = min(spent, lease_s)
    return marking.busy_ms + max(round(spent * 1000), 0)


def later(now: datetime, milliseconds: int) -> str:
    """Return the moment *milliseconds* after *now*, as heads have it."""
    due = now + timedelta(milliseconds=milliseconds)
    return due.isoformat(timespec="milliseconds").replace("+00:00", "Z")
