"""What an attempt's end means for the run: accepted, judged "no", fixed, again, failed.

Pure, and decided before the lock is taken: while the claim stands, nothing that it looks
at can change. A project's own decision goes before the workflow's; a gate goes before
whatever the agent says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sequencer.engine.prepared import Performed
from sequencer.engine.records import chance
from sequencer.errors import UnknownName
from sequencer.model import transitions
from sequencer.model.due import due_again, iso, retry_at, why_put_off
from sequencer.model.head import Gate, Head, Loop, Work
from sequencer.model.line import rounds as loops
from sequencer.model.line.order import fixer_place, index_of, place
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus
from sequencer.model.step import Step
from sequencer.model.transitions import Place, Transition
from sequencer.model.workflow import Workflow
from sequencer.store.identity import utc_now

POSTPONED_S = 10.0
"""Before it nobody tries again what a machine had no process or descriptor for."""
MAX_ROUNDS = 50
"""A procedure whose hooks send it back is stopped after so many times its length."""


class Kind(StrEnum):
    """The ways in which an attempt that was not interrupted can end."""

    ACCEPT = "accept"
    NO = "no"
    """The step judged "no" and has tries left."""
    FIXED = "fixed"
    AGAIN = "again"
    """A hook wants the step once more; nothing failed."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run goes on."""

    kind: Kind
    following: Place | None = None
    """For ``accept``; else the run stays at its step."""
    has_gate: bool = False
    is_done: bool = False
    """The run is complete, whatever follows."""
    error: str | None = None
    """For ``fail``, where the outcome itself has none."""


_WORKED = frozenset({Kind.ACCEPT, Kind.NO, Kind.FIXED, Kind.AGAIN})


def ending_of(workflow: Workflow, head: Head, performed: Performed, max_attempts: int) -> Ending:
    """Return what *performed* means for the run, which *head* was at when it was claimed."""
    decision, outcome = performed.decision, performed.outcome
    if decision is not None:
        return _as_decided(workflow, head, performed, decision, max_attempts)
    if performed.place.stage == "fix":
        return Ending(Kind.FIXED if outcome.is_accepted else Kind.FAIL)
    validation = performed.step.validation
    if performed.verdict is not None and not performed.verdict.is_pass and validation is not None:
        if not loops.is_exhausted(head, validation):
            return Ending(Kind.NO)
        if validation.on_exhausted == "fail":
            error = f"it said no {validation.max_attempts} times: {performed.verdict.reason}"
            return Ending(Kind.FAIL, error=error)
        return _accepted(workflow, performed)
    return _accepted(workflow, performed) if outcome.is_accepted else Ending(Kind.FAIL)


def _accepted(workflow: Workflow, performed: Performed) -> Ending:
    return Ending(
        Kind.ACCEPT,
        place(workflow, performed.place.step_index + 1),
        has_gate=performed.step.requires_approval,
        is_done=performed.outcome.status is OutcomeStatus.COMPLETE,
    )


