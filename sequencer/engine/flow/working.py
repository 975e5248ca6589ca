"""Begin a graph run, and work on it: what `Run.work` does where the workflow is a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sequencer.engine.control import Control
from sequencer.engine.events import HeadMoved
from sequencer.engine.flow.control import FlowControl
from sequencer.engine.flow.invocation import FlowInvocation
from sequencer.engine.flow.worker import FlowWorker
from sequencer.engine.performing import Performer
from sequencer.engine.work import Mode, Summary
from sequencer.errors import Interrupted, SequencerError, UsageRefused
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits, RunLimits


@dataclass(frozen=True, slots=True)
class FlowWork:
    """One process that is to work on a graph run."""

    control: Control
    flow: FlowControl
    performer: Performer
    limits: RunLimits
    places: int = 4
    """Agents at once in this process."""

    def work(
        self,
        mode: Mode,
        limits: InvocationLimits,
        on_ready: Callable[[Callable[[], None]], None] | None = None,
    ) -> Summary:
        """Work in *mode* until there is a reason to end.

        Raises:
            UsageRefused: the mode needs a line of steps.
            SequencerError: see `FlowInvocation.work`.
        """
        if mode is Mode.ASYNC:
            raise UsageRefused(
                "mode async keeps no run, and a graph can't go on without one",
                hint="leave --mode out; 'sequencer simulate' tries a flow without agents",
            )
        # The chart decides what runs; there is nothing to choose for a router.
        performer = replace(self.performer, router=None)
        worker = FlowWorker(self.flow, performer, self.limits, self.places)
        try:
            # What can't even start must not begin the run, nor one agent of it.
            worker.prepare_all()
            head = self._begin()
            if on_ready is not None:
                on_ready(worker.interrupt)
            performer.emit(HeadMoved(head))
            worker.tidy(head)
            with self._tidied(worker):
                return FlowInvocation(worker, mode, limits, head).work()
        finally:
            worker.leave()

    @contextlib.contextmanager
    def _tidied(self, worker: FlowWorker) -> Iterator[None]:
        """Remove what nobody needs any more when the block has ended, however it has.

        But for an interrupt, whose sender wants the end now.
        """
        try:
            yield
        except Interrupted:
            raise
        except SequencerError:
            self._tidy(worker)
            raise
        self._tidy(worker)

    def _tidy(self, worker: FlowWorker) -> None:
        # How the work has ended stands in any case.
        with contextlib.suppress(SequencerError, OSError):
            # What others hold by now must not be taken for theirs who are gone.
            head = self.flow.store.view().head
            if head is not None:
                worker.tidy(head)

    def _begin(self) -> Head:
        head = self.control.begin()
        if head.revision:
            return head
        # Another program's state has no run before its first transition.
        return self.flow.store.view().head or head
