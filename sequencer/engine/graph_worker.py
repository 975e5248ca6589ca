"""One process's part in a graph run: prepare, claim, perform, record.

Every change goes through `Changes.update`; what takes time happens in the threads of
`Attempts`, outside the store's exclusion.
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

from sequencer.engine.allowance import Allowance, least, left
from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.attempts import Attempts
from sequencer.engine.capacity import USD, Shares
from sequencer.engine.code_sync import accepted
from sequencer.engine.events import AttemptUsed, HeadMoved, Noticed, RunEvent, several
from sequencer.engine.exclusion import Exclusion
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.layers.nodes import NodeLayers
from sequencer.engine.layers.order import perform
from sequencer.engine.merge_order import ActiveClaims, MergeTurn
from sequencer.engine.performing import Performer
from sequencer.engine.prompt_context.node_prompts import NodePrompts
from sequencer.engine.records import (
    INLINE_BYTES,
    circumstances,
    jitter_of,
    journal_record,
    shown_log,
)
from sequencer.engine.supported_fields import SupportedFields
from sequencer.engine.worker import NOT_OURS, Worker
from sequencer.errors import (
    AgentMissing,
    ConfigurationError,
    SequencerError,
    StaleClaim,
    StateRefused,
    WorkTreeRefused,
    out_of_resources,
    raise_all,
)
from sequencer.executors.attempt_lock import lock_path
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import Executor
from sequencer.model.graph.graph_kind import Act
from sequencer.model.graph.marking import FlowStatus, Marking
from sequencer.model.graph.transition import OpenTransition
from sequencer.model.head import Claim, Head
from sequencer.model.kind import AttemptResult, Capacity, slots_at
from sequencer.model.limits import RunLimits, tries_of
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import MOST_TRIES, Step
from sequencer.model.transitions import StepRef, held_claim
from sequencer.model.workflow import Workflow

_LOST = str(StopReason.CLAIM_LOST)
Slots = Callable[[int], int]
"""How many attempts may be started where so many are made already; see `GraphBudget.slots`."""


class GraphWorker(Worker):
    """Works on one graph run with a number of threads."""

    def __init__(
        self, changes: GraphChanges, performer: Performer, limits: RunLimits, places: int
    ) -> None:
        """Run at most *places* nodes at once in this process."""
        # The chart decides what runs; there is nothing to choose for a router.
        super().__init__(changes, replace(performer, router=None), limits)
        performer = self.performer
        self.changes = changes
        self.places = places
        self.is_stopped = False
        self.attempt_timeout_s: float | None = None
        """Time limit of each attempt, from the invocation."""
        self.attempts = Attempts(self._heartbeat)
        self._starting = threading.Lock()
        """Several threads may make attempts that others decide over."""
        self._prepared: dict[str, PreparedStep] = {}
        self._supported_fields = SupportedFields(performer, changes.workflow)
        tasks = performer.tasks
        self._layers = NodeLayers(changes)
        self._merges = None if tasks is None else tasks.merge_queue()
        self._prompts = NodePrompts(changes, performer)
        self.capacity_rule = None if tasks is None else tasks.capacity_rule
        self._fallback_step = None if tasks is None else tasks.fallback_step
        if self.capacity_rule is not None and self.capacity_rule.kills:
            emit = several(performer.emit, self._wake_on_use)
            self.performer = replace(performer, emit=emit)
        self._exclusion = Exclusion(
            performer.agents, performer.with_defaults, changes.graph_kind.workflow_at
        )
        self.shares = Shares(limits, self.capacity_rule, changes.store.owner(), self._prepared)

    def _wake_on_use(self, event: RunEvent) -> None:
        """Look whether an attempt that has used something is to be killed for that."""
        if isinstance(event, AttemptUsed):
            self.attempts.wake()

    def interrupt(self) -> None:
        self.is_stopped = True
        super().interrupt()
        self.attempts.cancel(StopReason.INTERRUPTED)
        self.attempts.wake()

    def tidy(self, head: Head) -> None:
        """Remove the work trees that killed processes left."""
        if not self.performer.workspace.opens:
            return
        gone = self.gone(head)
        live = [claim.token for claim in head.claims if claim.token not in gone]
        for text in self.performer.workspace.clean(live):
            self.performer.emit(Noticed(text))

    def renew_limits(self) -> str:
        text = super().renew_limits()
        self.shares.keep_to(self.limits)
        return text

    def leave(self) -> None:
        """Close every thread, process and descriptor."""
        self.attempts.close()
        super().leave()

    def prepare(self, name: str, workflow: Workflow, failures: int = 0) -> PreparedStep:
        """Return the step of node *name* of *workflow*, ready to start.

        After *failures*, another agent may be asked than the first time.

        Raises:
            ConfigurationError: its prompt or its agent is missing.
        """
        # What moves with the state may bring other prompts.
        if self.code.moves or name not in self._prepared:
            self._prepared[name] = self._made(self._supported_fields.step(workflow, name), name)
        prepared = self._prepared[name]
        if self._fallback_step is not None and failures >= tries_of(prepared.step):
            return self._made(
                self._supported_fields.step(workflow, name, self._fallback_step), name
            )
        return prepared

    def _made(self, step: Step, name: str) -> PreparedStep:
        return self.performer.prepare_step(step, name, StepRef(0, name, step.prompt_name))

    def ensure_startable(self, head: Head | None) -> None:
        """Check that every node can start.

        A run without a *head* has not started; only then are fields that are left out reported.

        Raises:
            ConfigurationError: a node can't start, see `prepare`.
            ConfigurationErrors: several nodes can't.
        """
        self._supported_fields.is_silent = head is not None
        wrong: list[ConfigurationError] = []
        for step in self.changes.workflow.steps:
            try:
                self.prepare(step.name, self.changes.workflow, failures=MOST_TRIES)
            except ConfigurationError as error:
                wrong.append(error)
        raise_all(wrong)
        self._supported_fields.is_silent = False

    # --- claiming ------------------------------------------------------------------

    def capacity(self, head: Head, slots: Slots, held: Collection[int] = ()) -> Capacity:
        """Return which agents this process may claim at *head*.

        With the tokens *held* it has claims besides those of its running attempts: granted a
        moment ago, or ended and not recorded.
        """
        gone = self.gone(head, held)
        others = {claim.token for claim in self.foreign(head)}.difference(held, gone)
        may_begin = self.code.may_begin(head, self.attempts.running, others)
        free = slots(len(self.attempts.running) + len(held))
        if self.is_stopped or not may_begin:
            free = 0
        return self._capacity(
            head,
            slots_at(head, self.limits, free, gone, datetime.now(UTC)),
            gone,
            closed=partial(self._closed, gone=gone),
            share=partial(self.shares.of, gone=gone),
            closes_with_each=True,
        )

    def _closed(self, head: Head, marking: Marking, gone: frozenset[int]) -> Collection[str]:
        """Return the nodes that must not start now; *gone* are dead claims."""
        closed = self.shares.closed(head, marking, gone)
        excluded = self._exclusion.closed(head, marking, gone)
        return frozenset(closed) | excluded if excluded else closed

    def executors_of(self, head: Head, claim: Claim) -> Sequence[Executor | None]:
        del head
        prepared = self._prepared.get(claim.step)
        return [None if prepared is None else prepared.executor]

    def gone(self, head: Head, mine: Collection[int] = ()) -> frozenset[int]:
        """Return the tokens of claims that may be taken over.

        Claims in *mine* and those of attempts that run in this process may not.
        """
        return super().gone(head, {*mine, *self.attempts.running})

    def update(self, act: Act | None, slots: Slots, run_id: str) -> Head:
        """Do *act*, claim what follows, and start it; see `Changes.update`."""
        return self._go_on(*self._change(act, slots, run_id))

    def _change(self, act: Act | None, slots: Slots, run_id: str) -> tuple[Head, list[int]]:
        made: list[OpenTransition] = []

        def keep(step: OpenTransition) -> None:
            made.append(step)
            if act is not None:
                act(step)

        def capacity(present: Head) -> Capacity | None:
            return self.capacity(present, slots, made[-1].granted)

        return self.changes.update(keep, capacity, run_id=run_id)

    def _go_on(self, head: Head, granted: list[int]) -> Head:
        if granted:
            if any(claim.attempt > 1 for claim in head.claims if claim.token in granted):
                self.tidy(head)
            # Now, and not behind it: who is done at once asks whose turn it is.
            self._tell_standing(head, granted)
            self._start(head, granted)
        self.performer.emit(HeadMoved(head))
        if self.streaks is not None:
            self.streaks.follow(head.revision)
        self.keep_only(head)
        return head

    def keep_only(self, head: Head) -> None:
        """Stop the attempts whose claims are not in *head*, or whose budget is used up."""
        held = frozenset(claim.token for claim in head.claims)
        self.attempts.cancel(StopReason.CLAIM_LOST, but=held)
        self._tell_standing(head)
        if self.capacity_rule is None or not head.claims:
            return
        _, marking = self.changes.marking(head)
        mine = self.attempts.running.items()
        used = {one.claim.step: one.used for _, one in mine}
        if kept := self.capacity_rule.to_kill(marking, used):
            others = frozenset(token for token, one in mine if one.claim.step not in kept)
            self.attempts.cancel(StopReason.BUDGET, but=others)

    def _tell_standing(self, head: Head, granted: Collection[int] = ()) -> None:
        """Tell those that wait for their turn to merge about *head*."""
        if self._merges is None:
            return
        gone = self.gone(head, granted)
        live = tuple(one for one in head.claims if one.token not in gone)
        _, marking = self.changes.marking(head)
        self._merges.active_claims = ActiveClaims(live, marking.next_startable() is not None)

    def _start(self, head: Head, granted: list[int]) -> None:
        _, marking = self.changes.marking(head)
        workflow = self.changes.graph_kind.workflow_at(marking)
        if not self.attempts.running:
            self._arrive(head, granted)
        fresh = [one.step for one in head.claims if one.token in granted and one.attempt == 1]
        self._supported_fields.recall(workflow, marking, fresh)
        for token in granted:
            claim = head.claim_with(token)
            if claim is None:
                continue
            self.attempts.start(self._begun(claim, head, marking, workflow), self._perform)

    def _begun(self, claim: Claim, head: Head, marking: Marking, workflow: Workflow) -> Attempt:
        """Return the attempt of *claim*; what it needs of *marking* is taken now."""
        name, failure, known = claim.step, None, None
        try:
            known = self.prepare(name, workflow, marking.active[name].failures)
        except (SequencerError, OSError) as error:
            failure = error
        # After a failure: what it was before, for the record.
        known = known or self._prepared.get(name)
        known = known or self._unprepared(workflow, name)
        store, session = self.store, self._layers.sessions.reaching(marking, name)
        attempt = Attempt(
            claim=claim,
            head=head.replace(session=session, gate=None, loop=None),
            prepared=replace(known, place=StepRef(claim.step_index, name, "")),
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
            prepared = attempt.prepared
            attempt.budget = self.allowance(head, claim)
            attempt.compose = self._prompts.of(prepared, name, head, marking)
            attempt.prior = self.known(head, prepared, partial(self._is_shared, head))
        if self._merges is not None and marking.graph.by_id[name].task is not None:
            attempt.merge_turn = MergeTurn(self._merges, marking.graph, name)
        return attempt

    def _is_shared(self, head: Head) -> bool:
        """Return whether other attempts of the run are or were made since *head* granted one."""
        newest = None
        with suppress(SequencerError):  # nobody knows, then
            newest = self.store.view().head
        return len(head.claims) > 1 or newest is None or newest.token > head.token

    def _perform(self, attempt: Attempt) -> None:
        """Make *attempt*, in a thread of its own."""
        attempt.started_s = time.monotonic()
        if attempt.failure is not None:
            self._fail(attempt, attempt.failure)
            return
        perform(self.performer, attempt, self._layers.keep_output)

    def attempt(
        self, head: Head, token: int, budget: Allowance, cancellation: Cancellation
    ) -> tuple[AttemptResult, BaseException | None]:
        """Run the attempt that *head* grants *token* for; someone else records its end.

        Only the time in *budget* counts: the claim's share limits the cost. For the result and
        the errors see `Worker.attempt`.
        """
        claim, work = held_claim(head, token), None
        try:
            with self.code.alone(head, cancellation):
                self.code.enter(head)
                self.tidy(head)
                with self._starting:
                    _, marking = self.changes.marking(head)
                    self.attempt_timeout_s = budget.timeout_s
                    workflow = self.changes.graph_kind.workflow_at(marking)
                    attempt = self._begun(claim, head, marking, workflow)
                attempt.cancellation = cancellation
                try:
                    with self._heartbeat.of(claim, cancellation):
                        self._perform(attempt)
                    work = self.code.collect(accepted([attempt]), head)
                except Exception as error:  # noqa: BLE001 - the claim has to end in a record
                    attempt.error = error
        finally:
            cancellation.close()
        ended = self._end_of(attempt)
        if work is not None:
            ended = replace(ended, record={**ended.record, "work": work.model_dump()})
        return ended, attempt.error

    def _unprepared(self, workflow: Workflow, name: str) -> PreparedStep:
        """Return what a record needs about an added task that can't even start."""
        anybody = next(iter(self._prepared.values()))
        return replace(anybody, step=workflow.steps_by_name[name], position=name, agent="")

    def _arrive(self, head: Head, granted: list[int]) -> None:
        """Bring the work tree to the code of *head*, or give back what was *granted*."""
        try:
            self.code.enter(head)
        except SequencerError as refusal:
            told = {"status": str(OutcomeStatus.INTERRUPTED), "error": refusal.message}

            def release(step: OpenTransition) -> None:
                for token in granted:
                    if step.head.claim_with(token):
                        step.release(token, told, Usage())

            self.code.is_ready = False
            self.changes.update(release, lambda _: None, run_id=head.run_id)
            raise

    # --- performing ----------------------------------------------------------------

    def allowance(self, head: Head, claim: Claim) -> Allowance:
        """Return what the attempt of *claim* may use: its share, and what is left of time."""
        seconds = left(self.limits.seconds, head.usage.seconds)
        return Allowance(claim.share(USD), least(self.attempt_timeout_s, seconds))

    # --- recording -----------------------------------------------------------------

    def record(self, ended: Sequence[Attempt], slots: Slots) -> Head | None:
        """Record how each of *ended* ended, and continue from there, in one transition.

        None: their results no longer count.

        Raises:
            StaleClaim: the run itself is gone.
        """
        # After a reset there may be some from the run before; they no longer count.
        run_id = max(ended, key=lambda one: one.claim.token).head.run_id
        here = [one for one in ended if one.head.run_id == run_id]
        mine = [one for one in here if one.cancellation.reason not in NOT_OURS]
        head = self._collect(mine)
        self.code.keep([one for one in ended if one not in mine and one.ended], head)
        # What was reported before may have been accepted, and is not counted twice.
        owed = [one for one in here if one.has_cost and not one.record_was_tried]
        self.note_counted(owed, head)
        for one in ended:
            one.record_was_tried = True
        if not mine and not owed:
            return None
        try:
            act = partial(self._record_in, ended=mine, owed=owed, slots=slots)
            changed = self._change(act, slots, run_id)
            if not any(one.recorded_result for one in mine):
                self.code.keep(accepted(mine), head)
        except WorkTreeRefused as refusal:
            if head is None or self.changes.work is None:
                raise
            self.code.refuse(accepted(mine), head, refusal)
            self.changes.work, self.code.is_ready = None, False
            self.record(mine, slots)
            raise
        except StateRefused as refusal:
            self.code.keep(accepted(mine), head)
            if not isinstance(refusal, StaleClaim):
                raise
            view = self.changes.store.view().head
            if view is None or view.run_id != run_id:
                raise
            return None
        finally:
            self.changes.work = None
        self._tell_taken(mine)
        taken = {one.claim.step: self.ended_of(one) for one in mine if one.recorded_result}
        if self.streaks is not None or any(one.outcome.evidence for one in taken.values()):
            self._follow(changed[0].revision, taken)
        return self._go_on(*changed)

    def _tell_taken(self, ended: Sequence[Attempt]) -> None:
        for one in ended:
            made, taken = self.ended_of(one).outcome, one.recorded_result
            outcome = made if taken is None else taken.outcome or made
            is_accepted = taken is not None and outcome.is_accepted
            self.recorded(one, made.usage, outcome if is_accepted else None)

    def _collect(self, ended: Sequence[Attempt]) -> Head | None:
        """Let the code of *ended* move with their record; return the head that was seen."""
        head = self.changes.store.view().head
        if head is None:
            return None
        self.changes.work = self.code.collect(accepted(ended), head)
        if not self.attempts.running:
            self.code.look(head)
        return head

    def _fail(self, attempt: Attempt, error: Exception) -> None:
        """Let *attempt* fail, which can't be prepared.

        A lack of descriptors or a missing agent program is different: the node is not at fault.

        Raises:
            MachineBusy: this machine lacks something now.
        """
        if (busy := out_of_resources(error)) is not None:
            raise busy
        is_missing = isinstance(error, AgentMissing)
        status = OutcomeStatus.UNAVAILABLE if is_missing else OutcomeStatus.FAILED
        outcome = Outcome(status=status, error=self.performer.redact(str(error)))
        attempt.ended = attempt.ended_as(outcome)

    def _end_of(self, attempt: Attempt) -> AttemptResult:
        """Return what the run hears about the end of *attempt*."""
        ended, record, busy = self.ended_of(attempt), self._record_of(attempt), attempt.busy
        reason = attempt.cancellation.reason
        if ended.outcome.status is OutcomeStatus.INTERRUPTED and reason:
            record["reason"] = str(reason)
        return replace(
            ended,
            record=record,
            reference=attempt.reference,
            jitter=jitter_of(ended),
            postponed=None if busy is None else busy.message,
        )

    def _record_of(self, attempt: Attempt) -> dict[str, Any]:
        """Return the journal's facts about *attempt*, which has ended."""
        ended, left, more = self.ended_of(attempt), attempt.leftovers, dict[str, Any]()
        outcome = ended.outcome
        size = len(outcome.output.encode("utf-8", "replace"))
        if outcome.output and size <= INLINE_BYTES:
            more["output"] = outcome.output
        if isinstance(attempt.reference, str):
            more["output_file"] = f"results/{attempt.reference}/output.txt"
            more["output_bytes"] = size
        if self.changes.work is not None and outcome.is_accepted:
            more["work"] = self.changes.work.model_dump()
        log = shown_log(ended.log, self.performer.project)
        record = journal_record(outcome, ended.agent, log, more) | circumstances(ended)
        if left is not None and left.journal_fields:
            record["left"] = dict(left.journal_fields)
        if left is not None and left.notices:
            record["notices"] = [text[:1000] for text in left.notices[:20]]
        return record

    def _charge(self, step: OpenTransition, lost: Attempt) -> None:
        """Count what *lost*, whose claim is gone, used."""
        rest = self.ended_of(lost).outcome.usage.minus(lost.counted)
        told = {**self._record_of(lost), "reason": _LOST}
        told["usage"] = rest.model_dump(exclude_defaults=True)
        told.pop("work", None)
        step.charge(lost.claim, rest, told)
        if self.capacity_rule is not None:
            self.capacity_rule.watch(step)

    def _record_in(
        self,
        step: OpenTransition,
        ended: Sequence[Attempt],
        owed: Sequence[Attempt],
        slots: Slots,
    ) -> None:
        """Record *ended* in *step* as if each had a transition of its own.

        The cost of a canceled attempt, perhaps canceled by an earlier one, is counted if it is
        *owed*. If there is nothing to record, the last one is refused, as it would be alone.
        """
        for lost in owed:
            if lost not in ended:
                self._charge(step, lost)
        for place, one in enumerate(ended):
            one.recorded_result = None  # of a try that lost the race for the journal
            to_come = ended[place + 1 :]
            is_on = step.marking.status is FlowStatus.RUNNING
            if not (is_on and step.head.claim_with(one.claim.token)):
                if one in owed:
                    self._charge(step, one)
                if to_come or step.facts:
                    continue
            self._take(step, one, to_come, slots)
        if not any(one.recorded_result for one in ended):
            # Code of an attempt that was not accepted is set aside.
            self.changes.work = None

    def _take(
        self,
        step: OpenTransition,
        one: Attempt,
        to_come: Sequence[Attempt],
        slots: Slots,
    ) -> None:
        """Let *one* end in *step*, and do what follows if others are *to_come*.

        It uses only places that the others don't need, so that nodes start in the same order.
        """
        one.recorded_result = self.changes.graph_kind.take(step, self._end_of(one))
        if self.capacity_rule is not None:
            self.capacity_rule.watch(step)
        if to_come:
            held = [*step.granted, *(other.claim.token for other in to_come)]
            step.settle(self.capacity(step.head, slots, held))

    def must_wait(self, head: Head) -> bool:
        """Return whether other processes work on the code that this one would work on."""
        return self.code.moves and len(self.foreign(head)) > len(self.gone(head))

    def foreign(self, head: Head) -> list[Claim]:
        """Return the claims of other processes."""
        mine = self.attempts.running
        return [claim for claim in head.claims if claim.token not in mine]
