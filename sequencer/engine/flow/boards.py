"""Who shows a graph run to people while this process works on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sequencer.engine.attempt import Observer
from sequencer.model.head import Head
from sequencer.model.net.graph import Graph, Node


class Board(Protocol):
    """Shows a graph run to people while this process works on it."""

    def changed(self, head: Head) -> None:
        """Take that the run is at *head* now."""

    def observer(self, node: str) -> Observer:
        """Return who hears of the attempt at *node*."""


@runtime_checkable
class Overseer(Protocol):
    """An observer that wants to hear each node on its own."""

    def over(
        self, board: Board | None, graph: Graph, node_of: Callable[[str], Node | None]
    ) -> Board:
        """Return a board that shows on *board* and tells this observer too.

        None: what is shown goes where this observer shows it. *graph* is as the run began;
        *node_of* knows what was added too, for the thread that works on the run.
        """


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
