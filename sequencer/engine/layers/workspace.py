"""The layer that opens and closes the folder of an attempt in its workspace."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt, Leftovers
from sequencer.engine.events import NoticeGiven, Waiting
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.engine.workspace import AttemptFolder
from sequencer.errors import Interrupted, SequencerError, to_machine_busy, to_storage_failed
from sequencer.executors.attempt_lock import AttemptLock
from sequencer.model.outcome import OutcomeStatus


def work_in_folder(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Let the agent work in the folder that the workspace opens, and close the folder."""
    if attempt.claim.attempt > 1 and attempt.lock_path is not None:
        # The folder is created again, so processes of an earlier attempt must have ended.
        wait = AttemptLock(attempt.lock_path, lambda text: performer.emit(Waiting(text)))
        wait.wait_for_earlier(attempt.cancellation)
    folder = performer.workspace.open(attempt)
    for text in folder.notices:
        performer.emit(NoticeGiven(text))
    attempt.cwd, attempt.notes = folder.cwd, folder.notes
    if folder.notices:
        notices_text = "\n".join(f"- {text}" for text in folder.notices)
        attempt.notes = (f"# Where you work\n\n{notices_text}", *folder.notes)
    if folder.is_own:
        attempt.prior = replace(attempt.prior, is_shared=lambda: False)
    try:
        proceed(attempt)
    except BaseException as error:
        status = OutcomeStatus.FAILED if _is_bug(error) else OutcomeStatus.INTERRUPTED
        # Save the work if possible; *error* matters more to the caller than a failure to save it.
        with suppress(SequencerError, OSError):
            folder.close(status, _do_not_wait)
        raise
    attempt.leftovers = leftovers = _close_folder(folder, attempt, performer)
    for text in leftovers.notices:
        performer.emit(NoticeGiven(text))
    if leftovers.error is not None:
        _fail(attempt, leftovers.error)


def _is_bug(error: BaseException) -> bool:
    """Return whether *error* is a bug, not a condition of this machine or a deliberate refusal."""
    is_deliberate = isinstance(error, SequencerError) or not isinstance(error, Exception)
    return not is_deliberate and to_machine_busy(error) is None and to_storage_failed(error) is None


def _close_folder(folder: AttemptFolder, attempt: Attempt, performer: Performer) -> Leftovers:
    try:
        return folder.close(_get_outcome_status(attempt), attempt.wait_for_turn)
    except Interrupted:
        # A second close returns the first result: the branch with the work.
        leftovers = folder.close(OutcomeStatus.INTERRUPTED, _do_not_wait)
        return replace(leftovers, error="its claim was lost before its work was merged")
    except SequencerError as error:
        return Leftovers(error=performer.redact(str(error)))


def _get_outcome_status(attempt: Attempt) -> OutcomeStatus:
    result = attempt.ended
    if result is not None and result.has_failed and not attempt.cancellation.is_set():
        return OutcomeStatus.FAILED
    is_accepted = result is not None and result.outcome.is_accepted
    return OutcomeStatus.OK if is_accepted else OutcomeStatus.INTERRUPTED


def _fail(attempt: Attempt, error: str) -> None:
    """Make *attempt* fail with *error*, which its folder has reported."""
    result = attempt.ended
    if result is None:
        return
    outcome = result.outcome
    if outcome.is_accepted:
        is_stopped = attempt.cancellation.is_set()
        status = OutcomeStatus.INTERRUPTED if is_stopped else OutcomeStatus.FAILED
        outcome = outcome.replace(status=status, error=error)
    else:
        outcome = outcome.replace(error="\n".join(filter(None, (outcome.error, error))))
    attempt.ended = replace(result, outcome=outcome)


def _do_not_wait() -> None:
    """Return immediately: nothing has to be waited for."""
