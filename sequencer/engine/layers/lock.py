"""One attempt's processes at a time: the kernel lock that they hold."""

from __future__ import annotations

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import Waiting
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.executors.attempt_lock import AttemptLock


def hold_lock(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Let the processes of *attempt* hold its lock; nothing is opened before the first."""
    if attempt.lock_path is None:
        proceed(attempt)
        return
    lock = AttemptLock(attempt.lock_path, lambda text: performer.emit(Waiting(text)))
    attempt.lock = lock
    try:
        proceed(attempt)
    finally:
        lock.close()
