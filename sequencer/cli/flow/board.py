"""A run of a graph as people watch it: a table that is redrawn, plain lines, or nothing.

A board is told everything from several threads and holds none of them up. A terminal that
is slow, closed or gone never fails a step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import IO, Protocol

from sequencer.cli.flow.live_board import LiveBoard
from sequencer.cli.flow.plain_board import PlainBoard
from sequencer.cli.flow.telling import Fact
from sequencer.engine.attempt import Observer, SilentObserver
from sequencer.engine.flow.view import FlowView
from sequencer.executors.redaction import Redaction


class Board(Protocol):
    """Where a graph run is shown while it runs."""

    def tell(self, facts: Sequence[Fact], view: FlowView) -> None:
        """Take what has happened since the last call, in order; *view* is shown next."""

    def show(self, view: FlowView) -> None:
        """Take how the run stands; called whenever that changed, in that order."""

    def take_up(self, view: FlowView) -> None:
        """Take how the run stood before this process works on it: nothing of that is news."""

    def observer(self, node_id: str) -> Observer:
        """Return who hears what the node of this id does."""

    def notice(self, text: str) -> None:
        """Take something that a person should know."""

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal to somebody who asks a person, as long as the context lasts."""

    def close(self) -> None:
        """Show how it ended, and leave the terminal as it was."""


def board(stream: IO[str] | None, *, is_quiet: bool, redaction: Redaction) -> Board:
    """Return the board that suits *stream*; *redaction* knows the project's secrets."""
    if is_quiet or stream is None:
        return QuietBoard()
    with contextlib.suppress(ValueError):
        if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            return LiveBoard(stream, redaction=redaction)
    return PlainBoard(stream, redaction=redaction)


class QuietBoard:
    """Shows nothing."""

    def tell(self, facts: Sequence[Fact], view: FlowView) -> None:
        """Ignore it."""

    def show(self, view: FlowView) -> None:
        """Ignore it."""

    def take_up(self, view: FlowView) -> None:
        """Ignore it."""

    def observer(self, node_id: str) -> Observer:  # noqa: ARG002 - the protocol's
        """Return somebody who ignores everything."""
        return SilentObserver()

    def notice(self, text: str) -> None:
        """Ignore it."""

    def paused(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is different."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Do nothing."""
