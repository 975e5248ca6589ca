"""Cycles and procedures as a kind: one place, which goes from step to step.

What an attempt's end means is decided before the lock is taken: while the claim stands,
nothing that it looks at can change. A project's own decision goes before the workflow's; a
gate goes before whatever the agent says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

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
from sequencer.model.head import Claim, Gate, Head, Loop, Work
from sequencer.model.kind import (
    STAGNATED,
    AttemptResult,
    Capacity,
    CommandContext,
    Kind,
    ReadinessKind,
    readiness,
)
from sequencer.model.limits import POSTPONED_S, due_again, is_past, iso, retry_at, utc, why_put_off
from sequencer.model.outcome import Decision, Move, OutcomeStatus, Usage
from sequencer.model.sequence import gates
from sequencer.model.sequence.order import (
    MAX_REASON_CHARS,
    Description,
    describe_at,
    exhausted,
    fixer_place,
    index_of,
    is_exhausted,
    judged,
    place,
    present,
)
from sequencer.model.step import Step
from sequencer.model.transitions import Event, Fact, StepRef, Transition
from sequencer.model.workflow import Workflow, ensure_definition

BY_TIMEOUT = "timeout"
"""Who decided, where nobody did."""
MAX_ROUNDS = 50
"""A procedure whose hooks send it back is stopped after so many times its length."""


class ContinuationKind(StrEnum):
    """The ways in which an attempt can end."""

    ACCEPT = "accept"
    NO = "no"
    """The step judged "no" and has tries left."""
    FIXED = "fixed"
    AGAIN = "again"
    """A hook wants the step once more; nothing failed."""
    FAIL = "fail"
    BACK = "back"
    """Nobody's failure: the claim is given back (interrupted, or put off)."""


class Continuation(Struct, frozen=True):
    """How the run goes on."""

    kind: ContinuationKind
    following: StepRef | None = None
    """For ``accept``; else the run stays at its step."""
    has_gate: bool = False
    is_done: bool = False
    """The run is complete, whatever follows."""
    error: str | None = None
    """For ``fail``, where the outcome itself has none."""

    @property
    def has_worked(self) -> bool:
        """Return whether a step's worth of work was done, accepted or not."""
        return self.kind in _WORKED

    @property
    def next_place(self) -> StepRef | None:
        """Return where the same process may continue at once; None after anything but a step."""
        is_on = self.kind is ContinuationKind.ACCEPT and not (self.has_gate or self.is_done)
        return (
            None if not is_on or self.following is None or self.following.is_end else self.following
        )


_WORKED = frozenset(
    {ContinuationKind.ACCEPT, ContinuationKind.NO, ContinuationKind.FIXED, ContinuationKind.AGAIN}
)


def ending_of(
    kind: SequenceKind, head: Head, ended: AttemptResult, max_attempts: int
) -> Continuation:
    """Return what *ended* means for the run, which *head* was at when it was claimed."""
    decision, outcome = ended.decision, ended.outcome
    if decision is not None:
        return _as_decided(kind.workflow, head, ended, decision, max_attempts)
    if ended.place.stage == "fix":
        return Continuation(
            ContinuationKind.FIXED if outcome.is_accepted else ContinuationKind.FAIL
        )
    validation = ended.step.validation
    if ended.verdict is not None and not ended.verdict.is_pass and validation is not None:
        if not is_exhausted(head, validation):
            return Continuation(ContinuationKind.NO)
        if validation.on_exhausted == "fail":
            error = f"it said no {validation.max_attempts} times: {ended.verdict.reason}"
            return Continuation(ContinuationKind.FAIL, error=error)
        return _accepted(kind, head, ended)
    return (
        _accepted(kind, head, ended) if outcome.is_accepted else Continuation(ContinuationKind.FAIL)
    )


def _accepted(kind: SequenceKind, head: Head, ended: AttemptResult) -> Continuation:
    return Continuation(
        ContinuationKind.ACCEPT,
        kind.following(head, ended.place.step_index),
        has_gate=ended.step.requires_approval,
        is_done=ended.outcome.status is OutcomeStatus.COMPLETE,
    )


