"""Waiting as an agent would, for the executors that start no process."""

from __future__ import annotations

import time

from sequencer.executors.protocol import Cancellation, StepRequest, time_is_over
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage


def wait_like_an_agent(
    seconds: float, request: StepRequest, cancellation: Cancellation
) -> Outcome | None:
    """Be busy and silent for *seconds*; return how that was ended early, if it was."""
    started = time.monotonic()
    whole = _least(request.timeout_s, seconds)
    idle = _least(request.idle_timeout_s, seconds)
    cancellation.wait(min(whole, idle))
    usage = Usage(seconds=round(time.monotonic() - started, 6))
    if cancellation.reason is not None:
        error = f"stopped: {cancellation.reason}"
        return Outcome(status=OutcomeStatus.INTERRUPTED, error=error, usage=usage)
    if idle < min(whole, seconds):
        error = f"no progress for {idle:g} s\nraise idle_timeout_s of step {request.step.name!r}"
        return Outcome(status=OutcomeStatus.FAILED, error=error, usage=usage)
    if whole < seconds:
        error = time_is_over(request, "nothing was done")
        return Outcome(status=OutcomeStatus.FAILED, error=error, usage=usage, is_timed_out=True)
    return None


def _least(limit_s: float | None, seconds: float) -> float:
    return seconds if limit_s is None else min(limit_s, seconds)
