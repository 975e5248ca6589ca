"""The order in which the worktrees of tasks are merged."""

from __future__ import annotations

import time
from typing import NamedTuple

from sequencer.executors.cancellation import Cancellation
from sequencer.model.graph.graph import Graph
from sequencer.model.head import Claim

TURN_POLL_S = 0.05
"""How often a result looks whether it may be merged; what it looks at is in memory."""


class ActiveClaims(NamedTuple):
    """Who works on a run at one moment; one value, because threads look at it."""

    live: tuple[Claim, ...] = ()
    """Claims whose holders may be alive."""
    is_waited_for: bool = False
    """Some task could begin if there were a place for it."""


class MergeQueue:
    """The results of one process that wait to be merged."""

    def __init__(self, *, is_strict: bool) -> None:
        """Let a task wait for those that stand before it in the list.

        Not *is_strict*: only where that costs no time, because whatever waits for it waits for
        the other one, too.
        """
        self.is_strict = is_strict
        self.active_claims = ActiveClaims()
        """Of the newest head; the worker keeps it up to date."""


class MergeTurn:
    """The turn of one task's result."""

    def __init__(self, queue: MergeQueue, graph: Graph, name: str) -> None:
        """Let *name*, a task of *graph*, wait in *queue*."""
        self._queue = queue
        self._graph = graph
        self._place = graph.order[name]
        self._is_strict = queue.is_strict
        self._followers = {graph.edges[place].target for place in graph.outgoing[name]}
        self._below: dict[str, frozenset[str]] = {}

    def wait(self, stop: Cancellation) -> None:
        """Wait until the results of tasks that stand before this one are merged.

        Only those count that run now in work trees of their own: what begins later begins
        with this one's work. An attempt that is to *stop* is done, and paid for: it does not
        wait any longer.
        """
        while not stop.is_set() and self.is_held_by(self._queue.active_claims):
            time.sleep(TURN_POLL_S)

    def is_held_by(self, active_claims: ActiveClaims) -> bool:
        """Return whether somebody of *active_claims* has to merge first."""
        if active_claims.is_waited_for and not self._is_strict:
            # While it waits, this one keeps a place that another task could have.
            return False
        return any(self._holds(claim.step) for claim in active_claims.live)

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
