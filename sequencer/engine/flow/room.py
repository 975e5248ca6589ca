"""Which agents a process may claim in one transition of a graph run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sequencer.model.head import Head, Owner
from sequencer.model.net.marking import Marking


@dataclass(frozen=True, slots=True)
class Room:
    """Which agents a process may claim in one transition."""

    owner: Owner
    ttl_s: float
    boottime: float | None
    slots: int
    """How many."""
    gone: frozenset[int] = frozenset()
    """Tokens of claims that may be taken over."""
    max_attempts: int = 20
    """Claims of one execution, those included that ended with their process."""
    closed: Callable[[Head, Marking], Collection[str]] = lambda *_: ()
    """The agents' nodes that are not to be begun now."""
    share: Callable[[Head, Marking, str, int], Mapping[str, float]] = lambda *_: {}
    """What is held for an attempt at a node, by unit, where so many may begin now."""
