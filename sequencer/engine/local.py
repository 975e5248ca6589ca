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
from sequencer.engine.events import Waiting
from sequencer.engine.performing import Performer
from sequencer.engine.prepared import Allowance
from sequencer.engine.recall import Memory
from sequencer.engine.records import chance
from sequencer.engine.work import LONGEST_SLEEP_S, Summary, counted
from sequencer.errors import Interrupted, StepFailed
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model import transitions
from sequencer.model.head import Head, Owner, Status
from sequencer.model.kind import Performed
from sequencer.model.limits import InvocationLimits
from sequencer.model.line.line import Ended, Line
from sequencer.model.line.order import place, present
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.standing import parse_time
from sequencer.model.transitions import Place
from sequencer.store.identity import utc_now

NOBODY = Owner(host="", boot_id="", pid_ns="", pid=0, pid_start=0, nonce="")
"""Holds a step that no run knows of."""
MAX_ATTEMPTS = 20
"""At one step, for hooks that want it again and again."""


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
        self._memory = Memory(state_path.parent)
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
        start = place(workflow, self._start)
        head = (
            Line(workflow)
            .fresh("local", at=datetime.now(UTC))
            .replace(step_index=self._start, iteration=self._start + 1, expected_step=start.step)
        )
        first_cycle = self._start // len(workflow.steps)
        while True:
            reason = self._reached(head.step_index // len(workflow.steps) - first_cycle)
            if reason is None:
                reason = _end_of(head, present(workflow, head))
            if reason is not None:
                self.summary.reason = reason
                return self.summary
            head = self._step(head)
            if head.not_before is not None and self._reached(0) is None:
                self._sleep_until(head.not_before, head.not_before_reason or "not due")

    def _reached(self, cycles: int) -> str | None:
        limits, usage = self._limits, self.summary.usage
        if (done := self.summary.reached(limits.max_steps)) is not None:
            return done
        if limits.max_cost_usd is not None and usage.cost_usd >= limits.max_cost_usd:
            return f"{usage.cost_usd:.4f} USD are spent (--max-cost)"
        if limits.max_cycles is not None and cycles >= limits.max_cycles:
            return f"{counted(cycles, 'cycle')} done (--max-cycles)"
        return None

    def _step(self, head: Head) -> Head:
        """Try the step at which *head* stands and return what that makes of it.

        Raises: see `work`.
        """
        workflow = self._performer.workflow
        here = present(workflow, head)
        held = transitions.claim(head, here, NOBODY, at=utc_now(), ttl_s=1.0).head
        performed = self._try(held, here)
        outcome = performed.outcome
        if outcome.status is OutcomeStatus.INTERRUPTED:
            raise Interrupted(f"interrupted in step {performed.step.name!r}")
        performed, ending = Line(workflow).judge(held, performed, MAX_ATTEMPTS)
        ended = Ended(performed, ending, {"output": performed.outcome.output}, jitter=chance())
        steps = int(ended.has_worked)
        self.summary.usage = self.summary.usage.plus(performed.outcome.usage, steps=steps)
        self.summary.failures += int(ended.has_failed)
        self.summary.limits_met += int(ended.met_limit)
        moved = Line(workflow).end(held, held.token, ended, at=datetime.now(UTC))
        for fact in moved.facts:
            self._memory.keep({"event": fact.event, "step": fact.step, "outcome": fact.outcome})
        if ended.has_failed and moved.head.not_before is None:
            raise _step_failed(performed, head)
        return moved.head

    def _sleep_until(self, due: str, reason: str) -> None:
        date = parse_time(due)
        self._performer.emit(Waiting(f"{reason}: nothing starts before {due}", due))
        end = time.monotonic() + _seconds_until(date)
        # A clock that is set back must not make the pause longer than it was meant to be.
        while (left := min(_seconds_until(date), end - time.monotonic())) > 0:
            if self._current.wait(min(left, LONGEST_SLEEP_S)):
                raise Interrupted("interrupted; no step is running")

    def _try(self, head: Head, here: Place) -> Performed:
        prepared = self._performer.prepare(here)
        folder = Path(tempfile.mkdtemp(prefix="sequencer-")).resolve()
        attempt = Attempt(
            run_id=head.run_id,
            workflow=head.workflow_name,
            step=prepared.step,
            position=prepared.position,
            step_index=head.step_index,
            token=0,
            attempt=head.attempt,
            agent=prepared.agent,
            prompt=prepared.step.prompt_name,
            state_path=self._state_path,
            result_path=folder / "step" / "result.json",
        )
        cap, spent = self._limits.max_cost_usd, self.summary.usage.cost_usd
        budget = Allowance(None if cap is None else cap - spent, self._limits.step_timeout_s)
        try:
            return self._performer.perform(
                prepared,
                attempt,
                head,
                budget,
                cancellation=self._current,
                recall=lambda: self._memory,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _end_of(head: Head, here: Place) -> str | None:
    """Return why nothing follows, if that is so."""
    if head.gate is not None and head.gate.is_open:
        return f"{head.gate.step!r} asks for a decision, and mode async has no run to keep it in"
    if here.is_end:
        return "the procedure is complete"
    if head.status is Status.COMPLETE:
        return "the agent says that everything is done"
    return None


def _seconds_until(date: datetime | None) -> float:
    return 0.0 if date is None else (date - datetime.now(UTC)).total_seconds()


def _step_failed(performed: Performed, head: Head) -> StepFailed:
    outcome = performed.outcome
    return StepFailed(
        f"step {performed.step.name!r} (iteration {head.iteration}) failed: "
        f"{outcome.error or outcome.status}",
        where=str(performed.log),
        hint=f"--step-index {head.step_index} starts with it again",
    )
