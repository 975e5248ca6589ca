"""Cycles and procedures as a kind: one step runs after another.

How the run continues after an attempt is decided before the lock is taken: while the claim is in
the head, nothing that the decision depends on can change. A decision of the project's hooks
overrides the workflow's, and a gate overrides what the agent says.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import UnknownName, UsageRefused
from sequencer.model import command_rules, transitions
from sequencer.model.commands import (
    Accept,
    Adopt,
    Approve,
    Fail,
    Feedback,
    Reject,
    RetryNow,
    Rewind,
    RunCommand,
    Skip,
    Tell,
)
from sequencer.model.graph.choices import shorten
from sequencer.model.head import Claim, Head, Loop, Work
from sequencer.model.kind import (
    STAGNATED,
    AttemptResult,
    Capacity,
    CommandContext,
    Kind,
    ReadinessKind,
)
from sequencer.model.limits import (
    POSTPONED_S,
    compute_pause_end,
    compute_retry_date,
    describe_postponement,
    format_utc_ms,
    format_utc_s,
    is_past,
)
from sequencer.model.outcome import Decision, Move, OutcomeStatus, Usage
from sequencer.model.sequence import gates
from sequencer.model.sequence.order import (
    MAX_REASON_CHARS,
    Description,
    count_exhausted,
    describe_at,
    find_current_ref,
    find_fixer_ref,
    find_step_index,
    find_step_ref,
    is_exhausted,
    next_index,
    record_judgment,
)
from sequencer.model.transitions import Event, Fact, StepRef, Transition
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.model.workflow import Workflow, ensure_definition

BY_TIMEOUT = "timeout"
"""Who decided at a gate, if no one did in time."""
MAX_ROUNDS = 50
"""Hooks may send a procedure back until it has run this many times its number of steps."""


class ContinuationKind(StrEnum):
    """What can follow an attempt."""

    ACCEPT = "accept"
    NO = "no"
    """The step judged "no" and may judge again."""
    FIXED = "fixed"
    AGAIN = "again"
    """A hook wants the step to run again; nothing failed."""
    FAIL = "fail"
    BACK = "back"
    """The claim is released without a failure: the attempt was interrupted or put off."""


class Continuation(Struct, frozen=True):
    """How the run continues after an attempt."""

    kind: ContinuationKind
    following: StepRef | None = None
    """Where the run goes after ``accept``, which always sets it; else it stays at its step."""
    has_gate: bool = False
    is_done: bool = False
    """The run is complete, even if a step follows."""
    error: str | None = None
    """The error for ``fail``, if the outcome itself has none."""

    @property
    def has_worked(self) -> bool:
        """Return whether the step did its work, accepted or not."""
        return self.kind in _WORKED

    @property
    def next_place(self) -> StepRef | None:
        """Return where the same process may continue immediately; None: it may not."""
        has_next = self.kind is ContinuationKind.ACCEPT and not (self.has_gate or self.is_done)
        return (
            None
            if not has_next or self.following is None or self.following.is_end
            else self.following
        )


_WORKED = frozenset(
    {ContinuationKind.ACCEPT, ContinuationKind.NO, ContinuationKind.FIXED, ContinuationKind.AGAIN}
)


def decide_continuation(
    kind: SequenceKind, head: Head, result: AttemptResult, max_attempts: int
) -> Continuation:
    """Return how the run continues after *result*; *head* still has its claim."""
    decision, outcome = result.decision, result.outcome
    if decision is not None:
        return _follow_decision(kind, head, result, decision, max_attempts)
    if result.place.stage == "fix":
        return Continuation(
            ContinuationKind.FIXED if outcome.is_accepted else ContinuationKind.FAIL
        )
    validation = result.step.validation
    if result.verdict is not None and not result.verdict.is_pass and validation is not None:
        if not is_exhausted(head, validation):
            return Continuation(ContinuationKind.NO)
        if validation.on_exhausted == "fail":
            error = f"it said no {validation.max_attempts} times: {result.verdict.reason}"
            return Continuation(ContinuationKind.FAIL, error=error)
        return _accept(kind, head, result)
    return (
        _accept(kind, head, result) if outcome.is_accepted else Continuation(ContinuationKind.FAIL)
    )


def _accept(kind: SequenceKind, head: Head, result: AttemptResult) -> Continuation:
    return Continuation(
        ContinuationKind.ACCEPT,
        kind.find_following(head, result.place.step_index),
        has_gate=result.step.requires_approval,
        is_done=result.outcome.status is OutcomeStatus.COMPLETE,
    )


def _follow_decision(
    kind: SequenceKind,
    head: Head,
    result: AttemptResult,
    decision: Decision,
    max_attempts: int,
) -> Continuation:
    workflow, step_index, move = kind.workflow, result.place.step_index, decision.move
    next_ref = _find_ref_after(kind, head, step_index, decision)
    error = _find_decision_error(
        workflow, head, step_index, next_ref, decision=decision, max_attempts=max_attempts
    )
    if error is not None or next_ref is None:
        return Continuation(ContinuationKind.FAIL, error=error)
    if move is Move.RETRY:
        return Continuation(ContinuationKind.AGAIN)
    if move is Move.NEXT and result.place.stage == "fix":
        return Continuation(ContinuationKind.FIXED)
    return Continuation(
        ContinuationKind.ACCEPT,
        next_ref,
        has_gate=result.step.requires_approval or move is Move.GATE,
        is_done=move is Move.COMPLETE,
    )


def _find_decision_error(
    workflow: Workflow,
    head: Head,
    step_index: int,
    next_ref: StepRef | None,
    *,
    decision: Decision,
    max_attempts: int,
) -> str | None:
    """Return why the step fails instead of following *decision* to *next_ref*; None: it follows."""
    reason = decision.why
    if decision.move is Move.FAIL:
        return f"a hook made it fail: {reason}"
    if decision.move is Move.RETRY and head.attempt >= max_attempts:
        return f"a hook wanted attempt {head.attempt + 1}: {reason}"
    if next_ref is None:
        name, names = decision.target or "", [step.name for step in workflow.steps]
        if name in names:
            return f"a hook sent the run to {name!r}, which never runs: every cycle is a review"
        return str(UnknownName("step", name, names, where="a hook's decision"))
    if next_ref.step_index <= step_index and head.usage.steps >= MAX_ROUNDS * len(workflow.steps):
        return f"a hook sent the run back too often: {reason}"
    return None


def _find_ref_after(
    kind: SequenceKind, head: Head, step_index: int, decision: Decision
) -> StepRef | None:
    """Return the position that *decision* leads to; None: there is no such step."""
    if decision.move is Move.GOTO:
        index = _index_to(kind.workflow, step_index, decision.target or "")
        return None if index is None else find_step_ref(kind.workflow, index)
    next_ref = kind.find_following(head, step_index)
    # After the last step there is none to skip.
    if decision.move is Move.SKIP and not next_ref.is_end:
        return kind.find_following(head, next_ref.step_index)
    return next_ref


def _index_to(workflow: Workflow, step_index: int, name: str) -> int | None:
    """Return the step_index of the step called *name*; in a cycle, its next one.

    None: there is no such step, or reviews take all of its places.
    """
    position = find_step_index(workflow, name)
    if position is None or workflow.has_end:
        return position
    return next_index(workflow, step_index + 1, lambda ref: ref.step == name)


class SequenceChange(Struct):
    """A transition of a sequence under construction, see `Kind.open`."""

    kind: SequenceKind
    head: Head
    now: datetime
    facts: list[Fact] = msgspec.field(default_factory=list)
    granted: list[int] = msgspec.field(default_factory=list)

    def end(self, result: AttemptResult) -> None:
        """Apply the end of an attempt.

        Raises:
            StaleClaim: the claim is gone.
        """
        token = result.token
        transition = self._build_transition(token, result)
        self.head = transition.head
        if result.outcome.session_fault is not None and not self._is_accepted(result):
            # The next attempt would fail with the same session.
            self.head = self.head.replace(session=None)
        self.facts += transition.facts
        if STAGNATED in result.record and result.ending.has_worked:
            pause_transition = transitions.pause_after(
                self.head, transition.facts[0], result.record[STAGNATED]
            )
            self.head = pause_transition.head
            self.facts += pause_transition.facts
        if self.head.waiting_messages:
            self._forget_messages(token, result)

    @staticmethod
    def _is_accepted(result: AttemptResult) -> bool:
        return result.ending.kind in (ContinuationKind.ACCEPT, ContinuationKind.FIXED)

    def _forget_messages(self, token: int, result: AttemptResult) -> None:
        """Drop the messages that the attempt with *token* has read, if it was accepted."""
        # A step that the caller performed without an agent has read no messages.
        if self._is_accepted(result) and result.began_at is not None:
            messages = gates.find_read_messages(self.head, self.kind.workflow, result.place, token)
            rest = [message for message in self.head.waiting_messages if message not in messages]
            self.head = self.head.with_messages(rest)

    def settle(self, capacity: Capacity | None) -> None:
        """Claim the next step if the run is ready and *capacity* has a slot.

        Raises:
            ClaimHeld: a process that may be alive holds it.
            TooManyFailures: the process is gone, and the step may not be tried again.
        """
        if capacity is None or not capacity.slots:
            return
        state = self.kind.check_readiness(self.head, capacity.limits, at=self.now)
        if state.kind not in (ReadinessKind.READY, ReadinessKind.HELD):
            return
        may_take_over = state.claim is not None and state.claim.token in capacity.expired_tokens
        if may_take_over:
            # A step that kills its worker every time must not be started forever.
            capacity.limits.ensure_may_try(self.head)
            if state.claim is not None and self._drop_if_spent(state.claim, capacity):
                return
        claim_transition = transitions.claim(
            self.head,
            state.place,
            capacity.owner,
            at=format_utc_s(self.now),
            ttl_s=capacity.ttl_s,
            at_boottime=capacity.boottime,
            may_take_over=may_take_over,
            used=capacity.used.get(state.claim.token) if state.claim is not None else None,
        )
        self.head = claim_transition.head
        self.facts += claim_transition.facts
        self.granted.append(self.head.token)

    def _drop_if_spent(self, claim: Claim, capacity: Capacity) -> bool:
        """Drop *claim* and return True if its usage leaves nothing for another attempt."""
        claim_usage = capacity.used.get(claim.token, Usage())
        total_usage = self.head.usage.plus(claim_usage, steps=0)
        if capacity.limits.describe_reached(self.head.replace(usage=total_usage)) is None:
            return False
        drop_transition = transitions.drop(self.head, claim, claim_usage, at=format_utc_s(self.now))
        self.head = drop_transition.head
        self.facts += drop_transition.facts
        return True

    def _build_transition(self, token: int, result: AttemptResult) -> Transition:
        head, at, record = self.head, format_utc_s(self.now), result.record
        outcome, step_index, workflow = result.outcome, result.place.step_index, self.kind.workflow
        kind = result.ending.kind
        if kind is ContinuationKind.BACK:
            return self._release_attempt(token, result, at)
        if kind is ContinuationKind.ACCEPT:
            return self._accept_attempt(token, result, at)
        if kind in (ContinuationKind.NO, ContinuationKind.FIXED):
            event, next_ref = Event.FIXED, find_step_ref(workflow, step_index)
            reason = head.loop.reason if head.loop else ""
            if kind is ContinuationKind.NO:
                event, next_ref = Event.INVALID, find_fixer_ref(workflow, step_index) or next_ref
                reason = result.verdict.reason if result.verdict else ""
            return record_judgment(
                head, token, event, outcome, next_ref, reason=reason, at=at, record=record
            )
        if kind is ContinuationKind.AGAIN:
            # The count of attempts continues, so their limit also ends these repetitions.
            event_name = Event.INVALID
            return transitions.end_attempt(
                head, token, event_name, outcome.usage, at=at, record=record
            )
        return self._fail_attempt(token, result, at)

    def _release_attempt(self, token: int, result: AttemptResult, at: str) -> Transition:
        head, outcome = self.head, result.outcome
        not_before, reason = None, result.postponed
        if reason is not None:
            not_before = format_utc_ms(self.now + timedelta(seconds=POSTPONED_S))
        elif outcome.is_put_off:
            not_before = compute_pause_end(outcome, head.attempt, self.now, result.jitter)
            reason = describe_postponement(outcome, result.agent)
        return transitions.release(
            transitions.give_attempt_back(head) if result.is_given_back else head,
            token,
            at=at,
            record=result.record,
            usage=outcome.usage,
            not_before=not_before,
            reason=reason,
        )

    def _accept_attempt(self, token: int, result: AttemptResult, at: str) -> Transition:
        head, continuation = self.head, result.ending
        outcome, has_gate = result.outcome, continuation.has_gate
        following: Any = continuation.following  # `make_judge` refuses a kind that gives none
        # "Complete" is not an approval, so the gate keeps it until a person approves.
        status = (
            OutcomeStatus.COMPLETE if continuation.is_done and not has_gate else OutcomeStatus.OK
        )
        gate = None
        if has_gate:
            gate = gates.build_gate(
                self.kind.workflow,
                head,
                result.step,
                result.place.step_index,
                self.now,
                completes_run=continuation.is_done
                or gates.ends_early(self.kind.workflow, following),
            )
        return transitions.succeed(
            head,
            token,
            outcome if outcome.status is status else outcome.replace(status=status),
            following,
            at=at,
            record={**result.record, "gate": True} if has_gate else result.record,
            executor=result.agent,
            gate=gate,
        )

    def _fail_attempt(self, token: int, result: AttemptResult, at: str) -> Transition:
        head, verdict = self.head, result.verdict
        fail_transition = transitions.fail(
            head,
            token,
            result.outcome,
            at=at,
            record=result.record,
            not_before=compute_retry_date(result.step, transitions.failure_number(head), self.now),
        )
        if verdict is None or verdict.is_pass:
            return fail_transition
        # A retry after the last "no" starts with round 1; `exhausted` limits how often.
        reason = verdict.reason[:MAX_REASON_CHARS]
        new_loop = Loop(stage="verify", round=1, reason=reason, exhausted=count_exhausted(head) + 1)
        return Transition(fail_transition.head.replace(loop=new_loop), fail_transition.facts)


class SequenceKind(Kind):
    """A cycle or a procedure, see `Kind`."""

    has_one_place: ClassVar[bool] = True

    def __init__(self, workflow: Workflow) -> None:
        """Decide about runs of *workflow*."""
        self.workflow = workflow

    def find_following(self, head: Head, step_index: int) -> StepRef:
        """Return where the run of *head* goes after the step at *step_index* is done or skipped.

        A kind with another order overrides this. The new index may be lower or higher. Nothing
        follows the end of a procedure, so the run stays there.
        """
        del head
        workflow = self.workflow
        is_over = workflow.has_end and step_index >= len(workflow.steps)
        return find_step_ref(workflow, step_index if is_over else step_index + 1)

    def judge(self, head: Head, result: AttemptResult, max_attempts: int) -> AttemptResult:
        """Return *result* for log and journal; its ``ending`` says how the run continues."""
        outcome = result.outcome
        if outcome.is_put_off or outcome.status is OutcomeStatus.INTERRUPTED:
            return replace(result, ending=Continuation(ContinuationKind.BACK))
        continuation = decide_continuation(self, head, result, max_attempts)
        if continuation.kind is ContinuationKind.FAIL:
            error = continuation.error or outcome.error
            outcome = outcome.replace(status=OutcomeStatus.FAILED, error=error)
        return replace(result, outcome=outcome, ending=continuation)

    def open(self, head: Head, *, at: datetime) -> SequenceChange:
        return SequenceChange(self, head, at)

    def apply_result(self, change: SequenceChange, result: AttemptResult) -> None:
        change.end(result)

    @staticmethod
    def close(change: SequenceChange, work: Work | None = None) -> Transition:
        head = change.head if work is None else change.head.replace(work=work)
        return Transition(head, tuple(change.facts))

    def expire(self, head: Head, token: int, why: str, *, at: datetime) -> Transition:
        return transitions.release(head, token, at=format_utc_s(at), record={"reason": why})

    def expire_waits(self, head: Head, *, at: datetime) -> Transition | None:
        gate = head.gate
        if gate is None or not gate.is_open or not is_past(gate.expires_at, at):
            return None
        if head.is_on_hold:
            return None
        note, time_text = f"no one decided until {gate.expires_at}", format_utc_s(at)
        if gate.on_timeout == "reject":
            return gates.reject(head, note, at=time_text, by=BY_TIMEOUT)
        next_ref = find_step_ref(self.workflow, head.step_index)
        return gates.approve(head, next_ref, note, at=time_text, by=BY_TIMEOUT)

    def resolve_positions(self, wanted: Collection[str]) -> list[str]:
        names = [step.name for step in self.workflow.steps]
        positions = []
        for position in wanted:
            if position in names:
                positions.append(position)
            elif (number := parse_whole_number(position)) is not None and number < len(names):
                positions.append(names[number])
            else:
                location = f"workflow {self.workflow.name}"
                raise UnknownName("position", position, names, where=location)
        return positions

    def list_upcoming(
        self, head: Head | None, count: int, step_index: int | None = None
    ) -> list[Description]:
        start = head or self.create_head("not-started", at=datetime.fromtimestamp(0, UTC))
        index = start.step_index if step_index is None else step_index
        descriptions: list[Description] = []
        while len(descriptions) < count:
            is_current = head is not None and index == head.step_index
            ref = (
                find_current_ref(self.workflow, start)
                if is_current
                else find_step_ref(self.workflow, index)
            )
            if ref.is_end:
                break
            descriptions.append(describe_at(self.workflow, ref))
            index = self.find_following(start, index).step_index
        return descriptions

    def apply(  # noqa: C901, PLR0911 - a case for each command
        self, head: Head, command: RunCommand, context: CommandContext
    ) -> Transition:
        if isinstance(command, Tell):
            if command.node is not None:
                ensure_definition(head, self.workflow)
            node, text, at = command.node, command.text, format_utc_s(context.at)
            return gates.tell(head, self.workflow, node, text, at=at, by=context.by)
        if (node := getattr(command, "node", None)) is not None:
            raise UsageRefused(
                f"{command.verb}: the run goes from step to step, so it has no node {node!r}",
                hint="leave the name out; the command is about the current step",
            )
        if isinstance(command, Accept) and command.output is not None:
            raise UsageRefused(f"{command.verb}: only a node of a graph can get an output")
        at = format_utc_s(context.at)
        match command:
            case Accept() | Skip():
                return self.accept_or_skip(head, command, context)
            case Fail():
                return command_rules.stamp_fail(head, command.note, at=at)
            case RetryNow():
                return command_rules.retry(head, at=at)
            case Rewind():
                return self.rewind(head, command, context)
            case Approve():
                return self.approve(head, command, context)
            case Reject():
                return self.reject(head, command, context)
            case Feedback():
                return self.send_back(head, command, context)
            case Adopt() if head.flow is not None:
                raise command_rules.other_kind_error(head)
        current_ref = find_current_ref(self.workflow, head)
        return command_rules.apply_common_command(
            head, command, self.workflow, current_ref, context
        )

    def approve(self, head: Head, command: Approve, context: CommandContext) -> Transition:
        """Return the transition of *head* past its gate."""
        gates.ensure_in_time(head, "approve", context.at)
        next_ref, at, token = (
            self._resolve_ref(head, head.step_index),
            format_utc_s(context.at),
            command.token,
        )
        return gates.approve(head, next_ref, command.note, at=at, by=context.by, token=token)

    @staticmethod
    def reject(head: Head, command: Reject, context: CommandContext) -> Transition:
        """Return the transition that ends the run of *head* at its gate."""
        gates.ensure_in_time(head, "reject", context.at)
        at, token = format_utc_s(context.at), command.token
        return gates.reject(head, command.note, at=at, by=context.by, token=token)

    def send_back(self, head: Head, command: Feedback, context: CommandContext) -> Transition:
        """Return the transition of *head* to the step that gets the feedback."""
        gates.ensure_in_time(head, "feedback", context.at)
        target, at = self._find_feedback_target(head), format_utc_s(context.at)
        return gates.send_feedback(
            head, command.text, target, at=at, by=context.by, token=command.token
        )

    def _resolve_ref(self, head: Head, step_index: int) -> StepRef:
        """Return the position at *step_index*, if the run of *head* still has this definition."""
        ensure_definition(head, self.workflow)
        return find_step_ref(self.workflow, step_index)

    def _find_feedback_target(self, head: Head) -> StepRef:
        ensure_definition(head, self.workflow)
        return find_step_ref(self.workflow, gates.open_gate(head, "feedback").feedback_to)

    def accept_or_skip(
        self, head: Head, command: Accept | Skip, context: CommandContext
    ) -> Transition:
        """Accept or skip the current step; after a fixer, the step that judges runs again."""
        ensure_definition(head, self.workflow)
        next_ref, at = self.find_following(head, head.step_index), format_utc_s(context.at)
        note = command.note
        is_skip = isinstance(command, Skip)
        if head.loop is not None and head.loop.stage == "fix":
            judge = find_step_ref(self.workflow, head.step_index)
            event = Event.SKIPPED if is_skip else Event.STAMPED
            return command_rules.pass_fixer(head, judge, event, note, at=at)
        decide = command_rules.skip if is_skip else command_rules.stamp_ok
        return decide(head, next_ref, note, at=at)

    def rewind(self, head: Head, command: Rewind, context: CommandContext) -> Transition:
        """Return the transition of *head* to the step_index that *command* names."""
        step_index = parse_whole_number(command.to)
        ensure_definition(head, self.workflow)
        if step_index is None:
            message = f"rewind: {shorten(command.to, 40)!r} is not a step_index"
            raise UsageRefused(message, hint="'sequencer history' shows them")
        # Beyond the end of a procedure there is no position; `rewind` refuses that index itself.
        is_back = step_index <= head.step_index
        target = (
            find_step_ref(self.workflow, step_index) if is_back else StepRef(step_index, "", "")
        )
        return command_rules.rewind(head, target, at=format_utc_s(context.at))