def _as_decided(
    workflow: Workflow,
    head: Head,
    ended: AttemptResult,
    decision: Decision,
    max_attempts: int,
) -> Continuation:
    here, move = ended.place.step_index, decision.move
    index = _index_behind(workflow, here, decision)
    error = _why_not(workflow, head, here, index, decision=decision, max_attempts=max_attempts)
    if error is not None or index is None:
        return Continuation(ContinuationKind.FAIL, error=error)
    if move is Move.RETRY:
        return Continuation(ContinuationKind.AGAIN)
    if move is Move.NEXT and ended.place.stage == "fix":
        return Continuation(ContinuationKind.FIXED)
    end = len(workflow.steps) if workflow.kind == "procedure" else index
    return Continuation(
        ContinuationKind.ACCEPT,
        place(workflow, min(index, end)),
        has_gate=ended.step.requires_approval or move is Move.GATE,
        is_done=move is Move.COMPLETE,
    )


def _why_not(
    workflow: Workflow,
    head: Head,
    here: int,
    index: int | None,
    *,
    decision: Decision,
    max_attempts: int,
) -> str | None:
    """Return why the step fails instead of going the way of *decision*, to *index*."""
    why = decision.why
    if decision.move is Move.FAIL:
        return f"a hook made it fail: {why}"
    if decision.move is Move.RETRY and head.attempt >= max_attempts:
        return f"a hook wanted attempt {head.attempt + 1}: {why}"
    if index is None:
        known = [step.name for step in workflow.steps]
        return str(UnknownName("step", decision.target or "", known, where="a hook's decision"))
    if index <= here and head.usage.steps >= MAX_ROUNDS * len(workflow.steps):
        return f"a hook sent the run back too often: {why}"
    return None


def _index_behind(workflow: Workflow, here: int, decision: Decision) -> int | None:
    """Return where *decision* leads; None if there is no such step."""
    if decision.move is Move.GOTO:
        return _index_to(workflow, here, decision.target or "")
    return here + 2 if decision.move is Move.SKIP else here + 1


def _index_to(workflow: Workflow, here: int, name: str) -> int | None:
    """Return the step_index of the step called *name*; in a cycle, where it comes next."""
    found = index_of(workflow, name)
    if found is None or workflow.kind == "procedure":
        return found
    length = len(workflow.steps)
    return here + 1 + (found - here - 1) % length


def gate_of(workflow: Workflow, head: Head, step: Step, here: int, now: datetime) -> Gate:
    """Return the gate behind *step* at step_index *here*, whose claim *head* holds."""
    approval = step.approval
    back = index_of(workflow, approval.feedback_to) if approval and approval.feedback_to else None
    if back is not None and workflow.kind == "cycle":
        # The one of this cycle, or of the one before.
        back = max(here - (here - back) % len(workflow.steps), 0)
    timeout = approval.timeout_s if approval else None
    before = head.gate
    number = before.round + 1 if before is not None and before.step == step.name else 1
    return Gate(
        step=step.name,
        step_index=here,
        token=head.token,
        opened_at=iso(now),
        round=number,
        feedback_to=max(here - 1, 0) if back is None else back,
        expires_at=iso(now + timedelta(seconds=timeout)) if timeout else None,
        on_timeout=approval.on_timeout if approval else "reject",
    )


