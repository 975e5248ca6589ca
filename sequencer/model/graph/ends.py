"""Decides what happens after an attempt at a node ends, in real runs and in simulations.

Pure: `graph_kind.Taking` applies the decision to a run, and `workflows.simulate` to a simulation.
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
from sequencer.model.limits import iso, retry_at, tries_of
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.workflow import Workflow

_ERROR_CHARS = 4000
"""Of an error that the record of an attempt gets besides what its agent said."""


class TaskExpander(Protocol):
    """Makes what is added to a team's graph, and knows who is there to take over."""

    @property
    def has_fallback(self) -> bool:
        """Return whether a task is tried once more, by somebody else, when its tries are over."""

    def of_answer(self, workflow: Workflow, name: str, answer: str) -> TaskExpansion | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*; None: it names none.

        Raises:
            SequencerError: they can't be added; says what to correct, without secrets.
        """

    def fix(self, workflow: Workflow, name: str, number: int) -> TaskExpansion | None:
        """Return what fixes the work that task *name* has refused for the *number*-th time.

        None: the task has nothing that fixes it, and judges again.
        """


class Acceptance(Struct, frozen=True):
    """It is accepted as *outcome*, and adds *growth* to the graph."""

    outcome: Outcome
    growth: TaskExpansion | None = None
    more: Mapping[str, Any] = {}
    """What the record of the attempt gets besides what its agent said."""


class Rejection(Struct, frozen=True):
    """A judge said no: *fix* comes next, or else another judgement."""

    outcome: Outcome
    fix: TaskExpansion | None
    more: Mapping[str, Any]
    """What the record of the attempt gets besides what its agent said."""


class Failure(Struct, frozen=True):
    """It has failed."""

    outcome: Outcome
    kind: str = "error"
    due: str | None = None
    """When it is tried again, ISO 8601 UTC; None: never."""
    is_replaced: bool = False
    """Whether that try is by somebody else."""
    more: Mapping[str, Any] = {}
    """What the record of the attempt gets besides what its agent said."""


NodeEnd = Acceptance | Rejection | Failure


def judge_end(
    ended: AttemptResult,
    name: str,
    marking: Marking,
    now: datetime,
    *,
    workflow: Workflow,
    expander: TaskExpander | None,
) -> NodeEnd:
    """Return what it means that an attempt at node *name* has ended as *ended*.

    It was neither interrupted nor put off. *workflow* is as it has grown; *expander* is None for
    a run that is no team's.
    """
    verdict, outcome = ended.verdict, ended.outcome
    if verdict is not None and not verdict.is_pass and not ended.is_final:
        return _rejected(ended, name, marking, workflow, expander)
    if not outcome.is_accepted:
        return _failed(ended, name, marking, now, expander)
    task = workflow.task(name)
    if expander is None or task is None or task.adds is None:
        return Acceptance(outcome)
    try:
        return Acceptance(outcome, expander.of_answer(workflow, name, _answer_in(outcome)))
    except SequencerError as refusal:
        failed = outcome.replace(status=OutcomeStatus.FAILED, error=refusal.message)
        more = {"status": str(failed.status), "error": refusal.message[:_ERROR_CHARS]}
        failure = _failed(replace(ended, outcome=failed), name, marking, now, expander)
        return replace(failure, more=more)


def _failed(
    ended: AttemptResult, name: str, marking: Marking, now: datetime, expander: TaskExpander | None
) -> Failure:
    outcome, active = ended.outcome, marking.active.get(name)
    if ended.is_final:
        return Failure(outcome, "Template")
    kind = "timeout" if outcome.is_timed_out else "error"
    failures = 1 if active is None else active.failures + 1
    is_last = failures == tries_of(ended.step)
    if is_last and expander is not None and expander.has_fallback:
        return Failure(outcome, kind, iso(now), is_replaced=True)
    return Failure(outcome, kind, retry_at(ended.step, failures, now))


def _rejected(
    ended: AttemptResult,
    name: str,
    marking: Marking,
    workflow: Workflow,
    expander: TaskExpander | None,
) -> NodeEnd:
    """Return what a "no" means: a fix or another judgement, until there were too many."""
    outcome, validation = ended.outcome, ended.step.validation
    number = marking.ledger.refusals.get(name, 0) + 1
    more = {"verdict": {"pass": False, "round": number}}
    if validation is not None and number < validation.max_attempts:
        fix = None if expander is None else expander.fix(workflow, name, number)
        return Rejection(outcome, fix, more)
    if validation is not None and validation.on_exhausted == "continue":
        return Acceptance(outcome.replace(status=OutcomeStatus.OK), more=more)
    error = f"{outcome.error} (after {number} judgements)"
    return Failure(outcome.replace(error=error), "Refused", more=more)


def _answer_in(outcome: Outcome) -> str:
    """Return what a task has said, as JSON where the client has told it apart."""
    if outcome.structured is None:
        return outcome.output
    return json.dumps(outcome.structured, ensure_ascii=False)
