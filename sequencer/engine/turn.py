"""`Run.turn`: one step that the calling program performs itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import ClassVar

from msgspec import Struct, field

from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.changes import follow_run
from sequencer.engine.decide import End, RecordExpired, SequenceSeen, TakeClaims, Wait, next_move
from sequencer.engine.invocation_budget import Mode, SequenceBudget
from sequencer.engine.loop import pause_s
from sequencer.engine.sequence_worker import SequenceWorker
from sequencer.errors import ClaimHeld, SequencerError, StepFailed, TransitionRefused
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import StepRequest
from sequencer.model.head import Head
from sequencer.model.kind import ReadinessKind
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.transitions import StepRef

CALLER = "caller"
"""The journal's agent for a step that a program performed itself."""


class OpenTurn(Struct):
    """A step that the caller performs itself, see `Run.turn`."""

    step: str
    position: str
    step_index: int
    token: int
    attempt: int
    prompt_name: str
    cancellation: Cancellation
    """Set when the claim is lost: stop, because the result will not be accepted."""
    output: str = ""
    """What to record as the step's output."""
    is_complete: bool = False
    """Set it to end the run with this step."""
    failure: str | None = field(default=None)
    """Set it to record a failure without raising."""


class _Caller:
    """Stands for the executor of a step that the calling program performs itself."""

    kind: ClassVar[str] = CALLER
    supported_fields: ClassVar[frozenset[str]] = frozenset()

    def problems(self) -> list[str]:
        return []

    def perform(self, request: StepRequest, *_: object) -> Outcome:
        raise ValueError(f"the caller must perform step {request.step.name!r}")


def claim_turn(worker: SequenceWorker, head: Head, *, wait: bool) -> Attempt:
    """Claim the ready step, or with *wait* the next one at the worker's positions.

    Raises: see `Run.turn`.
    """
    limits, positions = InvocationLimits(), worker.positions
    budget = SequenceBudget(
        worker.workflow, Mode.SYNC, limits, worker.limits, head, positions=positions
    )
    while True:
        head = follow_run(worker.store, head, worker.store.view().head)
        facts = worker.collect_facts(head, budget, datetime.now(UTC))
        match next_move(facts):
            case RecordExpired():
                worker.commands.expire_waits()
            case TakeClaims():
                try:
                    if (
                        attempt := _claim_for_caller(worker, head, facts.readiness.place)
                    ) is not None:
                        return attempt
                except ClaimHeld:
                    # Another process claimed it after this one had looked.
                    if not wait:
                        raise
            case Wait() as move if wait:
                worker.store.wait(head.revision, pause_s(move.until), claim=move.claim)
            case move:
                raise _refusal(move, facts, is_mine=worker.is_mine(head.step_index))


def _refusal(move: Wait | End, facts: SequenceSeen, *, is_mine: bool) -> SequencerError:
    """Return why the caller gets no step."""
    if isinstance(move, End):
        step_error = move.error if isinstance(move.error, StepFailed) else None
        reason = move.reason if move.error is None else move.error.in_one_line
        return step_error or TransitionRefused(reason)
    if facts.readiness.kind not in (ReadinessKind.READY, ReadinessKind.HELD):
        return TransitionRefused(move.message)
    if is_mine:
        return ClaimHeld(move.message, hint="Run.turn(wait=True) waits for it")
    return ClaimHeld(f"step {facts.readiness.place.step!r} is at another position")


def _claim_for_caller(worker: SequenceWorker, head: Head, place: StepRef) -> Attempt | None:
    """Return the caller's claim of the step at *place*; None: the run has moved on."""
    step, position = worker.performer.find_step(place)
    attempt = worker.claim(head, PreparedStep(step, position, place, CALLER, _Caller(), ""))
    if attempt is not None:
        try:
            worker.check_out_code(attempt)
        except BaseException as error:
            worker.abandon(attempt, error)
            raise
    return attempt


def perform_by_caller(worker: SequenceWorker, attempt: Attempt) -> Iterator[OpenTurn]:
    """Yield the step of *attempt* once, and then record how the caller performed it."""
    claim, prepared_step = attempt.claim, attempt.prepared
    turn = OpenTurn(
        claim.step,
        prepared_step.position,
        claim.step_index,
        claim.token,
        claim.attempt,
        prepared_step.step.prompt_name,
        attempt.cancellation,
    )
    start = time.monotonic()
    status, error = OutcomeStatus.OK, None
    try:
        # The heartbeat ends before the record: a later one would leave a file.
        worker.begin(attempt)
        try:
            yield turn
        finally:
            worker.end(attempt)
    except BaseException as body_error:
        is_failure = isinstance(body_error, Exception)
        status = OutcomeStatus.FAILED if is_failure else OutcomeStatus.INTERRUPTED
        error = repr(body_error)
        raise
    finally:
        if turn.failure is not None:
            status, error = OutcomeStatus.FAILED, turn.failure
        elif turn.is_complete and status is OutcomeStatus.OK:
            status = OutcomeStatus.COMPLETE
        outcome = Outcome(status=status, output=turn.output, error=error)
        seconds = round(time.monotonic() - start, 6)
        worker.settle(attempt, outcome, seconds)
