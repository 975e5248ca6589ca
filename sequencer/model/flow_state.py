"""The state of a graph's run as plain data: maps in maps, with dots in the keys that lead down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def copied(value: Any) -> Any:
    """Return *value* with maps and lists of its own."""
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def put(state: dict[str, Any], key: str, value: Any) -> None:
    """Put *value* into *state* at *key*; maps on the way are made, and other things replaced.

    >>> state = {"review": None}
    >>> put(state, "review.style", "fine")
    >>> state
    {'review': {'style': 'fine'}}
    """
    *above, last = key.split(".")
    here = state
    for part in above:
        if not isinstance(here.get(part), dict):
            here[part] = {}
        here = here[part]
    here[last] = value
