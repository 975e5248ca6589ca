"""How much room a text takes on a terminal, as wcwidth says it and not as the program does."""

from __future__ import annotations

from wcwidth import wcswidth


def room_of(text: str) -> int:
    """Return how many columns *text* takes; it must not have control characters."""
    found = wcswidth(text)
    assert found >= 0, text
    return found
