"""The order in which the worktrees of tasks are merged."""

from __future__ import annotations

from typing import NamedTuple

from sequencer.model.head import Claim
from sequencer.model.net.graph import Graph


class Crowd(NamedTuple):
    """Who works on a run at one moment; one value, because threads look at it."""

    live: tuple[Claim, ...] = ()
    """Claims whose holders may be alive."""
    is_waited_for: bool = False
    """Some task could begin if there were a place for it."""


class MergeTurn:
    """The turn of one task's result."""

    def __init__(self, graph: Graph, name: str, *, is_strict: bool) -> None:
        """Let *name* wait for tasks that stand before it in the list.

        Not *is_strict*: only where that costs no time, because whatever waits for *name*
        waits for the other one, too.
        """
        self._graph = graph
        self._place = graph.order[name]
        self._is_strict = is_strict
        self._followers = {graph.edges[place].target for place in graph.outgoing[name]}
        self._below: dict[str, frozenset[str]] = {}

    def is_held_by(self, crowd: Crowd) -> bool:
        """Return whether somebody of *crowd* has to merge first."""
        if crowd.is_waited_for and not self._is_strict:
            # While it waits, this one keeps a place that another task could have.
            return False
        return any(self._holds(claim.step) for claim in crowd.live)

    def _holds(self, name: str) -> bool:
        graph = self._graph
        # What was added since this one began stands behind it.
        task = graph.by_id[name].task if name in graph.by_id else None
        if task is None or not task.worktree or graph.order[name] >= self._place:
            return False
        return self._is_strict or self._followers <= self._behind(name)

    def _behind(self, name: str) -> frozenset[str]:
        """Return the tasks that wait for *name*, directly or not."""
        if name not in self._below:
            seen, pending = set[str](), [name]
            while pending:
                for target in self._graph.forward[pending.pop()]:
                    if target not in seen:
                        seen.add(target)
                        pending.append(target)
            self._below[name] = frozenset(seen)
        return self._below[name]
