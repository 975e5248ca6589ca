"""Async mode: steps in order without the shared head.

For trying prompts and for loops beside a run: the same resolution, the same executors, the
same logs, but no claim, no token and nothing recorded. Two async invocations know nothing
of each other.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from sequencer.engine.attempt import Attempt
from sequencer.engine.control import fresh_head
from sequencer.engine.due import limit_end, retry_at
from sequencer.engine.performing import Budget, Performer, Prepared
from sequencer.engine.standing import parse_time
from sequencer.engine.work import LONGEST_SLEEP_S, Summary, counted
from sequencer.errors import Interrupted, StepFailed
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model.head import Head, Session
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.resolution.resolver import place


class LocalInvocation:
    """Runs steps from a start index on."""

    def __init__(
        self, performer: Performer, limits: InvocationLimits, step_index: int, state_path: Path
    ) -> None:
        """Begin at *step_index*; *state_path* is told to agents, never read or written."""
        self._performer = performer
        self._limits = limits
        self._start = step_index
        self._state_path = state_path
        self._current = Cancellation()
        self.summary = Summary()

    def interrupt(self) -> None:
        """Ask for the end of the present step and of the work; safe in a signal handler."""
        self._current.set(StopReason.INTERRUPTED)

    def work(self) -> Summary:
        """Run steps until a limit, the end of a procedure, or a failure.

        Raises:
            StepFailed: a step failed and has no automatic try left.
            Interrupted: this process was asked to end.
        """
        try:
            return self._work()
        finally:
            self._current.close()

    def _work(self) -> Summary:
        workflow = self._performer.workflow
        head = fresh_head(workflow)
        first_cycle = self._start // len(workflow.steps)
        step_index = self._start
        while True:
            reason = self._reached(step_index // len(workflow.steps) - first_cycle)
            if reason is None and place(workflow, step_index).is_end:
                reason = "the procedure is complete"
            if reason is not None:
                self.summary.reason = reason
                return self.summary
            head = head.model_copy(update={"step_index": step_index, "iteration": step_index + 1})
            accepted = self._until_accepted(head)
            if accepted is None:
                continue
            outcome, agent = accepted
            if outcome.status is OutcomeStatus.COMPLETE:
                self.summary.reason = "the agent says that everything is done"
                return self.summary
            session = outcome.session_id
            head = head.model_copy(
                update={"session": Session(executor=agent, id=session) if session else None}
            )
            step_index += 1

    def _reached(self, cycles: int) -> str | None:
        limits, usage = self._limits, self.summary.usage
        if limits.max_steps is not None and usage.steps >= limits.max_steps:
            return f"{counted(usage.steps, 'step')} done (--max-steps)"
        if limits.max_cost_usd is not None and usage.cost_usd >= limits.max_cost_usd:
            return f"{usage.cost_usd:.4f} USD are spent (--max-cost)"
        if limits.max_cycles is not None and cycles >= limits.max_cycles:
            return f"{counted(cycles, 'cycle')} done (--max-cycles)"
        return None

    def _until_accepted(self, head: Head) -> tuple[Outcome, str] | None:
        """Try the step as often as it may be; None if the invocation has nothing left to spend.

        Raises: see `work`.
        """
        attempt, failures = 0, 0
        while True:
            attempt += 1
            outcome, final, log = self._try(head, attempt)
            if outcome.is_accepted:
                return outcome, final.agent
            if outcome.status is OutcomeStatus.INTERRUPTED:
                raise Interrupted(f"interrupted in step {final.step.name!r}")
            reason, due = "usage limit of the agent", limit_end(outcome, datetime.now(UTC))
            if outcome.status is OutcomeStatus.FAILED:
                failures += 1
                self.summary.failures += 1
                again = retry_at(final.step, failures, datetime.now(UTC))
                if again is None:
                    raise _step_failed(final, head, outcome, log)
                reason, due = "retry", again
            if self._reached(0) is not None:
                return None
            self._sleep_until(due, reason)

    def _sleep_until(self, due: str, reason: str) -> None:
        date = parse_time(due)
        self._performer.observer.waiting(f"{reason}: nothing starts before {due}", due)
        end = time.monotonic() + _seconds_until(date)
        # A clock that is set back must not make the pause longer than it was meant to be.
        while (left := min(_seconds_until(date), end - time.monotonic())) > 0:
            if self._current.wait(min(left, LONGEST_SLEEP_S)):
                raise Interrupted("interrupted; no step is running")

    def _try(self, head: Head, number: int) -> tuple[Outcome, Prepared, Path]:
        prepared = self._performer.prepare(head.step_index)
        folder = Path(tempfile.mkdtemp(prefix="sequencer-"))
        attempt = Attempt(
            run_id=head.run_id,
            workflow=head.workflow_name,
            step=prepared.step,
            position=prepared.position,
            step_index=head.step_index,
            token=0,
            attempt=number,
            agent=prepared.agent,
            prompt=prepared.step.prompt_name,
            state_path=self._state_path,
            result_path=folder / "result.json",
        )
        cap, spent = self._limits.max_cost_usd, self.summary.usage.cost_usd
        budget = Budget(None if cap is None else cap - spent, self._limits.step_timeout_s)
        try:
            tried = self._performer.perform(prepared, attempt, head, budget, self._current)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        outcome = tried[0]
        steps = int(outcome.is_accepted)
        self.summary.usage = self.summary.usage.plus(outcome.usage, steps=steps)
        return tried


def _seconds_until(date: datetime | None) -> float:
    return 0.0 if date is None else (date - datetime.now(UTC)).total_seconds()


def _step_failed(prepared: Prepared, head: Head, outcome: Outcome, log: Path) -> StepFailed:
    return StepFailed(
        f"step {prepared.step.name!r} (iteration {head.iteration}) failed: "
        f"{outcome.error or outcome.status}",
        where=str(log),
        hint=f"--step-index {head.step_index} starts with it again",
    )
