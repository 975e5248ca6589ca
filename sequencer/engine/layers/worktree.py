"""With a worktree of the run: its files are kept, and what a failed attempt leaves is set aside."""

from __future__ import annotations

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.errors import SequencerError, failed_disk, out_of_resources


def keep_files(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Keep the files as they are before *attempt*; if it fails, they are that again."""
    kept = None if performer.place is None else performer.place.keep(attempt)
    if kept is None:
        proceed(attempt)
        return
    attempt.notes = kept.notes
    try:
        proceed(attempt)
    except Exception as error:
        is_meant = isinstance(error, SequencerError)
        if not is_meant and out_of_resources(error) is None and failed_disk(error) is None:
            kept.set_aside()
        raise
    ended = attempt.ended
    if ended is not None and ended.has_failed and not attempt.cancellation.is_set():
        kept.set_aside()
