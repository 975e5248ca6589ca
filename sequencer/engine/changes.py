"""Changes a run, and retries while its store can't be reached.

A remote that does not answer does not end the work. Giving up before a step loses nothing.
Giving up after a step would lose an agent's work, so this wait is longer. Each try asks for the
same change, so a store that does not know how the last try ended can find out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sequencer.engine.events import Emit, Waiting
from sequencer.errors import RemoteUnreachable, StaleClaim, WorkTreeBusy
from sequencer.executors.cancellation import Cancellation
from sequencer.history.facts import read_facts
from sequencer.model.head import MARKINGS, Head, Work
from sequencer.model.kind import Capacity, Kind, OpenChange
from sequencer.model.store_move import ensure_here
from sequencer.model.transitions import Transition
from sequencer.store.protocol import Change, ReportsWaiting, Store

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
AFTER_S = 1800.0
"""How long to wait for a remote that must take an agent's work."""
BUSY_S = 15.0
"""How long to wait for agents that are being ended: long enough for them to exit."""
BUSY_PAUSE_S = 0.5
T = TypeVar("T")


class RetryPolicy:
    """Updates one store for one process, with retries."""

    def __init__(self, store: Store, stop: Cancellation, emit: Emit) -> None:
        """Update *store*; *emit* gets the reason of a wait, and *stop* ends the wait."""
        self._store = store
        self._stop = stop
        self._emit = emit
        if isinstance(store, ReportsWaiting):
            store.report_waiting(lambda text: emit(Waiting(text)), stop.is_set)
        self.wait_s = store.retry_for_s
        """How long to retry if no work could be lost."""

    def update_before_step(self, change: Change) -> Head:
        """Make *change* before a step, when no work could be lost.

        Raises:
            RemoteUnreachable: the remote refused access, or it did not answer in time.
        """
        return self.retry(lambda: self._store.update(change))

    def update_after_step(self, change: Change, lease_s: float) -> Head:
        """Make *change* after a step whose claim is valid for *lease_s*.

        Raises: see `update_before_step`.
        """
        # A claim without heartbeats for that long may be taken over, but need not be.
        limit_s = max(self._store.retry_for_s, lease_s)
        return self._retry(lambda: self._store.update(change), limit_s, may_be_denied=True)

    def retry(self, act: Callable[[], T]) -> T:
        """Return the result of *act*; retry it while a remote or the work tree is not available.

        Raises: see `update_before_step`.
        """
        return self._retry(act, self.wait_s, may_be_denied=False)

    def retry_after_agent(self, act: Callable[[], T], stop: Cancellation) -> T:
        """Return the result of *act*, which saves an agent's work; retry it until *stop* is set.

        Raises: see `update_before_step`.
        """
        return self._retry(act, AFTER_S, may_be_denied=True, stop=stop)

    def _retry(
        self,
        act: Callable[[], T],
        wait_s: float,
        *,
        may_be_denied: bool,
        stop: Cancellation | None = None,
    ) -> T:
        stop = stop or self._stop
        start, pause = time.monotonic(), FIRST_PAUSE_S
        end_message: str | None = None
        last_message: str | None = None
        while True:
            try:
                result = act()
            except RemoteUnreachable as error:
                left_s = start + wait_s - time.monotonic()
                if left_s <= 0 or stop.is_set() or (error.is_denied and not may_be_denied):
                    raise
                nap = min(left_s, pause * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
                self._emit(Waiting(f"{error.message}; next try in {nap:.0f} s"))
                end_message, pause = "the remote is back", min(2 * pause, LONGEST_PAUSE_S)
                stop.wait(nap)
            except WorkTreeBusy as busy_error:
                left_s = start + max(wait_s, BUSY_S) - time.monotonic()
                if left_s <= 0 or stop.is_set():
                    raise
                if busy_error.message != last_message:
                    self._emit(Waiting(busy_error.message))
                end_message, last_message = "the work tree is free", busy_error.message
                stop.wait(BUSY_PAUSE_S)
            else:
                if end_message is not None:
                    self._emit(Waiting(end_message))
                return result


class Changes:
    """Changes the run in one store, as its kind decides."""

    def __init__(self, store: Store, kind: Kind) -> None:
        """Change the run in *store*, which is of *kind*."""
        self.store = store
        self.kind = kind
        self.retry_policy: RetryPolicy | None = None
        """Waits while the store is unreachable; None for a person's command, which never waits."""
        self.now: Callable[[], datetime] = partial(datetime.now, UTC)
        """The clock; a server that decides about the run sets its own."""
        self.work: Work | None = None
        """The code that moves with the next change of a worker."""

    def update(
        self,
        action: Callable[[Any], object] | None,
        compute_capacity: Callable[[Head], Capacity | None],
        *,
        run_id: str | None = None,
        lease_s: float | None = None,
    ) -> tuple[Head, list[int]]:
        """Apply *action* and what follows from it, then claim what *compute_capacity* allows.

        Returns the new head and the tokens of the granted claims. If nothing changes, nothing is
        written. *lease_s* is the lease of the claim that *action* changes. With *run_id*, the
        store must have that run.

        Raises:
            StaleClaim: the run's files are gone, or the claim of *action* is.
            DefinitionChanged: see `Kind.open`.
        """
        changes: list[OpenChange] = []

        def change(head: Head | None) -> Transition | None:
            if run_id is None:
                current_head = require_head(self.store, head)
            else:
                current_head = require_run(self.store, run_id, head)
            if current_head.exit:
                ensure_here(current_head)
            open_change: OpenChange = self.kind.open(current_head, at=self.now())
            # The store may call this again after a lost race; only the last call counts.
            changes[:] = [open_change]
            if action is not None:
                action(open_change)
            open_change.settle(compute_capacity(open_change.head))
            if not open_change.facts:
                return None
            transition = self.kind.close(open_change, self.work)
            if transition.document is not None:
                self.keep_document(transition)
            return transition

        if self.retry_policy is None:
            head = self.store.update(change)
        elif action is None:
            head = self.retry_policy.update_before_step(change)
        else:
            head = self.retry_policy.update_after_step(change, lease_s or self.store.ttl_s)
        if not changes:
            return head, []
        self._cache_facts(changes[0], head)
        return head, changes[0].granted

    def _cache_facts(self, change: Any, head: Head) -> None:
        """Cache the facts about *head*, the result of *change*."""

    def keep_document(self, transition: Transition) -> None:
        """Save the document that the head of *transition* refers to.

        Call it under the store's lock, before the head is written.
        """
        if transition.document is not None:
            if transition.keeps is not None:
                self.store.forget_documents(MARKINGS, transition.keeps)
            self.store.keep_document(*transition.document)


def require_head(store: Store, head: Head | None) -> Head:
    """Return *head*.

    Raises:
        StaleClaim: it is None, although the run had started.
    """
    if head is None:
        raise StaleClaim(
            "the run's files are gone",
            where=str(store.state_path),
            hint="restore the folder, or remove all of it to start over",
        )
    return head


def require_run(store: Store, run_id: str, head: Head | None) -> Head:
    """Return *head* if it is of the run *run_id*.

    Raises:
        StaleClaim: the files are gone, or they are of another run.
    """
    current_head = require_head(store, head)
    if current_head.run_id != run_id:
        raise StaleClaim(
            "the run is gone, and another one was started in its place",
            where=str(store.state_path),
            hint="the agent's answer is in its step log; start again to work on the new run",
        )
    return current_head


def follow_run(store: Store, known: Head, head: Head | None) -> Head:
    """Return *head* if it belongs to the run of *known*, or to one that a reset of it started.

    Another program's state has no run before it is migrated. Until then, its head is a preview
    at revision 0, with a new run id each time it is read.

    Raises:
        StaleClaim: see `require_run`.
    """
    current_head = require_head(store, head)
    is_same = current_head.run_id == known.run_id or not known.revision
    if is_same or _was_reset(store, known.run_id):
        return current_head
    return require_run(store, known.run_id, current_head)


def _was_reset(store: Store, run_id: str) -> bool:
    """Return whether the journal says that a person reset the run *run_id*."""
    resets = (fact for fact in read_facts(store.history()) if fact.meaning.resets)
    return any(run_id in str(fact.outcome) for fact in resets)
