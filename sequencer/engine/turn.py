"""`Run.turn`: one step that the calling program performs itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import ClassVar

from msgspec import Struct, field

from sequencer.engine.attempt import Prepared, Running
from sequencer.engine.loop import LONGEST_SLEEP_S
from sequencer.engine.patience import followed
from sequencer.engine.worker import LineWorker
from sequencer.errors import ClaimHeld, TransitionRefused
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import StepRequest
from sequencer.model.head import Head
from sequencer.model.kind import Readiness
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Outcome, OutcomeStatus

CALLER = "caller"
"""The agent in the journal for a step that a program performed itself."""


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
    """Represents the program that performs a step itself."""

    kind: ClassVar[str] = CALLER
    supported_fields: ClassVar[frozenset[str]] = frozenset()

    def problems(self) -> list[str]:
        return []

    def perform(self, request: StepRequest, *_: object) -> Outcome:
        raise ValueError(f"the caller must perform step {request.step.name!r}")


def claim_turn(worker: LineWorker, head: Head, *, wait: bool) -> Running:
    """Claim the ready step, or with *wait* the next one at the worker's positions.

    Raises: see `Run.turn`.
    """
    while True:
        head = followed(worker.store, head, worker.store.view().head)
        here = worker.standing_for_claim(head)
        is_mine = worker.is_mine(head.step_index)
        if here.kind in (Readiness.READY, Readiness.HELD) and is_mine:
            step, position = worker.performer.look(here.place)
            prepared = Prepared(step, position, here.place, CALLER, _Caller(), "")
            try:
                claimed = worker.claim(head, prepared)
            except ClaimHeld:
                if not wait:
                    raise
                claimed = None
            if claimed is not None:
                try:
                    worker.arrive(claimed)
                except BaseException as error:
                    worker.abandon(claimed, error)
                    raise
                return claimed
        if here.kind is Readiness.EXPIRED and head.gate is not None:
            worker.control.lapse()
            continue
        if not wait or here.is_final or here.kind in (Readiness.PERSON, Readiness.REFUSED):
            if here.kind in (Readiness.READY, Readiness.HELD):
                raise ClaimHeld(f"step {here.place.step!r} is at another position")
            raise TransitionRefused(here.message)
        due = parse_time(here.until) if here.until else None
        left = (due - datetime.now(UTC)).total_seconds() if due else LONGEST_SLEEP_S
        worker.store.wait(head.revision, min(max(left, 0.0), LONGEST_SLEEP_S), claim=here.claim)


def perform_by_caller(worker: LineWorker, running: Running) -> Iterator[OpenTurn]:
    """Yield the step of *running* once, and then record how the caller performed it."""
    claim, made = running.claim, running.prepared
    opened = OpenTurn(
        claim.step,
        made.position,
        claim.step_index,
        claim.token,
        claim.attempt,
        made.step.prompt_name,
        running.cancellation,
    )
    started = time.monotonic()
    status, error = OutcomeStatus.OK, None
    try:
        # Inside, so that no heartbeat comes after the record and leaves a file.
        worker.begin(running)
        try:
            yield opened
        finally:
            worker.end(running)
    except BaseException as raised:
        is_failure = isinstance(raised, Exception)
        status = OutcomeStatus.FAILED if is_failure else OutcomeStatus.INTERRUPTED
        error = repr(raised)
        raise
    finally:
        if opened.failure is not None:
            status, error = OutcomeStatus.FAILED, opened.failure
        elif opened.is_complete and status is OutcomeStatus.OK:
            status = OutcomeStatus.COMPLETE
        outcome = Outcome(status=status, output=opened.output, error=error)
        seconds = round(time.monotonic() - started, 6)
        worker.settle(running, outcome, seconds)
