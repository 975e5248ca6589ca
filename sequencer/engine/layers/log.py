"""The outermost layer: the step's log, and who hears of the attempt.

It is in no table: nothing is outside of it.
"""

from __future__ import annotations

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import AttemptEnded, AttemptStarted
from sequencer.engine.layers.layer import Next
from sequencer.engine.output import AttemptOutput
from sequencer.engine.performing import Performer
from sequencer.engine.records import in_short, verdict_words
from sequencer.errors import UnsafeFolder, failed_disk, out_of_resources
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.store.identity import utc_milliseconds


def keep_log(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Open the log of *attempt*, and close it with how it ended.

    Raises:
        MachineBusy: the machine lacks something now, so that the attempt is none.
        Exception: a bug, a disk that fails or a folder of the run: no fault of the step's, and
            the claim still has to end in a record.
    """
    attempt.began_at = utc_milliseconds()
    attempt.log = log = performer.logs.open(attempt)
    attempt.listener = AttemptOutput(attempt, performer.emit)
    performer.emit(AttemptStarted(attempt, log.path))
    try:
        proceed(attempt)
    except BaseException as error:
        found = out_of_resources(error) or failed_disk(error)
        is_no_failure = isinstance(error, UnsafeFolder) or not isinstance(error, Exception)
        if found is not None or is_no_failure:
            outcome = Outcome(status=OutcomeStatus.INTERRUPTED, error=in_short(found or error))
        else:
            outcome = Outcome(status=OutcomeStatus.FAILED, error=in_short(error))
        log.close(outcome)
        performer.emit(AttemptEnded(attempt, outcome))
        if found is None or found is error:
            raise
        raise found from error
    finally:
        # Nobody speaks any more; and no attempt is kept in memory by what it held itself.
        attempt.listener = log
    ended = attempt.ended
    if ended is None:
        raise RuntimeError("the layers gave no result")
    log.close(ended.outcome)
    said = ended.verdict and verdict_words(attempt.workflow, ended, attempt.head)
    performer.emit(AttemptEnded(attempt, ended.outcome, said or ""))