def _as_decided(
    workflow: Workflow,
    head: Head,
    performed: Performed,
    decision: Decision,
    max_attempts: int,
) -> Ending:
    here, move = performed.place.step_index, decision.move
    index = _index_behind(workflow, here, decision)
    error = _why_not(workflow, head, here, index, decision=decision, max_attempts=max_attempts)
    if error is not None or index is None:
        return Ending(Kind.FAIL, error=error)
    if move is Move.RETRY:
        return Ending(Kind.AGAIN)
    if move is Move.NEXT and performed.place.stage == "fix":
        return Ending(Kind.FIXED)
    end = len(workflow.steps) if workflow.kind == "procedure" else index
    return Ending(
        Kind.ACCEPT,
        place(workflow, min(index, end)),
        has_gate=performed.step.requires_approval or move is Move.GATE,
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
        return f"a hook decided so: {why}"
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


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that has ended, ready to become a transition."""

    performed: Performed
    ending: Ending | None
    """None: nobody's failure, the claim is given back (interrupted, or put off)."""
    record: dict[str, Any]
    """For the journal."""
    work: Work | None = None
    """The code that moves with it."""
    postponed: str | None = None
    """Why this machine could not run it now; it counts as no attempt."""

    @property
    def outcome(self) -> Outcome:
        """Return how the attempt ended."""
        return self.performed.outcome

    @property
    def has_worked(self) -> bool:
        """Return whether a step's worth of work was done, accepted or not."""
        return self.ending is not None and self.ending.kind in _WORKED

    @property
    def met_limit(self) -> bool:
        """Return whether it is due again after a usage limit; an invocation counts that."""
        return self.ending is None and self.outcome.status is OutcomeStatus.LIMITED

    @property
    def has_failed(self) -> bool:
        """Return whether the step counts as failed."""
        return self.ending is not None and self.ending.kind is Kind.FAIL

    @property
    def next_place(self) -> Place | None:
        """Return where the same process may go on at once; None behind anything but a step."""
        ending = self.ending
        if ending is None or ending.kind is not Kind.ACCEPT or ending.has_gate or ending.is_done:
            return None
        following = ending.following
        return None if following is None or following.is_end else following

    def transition(self, workflow: Workflow, head: Head, token: int, now: datetime) -> Transition:
        """Return what the end of the attempt with *token* makes of *head*.

        Raises:
            StaleClaim: the claim is gone.
        """
        made = self._transition(workflow, head, token, now)
        if self.work is None:
            return made
        return Transition(made.head.replace(work=self.work), made.facts)

    def _transition(self, workflow: Workflow, head: Head, token: int, now: datetime) -> Transition:
        at, record, outcome = utc_now(), self.record, self.outcome
        here = self.performed.place.step_index
        kind = self.ending.kind if self.ending is not None else None
        if kind is None:
            return self._release(head, token, at, now)
        if kind is Kind.ACCEPT:
            return self._accept(workflow, head, token, at, now)
        if kind is Kind.NO:
            following = fixer_place(workflow, here) or place(workflow, here)
            reason = self.performed.verdict.reason if self.performed.verdict else ""
            return loops.judged_no(head, token, outcome, following, reason, at=at, record=record)
        if kind is Kind.FIXED:
            back = place(workflow, here)
            return loops.fixed(head, token, outcome, back, at=at, record=record)
        if kind is Kind.AGAIN:
            return loops.again(head, token, outcome, at=at, record=record)
        return self._fail(head, token, at, now)

    def _release(self, head: Head, token: int, at: str, now: datetime) -> Transition:
        not_before, reason = None, self.postponed
        if reason is not None:
            not_before = iso(now + timedelta(seconds=POSTPONED_S))
        elif self.outcome.is_put_off:
            not_before = due_again(self.outcome, head.attempt, now, chance())
            reason = why_put_off(self.outcome, self.performed.agent)
        return transitions.release(
            head,
            token,
            at=at,
            record=self.record,
            usage=self.outcome.usage,
            not_before=not_before,
            reason=reason,
        )

    def _accept(
        self, workflow: Workflow, head: Head, token: int, at: str, now: datetime
    ) -> Transition:
        ending, performed, outcome = self.ending, self.performed, self.outcome
        here = performed.place.step_index
        has_gate = ending is not None and ending.has_gate
        is_done = ending is not None and ending.is_done
        status = OutcomeStatus.COMPLETE if is_done and not has_gate else OutcomeStatus.OK
        following = ending.following if ending is not None else None
        return transitions.succeed(
            head,
            token,
            outcome if outcome.status is status else outcome.replace(status=status),
            following or place(workflow, here + 1),
            at=at,
            record={**self.record, "gate": True} if has_gate else self.record,
            executor=performed.agent,
            gate=gate_of(workflow, head, performed.step, here, now) if has_gate else None,
        )

    def _fail(self, head: Head, token: int, at: str, now: datetime) -> Transition:
        failed = transitions.fail(
            head,
            token,
            self.outcome,
            at=at,
            record=self.record,
            not_before=retry_at(self.performed.step, head.failures_in_row + 1, now),
        )
        verdict = self.performed.verdict
        if verdict is None or verdict.is_pass:
            return failed
        # Whoever tries again after the last "no" starts with the first round, so many times.
        again = Loop(stage="verify", round=1, exhausted=loops.exhausted(head) + 1)
        return Transition(failed.head.replace(loop=again), failed.facts)


def final_outcome(ending: Ending, outcome: Outcome) -> Outcome:
    """Return *outcome* as the log and the journal are to have it."""
    if ending.kind is Kind.FAIL:
        return outcome.replace(status=OutcomeStatus.FAILED, error=ending.error or outcome.error)
    return outcome
