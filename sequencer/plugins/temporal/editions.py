"""Runs that another release of the program has worked on, and how they come to this one.

An execution is decided over by one and the same code to its end. So each edition (`EDITION`) has
a queue of its own, and a run goes on to the newest one that is served: its workflow is asked for
it and continues there as a new execution. Where nobody answers who knows it, that execution is
ended, and the next one starts from what everybody can see of it.

Not promised: a way back to an older edition.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.client import RPCTimeoutOrCancelledError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from sequencer.engine.events import Noticed
from sequencer.errors import ClaimHeld, SequencerError
from sequencer.model.head import Status
from sequencer.plugins.temporal.connection import CALL_S, unreachable
from sequencer.plugins.temporal.events import EventReader, RunSeen, Tell
from sequencer.plugins.temporal.memo import MemoStore
from sequencer.plugins.temporal.remote_run import RemoteRun, ensure_known
from sequencer.plugins.temporal.wire import (
    COUNTED,
    DETACHED,
    FACTS,
    RUN,
    head_of,
    worker_name,
)
from sequencer.plugins.temporal.workflow import WORKFLOW

ANSWER_S = timedelta(seconds=5)
"""So long a worker of an older edition has time to answer."""
LOOK_S = 20.0
"""Between two looks for runs of an older edition."""


async def bring(store: RemoteRun) -> None:
    """Let the run in *store* be one that can be worked on here, if it can be.

    Raises:
        NewerSchema: see `ensure_known`. ClaimHeld: see `take_over`.
    """
    seen = await store.described()
    if seen is None or _is_finished(seen):
        return
    ensure_known(store.options, seen)
    if not seen.is_open:
        # Somebody has ended it on the server, or was ended within `take_over`.
        memo = {key: one for key, one in seen.memo.items() if key not in (DETACHED, COUNTED)}
        await store.started(seen, {**memo, FACTS: []})
    elif seen.queue != (queue := _queue_of(store, seen)):
        handle = await store.handle(seen.execution)
        try:
            await handle.execute_update("change_queue", queue, rpc_timeout=ANSWER_S, id=queue)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            await take_over(store)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise


def _queue_of(store: RemoteRun, seen: RunSeen) -> str:
    """Return the queue of this edition at the place where the steps of the run are made."""
    return store.options.queue_at(store.options.served_by(seen.queue)[1])


def _is_finished(seen: RunSeen) -> bool:
    head = head_of(seen.memo)
    return not seen.is_open and (head.status is Status.COMPLETE or head.moved_to is not None)


async def take_over(store: RemoteRun) -> str:
    """Continue the run in *store* here if it is of an older edition, of which nobody answers.

    Return the queue of who decides over it now.

    Raises:
        NewerSchema: see `ensure_known`.
        ClaimHeld: attempts are being made, so somebody of its edition may answer yet.
    """
    seen = await store.described()
    if seen is None or not seen.is_open:
        return store.options.queue
    ensure_known(store.options, seen)
    if seen.queue == (queue := _queue_of(store, seen)):
        return queue
    if makers := {one for one in seen.pending.values() if one}:
        who = worker_name(min(makers))
        message = f"a worker of an older release runs a step and does not answer: {who}"
        raise ClaimHeld(
            message, where=store.id, hint="its step is given up when its heartbeat stops"
        )
    await store.ended(seen.execution, f"nobody of its edition answers; {queue} does")
    ended = await store.described()
    if ended is not None and not ended.is_open:
        await store.started(ended, {**ended.memo, FACTS: []}, await _handed_on(store, ended))
    return queue


async def _handed_on(store: RemoteRun, seen: RunSeen) -> dict[str, Any]:
    """Return what the workflow of *seen* would have handed on to the next execution."""
    reader, counted = EventReader(), seen.memo.get(COUNTED, {})
    async for event in store.events(seen.execution):
        reader.read(event)
    for report in reader.reports.values():
        if name := report.get("reference"):
            reader.outputs[name] = report.get("output") or report["record"].get("output", "")
    is_open = {one["id"] for one in seen.memo.get(DETACHED, ()) if "end" not in one}
    permits = [
        {**one, "kept": counted[key]} if key in counted else one
        for key, one in reader.permits.items()
        if key in is_open
    ]
    here = MemoStore(seen.memo, lambda _: None)
    here.outputs.update(reader.outputs)
    return {"permits": permits, "outputs": here.newest_outputs()}


async def bring_all(store: RemoteRun, tell: Tell) -> None:
    """Bring the runs of the project of *store* here, again and again; *tell* why one stays.

    It also tells of a server that does not answer any more.
    """
    options, known = store.options, set[tuple[str, str]]()
    asked = (
        f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{options.prefix}/' "
        f"AND ExecutionStatus = 'Running' AND TaskQueue != '{options.queue}'"
    )
    is_away = False
    while True:
        words = "the Temporal server answers again" if is_away else ""
        try:
            client = await store.connection.client()
            async for one in client.list_workflows(asked, rpc_timeout=CALL_S):
                if options.served_by(one.task_queue)[1] != options.place:
                    continue  # its own workers bring it
                try:
                    await bring(store.sibling(one.id))
                except SequencerError as error:
                    name = (await one.memo()).get(RUN, {}).get("run_name")
                    if (one.id, error.message) not in known:
                        await asyncio.to_thread(tell, name, Noticed(error.message))
                    known.add((one.id, error.message))
            is_away = False
        except SequencerError:
            words = ""
        except (RPCError, RPCTimeoutOrCancelledError) as error:
            words = "" if is_away else f"{unreachable(error, options).message}; waiting for it"
            is_away = True
        if words:
            await asyncio.to_thread(tell, "all runs", Noticed(words))
        await asyncio.sleep(LOOK_S)
