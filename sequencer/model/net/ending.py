"""What the end of an attempt at a node means for its run: accepted, tried again, or lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from msgspec import Struct

from sequencer.errors import SequencerError
from sequencer.model.kind import Ended
from sequencer.model.limits import POSTPONED_S, due_again, iso, retry_at, tries_of
from sequencer.model.net.graph import Growth
from sequencer.model.net.transition import OpenTransition
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.workflow import Workflow


class Grower(Protocol):
    """Makes what is added to a team's graph, and knows who is there to take over."""

    @property
    def has_fallback(self) -> bool:
        """Return whether a task is tried once more, by somebody else, when its tries are over."""

    def of_answer(self, workflow: Workflow, name: str, answer: str) -> Growth | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*; None: it names none.

        Raises:
            SequencerError: they can't be added; says what to correct, without secrets.
        """

    def fix(self, workflow: Workflow, name: str, number: int) -> Growth | None:
        """Return what fixes the work that task *name* has refused for the *number*-th time.

        None: the task has nothing that fixes it, and judges again.
        """


class Taken(Struct, frozen=True):
    """What a run has made of an attempt that has ended."""

    outcome: Outcome | None = None
    """What it took it as, where that is not what its agent has said."""
    then: str | None = None
    """Of one that was not accepted: what comes of that by itself."""


class Taking(Struct, frozen=True):
    """Lets an attempt end in a transition."""

    ended: Ended
    step: OpenTransition
    workflow: Workflow
    """As it has grown."""
    grower: Grower | None
    """None: the run is no team's."""

    def take(self) -> Taken:
        """Return what the run makes of the attempt.

        Raises:
            StaleClaim: the claim is gone.
        """
        ended, step, performed = self.ended, self.step, self.ended.performed
        token, outcome, verdict = ended.claim.token, performed.outcome, performed.verdict
        if outcome.status is OutcomeStatus.INTERRUPTED:
            due = iso(step.now + timedelta(seconds=POSTPONED_S)) if ended.postponed else None
            step.release(token, ended.record, outcome.usage, due)
        elif outcome.is_put_off:
            due = due_again(outcome, ended.claim.attempt, step.now, ended.jitter)
            step.release(token, ended.record, outcome.usage, due)
        elif verdict is not None and not verdict.is_pass and not performed.is_final:
            return self._refused()
        elif outcome.is_accepted:
            return self._accepted()
        else:
            return Taken(then=self._failed(outcome, ended.record))
        return Taken()

    def _failed(self, outcome: Outcome, record: Mapping[str, Any]) -> str | None:
        """Let it fail; return what comes of that by itself."""
        claim, step, performed = self.ended.claim, self.step, self.ended.performed
        held = step.head.claim_with(claim.token)
        failures = step.marking.active[held.step].failures + 1 if held else 1
        kind, due = "timeout" if outcome.is_timed_out else "error", None
        if performed.is_final:
            kind = "Template"
        else:
            due = retry_at(performed.step, failures, step.now)
        then = None if due is None else f"{claim.step!r} is tried again at {due}"
        is_last = failures == tries_of(performed.step) and not performed.is_final
        if is_last and self.grower is not None and self.grower.has_fallback:
            due, then = iso(step.now), f"{claim.step!r} is tried once more, by its replacement"
        step.fail(claim.token, outcome, record, due=due, kind=kind)
        return then

    def _accepted(self) -> Taken:
        """Accept it, and what a task's answer adds to the graph."""
        ended, outcome, growth = self.ended, self.ended.performed.outcome, None
        name, task = ended.claim.step, self.workflow.task(ended.claim.step)
        if self.grower is not None and task is not None and task.adds is not None:
            try:
                growth = self.grower.of_answer(self.workflow, name, _said(outcome))
            except SequencerError as refusal:
                error = refusal.message
                failed = outcome.replace(status=OutcomeStatus.FAILED, error=error)
                told = {"status": str(failed.status), "error": error[:4000]}
                return Taken(failed, self._failed(failed, {**ended.record, **told}))
        decision = ended.performed.decision
        self.step.accept(
            ended.claim.token, outcome, ended.reference, ended.record, growth, decision=decision
        )
        return Taken()

    def _refused(self) -> Taken:
        """Take a "no": a fix comes next, or another try, until there were too many."""
        ended, step = self.ended, self.step
        token, name = ended.claim.token, ended.claim.step
        outcome, validation = ended.performed.outcome, ended.performed.step.validation
        number = step.marking.team.refusals.get(name, 0) + 1
        told = {**ended.record, "verdict": {"pass": False, "round": number}}
        if validation is None or number >= validation.max_attempts:
            if validation is not None and validation.on_exhausted == "continue":
                passed = outcome.replace(status=OutcomeStatus.OK)
                step.accept(token, passed, ended.reference, told)
                return Taken(passed)
            error = f"{outcome.error} (after {number} judgements)"
            step.fail(token, outcome.replace(error=error), told, due=None, kind="Refused")
            return Taken()
        fix = None if self.grower is None else self.grower.fix(self.workflow, name, number)
        step.refuse(token, outcome, told, fix)
        added = "it judges again" if fix is None else f"{fix.nodes[0].id!r} was added"
        return Taken(then=f"{name!r} said no, and {added}")


def _said(outcome: Outcome) -> str:
    """Return what a task has said, as JSON where the client has told it apart."""
    if outcome.structured is None:
        return outcome.output
    return json.dumps(outcome.structured, ensure_ascii=False)
