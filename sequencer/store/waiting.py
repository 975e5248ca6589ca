"""Sleep until a run that is kept in files here has moved.

Whoever moves it wakes the sleeper through the folder; a slow re-check stands in where that
fails. The end of a claim's holder on this machine wakes as well. Whether its lease has run
out is not decided here: with a claim, the sleep ends now and then, so that its caller looks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from sequencer.model.head import Claim
from sequencer.store.identity import is_proven_dead, open_process
from sequencer.store.watch import Watch

RECHECK_S = 5.0
"""Safety net: how often the head is looked at without a notification."""
LOOKS_PER_LEASE = 8
"""How often a claim is looked at in the time of its lease, if that is more often."""


def pause_s(claim: Claim | None) -> float:
    """Return how long to sleep at most before *claim*, or the head, is to be looked at."""
    return RECHECK_S if claim is None else min(RECHECK_S, claim.ttl_s / LOOKS_PER_LEASE)


def wait_for_another(
    revision: int,
    newest: Callable[[], int],
    watching: Watch,
    timeout_s: float | None,
    *,
    fds: Sequence[int] = (),
    claim: Claim | None = None,
) -> bool:
    """Sleep until *newest* gives another revision than *revision*; return whether it does.

    *watching* was begun before, so that no change slips through. One of *fds* ends the
    sleep; for the rest see `Store.wait`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    holder = open_process(claim.owner) if claim is not None else None
    wakers, is_over = [*fds, *(() if holder is None else (holder,))], False
    pause = pause_s(claim)
    try:
        while newest() == revision:
            left = pause if deadline is None else deadline - time.monotonic()
            if is_over or left <= 0:
                return False
            if claim is not None and holder is None and is_proven_dead(claim.owner):
                return False
            # The lease of a claim may run out without any notification.
            is_over = watching.wait(min(left, pause), wakers) or claim is not None
        return True
    finally:
        if holder is not None:
            os.close(holder)
