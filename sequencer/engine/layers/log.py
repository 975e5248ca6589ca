"""The outermost layer: it keeps the step's log, and reports the attempt to the listeners.

It is not in the table of `list_layers`, because nothing can be outside of it.
"""

from __future__ import annotations

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import AttemptEnded, AttemptStarted
from sequencer.engine.layers.layer import Next
from sequencer.engine.output import AttemptOutput
from sequencer.engine.performing import Performer
from sequencer.engine.records import describe_error, describe_verdict
from sequencer.errors import UnsafeFolder, to_machine_busy, to_storage_failed
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.store.identity import utc_milliseconds


def keep_log(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Open the log of *attempt*, and close it with how it ended.

    Raises:
        MachineBusy: the machine is out of a resource, so the attempt does not count.
        Exception: a bug, a failing disk, or an unsafe folder. This is not the step's fault, and
            the caller still has to record the end of the claim.
    """
    attempt.began_at = utc_milliseconds()
    attempt.log = log = performer.logs.open(attempt)
    attempt.listener = AttemptOutput(attempt, performer.emit)
    performer.emit(AttemptStarted(attempt, log.path))
    try:
        proceed(attempt)
    except BaseException as error:
        cause = to_machine_busy(error) or to_storage_failed(error)
        is_no_failure = isinstance(error, UnsafeFolder) or not isinstance(error, Exception)
        if cause is not None or is_no_failure:
            outcome = Outcome(
                status=OutcomeStatus.INTERRUPTED, error=describe_error(cause or error)
            )
        else:
            outcome = Outcome(status=OutcomeStatus.FAILED, error=describe_error(error))
        log.close(outcome)
        performer.emit(AttemptEnded(attempt, outcome))
        if cause is None or cause is error:
            raise
        raise cause from error
    finally:
        # Break a reference cycle that would keep the attempt in memory: its listener refers to it.
        attempt.listener = log
    result = attempt.ended
    if result is None:
        raise RuntimeError("the layers gave no result")
    log.close(result.outcome)
    verdict = result.verdict and describe_verdict(attempt.workflow, result, attempt.head)
    performer.emit(AttemptEnded(attempt, result.outcome, verdict or ""))
