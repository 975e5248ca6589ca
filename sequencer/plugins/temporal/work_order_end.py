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

from temporalio.client import (
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError

from sequencer.errors import Interrupted
from sequencer.executors.cancellation import Cancellation
from sequencer.plugins.temporal.client import FleetStore
from sequencer.plugins.temporal.connection import CALL_TIMEOUT
from sequencer.plugins.temporal.workflow import ASK_S, LATE_S
from sequencer.store.watch import wait_readable

LONGEST_LOOK_S = 3600.0
LEAVE_S, LEAVE_LOOK_S = 5.0, 0.2
"""Time limit for a worker of the run to answer, and the pause between two checks."""


def wait_for_end(
    future: Future[Any],
    stop: Cancellation,
    interrupt: Callable[[], None],
    running: Callable[[], Collection[str]],
) -> None:
    """Wait for the end of *future*; *interrupt* once when *stop* is set.

    Raises:
        Interrupted: nothing is *running* anymore, and no worker answered within `LEAVE_S`.
    """
    reader, writer = sockets.socketpair()

    def wake(_: Future[Any]) -> None:
        # An answer may come after the wait has ended.
        with contextlib.suppress(OSError):
            writer.send(b"x")

    with reader, writer:
        future.add_done_callback(wake)
        fds, deadline = [reader.fileno(), stop.fileno()], math.inf
        while not future.done():
            wait_readable(fds, LONGEST_LOOK_S if deadline == math.inf else LEAVE_LOOK_S)
            if stop.is_set() and len(fds) > 1:
                fds.pop()
                interrupt()
                deadline = time.monotonic() + LEAVE_S
            elif deadline < math.inf and running():
                deadline = time.monotonic() + LEAVE_S
            elif time.monotonic() > deadline and not future.done():
                future.cancel()
                raise Interrupted(
                    "interrupted, but no worker of this run answered, so the run's state is "
                    "unknown: the server releases what this process holds within "
                    f"{ASK_S + LATE_S:g} s",
                    hint="'sequencer status' shows it",
                )


def ask_to_leave(
    store: FleetStore, order_id: str, interrupt: Callable[[], Collection[str]]
) -> None:
    """Call *interrupt*; if it names no attempt of *store*, ask the run to end the work order."""
    if store.id in interrupt():
        # The attempt's report ends the work order, and nothing is claimed before.
        return

    async def leave() -> None:
        handle = await store.get_handle()
        with contextlib.suppress(
            RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError
        ):
            await handle.execute_update("leave", order_id, rpc_timeout=CALL_TIMEOUT)

    store.connection.submit(leave())
