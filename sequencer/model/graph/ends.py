"""Decides what happens after an attempt at a node ends, in real runs and in simulations.

Pure: `graph_kind.ResultApplier` applies the decision to a run, and `workflows.simulate` to a
simulation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.model.graph.graph import TaskExpansion
from sequencer.model.graph.marking import Marking
from sequencer.model.kind import AttemptResult
from sequencer.model.limits import compute_retry_date, format_utc_ms, get_max_tries
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.workflow import Workflow

_ERROR_CHARS = 4000
"""Limit for an error of this program in the record of an attempt."""


class TaskExpander(Protocol):
    """Creates the tasks to add to a graph of tasks, and knows whether a fallback agent exists."""

    @property
    def has_fallback(self) -> bool:
        """Return whether another agent tries a task one more time after its last try."""

    def expand_answer(self, workflow: Workflow, name: str, answer: str) -> TaskExpansion | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*; None: it adds none.

        Raises:
            SequencerError: they can't be added; the message says what to correct, and is redacted.
        """

    def build_fix(self, workflow: Workflow, name: str, number: int) -> TaskExpansion | None:
        """Return the task that fixes the work after refusal *number* by task *name*.

        None: the task has no fixer, and judges again.
        """


class Acceptance(Struct, frozen=True):
    """The attempt is accepted as *outcome*, and adds *growth* to the graph."""

    outcome: Outcome
    growth: TaskExpansion | None = None
    more: Mapping[str, Any] = {}
    """Additional entries for the record of the attempt."""


class Rejection(Struct, frozen=True):
    """A judge said no: *fix* runs next, or the judge again if there is none."""

    outcome: Outcome
    fix: TaskExpansion | None
    more: Mapping[str, Any]
    """Additional entries for the record of the attempt."""


class Failure(Struct, frozen=True):
    """The attempt failed."""

    outcome: Outcome
    kind: str = "error"
    due: str | None = None
    """When the node is tried again, ISO 8601 UTC; None: never."""
    is_replaced: bool = False
    """Whether another agent makes that try."""
    more: Mapping[str, Any] = {}
    """Additional entries for the record of the attempt."""


NodeEnd = Acceptance | Rejection | Failure


def judge_end(
    result: AttemptResult,
    name: str,
    marking: Marking,
    now: datetime,
    *,
    workflow: Workflow,
    expander: TaskExpander | None,
) -> NodeEnd:
    """Return what follows from *result*, an attempt at node *name*.

    The attempt was neither interrupted nor put off. *workflow* includes the added tasks; *expander*
    is None if the graph has no tasks.
    """
    verdict, outcome = result.verdict, result.outcome
    if verdict is not None and not verdict.is_pass and not result.is_final:
        return _judge_rejection(result, name, marking, workflow, expander)
    if not outcome.is_accepted:
        return _judge_failure(result, name, marking, now, expander)
    task = workflow.find_task(name)
    if expander is None or task is None or task.adds is None:
        return Acceptance(outcome)
    try:
        return Acceptance(outcome, expander.expand_answer(workflow, name, _read_answer(outcome)))
    except SequencerError as refusal:
        failed_outcome = outcome.replace(status=OutcomeStatus.FAILED, error=refusal.message)
        details = {"status": str(failed_outcome.status), "error": refusal.message[:_ERROR_CHARS]}
        failure = _judge_failure(
            replace(result, outcome=failed_outcome), name, marking, now, expander
        )
        return replace(failure, more=details)


def _judge_failure(
    result: AttemptResult, name: str, marking: Marking, now: datetime, expander: TaskExpander | None
) -> Failure:
    outcome, execution = result.outcome, marking.active.get(name)
    if result.is_final:
        return Failure(outcome, "Template")
    kind = "timeout" if outcome.is_timed_out else "error"
    failures = 1 if execution is None else execution.failures + 1
    is_last = failures == get_max_tries(result.step)
    if is_last and expander is not None and expander.has_fallback:
        return Failure(outcome, kind, format_utc_ms(now), is_replaced=True)
    return Failure(outcome, kind, compute_retry_date(result.step, failures, now))


def _judge_rejection(
    result: AttemptResult,
    name: str,
    marking: Marking,
    workflow: Workflow,
    expander: TaskExpander | None,
) -> NodeEnd:
    """Return what follows from a "no": a fix or another judgment, until the limit is reached."""
    outcome, validation = result.outcome, result.step.validation
    number = marking.ledger.refusals.get(name, 0) + 1
    details = {"verdict": {"pass": False, "round": number}}
    if validation is not None and number < validation.max_attempts:
        fix_expansion = None if expander is None else expander.build_fix(workflow, name, number)
        return Rejection(outcome, fix_expansion, details)
    if validation is not None and validation.on_exhausted == "continue":
        return Acceptance(outcome.replace(status=OutcomeStatus.OK), more=details)
    error = f"{outcome.error} (after {number} judgements)"
    return Failure(outcome.replace(error=error), "Refused", more=details)


def _read_answer(outcome: Outcome) -> str:
    """Return the answer of a task, as JSON if the client reported it separately."""
    if outcome.structured is None:
        return outcome.output
    return json.dumps(outcome.structured, ensure_ascii=False)
