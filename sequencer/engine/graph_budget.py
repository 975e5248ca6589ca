"""What one invocation may still do in a graph's run, and why the invocation ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sequencer.engine.allowance import subtract_used
from sequencer.engine.capacity import CapacityRule
from sequencer.engine.invocation_budget import InvocationBudget, Mode
from sequencer.errors import StepFailed, WaitsForPerson
from sequencer.model.graph.graph_kind import RecordedResult
from sequencer.model.graph.marking import FlowStatus, Marking
from sequencer.model.graph.transition import bad_end_error, ensure_none_failed
from sequencer.model.head import Head, Status
from sequencer.model.kind import ReadinessKind, find_obstacle
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus


class GraphBudget(InvocationBudget):
    """One invocation's part in the run of a graph."""

    def __init__(
        self,
        mode: Mode,
        limits: InvocationLimits,
        run_limits: RunLimits,
        head: Head,
        *,
        places: int = 1,
        capacity_rule: CapacityRule | None = None,
    ) -> None:
        """Start at *head*, with at most *places* attempts at once.

        *capacity_rule* adds limits on the nodes.
        """
        super().__init__(mode, limits, run_limits, head)
        self._places, self._capacity_rule = places, capacity_rule
        self._tried = 0
        """Attempts of this invocation that have ended."""
        self._failure: str | None = None
        """The message of the last attempt that failed."""
        self._then: str | None = None
        """What follows automatically after the last attempt that was not accepted."""

    # --- counting ------------------------------------------------------------------

    def count_attempt(self) -> None:
        """Count an attempt that has ended, with a result or an exception."""
        self._tried += 1

    def count(self, step: str, outcome: Outcome) -> None:
        """Count the *outcome* of an attempt at *step*, before it is recorded."""
        if outcome.status is OutcomeStatus.FAILED:
            self._failure = f"node {step!r} failed: {outcome.error}"
        self.summary.count(outcome, steps=int(outcome.is_accepted))
        self.summary.failures += int(outcome.status is OutcomeStatus.FAILED)

    def correct_counts(
        self, step: str, outcome: Outcome | None, result: RecordedResult | None
    ) -> None:
        """Correct the counts of *outcome* once it is known how the run has recorded it."""
        recorded_outcome = None if result is None else result.outcome
        if recorded_outcome is not None and outcome is not None:
            difference = int(recorded_outcome.is_accepted) - int(outcome.is_accepted)
            usage = self.summary.usage
            self.summary.usage = usage.replace(steps=usage.steps + difference)
            self.summary.failures -= difference
            failure = f"node {step!r} failed: {recorded_outcome.error}"
            self._failure = None if recorded_outcome.is_accepted else failure
        if result is not None and result.then is not None:
            # The run continues automatically, so a tick need not report a failure.
            self._failure, self._then = None, result.then

    # --- limits --------------------------------------------------------------------

    def slots(self, taken: int) -> int:
        """Return how many more attempts may start while *taken* ones are running."""
        steps = self._steps_left()
        places = self._places if steps is None else min(self._places, steps)
        return max(places - taken, 0)

    def _steps_left(self) -> int | None:
        """Return how many more steps this invocation may run; None: no limit."""
        limits, usage = self.limits, self.summary.usage
        if limits.max_cost_usd is not None and usage.cost_usd >= limits.max_cost_usd:
            return 0
        if self.mode is Mode.TICK:
            return 1 - self._tried
        return None if limits.max_steps is None else self.summary.steps_left(limits.max_steps)

    def usd_left(self) -> float | None:
        """Return how much this invocation may still spend; None: it has no limit."""
        return subtract_used(self.limits.max_cost_usd, self.summary.usage.cost_usd)

    def _find_reached_limit(self) -> str | None:
        """Return which limit of this invocation is reached.

        Raises:
            StepFailed: a tick's one attempt failed, and nothing follows automatically.
        """
        if self.mode is Mode.TICK and self._tried:
            if self._failure is not None:
                raise StepFailed(self._failure, hint="'sequencer status' shows what comes next")
            return self._then or "the step that was due is done"
        return self.summary.find_reached_limit(self.limits)

    # --- reasons to end ------------------------------------------------------------

    @staticmethod
    def describe_end(head: Head, marking: Marking) -> str:
        """Return a sentence about the end of the run, which is complete or canceled.

        Raises:
            StepFailed: the run ended in another way, such as after an error or a timeout.
        """
        status, steps = marking.status, head.usage.steps
        if status in (FlowStatus.COMPLETED, FlowStatus.CANCELLED):
            return f"the run is {status} after {steps} step{'s' * (steps != 1)}"
        raise bad_end_error(head, marking)

    def find_end_reason(self, head: Head, marking: Marking, at: datetime) -> str | None:
        """Return why this invocation ends although the run continues; None: it waits.

        Call it only while no attempt of this process is running.

        Raises: see `WorkLoop.work`.
        """
        if (limit_reason := self._find_reached_limit()) is not None:
            return limit_reason
        obstacle = find_obstacle(head, self.run_limits, at)
        kind, message = obstacle or (ReadinessKind.READY, "")
        if kind is ReadinessKind.LIMIT:
            ensure_none_failed(head, marking, message)
        if kind in (ReadinessKind.STOPPED, ReadinessKind.LIMIT) or (
            kind is ReadinessKind.PAUSED and self.mode is not Mode.SYNC
        ):
            return message
        if self.is_waiting_for_others(head, at):
            return None
        if kind is ReadinessKind.PERSON and head.status is Status.PAUSED:
            raise WaitsForPerson(message)
        if (next_date := self.next_try(marking)) is not None:
            is_tick = self.mode is Mode.TICK
            return f"nothing due: the next try is at {next_date}" if is_tick else None
        rule = self._capacity_rule
        stopped = None if rule is None else rule.find_stop_reason(marking)
        if stopped is None:
            _ensure_no_question(marking)
        else:
            ensure_none_failed(head, marking, stopped)
        return stopped

    def is_waiting_for_others(self, head: Head, at: datetime) -> bool:
        """Return whether other processes hold claims, or the run is paused."""
        obstacle = find_obstacle(head, self.run_limits, at)
        return bool(head.claims) or (obstacle is not None and obstacle[0] is ReadinessKind.PAUSED)

    def next_try(self, marking: Marking) -> str | None:
        """Return the date of the first retry, ISO 8601 UTC; None: no failed node is retried."""
        # A node that a budget has closed does not start when its time comes.
        closed_names = (
            () if self._capacity_rule is None else self._capacity_rule.find_closed(marking)
        )
        executions = [node for name, node in marking.active.items() if name not in closed_names]
        return min((node.due for node in executions if node.due and not node.since), default=None)

    def to_data(self) -> dict[str, Any]:
        """Return its counts as plain data."""
        return {
            **self.summary.to_data(),
            "tried": self._tried,
            "failure": self._failure,
            "then": self._then,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the data that `to_data` returned."""
        self.summary.restore(kept)
        self._tried, self._failure, self._then = kept["tried"], kept["failure"], kept["then"]


def format_wait_message(head: Head) -> str:
    """Return the message of an invocation that waits for other processes."""
    names = ", ".join(repr(claim.step) for claim in head.claims)
    verb = "runs" if len(head.claims) == 1 else "run"
    return f"{names} {verb} in another process" if names else "the run is paused"


def _ensure_no_question(marking: Marking) -> None:
    """Check that no question waits for a person.

    Raises:
        WaitsForPerson: one does.
    """
    names = [name for name, execution in marking.active.items() if execution.since]
    if names:
        verb = "waits" if len(names) == 1 else "wait"
        raise WaitsForPerson(
            f"{', '.join(map(repr, names))} {verb} for an answer",
            hint="'sequencer inbox' shows what is asked, 'sequencer answer NODE VALUE' answers",
        )
