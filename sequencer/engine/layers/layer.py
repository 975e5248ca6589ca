"""What a layer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sequencer.engine.attempt import Attempt
from sequencer.engine.performing import Performer

Next = Callable[[Attempt], None]
"""Goes on with the layers inside."""


class Layer(Protocol):
    """One part of what happens to an attempt."""

    def __call__(self, performer: Performer, attempt: Attempt, /, proceed: Next) -> None:
        """Do the layer's part for *attempt*; *proceed* does what is inside of it."""
