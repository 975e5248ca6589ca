"""The wall clock, for people; nothing that decides about a claim may look at it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return the time as state.json, journal and logs have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
