"""Whose result is merged first, of tasks that run at once in work trees of their own."""

from __future__ import annotations

from collections.abc import Iterable

from sequencer.model.graph import Graph
from sequencer.model.head import Claim


class Turn:
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

    def any_of(self, claims: Iterable[Claim], *, is_crowded: bool) -> bool:
        """Return whether the holder of one of *claims* has to merge first.

        *is_crowded*: some task waits for a place, and this one keeps one while it waits.
        """
        if is_crowded and not self._is_strict:
            return False
        return any(self._holds(claim.step) for claim in claims)

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
