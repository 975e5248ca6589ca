"""The width of a text on a terminal according to wcwidth, not to the program under test."""

from __future__ import annotations

from wcwidth import wcswidth


def count_columns(text: str) -> int:
    """Return how many columns *text* takes; it must not have control characters."""
    columns = wcswidth(text)
    assert columns >= 0, text
    return columns
