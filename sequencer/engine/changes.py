"""Changes of a run while its store is out of reach: reported, and tried again.

A remote that does not answer does not end the work. Giving up before a step loses nothing.
Giving up after a step would lose an agent's work, so the wait is longer there. Each try asks
for the same change, so a store that could not tell how a try ended finds out.
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
from sequencer.history.facts import read
from sequencer.model.head import MARKINGS, Head, Work
from sequencer.model.kind import Capacity, Kind, OpenChange
from sequencer.model.moving import ensure_here
from sequencer.model.transitions import Transition
from sequencer.store.protocol import Change, ReportsWaiting, Store

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
AFTER_S = 1800.0
"""How long to wait for a remote that must take an agent's work."""
BUSY_S = 15.0
"""How long to wait for agents that are being ended; they are gone by then."""
BUSY_PAUSE_S = 0.5
T = TypeVar("T")


class RetryPolicy:
    """Updates one store for one process."""

    def __init__(self, store: Store, stop: Cancellation, emit: Emit) -> None:
        """Update *store*, and *emit* what the wait is for; *stop* ends the wait."""
        self._store = store
        self._stop = stop
        self._emit = emit
        if isinstance(store, ReportsWaiting):
            store.notify = lambda text: emit(Waiting(text))
            store.is_stopped = stop.is_set
        self.wait_s = store.retry_for_s
        """How long to try again if nothing could be lost."""

    def before_step(self, change: Change) -> Head:
        """Accept *change*, before any work is done that could be lost.

        Raises:
            RemoteUnreachable: the remote refused access, or the time is over.
        """
        return self.reach(lambda: self._store.update(change))

    def after_step(self, change: Change, lease_s: float) -> Head:
        """Accept *change*, after a step whose claim is valid for *lease_s*.

        Raises: see `before_step`.
        """
        # After that, another process may have the step, but not always.
        limit_s = max(self._store.retry_for_s, lease_s)
        return self._reach(lambda: self._store.update(change), limit_s, may_be_denied=True)

    def reach(self, act: Callable[[], T]) -> T:
        """Return what *act* returns, once the store is reachable and the work tree is free.

        Raises: see `before_step`.
        """
        return self._reach(act, self.wait_s, may_be_denied=False)

    def after_agent(self, act: Callable[[], T], stop: Cancellation) -> T:
        """Return what *act* returns, which may be tried again until *stop* is set.

        Raises: see `before_step`.
        """
        return self._reach(act, AFTER_S, may_be_denied=True, stop=stop)

    def _reach(
        self,
        act: Callable[[], T],
        wait_s: float,
        *,
        may_be_denied: bool,
        stop: Cancellation | None = None,
    ) -> T:
        stop = stop or self._stop
        began, pause = time.monotonic(), FIRST_PAUSE_S
        told: str | None = None
        told_of: str | None = None
        while True:
            try:
                found = act()
            except RemoteUnreachable as error:
                left = began + wait_s - time.monotonic()
                if left <= 0 or stop.is_set() or (error.is_denied and not may_be_denied):
                    raise
                nap = min(left, pause * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
                self._emit(Waiting(f"{error.message}; next try in {nap:.0f} s"))
                told, pause = "the remote is back", min(2 * pause, LONGEST_PAUSE_S)
                stop.wait(nap)
            except WorkTreeBusy as busy:
                left = began + max(wait_s, BUSY_S) - time.monotonic()
                if left <= 0 or stop.is_set():
                    raise
                if busy.message != told_of:
                    self._emit(Waiting(busy.message))
                told, told_of = "the work tree is free", busy.message
                stop.wait(BUSY_PAUSE_S)
            else:
                if told is not None:
                    self._emit(Waiting(told))
                return found


class Changes:
    """Changes the run in one store, as its kind decides."""

    def __init__(self, store: Store, kind: Kind) -> None:
        """Change the run in *store*, which is of *kind*."""
        self.store = store
        self.kind = kind
        self.retry_policy: RetryPolicy | None = None
        """Waits for a process at work; changes by hand never wait."""
        self.now: Callable[[], datetime] = partial(datetime.now, UTC)
        """The clock; if a run is decided somewhere else, that place has its own."""
        self.work: Work | None = None
        """The code that moves with the next change of a process at work."""

    def update(
        self,
        act: Callable[[Any], object] | None,
        capacity: Callable[[Head], Capacity | None],
        *,
        run_id: str | None = None,
        lease_s: float | None = None,
    ) -> tuple[Head, list[int]]:
        """Do *act* and all that follows from it; then claim what *capacity* allows.

        Returns the new head and the tokens of the granted claims. If nothing happens, nothing
        is written. *act* is about a claim that is valid for *lease_s*, and about the run
        *run_id*.

        Raises:
            StaleClaim: the run's files are gone, or the claim of *act* is.
            DefinitionChanged: see `Kind.open`.
        """
        made: list[OpenChange] = []

        def change(head: Head | None) -> Transition | None:
            if run_id is None:
                present = still_there(self.store, head)
            else:
                present = of_run(self.store, run_id, head)
            if present.exit:
                ensure_here(present)
            opened: OpenChange = self.kind.open(present, at=self.now())
            made[:] = [opened]
            if act is not None:
                act(opened)
            opened.settle(capacity(opened.head))
            if not opened.facts:
                return None
            closed = self.kind.close(opened, self.work)
            if closed.document is not None:
                self.keep_document(closed)
            return closed

        if self.retry_policy is None:
            head = self.store.update(change)
        elif act is None:
            head = self.retry_policy.before_step(change)
        else:
            head = self.retry_policy.after_step(change, lease_s or self.store.ttl_s)
        if not made:
            return head, []
        self._keep(made[0], head)
        return head, made[0].granted

    def _keep(self, change: Any, head: Head) -> None:
        """Remember what is known about *head*, the result of *change*."""

    def keep_document(self, made: Transition) -> None:
        """Keep what the head of *made* refers to; under the store's lock, and before the head."""
        if made.document is not None:
            if made.keeps is not None:
                self.store.forget_documents(MARKINGS, made.keeps)
            self.store.keep_document(*made.document)


def still_there(store: Store, head: Head | None) -> Head:
    """Return *head*.

    Raises:
        StaleClaim: there is none, although a run had started.
    """
    if head is None:
        raise StaleClaim(
            "the run's files are gone",
            where=str(store.state_path),
            hint="restore the folder, or remove all of it to start over",
        )
    return head


def of_run(store: Store, run_id: str, head: Head | None) -> Head:
    """Return *head* if it is of the run *run_id*.

    Raises:
        StaleClaim: the files are gone, or they are of another run.
    """
    found = still_there(store, head)
    if found.run_id != run_id:
        raise StaleClaim(
            "the run is gone, and another one was started in its place",
            where=str(store.state_path),
            hint="the agent's answer is in its step log; start again to work on the new run",
        )
    return found


def followed(store: Store, known: Head, head: Head | None) -> Head:
    """Return *head* if it belongs to the run of *known*, or to one that a reset of it started.

    Another program's state has no run before it is migrated; until then its head is a
    preview at revision 0, with a new run id at each look.

    Raises:
        StaleClaim: see `of_run`.
    """
    found = still_there(store, head)
    is_same = found.run_id == known.run_id or not known.revision
    if is_same or _was_reset(store, known.run_id):
        return found
    return of_run(store, known.run_id, found)


def _was_reset(store: Store, run_id: str) -> bool:
    """Return whether the journal says that *run_id* was ended on purpose."""
    resets = (fact for fact in read(store.history()) if fact.meaning.resets)
    return any(run_id in str(fact.outcome) for fact in resets)
