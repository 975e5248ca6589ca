"""The wall clock, for people; nothing that decides about a claim may look at it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def utc_now() -> str:
    """Return the time as state.json, journal and logs have it."""
    return _written(int(time.time()))


def utc_milliseconds() -> str:
    """Return the time as the record of an attempt has it, which says when it began.

    >>> len(utc_milliseconds())
    24
    """
    now = time.time()
    return f"{_written(int(now))[:-1]}.{int(now * 1000) % 1000:03d}Z"


@lru_cache(maxsize=1)
def _written(second: int) -> str:
    """Return a time as text; a step asks for the same one again and again."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
