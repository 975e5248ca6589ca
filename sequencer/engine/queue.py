"""Decides which of the processes that wait for the same steps goes first.

Not promised: that a suspended process keeps its place. After a while, others pass it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from sequencer.model.head import Claim, Head
from sequencer.store.protocol import Store
from sequencer.store.queue import WaitQueue

YIELD_S = 5.0
"""How long a ready step is reserved for the processes that have waited longer. Under load, waking
up and claiming can take a second."""
RECHECK_S = 5.0
"""How often a process that is not first checks the run, to report news and to end in time."""
PASSES_S = 20.0
"""After passing others that did not claim in time, how long a process yields to no one."""


class Queue:
    """One process's place among the processes that wait for the same steps."""

    def __init__(
        self, store: Store, positions: Collection[str], position_at: Callable[[int], str]
    ) -> None:
        """Queue at *positions*; *position_at* returns the position of a step_index."""
        self._store = store
        self._position_at = position_at
        self._positions = frozenset(positions)
        self._own = store.wait_queue(positions)
        self._others: dict[str, list[WaitQueue]] = {}
        """Position -> queues of processes that work at other sets of positions."""
        self._is_queued = False
        self._left_to_others: int | None = None
        """The step that this process could have claimed when it recorded the previous step."""
        self._passes_until, self._is_passing = 0.0, False
        self._seen, self._seen_at = 0, 0.0

    def needs_to_yield(self, step_index: int) -> bool:
        """Return whether this process must leave the step to another one that waits for it."""
        if time.monotonic() < self._passes_until:
            return False
        position = self._position_at(step_index)
        if position not in self._others:
            # Processes that work at every position, and at this one alone.
            sets = {frozenset[str](), frozenset((position,))} - {self._positions}
            self._others[position] = [self._store.wait_queue(names) for names in sets]
        is_wanted = self._own.is_awaited() or any(
            wait_queue.is_awaited() for wait_queue in self._others[position]
        )
        self._left_to_others = step_index if is_wanted else None
        return is_wanted

    def may_claim(self, head: Head) -> bool:
        """Return whether this process may claim the step of *head*, which is ready."""
        now, self._is_passing = time.monotonic(), False
        if now < self._passes_until:
            return True
        if head.step_index != self._left_to_others and self._is_first():
            return True
        if head.revision != self._seen:
            self._seen, self._seen_at = head.revision, now
        if now - self._seen_at < YIELD_S:
            return False
        # A suspended process must not hold up the run.
        self._is_passing = True
        return True

    def _is_first(self) -> bool:
        return self.enter() if self._is_queued else not self._own.is_awaited()

    def enter(self) -> bool:
        """Join the queue, or stay in it; return whether no process has waited longer."""
        self._is_queued = True
        return self._own.enter()

    def wait(
        self, head: Head, timeout_s: float | None, wake_fd: int, claim: Claim | None = None
    ) -> bool:
        """Sleep until this process has to look at the run; return whether *head* is outdated.

        The arguments are the same as for `Store.wait`.
        """
        is_ready = head.revision == self._seen
        pause = YIELD_S if is_ready else RECHECK_S
        limit = pause if timeout_s is None else min(timeout_s, pause)
        if not self.enter():
            self._own.wait(limit, wake_fd)
        elif not is_ready:
            return self._store.wait(head.revision, timeout_s, wake_fd=wake_fd, claim=claim)
        elif head.step_index == self._left_to_others:
            return self._store.wait(head.revision, limit, wake_fd=wake_fd)
        newest_head = self._store.view().head
        return newest_head is None or newest_head.revision != head.revision

    def leave(self) -> None:
        """Leave the queue, after a claim or at the end of the work."""
        if self._is_passing:
            self._passes_until, self._is_passing = time.monotonic() + PASSES_S, False
        self._own.leave()
        self._is_queued, self._left_to_others = False, None