class SequenceChange(Struct):
    """One transition of a line that is being made, see `Kind.open`."""

    workflow: Workflow
    head: Head
    now: datetime
    facts: list[Fact] = msgspec.field(default_factory=list)
    granted: list[int] = msgspec.field(default_factory=list)

    def end(self, ended: AttemptResult) -> None:
        """Let an attempt end.

        Raises:
            StaleClaim: the claim is gone.
        """
        token = ended.token
        made = self._made(token, ended)
        self.head = made.head
        if ended.outcome.session_fault is not None and not self._is_accepted(ended):
            # The next try would meet the same.
            self.head = self.head.replace(session=None)
        self.facts += made.facts
        if STAGNATED in ended.record and ended.ending.has_worked:
            paused = transitions.pause_after(self.head, made.facts[0], ended.record[STAGNATED])
            self.head = paused.head
            self.facts += paused.facts
        if self.head.told:
            self._forget_messages(token, ended)

    @staticmethod
    def _is_accepted(ended: AttemptResult) -> bool:
        return ended.ending.kind in (ContinuationKind.ACCEPT, ContinuationKind.FIXED)

    def _forget_messages(self, token: int, ended: AttemptResult) -> None:
        """Let go the messages that the attempt with *token* has read, if it was accepted."""
        # A step that the caller has performed itself was told nothing.
        if self._is_accepted(ended) and ended.began_at is not None:
            read = gates.read_by(self.head, self.workflow, ended.place, token)
            left = [one for one in self.head.told if one not in read]
            self.head = self.head.telling(left)

    def settle(self, capacity: Capacity | None) -> None:
        """Claim the next step if the run is ready and *capacity* has a slot.

        Raises:
            ClaimHeld: a process that may be alive holds it.
            TooManyFailures: its process is gone, and it may not be tried again.
        """
        if capacity is None or not capacity.slots:
            return
        here = readiness(self.head, self.workflow, capacity.limits, self.now)
        if here.kind not in (ReadinessKind.READY, ReadinessKind.HELD):
            return
        may_take_over = here.claim is not None and here.claim.token in capacity.gone
        if may_take_over:
            # A step that kills its worker every time must not be begun for ever.
            capacity.limits.ensure_may_try(self.head)
            if here.claim is not None and self._is_spent_by(here.claim, capacity):
                return
        claimed = transitions.claim(
            self.head,
            here.place,
            capacity.owner,
            at=utc(self.now),
            ttl_s=capacity.ttl_s,
            at_boottime=capacity.boottime,
            may_take_over=may_take_over,
            used=capacity.used.get(here.claim.token) if here.claim is not None else None,
        )
        self.head = claimed.head
        self.facts += claimed.facts
        self.granted.append(self.head.token)

    def _is_spent_by(self, gone: Claim, capacity: Capacity) -> bool:
        """Return whether what *gone* has used leaves nothing for another attempt; then drop it."""
        used = capacity.used.get(gone.token, Usage())
        spent = self.head.usage.plus(used, steps=0)
        if capacity.limits.reached(self.head.replace(usage=spent)) is None:
            return False
        dropped = transitions.drop(self.head, gone, used, at=utc(self.now))
        self.head = dropped.head
        self.facts += dropped.facts
        return True

    def _made(self, token: int, ended: AttemptResult) -> Transition:
        head, at, record = self.head, utc(self.now), ended.record
        outcome, here, workflow = ended.outcome, ended.place.step_index, self.workflow
        kind = ended.ending.kind
        if kind is ContinuationKind.BACK:
            return self._released(token, ended, at)
        if kind is ContinuationKind.ACCEPT:
            return self._accepted(token, ended, at)
        if kind in (ContinuationKind.NO, ContinuationKind.FIXED):
            event, there = Event.FIXED, place(workflow, here)
            why = head.loop.reason if head.loop else ""
            if kind is ContinuationKind.NO:
                event, there = Event.INVALID, fixer_place(workflow, here) or there
                why = ended.verdict.reason if ended.verdict else ""
            return judged(head, token, event, outcome, there, reason=why, at=at, record=record)
        if kind is ContinuationKind.AGAIN:
            # The attempts are counted on, which is what bounds them.
            invalid = Event.INVALID
            return transitions.ended(head, token, invalid, outcome.usage, at=at, record=record)
        return self._failed(token, ended, at)

    def _released(self, token: int, ended: AttemptResult, at: str) -> Transition:
        head, outcome = self.head, ended.outcome
        not_before, reason = None, ended.postponed
        if reason is not None:
            not_before = iso(self.now + timedelta(seconds=POSTPONED_S))
        elif outcome.is_put_off:
            not_before = due_again(outcome, head.attempt, self.now, ended.jitter)
            reason = why_put_off(outcome, ended.agent)
        return transitions.release(
            head,
            token,
            at=at,
            record=ended.record,
            usage=outcome.usage,
            not_before=not_before,
            reason=reason,
        )

    def _accepted(self, token: int, ended: AttemptResult, at: str) -> Transition:
        head, ending = self.head, ended.ending
        here, outcome, has_gate = ended.place.step_index, ended.outcome, ending.has_gate
        status = OutcomeStatus.COMPLETE if ending.is_done and not has_gate else OutcomeStatus.OK
        gate = gate_of(self.workflow, head, ended.step, here, self.now) if has_gate else None
        return transitions.succeed(
            head,
            token,
            outcome if outcome.status is status else outcome.replace(status=status),
            ending.following or place(self.workflow, here + 1),
            at=at,
            record={**ended.record, "gate": True} if has_gate else ended.record,
            executor=ended.agent,
            gate=gate,
        )

    def _failed(self, token: int, ended: AttemptResult, at: str) -> Transition:
        head, verdict = self.head, ended.verdict
        failed = transitions.fail(
            head,
            token,
            ended.outcome,
            at=at,
            record=ended.record,
            not_before=retry_at(ended.step, transitions.failure_number(head), self.now),
        )
        if verdict is None or verdict.is_pass:
            return failed
        # Whoever tries again after the last "no" starts with the first round, so many times.
        reason = verdict.reason[:MAX_REASON_CHARS]
        again = Loop(stage="verify", round=1, reason=reason, exhausted=exhausted(head) + 1)
        return Transition(failed.head.replace(loop=again), failed.facts)


