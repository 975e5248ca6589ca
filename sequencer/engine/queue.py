"""Who comes first of the processes that wait for the same steps.

Not promised: that a process that is stopped keeps its place; after a while others pass it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from sequencer.model.head import Claim, Head
from sequencer.store.protocol import Store
from sequencer.store.queue import WaitQueue

PATIENCE_S = 5.0
"""How long a step that could be begun is left to those who have waited longer; on a machine
under load, waking up and claiming can take a second."""
RECHECK_S = 5.0
"""How often who is not the first looks at the run, to say what is new and to end in time."""
PASSES_S = 20.0
"""For how long whoever had to pass others, because they did not come, gives way to nobody."""


class Queue:
    """One process's place among those that wait for the same steps."""

    def __init__(
        self, store: Store, positions: Collection[str], position_at: Callable[[int], str]
    ) -> None:
        """Queue with those that work at *positions*; *position_at* names a step's position."""
        self._store = store
        self._position_at = position_at
        self._positions = frozenset(positions)
        self._own = store.wait_queue(positions)
        self._others: dict[str, list[WaitQueue]] = {}
        self._is_queued = False
        self._left_to_others: int | None = None
        """The step that this process could have claimed with the acceptance of its own."""
        self._passes_until, self._is_passing = 0.0, False
        self._seen, self._seen_at = 0, 0.0

    def yields(self, step_index: int) -> bool:
        """Return whether this process leaves the step to somebody who waits for it."""
        if time.monotonic() < self._passes_until:
            return False
        position = self._position_at(step_index)
        if position not in self._others:
            # Those of every position, and those of this one alone.
            sets = {frozenset[str](), frozenset((position,))} - {self._positions}
            self._others[position] = [self._store.wait_queue(names) for names in sets]
        is_wanted = self._own.is_awaited() or any(
            wait_queue.is_awaited() for wait_queue in self._others[position]
        )
        self._left_to_others = step_index if is_wanted else None
        return is_wanted

    def may_claim(self, head: Head) -> bool:
        """Return whether the step of *head*, which could be begun, is this process's to claim."""
        now, self._is_passing = time.monotonic(), False
        if now < self._passes_until:
            return True
        if head.step_index != self._left_to_others and self._is_first():
            return True
        if head.revision != self._seen:
            self._seen, self._seen_at = head.revision, now
        if now - self._seen_at < PATIENCE_S:
            return False
        # A stopped process must not hold up the run.
        self._is_passing = True
        return True

    def _is_first(self) -> bool:
        return self.enter() if self._is_queued else not self._own.is_awaited()

    def enter(self) -> bool:
        """Be in the queue from now on; return whether nobody has waited longer."""
        self._is_queued = True
        return self._own.enter()

    def wait(
        self, head: Head, timeout_s: float | None, wake_fd: int, claim: Claim | None = None
    ) -> bool:
        """Sleep until this process has to look at the run; return whether *head* is old.

        The arguments are those of `Store.wait`.
        """
        is_ready = head.revision == self._seen
        pause = PATIENCE_S if is_ready else RECHECK_S
        limit = pause if timeout_s is None else min(timeout_s, pause)
        if not self.enter():
            self._own.wait(limit, wake_fd)
        elif not is_ready:
            return self._store.wait(head.revision, timeout_s, wake_fd=wake_fd, claim=claim)
        elif head.step_index == self._left_to_others:
            return self._store.wait(head.revision, limit, wake_fd=wake_fd)
        newest = self._store.view().head
        return newest is None or newest.revision != head.revision

    def leave(self) -> None:
        """Give the place back, with the claim in hand or at the end of the work."""
        if self._is_passing:
            self._passes_until, self._is_passing = time.monotonic() + PASSES_S, False
        self._own.leave()
        self._is_queued, self._left_to_others = False, None
