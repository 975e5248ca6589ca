"""Waiting as an agent would, for the executors that start no process."""

from __future__ import annotations

import time

from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage


def wait_like_an_agent(
    seconds: float, request: StepRequest, cancellation: Cancellation
) -> Outcome | None:
    """Be busy and silent for *seconds*; return how that was ended early, if it was."""
    started = time.monotonic()
    limits = [
        (limit_s, name, said)
        for limit_s, name, said in (
            (request.timeout_s, "timeout_s", "timed out after"),
            (request.idle_timeout_s, "idle_timeout_s", "no progress for"),
        )
        if limit_s is not None and limit_s < seconds
    ]
    first = min(limits, default=None)
    cancellation.wait(first[0] if first else seconds)
    usage = Usage(seconds=round(time.monotonic() - started, 6))
    if cancellation.reason is not None:
        error = f"stopped: {cancellation.reason}"
        return Outcome(status=OutcomeStatus.INTERRUPTED, error=error, usage=usage)
    if first is not None:
        error = f"{first[2]} {first[0]:g} s\nraise {first[1]} of step {request.step.name!r}"
        return Outcome(status=OutcomeStatus.FAILED, error=error, usage=usage)
    return None
