"""Who shows a graph run to people while this process works on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sequencer.engine.attempt import Observer
from sequencer.model.head import Head


class Board(Protocol):
    """Shows a graph run to people while this process works on it."""

    def changed(self, head: Head) -> None:
        """Take that the run is at *head* now."""

    def observer(self, node: str) -> Observer:
        """Return who hears of the attempt at *node*."""


@dataclass(frozen=True, slots=True)
class PlainBoard:
    """Shows nothing but what one observer shows; lines of several nodes may alternate."""

    seen_by: Observer

    def changed(self, head: Head) -> None:
        """Ignore it."""

    def observer(self, node: str) -> Observer:
        """Return the one observer."""
        del node
        return self.seen_by
