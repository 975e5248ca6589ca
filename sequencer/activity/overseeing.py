"""A graph run's board that posts as well: each node that runs is heard on its own.

Several agents run at once, so what one says must not be taken for another's. A team's tasks
are named with all that they say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sequencer.activity.gist import Gist
from sequencer.engine.attempt import Attempt, Observer
from sequencer.engine.flow.boards import Board
from sequencer.executors.protocol import Kind
from sequencer.model.head import Head
from sequencer.model.net.graph import Graph, Node
from sequencer.model.outcome import Outcome, Usage


class Desk(Protocol):
    """Who posts what is heard."""

    def hear(self, attempt: Attempt) -> Gist | None:
        """Return where to put what *attempt* says; None: nobody wants thoughts."""

    def forget(self, attempt: Attempt) -> None:
        """Take that *attempt* says no more."""

    def know(self, node: Node) -> None:
        """Take what *node* is, for what is told of it."""

    def look(self) -> None:
        """Take that the journal may have gone on."""

    def wake(self) -> None:
        """Take that somebody has said something."""


def subject_of(node: Node) -> str:
    """Return what the task at *node* is about, and whose it is."""
    role = node.task.role if node.task is not None else None
    return f"{node.label or node.id} ({role})" if role else node.label or node.id


class OverseenBoard:
    """The `Board` of who shows the run, with *desk* told of everything too."""

    def __init__(
        self, desk: Desk, board: Board, graph: Graph, node_of: Callable[[str], Node | None]
    ) -> None:
        """Show on *board* the run of *graph*; *node_of* knows what was added under way as well."""
        self._desk = desk
        self._board = board
        self._node_of = node_of
        for node in graph.nodes:
            desk.know(node)

    def changed(self, head: Head) -> None:
        """See `Board`."""
        self._board.changed(head)
        self._desk.look()

    def observer(self, node: str) -> Observer:
        """See `Board`."""
        found = self._node_of(node)
        if found is not None:
            self._desk.know(found)
        return _NodeHearing(self._board.observer(node), self._desk, found)


class _NodeHearing:
    """What one node says, for who shows it and for *desk*."""

    def __init__(self, shown: Observer, desk: Desk, node: Node | None) -> None:
        self._shown, self._desk, self._node = shown, desk, node
        self._gist: Gist | None = None

    def started(self, attempt: Attempt, log: Path) -> None:
        self._shown.started(attempt, log)
        step = attempt.step
        if step.suppress_thoughts or step.single_turn:
            return
        self._gist = self._desk.hear(attempt)
        if self._gist is None:
            return
        is_task = self._node is not None and self._node.task is not None
        self._gist.begin(
            step.name,
            attempt.step_index,
            attempt.attempt,
            # Several talk at once, and not every sink shows who does.
            prefix=f"{step.name}: ",
            subject=subject_of(self._node) if is_task and self._node is not None else None,
        )
        self._desk.wake()

    def write(self, data: bytes, kind: Kind) -> None:
        self._shown.write(data, kind)
        if self._gist is not None and self._gist.write(data, kind):
            self._desk.wake()

    def used(self, usage: Usage) -> None:
        self._shown.used(usage)

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        if self._gist is not None:
            self._gist.end()
            self._desk.forget(attempt)
        self._shown.ended(attempt, outcome)

    def notice(self, text: str) -> None:
        self._shown.notice(text)

    def waiting(self, reason: str, until: str | None) -> None:
        self._shown.waiting(reason, until)