@dataclass(frozen=True, slots=True)
class SequenceKind(Kind):
    """A cycle or a procedure, see `Kind`."""

    workflow: Workflow
    has_one_place: ClassVar[bool] = True

    def following(self, head: Head, step_index: int) -> StepRef:
        """Return where the run of *head* goes after the step at *step_index*, done or skipped.

        A kind with an order of its own overrides this. The index may go back or forth.
        """
        del head
        return place(self.workflow, step_index + 1)

    def judge(self, head: Head, ended: AttemptResult, max_attempts: int) -> AttemptResult:
        """Return *ended* as log and journal are to have it; its ``ending`` says how to go on."""
        outcome = ended.outcome
        if outcome.is_put_off or outcome.status is OutcomeStatus.INTERRUPTED:
            return replace(ended, ending=Continuation(ContinuationKind.BACK))
        ending = ending_of(self, head, ended, max_attempts)
        if ending.kind is ContinuationKind.FAIL:
            error = ending.error or outcome.error
            outcome = outcome.replace(status=OutcomeStatus.FAILED, error=error)
        return replace(ended, outcome=outcome, ending=ending)

    def open(self, head: Head, *, at: datetime) -> SequenceChange:
        return SequenceChange(self.workflow, head, at)

    @staticmethod
    def take(change: SequenceChange, ended: AttemptResult) -> None:
        change.end(ended)

    @staticmethod
    def close(change: SequenceChange, work: Work | None = None) -> Transition:
        head = change.head if work is None else change.head.replace(work=work)
        return Transition(head, tuple(change.facts))

    def expire(self, head: Head, token: int, why: str, *, at: datetime) -> Transition:
        return transitions.release(head, token, at=utc(at), record={"reason": why})

    def expire_waits(self, head: Head, *, at: datetime) -> Transition | None:
        gate = head.gate
        if gate is None or not gate.is_open or not is_past(gate.expires_at, at):
            return None
        if head.is_on_hold:
            return None
        note, when = f"nobody decided until {gate.expires_at}", utc(at)
        if gate.on_timeout == "reject":
            return gates.reject(head, note, at=when, by=BY_TIMEOUT)
        following = place(self.workflow, head.step_index)
        return gates.approve(head, following, note, at=when, by=BY_TIMEOUT)

    def positions(self, wanted: Collection[str]) -> list[str]:
        names = [step.name for step in self.workflow.steps]
        found = []
        for position in wanted:
            if position in names:
                found.append(position)
            elif position.isdecimal() and int(position) < len(names):
                found.append(names[int(position)])
            else:
                where = f"workflow {self.workflow.name}"
                raise UnknownName("position", position, names, where=where)
        return found

    def upcoming(
        self, head: Head | None, count: int, step_index: int | None = None
    ) -> list[Description]:
        here = 0 if head is None else head.step_index
        first = here if step_index is None else step_index
        found: list[Description] = []
        for index in range(first, first + count):
            there = place(self.workflow, index)
            if there.is_end:
                break
            if head is not None and index == here:
                there = present(self.workflow, head)
            found.append(describe_at(self.workflow, there))
        return found

    def apply(  # noqa: C901, PLR0911 - a case for each command
        self, head: Head, command: RunCommand, context: CommandContext
    ) -> Transition:
        if isinstance(command, Tell):
            node, text, at = command.node, command.text, utc(context.at)
            return gates.tell(head, self.workflow, node, text, at=at, by=context.by)
        if (node := getattr(command, "node", None)) is not None:
            raise UsageRefused(
                f"{command.verb}: the run goes from step to step, so it has no node {node!r}",
                hint="leave the name out; the command is about the present step",
            )
        at = utc(context.at)
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
                raise command_rules.other_kind(head)
        here = present(self.workflow, head)
        return command_rules.of_every_kind(head, command, self.workflow, here, context)

    def approve(self, head: Head, command: Approve, context: CommandContext) -> Transition:
        """Return *head* after its gate."""
        gates.ensure_in_time(head, "approve", context.at)
        here, at, token = self._at(head, head.step_index), utc(context.at), command.token
        return gates.approve(head, here, command.note, at=at, by=context.by, token=token)

    @staticmethod
    def reject(head: Head, command: Reject, context: CommandContext) -> Transition:
        """Return *head*, ended at its gate."""
        gates.ensure_in_time(head, "reject", context.at)
        at, token = utc(context.at), command.token
        return gates.reject(head, command.note, at=at, by=context.by, token=token)

    def send_back(self, head: Head, command: Feedback, context: CommandContext) -> Transition:
        """Return *head* at the step that the feedback goes to."""
        gates.ensure_in_time(head, "feedback", context.at)
        back, at = self._back(head), utc(context.at)
        return gates.feedback(head, command.text, back, at=at, by=context.by, token=command.token)

    def _at(self, head: Head, step_index: int) -> StepRef:
        """Return the place at *step_index*, if the run of *head* still has this definition."""
        ensure_definition(head, self.workflow)
        return place(self.workflow, step_index)

    def _back(self, head: Head) -> StepRef:
        ensure_definition(head, self.workflow)
        return place(self.workflow, gates.open_gate(head, "feedback").feedback_to)

    def accept_or_skip(
        self, head: Head, command: Accept | Skip, context: CommandContext
    ) -> Transition:
        """Accept the present step or leave it out; after a fixer the judgement comes again."""
        ensure_definition(head, self.workflow)
        following, at = self.following(head, head.step_index), utc(context.at)
        note = command.note
        is_skip = isinstance(command, Skip)
        if head.loop is not None and head.loop.stage == "fix":
            judge = place(self.workflow, head.step_index)
            event = Event.SKIPPED if is_skip else Event.STAMPED
            return command_rules.pass_fixer(head, judge, event, note, at=at)
        decide = command_rules.skip if is_skip else command_rules.stamp_ok
        return decide(head, following, note, at=at)

    def rewind(self, head: Head, command: Rewind, context: CommandContext) -> Transition:
        """Return *head* at the step_index that *command* names."""
        to = command.to
        ensure_definition(head, self.workflow)
        if not to.isdecimal():
            raise UsageRefused(
                f"rewind: {to!r} is not a step_index", hint="'sequencer history' shows them"
            )
        step_index = int(to)
        # Beyond the end of a procedure there is no place; `rewind` refuses it by itself.
        is_behind = step_index <= head.step_index
        here = place(self.workflow, step_index) if is_behind else StepRef(step_index, "", "")
        return command_rules.rewind(head, here, at=utc(context.at))
