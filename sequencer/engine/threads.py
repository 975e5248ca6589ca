"""Works on a graph's run: several attempts at once, each in a thread of its own."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

from sequencer.engine.attempt import Attempt
from sequencer.engine.decide import RecordExpired, Wait
from sequencer.engine.decide_graph import GraphSeen
from sequencer.engine.events import HeadMoved
from sequencer.engine.graph_budget import GraphBudget
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.graph_worker import GraphWorker
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.loop import LONGEST_SLEEP_S, WorkLoop
from sequencer.engine.performing import Performer
from sequencer.errors import Interrupted, SequencerError, out_of_resources
from sequencer.executors.cancellation import StopReason
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.store.protocol import Store

LOOK_AT_HOLDERS_S = 5.0
"""How often several holders in other processes are checked; a single one is waited for."""


class ThreadedLoop(WorkLoop[GraphWorker, GraphBudget, GraphSeen]):
    """Records what has ended, starts what can start, and sleeps; see `WorkLoop`."""

    def __init__(
        self, worker: GraphWorker, mode: Mode, limits: InvocationLimits, head: Head
    ) -> None:
        """Start at *head*, the run as it is."""
        budget = GraphBudget(
            mode,
            limits,
            worker.limits,
            head,
            places=worker.places,
            capacity_rule=worker.capacity_rule,
        )
        super().__init__(worker, budget, head, default_wait_s=None)
        self._kind = worker.changes.graph_kind
        self._was_over = self._kind.is_over(head)
        self._unrecorded: list[Attempt] = []
        """Attempts that have ended and could not be recorded."""
        worker.shares.own_usd = budget.usd_left
        worker.attempt_timeout_s = limits.step_timeout_s

    def _begin(self, head: Head) -> None:
        self._performer.emit(HeadMoved(head))
        self._worker.tidy(head)

    def _see(self, head: Head, at: datetime) -> GraphSeen:
        worker = self._worker
        newest, marking = worker.changes.marking(head)
        if newest.revision != head.revision:
            self._tried_at = None
        worker.keep_only(newest)
        return GraphSeen(
            newest,
            at,
            marking,
            self._kind,
            self._budget,
            is_code_busy=worker.must_wait(newest),
            gone=worker.gone(newest),
            own=worker.attempts.running,
            is_stopped=worker.is_stopped,
            tried_at=self._tried_at,
        )

    def _expire(self, seen: GraphSeen, move: RecordExpired) -> Head:
        head = seen.head
        for act in move.acts:
            head = self._worker.update(act, self._budget.slots, head.run_id)
        return self._reported(head)

    def _claim(self, seen: GraphSeen) -> Head:
        worker, head = self._worker, seen.head
        if not seen.own and (seen.gone or self._kind.startable(head)):
            worker.code.ensure_ready(head, lambda: bool(self._look().claims))
        return self._reported(worker.update(None, self._budget.slots, head.run_id))

    def _sleep(self, seen: GraphSeen, move: Wait, timeout_s: float | None) -> bool:
        del move
        worker = self._worker
        foreign = worker.foreign(seen.head)
        if len(foreign) > 1:
            timeout_s = min(timeout_s or LONGEST_SLEEP_S, LOOK_AT_HOLDERS_S)
        if not worker.attempts.running:
            self._performer.agents.warm_up()
        self._store.wait(
            seen.head.revision,
            timeout_s,
            wake_fd=worker.attempts.fileno(),
            claim=foreign[0] if foreign else None,
        )
        # Whatever others do, the wait for them lasts until this process makes a change.
        return False

    # --- recording -----------------------------------------------------------------

    def _record_ends(self) -> None:
        worker = self._worker
        worker.attempts.drain()
        # All that have ended by now share one transition: it costs as much as that for one step.
        while ended := list(iter(worker.attempts.next_ended, None)):
            at = datetime.now(UTC)
            for running in ended:
                self._count(running)
            self._unrecorded = ended
            head = worker.record(ended, self._budget.slots)
            self._unrecorded = []
            worker.code.leave(head, worker.attempts.running)
            for running in ended:
                self._correct_counts(running)
            self._notify(*self._store.take_notices())
            if head is None:
                # The run has changed, and a lost attempt frees a slot.
                self._is_newest, self._tried_at = False, None
            else:
                # Where code moves, somebody has to look at the work tree before a claim.
                may_claim = worker.code.is_ready and not worker.code.moves
                self._continue_at(self._reported(head), tried_at=at if may_claim else None)
            for running in ended:
                is_stuck = running.busy is not None and not worker.attempts.running
                if running.error is not None and (running.ends_the_work or is_stuck):
                    raise running.busy or running.error

    def _count(self, ended: Attempt) -> None:
        if ended.ends_the_work:
            # A process that can't continue starts nothing else.
            self._worker.is_stopped = True
        self._budget.tried()
        if ended.ended is not None and ended.error is None:
            self._budget.count(ended.claim.step, ended.ended.outcome)
            self._count_work(ended.ended.outcome)

    def _correct_counts(self, ended: Attempt) -> None:
        """Correct the counts now that it is known how the run takes *ended*."""
        is_whole = ended.ended is not None and ended.error is None
        outcome = ended.ended.outcome if ended.ended and is_whole else None
        self._budget.count_again(ended.claim.step, outcome, ended.recorded_result)

    def _reported(self, head: Head) -> Head:
        """Return *head*; if the run has ended with it, that is reported once."""
        if self._kind.is_over(head) and not self._was_over:
            self._was_over = True
            self._performer.tell_completed(head.step_index, head)
        return head

    # --- leaving -------------------------------------------------------------------

    def _leave(self, error: BaseException | None) -> None:
        worker = self._worker
        if error is not None:
            self._end_attempts(error)
            # An interrupt means: end now.
            if isinstance(error, Interrupted) or not isinstance(error, SequencerError):
                return
        # Removes what is no longer needed; how the work ended is already decided.
        with contextlib.suppress(SequencerError, OSError):
            # What others hold by now must not be mistaken for claims of gone processes.
            if (head := self._store.view().head) is not None:
                worker.tidy(head)

    def _end_attempts(self, error: BaseException) -> None:
        """Stop what still runs, after *error*, and record it as released if possible."""
        attempts = self._worker.attempts
        self._worker.is_stopped = True
        attempts.cancel(StopReason.INTERRUPTED)
        again = self._unrecorded if out_of_resources(error) else []
        while attempts.running:
            ended = attempts.next_ended()
            if ended is None:
                attempts.wait()
            elif out_of_resources(self._recorded_at_last(ended)):
                again.append(ended)
        # What agents held is free now, and no agent takes what remains.
        attempts.free_reserve()
        for ended in again:
            self._recorded_at_last(ended)

    def _recorded_at_last(self, ended: Attempt) -> Exception | None:
        """Record *ended* if possible; return why not."""
        try:
            self._worker.record([ended], self._budget.slots)
        except (SequencerError, OSError) as error:
            # The reason for the end is reported elsewhere; no other agent may be left running.
            return error
        return None


def on_nodes(
    store: Store, performer: Performer, limits: RunLimits, places: int
) -> tuple[GraphWorker, type[ThreadedLoop]]:
    """Return what works on the graph's run in *store*, *places* nodes at a time."""
    expander = None if performer.tasks is None else performer.tasks.expander
    nodes = GraphChanges(store, performer.workflow, expander)
    return GraphWorker(nodes, performer, limits, places), ThreadedLoop
