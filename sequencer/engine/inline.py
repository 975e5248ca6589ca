"""Works on the run of a cycle or a procedure. Each step runs in the calling thread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.awaited_step import AwaitedStep
from sequencer.engine.decide import RecordExpired, SequenceSeen, Wait
from sequencer.engine.events import HeadMoved, NoticeGiven
from sequencer.engine.invocation_budget import Mode, SequenceBudget
from sequencer.engine.loop import WorkLoop
from sequencer.engine.queue import Queue
from sequencer.engine.sequence_worker import SequenceWorker
from sequencer.errors import ClaimHeld, Interrupted, StaleClaim, to_machine_busy
from sequencer.executors.cancellation import StopReason
from sequencer.history.facts import read_facts, was_lost_on_hold
from sequencer.model.head import Head, Status
from sequencer.model.kind import find_hold
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.sequence.order import position_at


class InlineLoop(WorkLoop[SequenceWorker, SequenceBudget, SequenceSeen]):
    """Claims a step, runs it, records it, and so on; see `WorkLoop`."""

    def __init__(
        self, worker: SequenceWorker, mode: Mode, limits: InvocationLimits, head: Head
    ) -> None:
        """Start at *head*, the run as it is."""
        workflow, positions = worker.workflow, worker.positions
        budget = SequenceBudget(workflow, mode, limits, worker.limits, head, positions=positions)
        super().__init__(worker, budget, head, default_wait_s=None if mode is Mode.SYNC else 0.0)
        self._queue: Queue | None = None
        # A process that does not wait does not queue.
        if mode is Mode.SYNC and self._waits_for_others:
            self._queue = Queue(worker.store, positions, lambda index: position_at(workflow, index))
        self._awaited = AwaitedStep(workflow, worker.store, mode, positions, head)

    def _begin(self, head: Head) -> None:
        del head

    def _record_ends(self) -> None:
        """Do nothing: each step was recorded when it ended."""

    def _collect_facts(self, head: Head, now: datetime) -> SequenceSeen:
        return self._worker.collect_facts(head, self._budget, now, self._tried_at)

    def _expire(self, facts: SequenceSeen, move: RecordExpired) -> None:
        """Record the configured decision for the gate, because no person decided in time."""
        del move
        head, gate = self._worker.commands.expire_waits(), facts.head.gate
        if head.status is Status.COMPLETE and gate is not None:
            self._performer.report_completed(gate.step_index, head)

    def _claim(self, facts: SequenceSeen) -> Head | None:
        """Run the ready step, then each step that was claimed when the one before was recorded."""
        worker, head = self._worker, facts.head
        if self._queue is not None and not self._queue.may_claim(head):
            return head
        prepared_step = worker.performer.prepare(facts.readiness.place)
        try:
            attempt = worker.claim(head, prepared_step)
        except ClaimHeld:
            # Another process claimed it after this one had looked.
            if not self._waits_for_others:
                raise
            return None
        if attempt is None:
            return None
        # The next wait is for another step, so it must be reported.
        self._last_wait = "", None
        if self._queue is not None:
            self._queue.leave()
        while attempt is not None:
            head, attempt = self._run(attempt)
        self._continue_at(head, tried_at=None)
        return None

    def _describe_wait(self, facts: SequenceSeen, move: Wait) -> Wait:
        """Return *move* with a message for a person at a terminal; see `AwaitedStep`."""
        awaited_step = self._awaited
        awaited_step.observe(facts.readiness, facts.head)
        (message, hint), end = awaited_step.refusal, None
        if (soon_s := awaited_step.recheck_in_s) is not None:
            end = datetime.now(UTC) + timedelta(seconds=soon_s)
        return replace(
            move,
            message=message,
            hint=hint,
            report=awaited_step.words,
            until=end,
            needs_person=awaited_step.needs_person,
        )

    def _sleep(self, facts: SequenceSeen, move: Wait, timeout_s: float | None) -> bool:
        """Sleep until the head changes, or longer if other processes come first."""
        head, fd = facts.head, self._stop.fileno()
        if move.is_for_others and (self._queue is None or self._queue.enter()):
            # The step should start without delay when this process wakes up.
            self._performer.agents.warm_up()
        if self._queue is not None:
            return self._queue.wait(head, timeout_s, fd, move.claim)
        return self._store.wait(head.revision, timeout_s, wake_fd=fd, claim=move.claim)

    def _clean_up(self, error: BaseException | None) -> None:
        del error
        if self._queue is not None:
            self._queue.leave()

    # --- running a step ------------------------------------------------------------

    def _run(self, attempt: Attempt) -> tuple[Head, Attempt | None]:
        """Run a step and record it; return the new head, and the next step if it was claimed."""
        worker, is_async = self._worker, self._budget.mode is Mode.ASYNC
        try:
            result = worker.perform(attempt, self._budget.allowance(attempt.head))
        except BaseException as error:
            worker.abandon(attempt, error)
            if (busy_error := to_machine_busy(error)) is not None:
                raise busy_error from error
            raise
        self._count_work(result.outcome)
        self._budget.count(result)
        try:
            head, next_attempt = worker.finish(attempt, result, self._may_continue)
        except StaleClaim:
            if (head_now := self._find_head_after_stop(attempt)) is None:
                raise
            text = f"step {attempt.claim.step!r} was taken from this process before it ended"
            # At each loss: the same step may be taken from this process more than once.
            text += "; its output is in its log, but it was not accepted"
            worker.performer.emit(NoticeGiven(text))
            self._budget.take_back_step(result)
            return head_now, None
        if not is_async:
            worker.performer.emit(HeadMoved(head))
        if notices := worker.store.take_notices():
            self._notify(*notices)
        if head.status is Status.COMPLETE and not is_async:
            worker.performer.report_completed(attempt.claim.step_index, head)
        if result.outcome.status is OutcomeStatus.INTERRUPTED:
            self._raise_interrupted(attempt, head)
        self._budget.ensure_goes_on(result, head)
        return head, next_attempt

    def _find_head_after_stop(self, attempt: Attempt) -> Head | None:
        """Return the head if a person has stopped or paused the run and ended the claim.

        It doesn't matter whether this process noticed that before its agent ended, or before the
        person resumed the run. None: another process took the step, or the run is gone.
        """
        store = self._worker.store
        head = store.view().head
        if head is None or head.run_id != attempt.run_id:
            return None
        if head.is_on_hold or was_lost_on_hold(read_facts(store.history()), attempt.claim.token):
            return head
        return None

    def _may_continue(self, head: Head) -> bool:
        if self._budget.find_reached_limit(head) is not None:
            return False
        return self._queue is None or not self._queue.needs_to_yield(head.step_index)

    def _raise_interrupted(self, attempt: Attempt, head: Head) -> None:
        if attempt.cancellation.reason is StopReason.INTERRUPTED:
            _, hint = find_hold(head) or (None, "start again to continue")
            raise Interrupted(
                f"interrupted in step {attempt.claim.step!r}; the claim was released",
                hint=hint,
            )
        if attempt.cancellation.reason is StopReason.LEASE_LOST:
            raise StaleClaim(
                f"the heartbeat of step {attempt.claim.step!r} can't be written; "
                "the step was stopped",
                where=str(self._worker.store.state_path.parent),
            )
