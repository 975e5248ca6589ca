"""The layer that judges the evidence of an attempt; see `engine.evidence`."""

from __future__ import annotations

import time

from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.events import NoticeGiven
from sequencer.engine.evidence import OWN_WORD, ChangeWatch, judge
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.engine.records import (
    apply_completion,
    check_answer,
    describe_overspending,
    judge_answer,
    make_history_note,
    redact_outcome,
)
from sequencer.errors import (
    AgentMissing,
    SequencerError,
    UnsafeFolder,
    to_machine_busy,
    to_storage_failed,
)
from sequencer.model.kind import AttemptResult
from sequencer.model.limits import limit_attempts
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage, sum_usages
from sequencer.model.step import Step
from sequencer.workflows.prompts import MissingValue


def judge_evidence(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Judge how *attempt* ended; an error before its agent runs is a failure too.

    Raises:
        SequencerError: a disk fails, a folder is unsafe, or the machine is out of a resource.
    """
    prepared_step, watch = attempt.prepared, None
    if prepared_step.step.expects == "change" and prepared_step.executor.kind not in OWN_WORD:
        watch = ChangeWatch(attempt.cwd, performer.own_folders, attempt.prior)
        watch.begin()
    try:
        proceed(attempt)
    except SequencerError as error:
        if isinstance(error, UnsafeFolder) or to_machine_busy(error) or to_storage_failed(error):
            raise
        attempt.prepared, attempt.is_final = prepared_step, isinstance(error, MissingValue)
        attempt.outcome = _build_failure(attempt, error)
    final_step = attempt.prepared
    outcome = _judge_outcome(performer, attempt, final_step, watch)
    note = (
        make_history_note(final_step, outcome, attempt)
        if final_step.step.complete_when
        else final_step.note
    )
    result = AttemptResult(
        outcome,
        final_step.step,
        final_step.place,
        final_step.agent,
        attempt.claim.token,
        attempt.claim.attempt,
        log=attempt.log.path,
        is_final=attempt.is_final,
        began_at=attempt.began_at,
        note=note,
    )
    is_command = final_step.executor.kind == "command"
    attempt.ended = judge_answer(attempt.workflow, result, is_command=is_command)


def _build_failure(attempt: Attempt, error: SequencerError) -> Outcome:
    # The router or a hook chose the agent, so it could not be checked before the claim.
    is_missing = isinstance(error, AgentMissing)
    status = OutcomeStatus.UNAVAILABLE if is_missing else OutcomeStatus.FAILED
    # The hint is meant for a step that was not claimed.
    text = str(error).removesuffix(f"\n  {error.hint}") if is_missing else str(error)
    return Outcome(status=status, error=text, usage=sum_usages(attempt.paid))


def _judge_outcome(
    performer: Performer, attempt: Attempt, final_step: PreparedStep, watch: ChangeWatch | None
) -> Outcome:
    """Return the outcome of *attempt* at the step *final_step*, judged by its evidence."""
    seconds = round(time.monotonic() - attempt.started_s, 6)
    outcome = limit_attempts(attempt.outcome, attempt.claim.attempt, performer.max_attempts)
    if outcome.evidence is not None and final_step.executor.kind not in OWN_WORD:
        watch = watch or ChangeWatch(
            attempt.cwd, performer.own_folders, attempt.prior, began=time.time() - seconds
        )
        outcome = judge(outcome, final_step.step, watch, attempt.write_notice)
    if final_step.step.max_cost_usd is not None:
        _report_overspent(performer, attempt, final_step.step, outcome.usage)
    completed_outcome = check_answer(final_step.step, apply_completion(final_step.step, outcome))
    usage = completed_outcome.usage.replace(seconds=seconds)
    return redact_outcome(
        completed_outcome, performer.redact, usage=usage, prompt=final_step.step.prompt_name
    )


def _report_overspent(performer: Performer, attempt: Attempt, step: Step, usage: Usage) -> None:
    """Report if *attempt* spent more than it may, because its client stopped too late or never."""
    if (text := describe_overspending(step, usage)) is not None:
        attempt.write_notice(f"the attempt has spent {text}")
        performer.emit(NoticeGiven(f"step {step.name!r} has spent {text}"))
