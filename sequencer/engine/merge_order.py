"""The order in which the worktrees of tasks are merged."""

from __future__ import annotations

import time

from msgspec import Struct

from sequencer.executors.cancellation import Cancellation
from sequencer.model.graph.graph import Graph
from sequencer.model.head import Claim

TURN_POLL_S = 0.05
"""How often a result checks whether it may be merged; the check reads only memory."""


class ActiveClaims(Struct, frozen=True):
    """The claims of a run at one moment; one value, because several threads read it."""

    live: tuple[Claim, ...] = ()
    """Claims whose holders may be alive."""
    is_waited_for: bool = False
    """Whether a task could start if one of them ended."""


class MergeQueue:
    """The results of one process that wait to be merged."""

    def __init__(self, *, is_strict: bool) -> None:
        """Let each task wait for the tasks before it in the list.

        Unless *is_strict*, a task waits for an earlier one only if all of its dependents depend
        on the earlier one too, so that waiting delays nothing.
        """
        self.is_strict = is_strict
        self.active_claims = ActiveClaims()
        """The claims of the newest head; the worker updates them."""


class MergeTurn:
    """The turn of one task's result."""

    def __init__(self, queue: MergeQueue, graph: Graph, name: str) -> None:
        """Let *name*, a task of *graph*, wait in *queue*."""
        self._queue = queue
        self._graph = graph
        self._place = graph.order[name]
        self._is_strict = queue.is_strict
        self._followers = {graph.edges[place].target for place in graph.outgoing[name]}
        self._dependents: dict[str, frozenset[str]] = {}

    def wait(self, stop: Cancellation) -> None:
        """Wait until the results of the tasks before this one in the list are merged.

        Only tasks that are running in their own worktrees count: a task that starts later starts
        with this one's work. *stop* ends the wait: the attempt is done, and paid for.
        """
        while not stop.is_set() and self.is_held_by(self._queue.active_claims):
            time.sleep(TURN_POLL_S)

    def is_held_by(self, active_claims: ActiveClaims) -> bool:
        """Return whether a task of *active_claims* has to be merged first."""
        if active_claims.is_waited_for and not self._is_strict:
            # While this task waits, it occupies a slot that another task could use.
            return False
        return any(self._is_ahead(claim.step) for claim in active_claims.live)

    def _is_ahead(self, name: str) -> bool:
        graph = self._graph
        # A task that was added after this one started comes after it in the list.
        task = graph.by_id[name].task if name in graph.by_id else None
        if task is None or not task.worktree or graph.order[name] >= self._place:
            return False
        return self._is_strict or self._followers <= self._find_dependents(name)

    def _find_dependents(self, name: str) -> frozenset[str]:
        """Return the tasks that wait for *name*, directly or indirectly."""
        if name not in self._dependents:
            seen_names, stack = set[str](), [name]
            while stack:
                for target in self._graph.forward[stack.pop()]:
                    if target not in seen_names:
                        seen_names.add(target)
                        stack.append(target)
            self._dependents[name] = frozenset(seen_names)
        return self._dependents[name]
