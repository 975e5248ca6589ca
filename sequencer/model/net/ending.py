"""What the end of an attempt at a node means for its run: accepted, tried again, or lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from sequencer.errors import SequencerError
from sequencer.model.due import POSTPONED_S, due_again, iso, retry_at
from sequencer.model.head import Claim
from sequencer.model.kind import Performed
from sequencer.model.net.graph import Growth
from sequencer.model.net.marking import Marking, Reference
from sequencer.model.net.transition import OpenTransition
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.workflow import Workflow


class Grower(Protocol):
    """Makes what is added to a team's graph."""

    def of_answer(self, workflow: Workflow, name: str, answer: str) -> Growth | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*; None: it names none.

        Raises:
            SequencerError: they can't be added; says what to correct, without secrets.
        """

    def fix(self, workflow: Workflow, name: str, number: int) -> Growth | None:
        """Return what fixes the work that task *name* has refused for the *number*-th time.

        None: the task has nothing that fixes it, and judges again.
        """


class Growing(Protocol):
    """Knows a run's workflow as it has grown, and what makes it grow; see `Net`."""

    grower: Grower | None
    """None: the run is no team's."""

    def workflow_at(self, marking: Marking) -> Workflow:
        """Return the workflow with what *marking* has added to it."""


@dataclass(slots=True)
class NodeEnded:
    """An attempt at a node that has ended, ready to become part of a transition."""

    claim: Claim
    performed: Performed
    record: Mapping[str, Any]
    """For the journal."""
    reference: Reference | None = None
    """Where its output was kept."""
    jitter: float = 0.0
    """A random number below 1, for the date of another attempt."""
    is_postponed: bool = False
    """This machine could not run it now."""
    recorded: Outcome | None = None
    """What the run took it as, where that is not what its agent has said."""
    then: str | None = None
    """Of one that was not accepted: what comes of that by itself."""

    def apply(self, step: OpenTransition, net: Growing) -> None:
        """Let it end in *step*.

        Raises:
            StaleClaim: the claim is gone.
        """
        # A transition may be made again, on another marking.
        self.recorded = self.then = None
        token, outcome, verdict = self.claim.token, self.performed.outcome, self.performed.verdict
        if outcome.status is OutcomeStatus.INTERRUPTED:
            due = iso(step.now + timedelta(seconds=POSTPONED_S)) if self.is_postponed else None
            step.release(token, self.record, outcome.usage, due)
        elif outcome.is_put_off:
            due = due_again(outcome, self.claim.attempt, step.now, self.jitter)
            step.release(token, self.record, outcome.usage, due)
        elif verdict is not None and not verdict.is_pass and not self.performed.is_final:
            self._refuse(step, net)
        elif outcome.is_accepted:
            self._accept(step, net)
        else:
            self._fail(step, outcome, self.record)

    def _fail(self, step: OpenTransition, outcome: Outcome, record: Mapping[str, Any]) -> None:
        held = step.head.claim_with(self.claim.token)
        failures = step.marking.active[held.step].failures + 1 if held else 1
        kind, due = "timeout" if outcome.is_timed_out else "error", None
        if self.performed.is_final:
            kind = "Template"
        else:
            due = retry_at(self.performed.step, failures, step.now)
        if due is not None:
            self.then = f"{self.claim.step!r} is tried again at {due}"
        step.fail(self.claim.token, outcome, record, due=due, kind=kind)

    def _accept(self, step: OpenTransition, net: Growing) -> None:
        """Accept it, and what a task's answer adds to the graph."""
        outcome, name = self.performed.outcome, self.claim.step
        node, growth = step.marking.graph.by_id.get(name), None
        adds = node is not None and node.task is not None and node.task.adds is not None
        if net.grower is not None and adds:
            try:
                growth = net.grower.of_answer(net.workflow_at(step.marking), name, _said(outcome))
            except SequencerError as refusal:
                error = refusal.message
                self.recorded = outcome.replace(status=OutcomeStatus.FAILED, error=error)
                told = {"status": str(self.recorded.status), "error": error[:4000]}
                self._fail(step, self.recorded, {**self.record, **told})
                return
        step.accept(self.claim.token, outcome, self.reference, self.record, growth)

    def _refuse(self, step: OpenTransition, net: Growing) -> None:
        """Take a "no": a fix comes next, or another try, until there were too many."""
        token, name = self.claim.token, self.claim.step
        outcome, validation = self.performed.outcome, self.performed.step.validation
        number = step.marking.team.refusals.get(name, 0) + 1
        told = {**self.record, "verdict": {"pass": False, "round": number}}
        if validation is None or number >= validation.max_attempts:
            if validation is not None and validation.on_exhausted == "continue":
                self.recorded = outcome.replace(status=OutcomeStatus.OK)
                step.accept(token, self.recorded, self.reference, told)
                return
            error = f"{outcome.error} (after {number} judgements)"
            step.fail(token, outcome.replace(error=error), told, due=None, kind="Refused")
            return
        fix = None
        if net.grower is not None:
            fix = net.grower.fix(net.workflow_at(step.marking), name, number)
        step.refuse(token, outcome, told, fix)
        added = "it judges again" if fix is None else f"{fix.nodes[0].id!r} was added"
        self.then = f"{name!r} said no, and {added}"


def _said(outcome: Outcome) -> str:
    """Return what a task has said, as JSON where the client has told it apart."""
    if outcome.structured is None:
        return outcome.output
    return json.dumps(outcome.structured, ensure_ascii=False)
