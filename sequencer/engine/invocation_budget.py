"""What one invocation may still do in a run, and why it ends, based on heads and counts.

It neither waits nor works. A process that works on a run in files asks it between two steps. A
run whose steps are done by other machines asks it too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from sequencer.engine.allowance import Allowance, smallest_limit, subtract_used
from sequencer.errors import SequencerError, StepFailed, TooManyFailures, WaitsForPerson
from sequencer.model.head import Head, Status
from sequencer.model.kind import AttemptResult, Readiness, ReadinessKind, find_hold
from sequencer.model.limits import InvocationLimits, RunLimits, has_too_little_left
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.order import is_among
from sequencer.model.sequence.sequence_kind import ContinuationKind
from sequencer.model.workflow import Workflow

NO_LIMIT = Allowance()


def format_count(number: int, noun: str) -> str:
    """Return the number, *noun* and verb for the start of a sentence.

    >>> format_count(1, "step"), format_count(2, "step")
    ('1 step is', '2 steps are')
    """
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


class Mode(StrEnum):
    """How a process takes part in a run."""

    COMBINED = "combined"
    SYNC = "sync"
    ASYNC = "async"
    TICK = "tick"


class Summary(Struct):
    """What one invocation did, and why it ended."""

    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    failures: int = 0
    limits_met: int = 0
    """Attempts that ended at a usage limit."""
    head: Head | None = None
    obstacle: SequencerError | None = None
    """For a tick: why the next step will not start in this work tree."""

    @property
    def has_worked(self) -> bool:
        """Return whether an agent was called."""
        return self.usage != Usage() or bool(self.failures or self.limits_met)

    def steps_left(self, max_steps: int) -> int:
        """Return how many of *max_steps* are left.

        After more usage limits than *max_steps*, none are left: each limit was a call, and an
        invocation makes at most twice as many calls as steps, not counting failures.
        """
        return 0 if self.limits_met > max_steps else max_steps - self.usage.steps

    def find_reached_step_limit(self, max_steps: int | None) -> str | None:
        """Return a message if no steps of *max_steps* are left; None: some are."""
        # The same rule as in `steps_left`, but faster: each step asks this.
        if max_steps is None or (self.limits_met <= max_steps and self.usage.steps < max_steps):
            return None
        text = f"{format_count(self.usage.steps, 'step')} done"
        if self.limits_met > max_steps:
            text += f", and a usage limit was reached {self.limits_met} times"
        return f"{text} (--max-steps)"

    def count(self, outcome: Outcome, steps: int) -> None:
        """Count an attempt that has ended with *outcome*, and counts as *steps*."""
        self.usage = self.usage.plus(outcome.usage, steps=steps)
        self.limits_met += int(outcome.status is OutcomeStatus.LIMITED)

    def find_reached_limit(self, limits: InvocationLimits) -> str | None:
        """Return a message if one of the *limits* on steps and cost is reached; None: none is."""
        if (reason := self.find_reached_step_limit(limits.max_steps)) is not None:
            return reason
        if limits.max_cost_usd is not None and self.usage.cost_usd >= limits.max_cost_usd:
            return f"{self.usage.cost_usd:.4f} USD is spent (--max-cost)"
        return None

    def to_data(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        usage = self.usage.model_dump(exclude_defaults=True)
        return {"usage": usage, "failures": self.failures, "limits_met": self.limits_met}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the data that `to_data` returned."""
        self.usage = Usage.model_validate(kept["usage"])
        self.failures, self.limits_met = kept["failures"], kept["limits_met"]


