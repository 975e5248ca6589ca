"""The layer for the kernel lock: only one attempt's processes run at a time."""

from __future__ import annotations

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import Waiting
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.executors.attempt_lock import AttemptLock


def hold_lock(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Let the processes of *attempt* hold its lock; its file is opened for the first one."""
    if attempt.lock_path is None:
        proceed(attempt)
        return
    lock = AttemptLock(attempt.lock_path, lambda text: performer.emit(Waiting(text)))
    attempt.lock = lock
    try:
        proceed(attempt)
    finally:
        lock.close()
