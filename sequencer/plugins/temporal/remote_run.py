"""A run on the Temporal server: its executions, their events, and how the next one starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from sequencer.errors import NewerSchema, command
from sequencer.plugins.temporal.connection import (
    CALL_S,
    Connection,
    FleetOptions,
    connection,
    is_gone,
    is_without_namespace,
)
from sequencer.plugins.temporal.events import EventReader, RunSeen, plain
from sequencer.plugins.temporal.wire import (
    BEFORE,
    EDITION,
    RUN,
    UPDATE,
    worker_name,
)
from sequencer.plugins.temporal.workflow import LOST, WORKFLOW

_UNTAKEN = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
START_S = timedelta(seconds=20)
"""So old may what was seen of a closed run be, and so long may the start of the next execution
take: together less than `OPEN_S`."""
Heard = Callable[[EventReader, list[dict[str, Any]]], None]
"""Is given what was read by then, and the facts that the newest event tells of."""


def process_words(who: str) -> str:
    """Return the process whose `identity` is *who*, for people.

    >>> process_words("12@there#m/b/n/7"), process_words("")
    ('process 12 on there', '')
    """
    pid, _, host = worker_name(who).partition("@")
    return f"process {pid} on {host}" if who else ""


def ensure_known(options: FleetOptions, seen: RunSeen) -> None:
    """Return if this release may decide over the run that was *seen*.

    Raises:
        NewerSchema: a newer one has, and this one can't know what it means.
    """
    if (edition := options.served_by(seen.queue)[0]) > EDITION:
        message = f"a newer release works on the run: edition {edition}, but this is {EDITION}"
        raise NewerSchema(message, where=seen.queue, hint=UPDATE)


class RemoteRun:
    """A run on a server: what can be read of its executions, and how the next one starts."""

    def __init__(self, id_: str, options: FleetOptions) -> None:
        """Be the run with this id."""
        self.id, self.options = id_, options

    def sibling(self, run: str) -> RemoteRun:
        """Return the *run* of the same project that has this id."""
        return RemoteRun(run, self.options)

    @property
    def connection(self) -> Connection:
        """Return this process's way to the server."""
        return connection(self.options)

    async def handle(self, execution: str | None = None) -> WorkflowHandle[Any, Any]:
        """Return the handle of the run's newest *execution*, or of that one."""
        client = await self.connection.client()
        return client.get_workflow_handle(self.id, run_id=execution)

    async def described(self) -> RunSeen | None:
        """Return what the server says about the newest execution; None: the run never started."""
        handle = await self.handle()
        try:
            found = await handle.describe(rpc_timeout=CALL_S)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and not is_without_namespace(error):
                return None
            raise
        is_open = found.status is WorkflowExecutionStatus.RUNNING
        memo = dict(await found.memo())
        return RunSeen(memo, found.run_id, is_open, found.task_queue, _pending(found))

    async def read(self, heard: Heard = lambda *_: None) -> EventReader:
        """Return who has read all that the run has been; *heard* gets facts as they are read."""
        reader = EventReader()
        for execution in await self.executions():
            reader.scheduled.clear()
            async for event in self.events(execution):
                if facts := reader.read(event):
                    heard(reader, facts)
        return reader

    async def executions(self) -> list[str]:
        """Return the executions of the run, the oldest first.

        What came before a run that has moved here stands in its first one.
        """
        seen, found = await self.described(), list[str]()
        before = "" if seen is None else seen.execution
        while before:
            try:
                first = await anext(self.events(before, page_size=1))
            except RPCError as error:
                if found and error.status is RPCStatusCode.NOT_FOUND:
                    break  # the server keeps those that have ended for some days only
                raise
            found.insert(0, before)
            began = first.workflow_execution_started_event_attributes
            state = plain(began.input.payloads[0]) if began.input.payloads else {}
            before = began.continued_execution_run_id or state.get("after", "")
            if BEFORE in state:
                break
        return found

    async def events(self, execution: str, page_size: int = 1000) -> AsyncIterator[Any]:
        """Yield the events of *execution*."""
        handle = await self.handle(execution)
        async for event in handle.fetch_history_events(page_size=page_size, rpc_timeout=CALL_S):
            yield event

    async def ended(self, execution: str, why: str) -> None:
        """End *execution*, which no worker ends."""
        handle = await self.handle(execution)
        try:
            await handle.terminate(reason=why, rpc_timeout=CALL_S)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    async def started(
        self, seen: RunSeen | None, memo: dict[str, Any], state: Mapping[str, Any] | None = None
    ) -> bool:
        """Start the execution that follows the one that was *seen*, with *memo*.

        Return False if somebody else has started one.

        Raises:
            NewerSchema: only a newer release knows what the run looks like.
        """
        queue = self.options.queue
        if seen is not None:
            ensure_known(self.options, seen)
            queue = self.options.queue_at(self.options.served_by(seen.queue)[1])
        client = await self.connection.client()
        # Where there was none the server looks for closed ones too; see also `OPEN_S`.
        reuse = WorkflowIDReusePolicy
        is_first = seen is None
        try:
            await client.start_workflow(
                WORKFLOW,
                {"after": "" if seen is None else seen.execution, **(state or {})},
                id=self.id,
                task_queue=queue,
                memo=memo,
                static_summary=f"workflow {memo[RUN]['workflow_name']}",
                static_details=f"{command(memo[RUN].get('run_name'), 'status')} shows where it "
                "stands. Use such commands to decide: what ends the workflow here does not end the "
                "run.",
                id_reuse_policy=reuse.REJECT_DUPLICATE if is_first else reuse.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                rpc_timeout=START_S,
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def give_back(self, seen: RunSeen) -> list[int]:
        """Give back what in *seen* is made by processes that are provably gone from here.

        The server would wait for their heartbeats. Returns the tokens of these attempts.
        """
        gone = {token: who for token, who in seen.pending.items() if is_gone(who)}
        for token, who in gone.items():
            client = await self.connection.client()
            attempt = client.get_async_activity_handle(
                workflow_id=self.id, run_id=seen.execution, activity_id=str(token)
            )
            lost = ApplicationError(f"{process_words(who)} is gone", who, type=LOST)
            try:
                await attempt.fail(lost, rpc_timeout=CALL_S)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
        return [*gone]

    async def output(self, name: str, token: int) -> str | None:
        """Return the output *name*, of the attempt with *token*, as the history has it."""
        for execution in reversed(await self.executions()):
            reader = EventReader()
            async for event in self.events(execution):
                reader.read(event)
            if name in reader.outputs:
                return reader.outputs[name]
            if token in reader.reports:
                report = reader.reports[token]
                output: str | None = report.get("output") or report["record"].get("output")
                return output
        return None


def _pending(found: WorkflowExecutionDescription) -> dict[int, str]:
    return {
        int(one.activity_id): "" if one.state == _UNTAKEN else one.last_worker_identity
        for one in found.raw_description.pending_activities
        if one.activity_id.isdecimal()
    }
