"""Changes of a run whose store is out of reach for a while: told, and tried again.

A remote that does not answer is no end of the work. Before a step nothing is lost by
giving up; behind one an agent's work would be, so that is waited for longer. What was asked
for is asked again as the same change, so a store that could not tell how it ended finds out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sequencer import plugins
from sequencer.engine.attempt import Emit, Waiting
from sequencer.errors import RemoteUnreachable, StaleClaim, UnknownName, WorkTreeBusy
from sequencer.executors.protocol import Cancellation
from sequencer.model.head import MARKINGS, Head, Work
from sequencer.model.kind import Kind, OpenChange, Room
from sequencer.model.line.line import Line
from sequencer.model.moving import ensure_here
from sequencer.model.transitions import Event, Transition
from sequencer.model.workflow import Workflow
from sequencer.store.protocol import Change, Store, Telling

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
AFTER_S = 1800.0
"""For so long a remote is waited for that is to take an agent's work."""
BUSY_S = 15.0
"""Agents that are being ended are gone by then; for so long everybody waits for them."""
BUSY_PAUSE_S = 0.5
T = TypeVar("T")


class Patience:
    """Updates one store for one process."""

    def __init__(self, store: Store, stop: Cancellation, emit: Emit) -> None:
        """Update *store*, and *emit* what it is waited for; *stop* ends the waiting."""
        self._store = store
        self._stop = stop
        self._emit = emit
        if isinstance(store, Telling):
            store.tell = lambda text: emit(Waiting(text))
            store.stopped = stop.is_set
        self.wait_s = store.patience_s
        """For how long it is tried again where nothing could be lost."""

    def before_step(self, change: Change) -> Head:
        """Accept *change*, where nothing has been done yet that could be lost.

        Raises:
            RemoteUnreachable: nobody was let in, or the time is over.
        """
        return self.reach(lambda: self._store.update(change))

    def after_step(self, change: Change, lease_s: float) -> Head:
        """Accept *change*, behind a step whose claim is believed for *lease_s*.

        Raises: see `before_step`.
        """
        # Afterwards somebody else may have the step, but need not.
        limit_s = max(self._store.patience_s, lease_s)
        return self._reach(lambda: self._store.update(change), limit_s, may_be_denied=True)

    def reach(self, act: Callable[[], T]) -> T:
        """Return what *act* returns, once the store is in reach and the work tree is free.

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
        self.patience: Patience | None = None
        """Of a process that works; by hand nothing is waited for."""
        self.now: Callable[[], datetime] = partial(datetime.now, UTC)
        """The clock; where a run is decided over elsewhere, that place has its own."""
        self.work: Work | None = None
        """The code that the next change of a process that works moves with it."""

    def update(
        self,
        act: Callable[[Any], object] | None,
        room: Callable[[Head], Room | None],
        *,
        run_id: str | None = None,
        lease_s: float | None = None,
    ) -> tuple[Head, list[int]]:
        """Let *act* happen and all that follows; claim what *room* allows then.

        Returns the head that stands afterwards and the tokens of the claims that were
        granted. Where nothing happens, nothing is written. *act* is about a claim that is
        believed for *lease_s*, and about the run *run_id*.

        Raises:
            StaleClaim: the run's files are gone, or *act* was about a claim that is.
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
            opened.settle(room(opened.head))
            if not opened.facts:
                return None
            closed = self.kind.close(opened, self.work)
            if closed.document is not None:
                self.keep_document(closed)
            return closed

        if self.patience is None:
            head = self.store.update(change)
        elif act is None:
            head = self.patience.before_step(change)
        else:
            head = self.patience.after_step(change, lease_s or self.store.ttl_s)
        if not made:
            return head, []
        self._keep(made[0], head)
        return head, made[0].granted

    def _keep(self, change: Any, head: Head) -> None:
        """Remember what is known of *head*, which *change* has led to."""

    def keep_document(self, made: Transition) -> None:
        """Keep what the head of *made* refers to; under the store's lock, and before the head."""
        if made.document is not None:
            if made.keeps is not None:
                self.store.forget_documents(MARKINGS, made.keeps)
            self.store.keep_document(*made.document)


def _along(store: Store, workflow: Workflow, kind: Callable[[Workflow], Line] = Line) -> Changes:
    return Changes(store, kind(workflow))


def _among_nodes(store: Store, workflow: Workflow) -> Changes:
    from sequencer.engine.markings import NetChanges  # noqa: PLC0415 - graphs only

    return NetChanges(store, workflow)


KINDS: dict[str, Callable[[Store, Workflow], Changes]] = {
    "cycle": _along,
    "procedure": _along,
    "graph": _among_nodes,
}
"""What changes a run, by the kind of its workflow."""


def changes_of(store: Store, workflow: Workflow) -> Changes:
    """Return what changes the run of *workflow* in *store*, and has its kind.

    Raises:
        UnknownName: the package that brings the kind is not installed.
        ConfigurationError: it can't be loaded.
    """
    if (make := KINDS.get(workflow.kind)) is not None:
        return make(store, workflow)
    if (added := plugins.plugin(plugins.KINDS, workflow.kind)) is None:
        known = KINDS.keys() | plugins.plugin_names(plugins.KINDS)
        where = f"workflow {workflow.name!r}"
        raise UnknownName("kind of workflow", workflow.kind, known, where=where)
    return _along(store, workflow, added)


def still_there(store: Store, head: Head | None) -> Head:
    """Return *head*.

    Raises:
        StaleClaim: there is none, where a run had begun.
    """
    if head is None:
        raise StaleClaim(
            "the run's files are gone",
            where=str(store.state_path),
            hint="bring the folder back, or remove all of it to begin anew",
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
            hint="what an agent answered is in its step log; start again to work on that run",
        )
    return found


def followed(store: Store, known: Head, head: Head | None) -> Head:
    """Return *head* if it is of the run of *known*, or of one that a reset of it has begun.

    Another program's state has no run before it is migrated; until then its head is a
    preview at revision 0, with a run id of its own at each look.

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
    resets = (fact["outcome"] for fact in store.history() if fact["event"] == Event.RESET)
    return any(run_id in str(outcome) for outcome in resets)
