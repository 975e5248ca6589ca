"""Moves runs from other releases of the program to this one.

The same code must decide an execution from start to finish. So each edition (`EDITION`) has
its own queue, and a run moves to the newest one that has workers: its workflow gets a request,
and continues there as a new execution. If no worker of the old edition answers, this process
ends the execution and starts the next one from the run's memo and history.

Not promised: a way back to an older edition.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.client import RPCTimeoutOrCancelledError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from sequencer.engine.events import NoticeGiven
from sequencer.errors import ClaimHeld, SequencerError
from sequencer.model.head import Status
from sequencer.plugins.temporal.connection import CALL_TIMEOUT, make_unreachable_error
from sequencer.plugins.temporal.events import EventReader, Notify, RunSeen
from sequencer.plugins.temporal.memo import MemoStore
from sequencer.plugins.temporal.remote_run import RemoteRun, ensure_known
from sequencer.plugins.temporal.wire import (
    COUNTED,
    DETACHED,
    FACTS,
    RUN,
    unpack_head,
    worker_name,
)
from sequencer.plugins.temporal.workflow import WORKFLOW

ANSWER_S = timedelta(seconds=5)
"""Time for a worker of an older edition to answer."""
LOOK_S = 20.0
"""Seconds between two searches for runs of an older edition."""


async def move_to_edition(store: RemoteRun) -> None:
    """Move the run in *store* to this edition, if it is not finished.

    Raises:
        NewerSchema: see `ensure_known`. ClaimHeld: see `take_over`.
    """
    description = await store.fetch_description()
    if description is None or _is_finished(description):
        return
    ensure_known(store.options, description)
    if not description.is_open:
        # A person ended it on the server, or a process died within `take_over`.
        memo = {
            key: value for key, value in description.memo.items() if key not in (DETACHED, COUNTED)
        }
        await store.start_execution(description, {**memo, FACTS: []})
    elif description.queue != (queue := _get_queue_name(store, description)):
        handle = await store.get_handle(description.execution)
        try:
            await handle.execute_update("change_queue", queue, rpc_timeout=ANSWER_S, id=queue)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            await take_over(store)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise


def _get_queue_name(store: RemoteRun, description: RunSeen) -> str:
    """Return this edition's queue for the place where the run's steps are made."""
    return store.options.queue_at(store.options.parse_queue(description.queue)[1])


def _is_finished(description: RunSeen) -> bool:
    head = unpack_head(description.memo)
    return not description.is_open and (head.status is Status.COMPLETE or head.moved_to is not None)


async def take_over(store: RemoteRun) -> str:
    """Move the run in *store* here from an older edition whose workers do not answer.

    Return the queue of the run's workflow after that.

    Raises:
        NewerSchema: see `ensure_known`.
        ClaimHeld: attempts are running, so a worker of its edition may still answer.
    """
    description = await store.fetch_description()
    if description is None or not description.is_open:
        return store.options.queue
    ensure_known(store.options, description)
    if description.queue == (queue := _get_queue_name(store, description)):
        return queue
    if makers := {maker for maker in description.pending.values() if maker}:
        worker = worker_name(min(makers))
        message = f"a worker of an older release runs a step and does not answer: {worker}"
        raise ClaimHeld(
            message, where=store.id, hint="its step is given up when its heartbeat stops"
        )
    await store.terminate_execution(
        description.execution, f"no worker of its edition answers; {queue} takes over"
    )
    end_description = await store.fetch_description()
    if end_description is not None and not end_description.is_open:
        await store.start_execution(
            end_description,
            {**end_description.memo, FACTS: []},
            await _rebuild_state(store, end_description),
        )
    return queue


async def _rebuild_state(store: RemoteRun, description: RunSeen) -> dict[str, Any]:
    """Return the state that the workflow of *description* would have passed to the next one."""
    reader, counts = EventReader(), description.memo.get(COUNTED, {})
    async for event in store.events(description.execution):
        reader.read(event)
    for report in reader.reports.values():
        if name := report.get("reference"):
            reader.outputs[name] = report.get("output") or report["record"].get("output", "")
    open_ids = {entry["id"] for entry in description.memo.get(DETACHED, ()) if "end" not in entry}
    orders = [
        {**order, "kept": counts[order_id]} if order_id in counts else order
        for order_id, order in reader.work_orders.items()
        if order_id in open_ids
    ]
    memo_store = MemoStore(description.memo, lambda _: None)
    memo_store.outputs.update(reader.outputs)
    return {"permits": orders, "outputs": memo_store.newest_outputs()}


async def move_all_to_edition(store: RemoteRun, notify: Notify) -> None:
    """Move the project's runs to this edition, every `LOOK_S`, until canceled.

    *notify* gets the reason why a run can't be moved, once, and whether the server is reachable.
    """
    options, reported_errors = store.options, set[tuple[str, str]]()
    query = (
        f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{options.prefix}/' "
        f"AND ExecutionStatus = 'Running' AND TaskQueue != '{options.queue}'"
    )
    is_away = False
    while True:
        words = "the Temporal server answers again" if is_away else ""
        try:
            client = await store.connection.connect()
            async for run in client.list_workflows(query, rpc_timeout=CALL_TIMEOUT):
                if options.parse_queue(run.task_queue)[1] != options.place:
                    continue  # the workers of that place move it
                try:
                    await move_to_edition(store.sibling(run.id))
                except SequencerError as error:
                    name = (await run.memo()).get(RUN, {}).get("run_name")
                    if (run.id, error.message) not in reported_errors:
                        await asyncio.to_thread(notify, name, NoticeGiven(error.message))
                    reported_errors.add((run.id, error.message))
            is_away = False
        except SequencerError:
            words = ""
        except (RPCError, RPCTimeoutOrCancelledError) as error:
            words = (
                ""
                if is_away
                else f"{make_unreachable_error(error, options).message}; waiting for it"
            )
            is_away = True
        if words:
            await asyncio.to_thread(notify, "all runs", NoticeGiven(words))
        await asyncio.sleep(LOOK_S)
