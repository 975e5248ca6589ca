"""How a process that was asked to end gives back its work order for a run.

Its own attempts end first, and their reports end the work order. If none is running, the process
asks the run to end it. There may be no worker for the run, or the server may not answer: the wait
is bounded, and afterwards the run ends the work order by itself.
"""

from __future__ import annotations

import contextlib
import math
import socket as sockets
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

from sequencer.errors import Interrupted
from sequencer.executors.cancellation import Cancellation
from sequencer.plugins.temporal.workflow import ASK_S, LATE_S
from sequencer.store.watch import readable

LONGEST_LOOK_S = 3600.0
LEAVE_S, LEAVE_LOOK_S = 5.0, 0.2
"""Time limit for a worker of the run to answer, and the pause between two checks."""


def wait_for_the_end(
    future: Future[Any],
    stop: Cancellation,
    interrupt: Callable[[], None],
    running: Callable[[], Collection[str]],
) -> None:
    """Wait for the end of *future*; *interrupt* once when *stop* is set.

    Raises:
        Interrupted: nothing is *running* any more, and no worker answered within `LEAVE_S`.
    """
    reader, writer = sockets.socketpair()

    def wake(_: Future[Any]) -> None:
        # An answer may come after the wait is over.
        with contextlib.suppress(OSError):
            writer.send(b"x")

    with reader, writer:
        future.add_done_callback(wake)
        fds, until = [reader.fileno(), stop.fileno()], math.inf
        while not future.done():
            readable(fds, LONGEST_LOOK_S if until == math.inf else LEAVE_LOOK_S)
            if stop.is_set() and len(fds) > 1:
                fds.pop()
                interrupt()
                until = time.monotonic() + LEAVE_S
            elif until < math.inf and running():
                until = time.monotonic() + LEAVE_S
            elif time.monotonic() > until and not future.done():
                future.cancel()
                raise Interrupted(
                    "interrupted, but no worker of this run answered, so the run's state is "
                    "unknown: the server releases what this process holds within "
                    f"{ASK_S + LATE_S:g} s",
                    hint="'sequencer status' shows it",
                )
