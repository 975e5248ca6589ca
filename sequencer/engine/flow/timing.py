"""How long a graph's agents were at work, and when something is due."""

from __future__ import annotations

from datetime import datetime, timedelta

from sequencer.model.head import Head
from sequencer.model.net.marking import Active, Marking


def rests(active: Active) -> bool:
    """Return whether an execution waits for its next attempt."""
    return active.due is not None and active.since is None


def busy_ms(head: Head, marking: Marking, now: datetime) -> int:
    """Return how long agents have been at work until *now*, in milliseconds.

    While nobody holds a claim in *head*, only the waits for next attempts count, and no
    longer than they were to be.
    """
    if marking.busy_since is None:
        return marking.busy_ms
    until = now
    if not head.claims:
        dues = [one.due for one in marking.active.values() if one.due and rests(one)]
        until = min(now, datetime.fromisoformat(max(dues, default=marking.busy_since)))
    spent = (until - datetime.fromisoformat(marking.busy_since)).total_seconds()
    return marking.busy_ms + max(round(spent * 1000), 0)


def later(now: datetime, milliseconds: int) -> str:
    """Return the moment *milliseconds* after *now*, as heads have it."""
    due = now + timedelta(milliseconds=milliseconds)
    return due.isoformat(timespec="milliseconds").replace("+00:00", "Z")
