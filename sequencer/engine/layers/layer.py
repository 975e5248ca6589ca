"""The protocol of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sequencer.engine.attempt import Attempt
from sequencer.engine.performing import Performer

Next = Callable[[Attempt], None]
"""Calls the layers inside."""


class Layer(Protocol):
    """One part of performing an attempt."""

    def __call__(self, performer: Performer, attempt: Attempt, /, proceed: Next) -> None:
        """Do the layer's part for *attempt*; *proceed* calls the layers inside of it."""
