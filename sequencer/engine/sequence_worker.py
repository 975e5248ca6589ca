"""One process's part in a run: claim a step, perform it, record it.

If the worker may continue, one transition accepts a step and claims the next one, so no crash
can come between the two. Everything that decides is pure and runs under the store's lock;
everything that takes time happens outside of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from sequencer.engine.allowance import Allowance
from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.decide import SequenceSeen
from sequencer.engine.events import NoticeGiven, Waiting
from sequencer.engine.evidence import OWN_WORD
from sequencer.engine.invocation_budget import SequenceBudget
from sequencer.engine.kinds import make_changes, make_judge
from sequencer.engine.layers.order import perform
from sequencer.engine.lost_claims import charge_lost_attempt, keep_stale_output
from sequencer.engine.performing import Performer
from sequencer.engine.prompt_context.earlier_outputs import EarlierOutputs, read_earlier_outputs
from sequencer.engine.prompt_context.sequence_prompts import make_prompt_composer
from sequencer.engine.records import (
    draw_jitter,
    format_log_path,
    keep_large_output,
    make_ended_record,
)
from sequencer.engine.run_commands import RunCommands
from sequencer.engine.worker import NOT_HERE, NOT_OURS, Worker
from sequencer.errors import (
    ClaimHeld,
    RecordRefused,
    SequencerError,
    StaleClaim,
    StateRefused,
    WorkTreeRefused,
)
from sequencer.executors.attempt_lock import AttemptLock, lock_path
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import Executor
from sequencer.model.head import Claim, Head
from sequencer.model.kind import AttemptResult, Capacity
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus, format_cost
from sequencer.model.sequence.order import current_round, find_current_ref, find_step_ref, is_among
from sequencer.model.sequence.sequence_kind import ContinuationKind, SequenceKind
from sequencer.model.transitions import StepRef, require_claim
from sequencer.model.workflow import ensure_definition, has_definition
from sequencer.store.leases import open_leases
from sequencer.store.protocol import Store

MayContinue = Callable[[Head], bool]
"""Returns whether the limits of the invocation allow one more step after this head."""


def _identify_step(head: Head) -> tuple[object, ...]:
    """Return the facts that must not change between preparing a step and claiming it."""
    return head.run_id, head.step_index, head.loop


class SequenceWorker(Worker):
    """One process's part in the run of a cycle or a procedure."""

    def __init__(
        self,
        store: Store,
        performer: Performer,
        limits: RunLimits,
        positions: Collection[str] = (),
        agents_state_path: Path | None = None,
    ) -> None:
        """Work on the run in *store*; with *positions*, only on their steps.

        *agents_state_path* is for a run that only this process knows. Agents and their logs get
        this path and no token, so that the logs are not evidence of a run's progress.
        """
        self.workflow = performer.workflow
        """The workflow of the run when this worker started."""
        changes = make_changes(store, self.workflow)
        self.kind: SequenceKind = cast("SequenceKind", changes.kind)
        self._judge = make_judge(self.kind)
        super().__init__(changes, performer, limits)
        self.positions = frozenset(positions)
        self._current: Cancellation | None = None
        self._lock_path = lock_path(store.state_path)
        self._agents_state_path = agents_state_path

    @property
    def commands(self) -> RunCommands:
        """Return the commands of the run; a gate that expires is decided with them."""
        return RunCommands(self.store, self.workflow)

    def ensure_startable(self, head: Head | None) -> None:
        """Check that the first step can start; a run that has a *head* has started already.

        If an earlier run has left logs, emit a notice.

        Raises:
            ConfigurationError: a prompt or an agent is missing.
        """
        if head is not None:
            return
        if self.is_mine(0):
            self.performer.prepare(find_step_ref(self.workflow, 0))
        log = self.performer.logs.find_last_log()
        # Another process may have just started the run; then the log is from this run.
        if log is not None and self.store.view().head is None:
            text = f"a new run starts at step_index 0, but {log} belongs to an earlier one; if "
            text += "its state was removed by mistake, restore it, or use "
            self.performer.emit(NoticeGiven(f"{text}'sequencer set step_index=N'"))

    def interrupt(self) -> None:
        super().interrupt()
        attempt = self._current
        if attempt is not None:
            attempt.set(StopReason.INTERRUPTED)

    def collect_facts(
        self, head: Head, budget: SequenceBudget, at: datetime, tried_at: datetime | None = None
    ) -> SequenceSeen:
        """Return the facts for a decision about *head*."""
        budget.observe(head)
        return SequenceSeen(
            head,
            at,
            self.kind,
            budget,
            expired_tokens=self.expired_claims(head),
            is_stopped=self.stop.is_set(),
            tried_at=tried_at,
        )

    def list_executors(self, head: Head, claim: Claim) -> Sequence[Executor | None]:
        del claim
        performer = self.performer
        try:
            step, position = performer.find_step(find_current_ref(self.workflow, head))
            steps = [(step, position)]
            if (router := performer.router) is not None and router.is_active:
                steps.append((performer.router_step(router), "router"))
            return [performer.agents.choose(*place)[1] for place in steps]
        except SequencerError:
            return [None]

    def is_mine(self, step_index: int) -> bool:
        """Return whether the step at *step_index* is at one of this worker's positions."""
        return not self.positions or is_among(self.workflow, self.positions, step_index)

    def claim(self, seen: Head, prepared: PreparedStep) -> Attempt | None:
        """Claim the current step of *seen* for *prepared*; None: the run has moved on.

        Raises:
            ClaimHeld: another process holds it and may be alive.
            StaleClaim: the run's files are gone.
            WorkTreeRefused: no step may start in this work tree.
        """
        self.code.ensure_ready(seen, lambda: False)

        def compute_capacity(present: Head) -> Capacity | None:
            if _identify_step(present) != _identify_step(seen):
                return None
            # Someone may have adopted another definition since this worker started.
            ensure_definition(present, self.workflow)
            return self._capacity(present, 1, self.expired_claims(present))

        head, granted_tokens = self._changes.update(None, compute_capacity)
        return self._make_attempt(head, head.claims[-1], prepared) if granted_tokens else None

    def _make_attempt(self, head: Head, claim: Claim, prepared_step: PreparedStep) -> Attempt:
        """Return the attempt at *prepared_step* for *claim*, which is in *head*."""
        store, agents_path = self.store, self._agents_state_path
        return Attempt(
            claim=claim,
            head=head,
            prepared=prepared_step,
            workflow=self.workflow,
            cwd=self.performer.project,
            state_path=agents_path or store.state_path,
            result_path=store.result_folder(claim.step_index, claim.token) / "result.json",
            # 0 keeps the token out of the log; see `__init__`.
            token=claim.token if agents_path is None else 0,
            lock_path=self._lock_path,
        )

    def check_out_code(self, attempt: Attempt) -> None:
        """Check out the code that the step of *attempt* starts with.

        This also ends processes that an earlier attempt at the step may have left.

        Raises:
            WorkTreeRefused: see `Workspace.enter`.
            MachineBusy: see `AttemptLock.acquire`.
        """
        if attempt.claim.attempt > 1:
            AttemptLock(self._lock_path, self._report_wait).wait_for_earlier(self.stop)
        if self.code.moves:
            self.code.enter(attempt.head)

    def _report_wait(self, text: str) -> None:
        self.performer.emit(Waiting(text))

    def run_attempt(
        self, head: Head, token: int, budget: Allowance, cancellation: Cancellation
    ) -> tuple[AttemptResult, BaseException | None]:
        try:
            with self.code.reserve(head, cancellation):
                prepared_step = self.performer.prepare(find_current_ref(self.workflow, head))
                attempt = self._make_attempt(head, require_claim(head, token), prepared_step)
                attempt.cancellation = cancellation
                try:
                    return self.perform(attempt, budget), None
                except Exception as error:
                    if attempt.ended is None and isinstance(error, NOT_HERE):
                        raise
                    attempt.error = error
                    return self._make_result(attempt), error
        finally:
            cancellation.close()

    def perform(self, attempt: Attempt, budget: Allowance) -> AttemptResult:
        """Run the step of *attempt*; return its result with what that means for the run.

        Nothing is recorded until `finish`.
        """
        self.check_out_code(attempt)
        performer, claim, head = self.performer, attempt.claim, attempt.head
        if self.code.moves:
            # Newer code may have another prompt.
            attempt.prepared = performer.prepare(attempt.prepared.place)
        if attempt.prepared.executor.kind not in OWN_WORD and self._may_have_evidence(head):
            attempt.prior = self.find_prior_attempts(head, attempt.prepared, lambda: False)
        if performer.workspace.opens:
            attempt.prior = replace(attempt.prior, is_shared=lambda: self._is_taken(claim))
        attempt.budget = budget
        attempt.compose = make_prompt_composer(
            self.workflow, performer.definition, head, self._earlier_outputs
        )
        attempt.started_s = time.monotonic()
        self.begin(attempt)
        try:
            perform(performer, attempt)
            result = attempt.ended
            if result is not None and attempt.cancellation.reason in NOT_OURS:
                # Another process may have the step now, so this result no longer counts.
                interrupted_outcome = result.outcome.replace(status=OutcomeStatus.INTERRUPTED)
                attempt.ended = replace(result, outcome=interrupted_outcome)
            return self._make_result(attempt, attempt.result_path.parent)
        finally:
            self.end(attempt)

    def _is_taken(self, claim: Claim) -> bool:
        """Return whether another process may be working at the step of *claim*."""
        try:
            head = self.store.view().head
        except SequencerError:
            return True
        return head is None or head.find_claim(claim.token) is None

    def _earlier_outputs(self) -> EarlierOutputs:
        return read_earlier_outputs(self.store.state_path.parent, self.store.history())

    def _make_result(self, attempt: Attempt, folder: Path | None = None) -> AttemptResult:
        """Return the result of *attempt*, with its record and what it means for the run.

        Its code moves with the record; if it can't, the attempt fails. A large output goes to
        *folder*; None: the output is not kept.
        """
        result, busy_error = attempt.ended, None
        if result is None or attempt.error is not None:
            result, busy_error = self.get_result(attempt), attempt.busy
        head, max_attempts = attempt.head, self.limits.attempts
        output = {} if folder is None else keep_large_output(result.outcome, folder)
        result = self._judge(head, result, max_attempts)
        self._changes.work = None
        if self.code.moves and result.ending.has_worked:
            self._changes.work = self.code.collect([attempt], head)
            result = self._judge(head, self.get_result(attempt), max_attempts)
        log = format_log_path(result.log, self.performer.project)
        record = make_ended_record(result, log, output, current_round(head))
        if self._changes.work is not None:
            record["work"] = self._changes.work.model_dump()
        if result.outcome.status is OutcomeStatus.INTERRUPTED and attempt.release_reason:
            record["reason"] = str(attempt.release_reason)
        postponement = None if busy_error is None else busy_error.message
        return replace(
            result,
            record=record,
            jitter=draw_jitter(result),
            postponed=postponement,
            is_given_back=busy_error is not None and attempt.is_given_back,
        )

    def begin(self, attempt: Attempt) -> None:
        """Keep the claim of *attempt* alive until `end`; if it is lost, cancel the attempt."""
        self._current = attempt.cancellation
        self._heartbeat.begin(attempt.claim, attempt.cancellation)
        if self.stop.is_set():
            attempt.cancellation.set(StopReason.INTERRUPTED)

    def end(self, attempt: Attempt) -> None:
        """Undo `begin`."""
        self._heartbeat.end(attempt.claim)
        self._current = None
        attempt.cancellation.close()

    def abandon(self, attempt: Attempt, error: BaseException) -> None:
        """End the claim of *attempt*, which raised *error*, if that is possible.

        A bug counts as a failure, so that it can't repeat forever.
        """
        attempt.error = error
        # The caller raises *error*, which matters more than why it could not be recorded.
        with contextlib.suppress(SequencerError):
            self.finish(attempt, self._make_result(attempt))

    def settle(self, attempt: Attempt, outcome: Outcome, seconds: float) -> Head:
        """Record a step that the caller performed in *seconds*."""
        outcome = outcome.replace(
            usage=outcome.usage.replace(seconds=seconds), prompt=attempt.step.prompt_name
        )
        attempt.ended = attempt.make_result(outcome)
        with self._heartbeat.keep_alive_while_pushing(attempt.claim):
            result = self._make_result(attempt, attempt.result_path.parent)
        return self.finish(attempt, result)[0]

    def finish(
        self, attempt: Attempt, ended: AttemptResult, may_continue: MayContinue | None = None
    ) -> tuple[Head, Attempt | None]:
        """Record how *attempt* has *ended*; if *may_continue* allows it, claim the next step.

        Raises:
            StaleClaim: the step no longer belongs to this worker; the output was kept.
            RecordRefused: what it gave can't be recorded, so it is recorded as a failure.
            WorkTreeRefused: its code was refused, which is recorded as a failure.
        """
        ending = ended.ending
        upcoming_step = None
        if may_continue is not None and (next_ref := ending.next_place) is not None:
            upcoming_step = self._prepare_following(next_ref, attempt.head)

        def capacity(head: Head) -> Capacity | None:
            is_next = upcoming_step is not None and not self.stop.is_set()
            is_next = is_next and may_continue is not None and may_continue(head)
            is_next = is_next and has_definition(head, self.workflow)
            return self._capacity(head, 1, self.expired_claims(head)) if is_next else None

        try:
            head, granted_tokens = self._record_end(attempt, ended, capacity)
        except RecordRefused as refusal:
            if attempt.error is None:
                self.abandon(attempt, refusal)
            raise
        except WorkTreeRefused as refusal:
            self.code.refuse([attempt], attempt.head, refusal)
            failed_result = self._make_result(attempt, attempt.result_path.parent)
            self.finish(attempt, failed_result)
            message = failed_result.outcome.error or refusal.message
            raise WorkTreeRefused(message, where=refusal.where, hint=refusal.hint) from refusal
        outcome = ended.outcome
        is_judged = attempt.prepared.executor.kind not in OWN_WORD
        if self.streaks is not None or (is_judged and outcome.evidence is not None):
            self._follow(head.revision, {attempt.claim.step: ended})
        is_accepted = ended.ending.kind in (ContinuationKind.ACCEPT, ContinuationKind.FIXED)
        self.clean_up_after(attempt, outcome.usage, outcome if is_accepted else None)
        if upcoming_step is None or not granted_tokens:
            return head, None
        return head, self._make_attempt(head, head.claims[-1], upcoming_step)

    def _prepare_following(self, next_ref: StepRef, head: Head) -> PreparedStep | None:
        """Prepare the next step if it is at one of this worker's positions; None if it can't be.

        A mistake in it must not affect the step that has just ended; its own claim reports it.
        """
        if not self.is_mine(next_ref.step_index):
            return None
        try:
            self.performer.workspace.ensure_ready(head)
            return self.performer.prepare(next_ref)
        except (SequencerError, OSError):
            return None

    def _record_end(
        self, attempt: Attempt, result: AttemptResult, capacity: Callable[[Head], Capacity | None]
    ) -> tuple[Head, list[int]]:
        claim, head = attempt.claim, attempt.head
        try:
            with self._heartbeat.keep_alive_while_pushing(claim):
                transition_change = self._changes.update(
                    partial(self.kind.apply_result, result=result),
                    capacity,
                    run_id=head.run_id,
                    lease_s=claim.ttl_s,
                )
            if self.code.moves:
                self.code.leave(*transition_change)
        except WorkTreeRefused:
            # `finish` records the refusal, and keeps the work on a branch.
            raise
        except (StateRefused, ClaimHeld) as refusal:
            with contextlib.suppress(StateRefused):
                keep_stale_output(self.store, attempt, result.outcome)
            self.code.keep([attempt], head)
            self.code.leave(None, ())
            if isinstance(refusal, StaleClaim):
                self._charge_lost_attempt(attempt, result)
            raise
        finally:
            self._changes.work = None
        return transition_change

    def _charge_lost_attempt(self, attempt: Attempt, result: AttemptResult) -> None:
        """Count what *attempt* has used, although its *result* was refused."""
        self._changes.work = None
        try:
            is_charged = charge_lost_attempt(self._changes, attempt, result)
        except StaleClaim:
            # The run was started over meanwhile, and the new one does not count this attempt.
            return
        except (SequencerError, OSError) as error:
            # That the step was lost matters more to the caller, but money must not vanish silently.
            cost = format_cost(result.outcome.usage) or "its usage"
            text = f"{cost} of step {attempt.claim.step!r} could not be counted: {error}"
            self.performer.emit(NoticeGiven(text))
            return
        if is_charged:
            open_leases(self.store.state_path).remove_usage(attempt.claim.token)
