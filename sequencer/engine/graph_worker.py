"""One process's part in a graph's run: prepare nodes, claim them, perform them, record them.

Every change goes through `Changes.update`. Everything that takes time happens in the threads
of `AttemptThreads`, outside of the store's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from sequencer.engine.allowance import Allowance, smallest_limit, subtract_used
from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.attempt_threads import AttemptThreads
from sequencer.engine.capacity import USD, BudgetShares
from sequencer.engine.code_sync import select_accepted
from sequencer.engine.events import AttemptUsed, HeadMoved, NoticeGiven, RunEvent, combine_listeners
from sequencer.engine.exclusion import Exclusion
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.layers.nodes import NodeLayers
from sequencer.engine.layers.order import perform
from sequencer.engine.lost_claims import find_debts
from sequencer.engine.merge_order import ActiveClaims, MergeTurn
from sequencer.engine.performing import Performer
from sequencer.engine.prompt_context.node_prompts import NodePrompts
from sequencer.engine.records import draw_jitter, make_node_record
from sequencer.engine.supported_fields import SupportedFields
from sequencer.engine.worker import NOT_OURS, Worker
from sequencer.errors import (
    AgentMissing,
    ConfigurationError,
    RecordRefused,
    SequencerError,
    StaleClaim,
    StateRefused,
    WorkTreeRefused,
    raise_all,
    to_machine_busy,
)
from sequencer.executors.attempt_lock import lock_path
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import Executor
from sequencer.model.graph.graph_kind import Act
from sequencer.model.graph.marking import FlowStatus, Marking
from sequencer.model.graph.transition import OpenTransition
from sequencer.model.head import Claim, Head
from sequencer.model.kind import AttemptResult, Capacity, count_slots
from sequencer.model.limits import RunLimits, get_max_tries
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import MAX_TRIES, Step
from sequencer.model.transitions import CLAIM_LOST, StepRef, require_claim
from sequencer.model.workflow import Workflow

Slots = Callable[[int], int]
"""Number of running attempts -> how many more may start; see `GraphBudget.slots`."""


class GraphWorker(Worker):
    """Works on one graph's run with several threads."""

    def __init__(
        self, changes: GraphChanges, performer: Performer, limits: RunLimits, places: int
    ) -> None:
        """Run at most *places* nodes at once in this process."""
        # The chart decides what runs, so a router would have nothing to choose.
        super().__init__(changes, replace(performer, router=None), limits)
        performer = self.performer
        self.changes = changes
        self.places = places
        self.is_stopped = False
        self.attempt_timeout_s: float | None = None
        """Time limit of each attempt, from the invocation."""
        self.attempts = AttemptThreads(self._heartbeat)
        self._starting = threading.Lock()
        """Held while `run_attempt` prepares: several threads may call it."""
        self._prepared: dict[str, PreparedStep] = {}
        self._supported_fields = SupportedFields(performer, changes.workflow)
        tasks = performer.tasks
        self._layers = NodeLayers(changes)
        self._merges = None if tasks is None else tasks.merge_queue()
        self._prompts = NodePrompts(changes, performer)
        self.capacity_rule = None if tasks is None else tasks.capacity_rule
        self._fallback_step = None if tasks is None else tasks.fallback_step
        if self.capacity_rule is not None and self.capacity_rule.kills:
            listener = combine_listeners(performer.emit, self._wake_on_use)
            self.performer = replace(performer, emit=listener)
        self._exclusion = Exclusion(
            performer.agents, performer.with_defaults, changes.graph_kind.workflow_at
        )
        self.shares = BudgetShares(
            limits, self.capacity_rule, changes.store.owner(), self._prepared
        )

    def _wake_on_use(self, event: RunEvent) -> None:
        """Wake the loop, which checks whether an attempt has used too much and must be killed."""
        if isinstance(event, AttemptUsed):
            self.attempts.wake()

    def interrupt(self) -> None:
        self.is_stopped = True
        super().interrupt()
        self.attempts.cancel(StopReason.INTERRUPTED)
        self.attempts.wake()

    def tidy(self, head: Head) -> None:
        """Remove the worktrees that killed processes left behind."""
        if not self.performer.workspace.opens:
            return
        expired_tokens = self.expired_claims(head)
        live_tokens = [claim.token for claim in head.claims if claim.token not in expired_tokens]
        for text in self.performer.workspace.clean(live_tokens):
            self.performer.emit(NoticeGiven(text))

    def renew_limits(self) -> str:
        text = super().renew_limits()
        self.shares.apply_limits(self.limits)
        return text

    def close(self) -> None:
        """Close every thread, process and descriptor."""
        self.attempts.close()
        super().close()

    def prepare(self, name: str, workflow: Workflow, failures: int = 0) -> PreparedStep:
        """Return the step of node *name* of *workflow*, ready to start.

        After several *failures*, another agent may be chosen.

        Raises:
            ConfigurationError: its prompt or its agent is missing.
        """
        # Code that moves with the state may bring other prompts.
        if self.code.moves or name not in self._prepared:
            step = self._supported_fields.adapt_step(workflow, name)
            self._prepared[name] = self._prepare_step(step, name)
        prepared_step = self._prepared[name]
        if self._fallback_step is not None and failures >= get_max_tries(prepared_step.step):
            step = self._supported_fields.adapt_step(workflow, name, self._fallback_step)
            return self._prepare_step(step, name)
        return prepared_step

    def _prepare_step(self, step: Step, name: str) -> PreparedStep:
        return self.performer.prepare_step(step, name, StepRef(0, name, step.prompt_name))

    def ensure_startable(self, head: Head | None) -> None:
        """Check that every node can start.

        Without a *head*, the run has not started. Only then are unsupported fields reported that
        are left out.

        Raises:
            ConfigurationError: a node can't start, see `prepare`.
            ConfigurationErrors: several nodes can't start.
        """
        self._supported_fields.is_silent = head is not None
        errors: list[ConfigurationError] = []
        for step in self.changes.workflow.steps:
            try:
                self.prepare(step.name, self.changes.workflow, failures=MAX_TRIES)
            except ConfigurationError as error:
                errors.append(error)
        raise_all(errors)
        self._supported_fields.is_silent = False

    # --- claiming ------------------------------------------------------------------

    def capacity(self, head: Head, slots: Slots, held: Collection[int] = ()) -> Capacity:
        """Return the capacity of this process for claims at *head*.

        *held* are tokens of its claims without a running attempt: they were just granted, or
        their attempts have ended and are not recorded yet.
        """
        expired_tokens = self.expired_claims(head, held)
        tokens = {claim.token for claim in self.find_foreign_claims(head)}.difference(
            held, expired_tokens
        )
        may_begin = self.code.may_begin(head, self.attempts.running, tokens)
        free_slots = slots(len(self.attempts.running) + len(held))
        if self.is_stopped or not may_begin:
            free_slots = 0
        return self._capacity(
            head,
            count_slots(head, self.limits, free_slots, expired_tokens, datetime.now(UTC)),
            expired_tokens,
            closed=partial(self.shares.find_closed, expired=expired_tokens),
            share=partial(self.shares.compute_share, expired=expired_tokens),
            excluded=partial(self._exclusion.find_excluded, expired=expired_tokens),
        )

    def list_executors(self, head: Head, claim: Claim) -> Sequence[Executor | None]:
        del head
        prepared_step = self._prepared.get(claim.step)
        return [None if prepared_step is None else prepared_step.executor]

    def expired_claims(self, head: Head, mine: Collection[int] = ()) -> frozenset[int]:
        """Return the tokens of claims that may be taken over.

        Claims in *mine* and those of attempts that run in this process may not.
        """
        return super().expired_claims(head, {*mine, *self.attempts.running})

    def update(self, act: Act | None, slots: Slots, run_id: str) -> Head:
        """Do *act*, claim the nodes that follow, and start them; see `Changes.update`."""
        return self._continue(*self._change(act, slots, run_id))

    def _change(self, act: Act | None, slots: Slots, run_id: str) -> tuple[Head, list[int]]:
        transitions: list[OpenTransition] = []

        def act_and_note(step: OpenTransition) -> None:
            transitions.append(step)
            if act is not None:
                act(step)

        def capacity(present: Head) -> Capacity | None:
            return self.capacity(present, slots, transitions[-1].granted)

        return self.changes.update(act_and_note, capacity, run_id=run_id)

    def _continue(self, head: Head, tokens: list[int]) -> Head:
        if tokens:
            if any(claim.attempt > 1 for claim in head.claims if claim.token in tokens):
                self.tidy(head)
            # Notify before starting: a short attempt asks immediately who merges next.
            self._notify_merges(head, tokens)
            self._start(head, tokens)
        self.performer.emit(HeadMoved(head))
        if self.streaks is not None:
            self.streaks.follow(head.revision)
        self.cancel_lost_attempts(head)
        return head

    def cancel_lost_attempts(self, head: Head) -> None:
        """Stop the attempts whose claims are not in *head*, or whose budget is used up."""
        held_tokens = frozenset(claim.token for claim in head.claims)
        self.attempts.cancel(StopReason.CLAIM_LOST, but=held_tokens)
        self._notify_merges(head)
        if self.capacity_rule is None or not head.claims:
            return
        _, marking = self.changes.marking(head)
        pairs = self.attempts.running.items()
        usage_by_node = {attempt.claim.step: attempt.used for _, attempt in pairs}
        if names := self.capacity_rule.find_nodes_to_kill(marking, usage_by_node):
            other_tokens = frozenset(
                token for token, attempt in pairs if attempt.claim.step not in names
            )
            self.attempts.cancel(StopReason.BUDGET, but=other_tokens)

    def _notify_merges(self, head: Head, tokens: Collection[int] = ()) -> None:
        """Notify the attempts that wait for their turn to merge of the claims in *head*."""
        if self._merges is None:
            return
        expired_tokens = self.expired_claims(head, tokens)
        claims = head.drop_claims(expired_tokens).claims
        _, marking = self.changes.marking(head)
        self._merges.active_claims = ActiveClaims(claims, marking.find_next_startable() is not None)

    def _start(self, head: Head, tokens: list[int]) -> None:
        _, marking = self.changes.marking(head)
        workflow = self.changes.graph_kind.workflow_at(marking)
        if not self.attempts.running:
            self._check_out_code(head, tokens)
        first_tries = [
            claim.step for claim in head.claims if claim.token in tokens and claim.attempt == 1
        ]
        self._supported_fields.restore_reported(workflow, marking, first_tries)
        for token in tokens:
            claim = head.find_claim(token)
            if claim is None:
                continue
            attempt = self._make_attempt(claim, head, marking, workflow)
            self.attempts.start(attempt, self._perform)

    def _make_attempt(
        self, claim: Claim, head: Head, marking: Marking, workflow: Workflow
    ) -> Attempt:
        """Return the attempt for *claim*; it reads *marking* only now."""
        name, failure, step = claim.step, None, None
        try:
            step = self.prepare(name, workflow, marking.active[name].failures)
        except (SequencerError, OSError) as error:
            failure = error
        # The record of the failure needs a step: the earlier one, or one that can't start.
        step = step or self._prepared.get(name)
        step = step or self._make_unprepared_step(workflow, name)
        store, session = self.store, self._layers.sessions.find_incoming(marking, name)
        attempt = Attempt(
            claim=claim,
            head=head.replace(session=session, gate=None, loop=None),
            prepared=replace(step, place=StepRef(claim.step_index, name, "")),
            workflow=workflow,
            cwd=self.performer.project,
            state_path=store.state_path,
            result_path=store.result_folder(claim.step_index, claim.token) / "result.json",
            token=claim.token,
            lock_path=lock_path(store.state_path, name),
            subject=marking.graph.by_id[name].subject,
            marking=marking,
            failure=failure,
        )
        if failure is None:
            step = attempt.prepared
            attempt.budget = self.allowance(head, claim)
            attempt.compose = self._prompts.make_composer(step, name, head, marking)
            attempt.prior = self.find_prior_attempts(head, step, partial(self._is_shared, head))
        if self._merges is not None and marking.graph.by_id[name].task is not None:
            attempt.merge_turn = MergeTurn(self._merges, marking.graph, name)
        return attempt

    def _is_shared(self, head: Head) -> bool:
        """Return whether other attempts of the run are running, or have started since *head*."""
        newest_head = None
        with suppress(SequencerError):  # None: assume that there are others
            newest_head = self.store.view().head
        return len(head.claims) > 1 or newest_head is None or newest_head.token > head.token

    def _perform(self, attempt: Attempt) -> None:
        """Run *attempt*, in its own thread."""
        attempt.started_s = time.monotonic()
        if attempt.failure is not None:
            self._fail(attempt, attempt.failure)
            return
        perform(self.performer, attempt, self._layers.keep_output)

    def run_attempt(
        self, head: Head, token: int, budget: Allowance, cancellation: Cancellation
    ) -> tuple[AttemptResult, BaseException | None]:
        """Run the attempt with *token*, a claim of *head*; another process records its end.

        Only the time in *budget* counts: the claim's share limits the cost. For the result and
        the errors see `Worker.run_attempt`.
        """
        claim, work = require_claim(head, token), None
        try:
            with self.code.reserve(head, cancellation):
                self.code.enter(head)
                self.tidy(head)
                with self._starting:
                    _, marking = self.changes.marking(head)
                    self.attempt_timeout_s = budget.timeout_s
                    workflow = self.changes.graph_kind.workflow_at(marking)
                    attempt = self._make_attempt(claim, head, marking, workflow)
                attempt.cancellation = cancellation
                try:
                    with self._heartbeat.keep_alive(claim, cancellation):
                        self._perform(attempt)
                    work = self.code.collect(select_accepted([attempt]), head)
                except Exception as error:  # noqa: BLE001 - the claim has to end in a record
                    attempt.error = error
        finally:
            cancellation.close()
        result = self._make_result(attempt)
        if work is not None:
            result = replace(result, record={**result.record, "work": work.model_dump()})
        return result, attempt.error

    def _make_unprepared_step(self, workflow: Workflow, name: str) -> PreparedStep:
        """Return a step for the record of an added task that can't even start."""
        # The attempt fails before it runs, so the other fields may be from any step.
        any_step = next(iter(self._prepared.values()))
        return replace(any_step, step=workflow.steps_by_name[name], position=name, agent="")

    def _check_out_code(self, head: Head, tokens: list[int]) -> None:
        """Check out the code of *head*, or release the claims of *tokens*."""
        try:
            self.code.enter(head)
        except SequencerError as refusal:
            record = {"status": str(OutcomeStatus.INTERRUPTED), "error": refusal.message}

            def release(step: OpenTransition) -> None:
                for token in tokens:
                    if step.head.find_claim(token):
                        step.release(token, record, Usage())

            self.code.is_ready = False
            self.changes.update(release, lambda _: None, run_id=head.run_id)
            raise

    # --- performing ----------------------------------------------------------------

    def allowance(self, head: Head, claim: Claim) -> Allowance:
        """Return what the attempt of *claim* may use: its share, and the time that is left."""
        seconds = subtract_used(self.limits.seconds, head.usage.seconds)
        return Allowance(claim.share(USD), smallest_limit(self.attempt_timeout_s, seconds))

    # --- recording -----------------------------------------------------------------

    def record(self, ended: Sequence[Attempt], slots: Slots) -> Head | None:
        """Record how each of *ended* ended, claim what follows and start it, in one transition.

        Returns the new head; None: their results no longer count.

        Raises:
            StaleClaim: the run itself is gone.
        """
        # After a reset, some attempts may belong to the run before; they no longer count.
        run_id = max(ended, key=lambda attempt: attempt.claim.token).head.run_id
        candidates = [attempt for attempt in ended if attempt.head.run_id == run_id]
        tries = [attempt for attempt in candidates if attempt.cancellation.reason not in NOT_OURS]
        head = self._collect(tries)
        self.code.keep([item for item in ended if item not in tries and item.ended], head)
        debts = find_debts(self.store, candidates, tries, head)
        for attempt in ended:
            attempt.record_was_tried = True
        if not tries and not debts:
            return None
        try:
            act = partial(self._record_attempts, ended=tries, owed=debts, slots=slots)
            # A charge alone claims nothing: before a claim, the loop looks at the work tree.
            change = self._change(act, slots if tries else lambda _: 0, run_id)
            if not any(attempt.recorded_result for attempt in tries):
                self.code.keep(select_accepted(tries), head)
        except WorkTreeRefused as refusal:
            if head is None or self.changes.work is None:
                raise
            self.code.refuse(select_accepted(tries), head, refusal)
            self.changes.work, self.code.is_ready = None, False
            self.record(tries, slots)
            raise
        except RecordRefused as refusal:
            return self._record_refused(tries, slots, refusal)
        except StateRefused as refusal:
            self.code.keep(select_accepted(tries), head)
            if isinstance(refusal, StaleClaim) and self._is_still_run(run_id):
                return None
            raise
        finally:
            self.changes.work = None
        self._report_recorded(tries)
        results = {item.claim.step: self.get_result(item) for item in tries if item.recorded_result}
        if self.streaks is not None or any(item.outcome.evidence for item in results.values()):
            self._follow(change[0].revision, results)
        return self._continue(*change) if tries else None

    def _is_still_run(self, run_id: str) -> bool:
        head = self.changes.store.view().head
        return head is not None and head.run_id == run_id

    def _record_refused(
        self, attempts: Sequence[Attempt], slots: Slots, refusal: RecordRefused
    ) -> Head | None:
        """Record each of *attempts* alone; one whose result can't be recorded has failed.

        Raises:
            RecordRefused: not even the failure can be recorded.
        """
        head = None
        for attempt in attempts:
            if len(attempts) == 1:
                if attempt.error is not None:
                    raise refusal
                attempt.error = refusal
            head = self.record([attempt], slots)
        return head

    def _report_recorded(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            outcome, result = self.get_result(attempt).outcome, attempt.recorded_result
            recorded_outcome = outcome if result is None else result.outcome or outcome
            is_accepted = result is not None and recorded_outcome.is_accepted
            self.clean_up_after(attempt, outcome.usage, recorded_outcome if is_accepted else None)

    def _collect(self, attempts: Sequence[Attempt]) -> Head | None:
        """Collect the code that moves with the record of *attempts*; return the head for it."""
        head = self.changes.store.view().head
        if head is None:
            return None
        self.changes.work = self.code.collect(select_accepted(attempts), head)
        if not self.attempts.running:
            self.code.check_ready(head)
        return head

    def _fail(self, attempt: Attempt, error: Exception) -> None:
        """End *attempt*, which could not be prepared because of *error*, as a failure.

        A missing agent program is not a failure, because it is not the node's fault.

        Raises:
            MachineBusy: this machine is out of descriptors or processes at the moment.
        """
        if (busy_error := to_machine_busy(error)) is not None:
            raise busy_error
        is_missing = isinstance(error, AgentMissing)
        status = OutcomeStatus.UNAVAILABLE if is_missing else OutcomeStatus.FAILED
        outcome = Outcome(status=status, error=self.performer.redact(str(error)))
        attempt.ended = attempt.make_result(outcome)

    def _make_result(self, attempt: Attempt) -> AttemptResult:
        """Return the result of *attempt* with its record, for the run."""
        result, record, cause = self.get_result(attempt), self._make_record(attempt), attempt.busy
        if result.outcome.status is OutcomeStatus.INTERRUPTED and attempt.release_reason:
            record["reason"] = str(attempt.release_reason)
        return replace(
            result,
            record=record,
            reference=attempt.reference,
            jitter=draw_jitter(result),
            postponed=None if cause is None else cause.message,
            is_given_back=attempt.is_given_back,
        )

    def _make_record(self, attempt: Attempt) -> dict[str, Any]:
        """Return the journal's facts about *attempt*, which has ended."""
        result, project = self.get_result(attempt), self.performer.project
        return make_node_record(attempt, result, self.changes.work, project)

    def _charge(self, step: OpenTransition, attempt: Attempt) -> None:
        """Count the usage of *attempt*, an attempt whose claim is gone."""
        # The process that took over its step may have counted a part of it.
        uncounted_usage = self.get_result(attempt).outcome.usage.minus(attempt.counted)
        record = {**self._make_record(attempt), "reason": CLAIM_LOST}
        record["usage"] = uncounted_usage.model_dump(exclude_defaults=True)
        record.pop("work", None)
        step.charge(attempt.claim, uncounted_usage, record)
        if self.capacity_rule is not None:
            self.capacity_rule.warn_about_limits(step)

    def _record_attempts(
        self,
        step: OpenTransition,
        ended: Sequence[Attempt],
        owed: Sequence[Attempt],
        slots: Slots,
    ) -> None:
        """Record *ended* in *step* as if each had its own transition.

        The cost of a canceled attempt is counted if it is *owed*; an earlier attempt of *ended*
        may have canceled it. If nothing can be recorded, the last attempt is refused, as if it
        were alone.
        """
        for owed_attempt in owed:
            if owed_attempt not in ended:
                self._charge(step, owed_attempt)
        for index, attempt in enumerate(ended):
            attempt.recorded_result = None  # an earlier try may have lost the race for the journal
            rest = ended[index + 1 :]
            is_running = step.marking.status is FlowStatus.RUNNING
            if not (is_running and step.head.find_claim(attempt.claim.token)):
                if attempt in owed:
                    self._charge(step, attempt)
                if rest or step.facts:
                    continue
            self._record_one(step, attempt, rest, slots)
        if not any(attempt.recorded_result for attempt in ended):
            # Code of an attempt that was not accepted is set aside.
            self.changes.work = None

    def _record_one(
        self,
        step: OpenTransition,
        attempt: Attempt,
        rest: Sequence[Attempt],
        slots: Slots,
    ) -> None:
        """Record *attempt* in *step*; if a *rest* follows it, also claim what it makes ready.

        These claims leave slots for the *rest*, so that nodes start in the same order as if each
        attempt were recorded alone.
        """
        attempt.recorded_result = self.changes.graph_kind.apply_result(
            step, self._make_result(attempt)
        )
        if self.capacity_rule is not None:
            self.capacity_rule.warn_about_limits(step)
        if rest:
            tokens = [*step.granted, *(item.claim.token for item in rest)]
            step.settle(self.capacity(step.head, slots, tokens))

    def is_code_busy(self, head: Head) -> bool:
        """Return whether other processes work on the code that this process needs."""
        return self.code.moves and len(self.find_foreign_claims(head)) > len(
            self.expired_claims(head)
        )

    def find_foreign_claims(self, head: Head) -> list[Claim]:
        """Return the claims of other processes."""
        running_attempts = self.attempts.running
        return [claim for claim in head.claims if claim.token not in running_attempts]