class InvocationBudget(ABC):
    """One invocation's part in a run: what it may do, and what it has done."""

    def __init__(
        self, mode: Mode, limits: InvocationLimits, run_limits: RunLimits, head: Head
    ) -> None:
        """Start at *head*."""
        self.mode, self.limits = mode, limits
        self.summary = Summary(head=head)
        self.apply_limits(run_limits)

    def apply_limits(self, run: RunLimits) -> None:
        """Apply the limits of the *run* from now on."""
        self.run_limits = run

    @abstractmethod
    def to_data(self) -> dict[str, Any]:
        """Return its counts as plain data."""

    @abstractmethod
    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the data that `to_data` returned."""


class SequenceBudget(InvocationBudget):
    """One invocation's part in the run of a cycle or a procedure."""

    def __init__(
        self,
        workflow: Workflow,
        mode: Mode,
        limits: InvocationLimits,
        run_limits: RunLimits,
        head: Head,
        *,
        positions: Collection[str] = (),
    ) -> None:
        """Start at *head*; with *positions*, this invocation runs only their steps."""
        super().__init__(mode, limits, run_limits, head)
        self.workflow = workflow
        self.positions = frozenset(positions)
        self._cycle_length = len(workflow.steps)
        self._first_index = head.step_index
        self._first_cycle = head.step_index // self._cycle_length
        self._failing_at, self._failures_seen = head.step_index, head.failures_in_row

    def apply_limits(self, run: RunLimits) -> None:
        """Apply the limits of the *run* from now on."""
        super().apply_limits(run)
        limits = self.limits
        caps = (limits.max_cost_usd, limits.step_timeout_s, run.cost_usd, run.seconds)
        self._has_budget = any(cap is not None for cap in caps)

    def is_mine(self, step_index: int) -> bool:
        """Return whether the step at *step_index* is at one of the positions."""
        return not self.positions or is_among(self.workflow, self.positions, step_index)

    def find_reached_limit(self, head: Head) -> str | None:
        """Return a message if a limit of this invocation is reached; None: none is."""
        if self.mode is Mode.TICK and self.summary.usage.steps:
            # After a "no", the run stays at the step: its fixer or the next round is due.
            is_accepted = head.step_index != self._first_index
            return f"the {'step' if is_accepted else 'attempt'} that was due is done"
        if (reason := self.summary.find_reached_limit(self.limits)) is not None:
            return reason
        limit, cost_usd = self.limits.max_cost_usd, self.summary.usage.cost_usd
        if limit is not None and has_too_little_left(head, limit, cost_usd):
            detail = "a step usually takes more than is left"
            return f"{cost_usd:.4f} of {limit} USD is spent, and {detail} (--max-cost)"
        cycles = head.step_index // self._cycle_length - self._first_cycle
        limit = self.limits.max_cycles
        if limit is not None and cycles >= limit:
            return f"{format_count(cycles, 'cycle')} done (--max-cycles)"
        return None

    def may_claim(self, head: Head) -> bool:
        """Return whether this invocation may run the step of *head*, if it is ready."""
        return (
            self.is_mine(head.step_index)
            and self.find_reached_limit(head) is None
            and not self.has_failed_elsewhere(head)
        )

    def find_end_reason(self, readiness: Readiness, head: Head) -> str | None:
        """Return why this invocation ends now; None: it waits or works.

        Raises: see `WorkLoop.work`.
        """
        if self.mode is Mode.ASYNC and (reason := _end_of_async(readiness, head)) is not None:
            return reason
        if readiness.is_final:
            return readiness.message
        if readiness.kind is ReadinessKind.PERSON:
            raise WaitsForPerson(readiness.message)
        if self.has_failed_elsewhere(head):
            hint: str | None = "look at 'sequencer log', then start again"
            try:
                self.run_limits.ensure_may_try(head)
            except TooManyFailures as limit:
                hint = limit.hint
            raise StepFailed(f"step {head.expected_step!r} failed in another process", hint=hint)
        if readiness.kind is ReadinessKind.REFUSED:
            self.run_limits.ensure_may_try(head)
            raise TooManyFailures(readiness.message)
        if readiness.kind is ReadinessKind.PAUSED and self.mode is not Mode.SYNC:
            return readiness.message
        if readiness.kind is ReadinessKind.NOT_YET and self.mode is Mode.TICK:
            return f"nothing due: {readiness.message}"
        is_ready = readiness.kind is ReadinessKind.READY
        if self.mode is Mode.TICK and is_ready and not self.is_mine(head.step_index):
            return f"nothing due: step {readiness.place.step!r} is at another position"
        return None

    def observe(self, head: Head) -> None:
        """Note the failures at *head*; call this for each head, before a decision about it.

        A failure before this process started does not end it: starting means to try again.
        """
        if head.step_index != self._failing_at:
            self._failing_at, self._failures_seen = head.step_index, 0
        self._failures_seen = min(self._failures_seen, head.failures_in_row)

    def has_failed_elsewhere(self, head: Head) -> bool:
        """Return whether another process has failed at the step, without an automatic retry.

        Only failures since this process started count.
        """
        failures_seen = self._failures_seen if head.step_index == self._failing_at else 0
        has_failed = head.status is Status.FAILED and head.failures_in_row > failures_seen
        return has_failed and head.not_before is None

    def allowance(self, head: Head) -> Allowance:
        """Return what one attempt may use under the limits of the invocation and the run."""
        limits, run, usage = self.limits, self.run_limits, self.summary.usage
        if not self._has_budget:
            return NO_LIMIT
        return Allowance(
            smallest_limit(
                subtract_used(limits.max_cost_usd, usage.cost_usd),
                subtract_used(run.cost_usd, head.usage.cost_usd),
            ),
            smallest_limit(limits.step_timeout_s, subtract_used(run.seconds, head.usage.seconds)),
        )

    def count(self, ended: AttemptResult) -> None:
        """Count *ended*, an attempt of this invocation, before it is recorded."""
        summary, outcome = self.summary, ended.outcome
        summary.usage = summary.usage.plus(outcome.usage, steps=int(ended.ending.has_worked))
        summary.limits_met += int(outcome.status is OutcomeStatus.LIMITED)

    def take_back_step(self, ended: AttemptResult) -> None:
        """Remove the step of *ended* from the count, because the run refused it."""
        usage = self.summary.usage
        self.summary.usage = usage.replace(steps=usage.steps - int(ended.ending.has_worked))

    def ensure_goes_on(self, ended: AttemptResult, head: Head) -> None:
        """Check that the invocation continues after *ended*, whose record led to *head*.

        Raises:
            StepFailed: the step failed and has no automatic retry left.
        """
        if ended.ending.kind is not ContinuationKind.FAIL:
            return
        self.summary.failures += 1
        self._failing_at, self._failures_seen = head.step_index, head.failures_in_row
        if head.not_before is None or self.mode is Mode.TICK:
            raise self._make_step_error(ended, head)

    def _make_step_error(self, result: AttemptResult, head: Head) -> StepFailed:
        place = result.place
        return StepFailed(
            f"step {place.step!r} (iteration {place.step_index + 1}, attempt "
            f"{result.attempt}) failed: {result.outcome.error or 'no reason given'}",
            where=str(result.record.get("log")),
            hint=self._hint_after_failure(place.step_index, head),
        )

    def _hint_after_failure(self, step_index: int, head: Head) -> str:
        """Return what a person can do after the step at *step_index* has failed."""
        if self.mode is Mode.ASYNC:
            return f"use --step-index {step_index} to start with it again"
        hint = "start again to retry it, or skip it with 'sequencer skip'"
        if self.mode is Mode.TICK:
            hint = "the next tick tries it again"
        # A person may have stopped or paused the run while the step ran.
        _, hold_hint = find_hold(head) or (None, "")
        try:
            self.run_limits.ensure_may_try(head)
        except TooManyFailures as error:
            return "; ".join(filter(None, (f"{error.message}: {error.hint}", hold_hint)))
        return hold_hint or hint

    def to_data(self) -> dict[str, Any]:
        """Return its counts as plain data."""
        return {
            **self.summary.to_data(),
            "first_cycle": self._first_cycle,
            "failing_at": self._failing_at,
            "failures_seen": self._failures_seen,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the data that `to_data` returned."""
        self.summary.restore(kept)
        self._first_cycle = kept["first_cycle"]
        self._failing_at, self._failures_seen = kept["failing_at"], kept["failures_seen"]


def _end_of_async(readiness: Readiness, head: Head) -> str | None:
    """Return why mode async ends; None: a step follows. There is no one else to wait for."""
    if head.gate is not None and head.gate.is_open:
        return f"{head.gate.step!r} asks for a decision, but mode async has no run to keep it in"
    if readiness.kind is not ReadinessKind.COMPLETE:
        return None
    if readiness.place.is_end:
        return "the procedure is complete"
    return "the agent says that everything is done"
