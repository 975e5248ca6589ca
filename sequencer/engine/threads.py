"""Works on a graph's run: several attempts at once, each in its own thread."""

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
from sequencer.engine.lost_claims import describe_losses
from sequencer.engine.performing import Performer
from sequencer.errors import Interrupted, SequencerError, to_machine_busy
from sequencer.executors.cancellation import StopReason
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.store.protocol import Store

LOOK_AT_HOLDERS_S = 5.0
"""How often the claims of several other processes are checked. For a single claim, the store wakes
this process when its holder ends."""


class ThreadedLoop(WorkLoop[GraphWorker, GraphBudget, GraphSeen]):
    """Records the attempts that have ended, starts new ones, and sleeps; see `WorkLoop`."""

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
        """Attempts that have ended and are not recorded yet."""
        worker.shares.own_usd = budget.usd_left
        worker.attempt_timeout_s = limits.step_timeout_s

    def _begin(self, head: Head) -> None:
        self._performer.emit(HeadMoved(head))
        self._worker.tidy(head)

    def _collect_facts(self, head: Head, now: datetime) -> GraphSeen:
        worker = self._worker
        newest_head, marking = worker.changes.marking(head)
        if newest_head.revision != head.revision:
            self._tried_at = None
        worker.cancel_lost_attempts(newest_head)
        return GraphSeen(
            newest_head,
            now,
            marking,
            self._kind,
            self._budget,
            is_code_busy=worker.is_code_busy(newest_head),
            expired_tokens=worker.expired_claims(newest_head),
            running=worker.attempts.running,
            is_stopped=worker.is_stopped,
            tried_at=self._tried_at,
        )

    def _expire(self, facts: GraphSeen, move: RecordExpired) -> Head:
        head = facts.head
        for act in move.acts:
            head = self._worker.update(act, self._budget.slots, head.run_id)
        return self._report_if_over(head)

    def _claim(self, facts: GraphSeen) -> Head:
        worker, head = self._worker, facts.head
        if not facts.running and (facts.expired_tokens or self._kind.list_startable(head)):
            worker.code.ensure_ready(head, lambda: bool(self._read_newest_head().claims))
        return self._report_if_over(worker.update(None, self._budget.slots, head.run_id))

    def _sleep(self, facts: GraphSeen, move: Wait, timeout_s: float | None) -> bool:
        del move
        worker = self._worker
        foreign_claims = worker.find_foreign_claims(facts.head)
        if len(foreign_claims) > 1:
            timeout_s = min(timeout_s or LONGEST_SLEEP_S, LOOK_AT_HOLDERS_S)
        if not worker.attempts.running:
            self._performer.agents.warm_up()
        self._store.wait(
            facts.head.revision,
            timeout_s,
            wake_fd=worker.attempts.fileno(),
            claim=foreign_claims[0] if foreign_claims else None,
        )
        # The wait for others does not start over until this process changes the run itself.
        return False

    # --- recording -----------------------------------------------------------------

    def _record_ends(self) -> None:
        worker = self._worker
        worker.attempts.drain()
        # All of them share one transition, which costs no more than a transition for one step.
        while attempts := list(iter(worker.attempts.pop_ended, None)):
            now = datetime.now(UTC)
            for attempt in attempts:
                self._count(attempt)
            self._unrecorded = attempts
            head = worker.record(attempts, self._budget.slots)
            self._unrecorded = []
            worker.code.leave(head, worker.attempts.running)
            for attempt in attempts:
                self._correct_counts(attempt)
            self._notify(*self._store.take_notices(), *describe_losses(self._store, attempts))
            if head is None:
                # The run has changed, and a lost attempt frees a slot.
                self._is_newest, self._tried_at = False, None
            else:
                # If code moves with the state, the work tree is checked before each claim.
                may_claim = worker.code.is_ready and not worker.code.moves
                self._continue_at(self._report_if_over(head), tried_at=now if may_claim else None)
            for attempt in attempts:
                is_stuck = attempt.busy is not None and not worker.attempts.running
                if attempt.error is not None and (attempt.ends_the_work or is_stuck):
                    raise attempt.busy or attempt.error

    def _count(self, attempt: Attempt) -> None:
        if attempt.ends_the_work:
            # A process that can't continue starts no more attempts.
            self._worker.is_stopped = True
        self._budget.count_attempt()
        if attempt.ended is not None and attempt.error is None:
            self._budget.count(attempt.claim.step, attempt.ended.outcome)
            self._count_work(attempt.ended.outcome)

    def _correct_counts(self, attempt: Attempt) -> None:
        """Correct the counts once it is known how the run has recorded *attempt*."""
        has_result = attempt.ended is not None and attempt.error is None
        outcome = attempt.ended.outcome if attempt.ended and has_result else None
        self._budget.correct_counts(attempt.claim.step, outcome, attempt.recorded_result)

    def _report_if_over(self, head: Head) -> Head:
        """Return *head*; if the run is over with it, report that once."""
        if self._kind.is_over(head) and not self._was_over:
            self._was_over = True
            self._performer.report_completed(head.step_index, head)
        return head

    # --- leaving -------------------------------------------------------------------

    def _clean_up(self, error: BaseException | None) -> None:
        worker = self._worker
        if error is not None:
            self._end_attempts(error)
            # After an interrupt or a bug, end without cleaning up.
            if isinstance(error, Interrupted) or not isinstance(error, SequencerError):
                return
        # The result of the work is known, so a failed cleanup must not change it.
        with contextlib.suppress(SequencerError, OSError):
            # With the newest head: other processes may have claimed nodes meanwhile.
            if (head := self._store.view().head) is not None:
                worker.tidy(head)

    def _end_attempts(self, error: BaseException) -> None:
        """Stop the running attempts after *error*, and record them as released if possible."""
        attempts = self._worker.attempts
        self._worker.is_stopped = True
        attempts.cancel(StopReason.INTERRUPTED)
        unrecorded = self._unrecorded if to_machine_busy(error) else []
        while attempts.running:
            attempt = attempts.pop_ended()
            if attempt is None:
                attempts.wait()
            elif to_machine_busy(self._try_to_record(attempt)):
                unrecorded.append(attempt)
        # The agents' descriptors are free now, and no agent can take the reserved ones.
        attempts.free_reserve()
        for attempt in unrecorded:
            self._try_to_record(attempt)

    def _try_to_record(self, attempt: Attempt) -> Exception | None:
        """Record *attempt* if possible; return the error if not."""
        try:
            self._worker.record([attempt], self._budget.slots)
        except (SequencerError, OSError) as error:
            # `work` raises the error that ended the work. The other attempts must still be stopped.
            return error
        return None


def make_worker_and_loop(
    store: Store, performer: Performer, limits: RunLimits, places: int
) -> tuple[GraphWorker, type[ThreadedLoop]]:
    """Return the worker and the loop for the graph in *store*, with *places* nodes at once."""
    expander = None if performer.tasks is None else performer.tasks.expander
    nodes = GraphChanges(store, performer.workflow, expander)
    return GraphWorker(nodes, performer, limits, places), ThreadedLoop
