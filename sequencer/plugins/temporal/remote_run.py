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

from sequencer.errors import NewerSchema, format_command
from sequencer.plugins.temporal.connection import (
    CALL_TIMEOUT,
    Connection,
    FleetOptions,
    get_connection,
    is_gone,
    is_without_namespace,
)
from sequencer.plugins.temporal.events import EventReader, RunSeen, decode_payload
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
"""Time limit for starting the next execution, and maximum age of what is known of the closed one;
both together are less than `OPEN_S`."""
OnFacts = Callable[[EventReader, list[dict[str, Any]]], None]
"""Gets the reader and the facts of the newest event."""


def format_process(who: str) -> str:
    """Return a name for people of the process whose `identity` is *who*.

    >>> format_process("12@there#m/b/n/7"), format_process("")
    ('process 12 on there', '')
    """
    pid, _, host = worker_name(who).partition("@")
    return f"process {pid} on {host}" if who else ""


def ensure_known(options: FleetOptions, seen: RunSeen) -> None:
    """Check that this release may run the workflow of the run that was *seen*.

    Raises:
        NewerSchema: a newer release did, and this one can't know what its data means.
    """
    if (edition := options.parse_queue(seen.queue)[0]) > EDITION:
        message = f"a newer release works on the run: edition {edition}, but this is {EDITION}"
        raise NewerSchema(message, where=seen.queue, hint=UPDATE)


class RemoteRun:
    """A run on a server: reads its executions, and starts the next one."""

    def __init__(self, id_: str, options: FleetOptions) -> None:
        """Use the run with this id."""
        self.id, self.options = id_, options

    def sibling(self, run: str) -> RemoteRun:
        """Return the run of the same project with the id *run*."""
        return RemoteRun(run, self.options)

    @property
    def connection(self) -> Connection:
        """Return this process's connection to the server."""
        return get_connection(self.options)

    async def get_handle(self, execution: str | None = None) -> WorkflowHandle[Any, Any]:
        """Return the handle of *execution*; None: of the run's newest execution."""
        client = await self.connection.connect()
        return client.get_workflow_handle(self.id, run_id=execution)

    async def fetch_description(self) -> RunSeen | None:
        """Return what the server says about the newest execution; None: the run never started."""
        handle = await self.get_handle()
        try:
            answer = await handle.describe(rpc_timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and not is_without_namespace(error):
                return None
            raise
        is_open = answer.status is WorkflowExecutionStatus.RUNNING
        memo = dict(await answer.memo())
        return RunSeen(memo, answer.run_id, is_open, answer.task_queue, _read_pending(answer))

    async def read(self, on_facts: OnFacts = lambda *_: None) -> EventReader:
        """Read all events of the run and return the reader; *on_facts* gets facts as they come."""
        reader = EventReader()
        for execution in await self.executions():
            reader.scheduled.clear()
            async for event in self.events(execution):
                if facts := reader.read(event):
                    on_facts(reader, facts)
        return reader

    async def executions(self) -> list[str]:
        """Return the executions of the run, oldest first.

        If the run moved to the server, the first one has the earlier history.
        """
        description, executions = await self.fetch_description(), list[str]()
        execution = "" if description is None else description.execution
        while execution:
            try:
                first_event = await anext(self.events(execution, page_size=1))
            except RPCError as error:
                if executions and error.status is RPCStatusCode.NOT_FOUND:
                    break  # the server keeps ended executions only for some days
                raise
            executions.insert(0, execution)
            start = first_event.workflow_execution_started_event_attributes
            state = decode_payload(start.input.payloads[0]) if start.input.payloads else {}
            execution = start.continued_execution_run_id or state.get("after", "")
            # Executions before a move are from an earlier stay here; their facts are in BEFORE.
            if BEFORE in state:
                break
        return executions

    async def events(self, execution: str, page_size: int = 1000) -> AsyncIterator[Any]:
        """Yield the events of *execution*."""
        handle = await self.get_handle(execution)
        async for event in handle.fetch_history_events(
            page_size=page_size, rpc_timeout=CALL_TIMEOUT
        ):
            yield event

    async def terminate_execution(self, execution: str, why: str) -> None:
        """Terminate *execution* on the server, without a worker."""
        handle = await self.get_handle(execution)
        try:
            await handle.terminate(reason=why, rpc_timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    async def start_execution(
        self, seen: RunSeen | None, memo: dict[str, Any], state: Mapping[str, Any] | None = None
    ) -> bool:
        """Start the execution after the one that was *seen*, with *memo*.

        Return False if another process has started one.

        Raises:
            NewerSchema: only a newer release knows what the run looks like.
        """
        queue = self.options.queue
        if seen is not None:
            ensure_known(self.options, seen)
            queue = self.options.queue_at(self.options.parse_queue(seen.queue)[1])
        client = await self.connection.connect()
        # For a first execution the server refuses closed ones too; see also `OPEN_S`.
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
                static_details=f"{format_command(memo[RUN].get('run_name'), 'status')} shows its "
                "state. Make decisions with such commands: ending the workflow here does not end "
                "the run.",
                id_reuse_policy=reuse.REJECT_DUPLICATE if is_first else reuse.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                rpc_timeout=START_S,
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def release_lost_attempts(self, seen: RunSeen) -> list[int]:
        """Give back the attempts in *seen* of processes that are provably gone from this machine.

        Otherwise the server would wait for their heartbeats. Returns the attempts' tokens.
        """
        lost_makers = {token: maker for token, maker in seen.pending.items() if is_gone(maker)}
        for token, maker in lost_makers.items():
            client = await self.connection.connect()
            attempt = client.get_async_activity_handle(
                workflow_id=self.id, run_id=seen.execution, activity_id=str(token)
            )
            failure = ApplicationError(f"{format_process(maker)} is gone", maker, type=LOST)
            try:
                await attempt.fail(failure, rpc_timeout=CALL_TIMEOUT)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
        return [*lost_makers]

    async def output(self, name: str, token: int) -> str | None:
        """Return the output *name* of the attempt with *token* from the history, if it is there."""
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


def _read_pending(answer: WorkflowExecutionDescription) -> dict[int, str]:
    return {
        int(activity.activity_id): (
            "" if activity.state == _UNTAKEN else activity.last_worker_identity
        )
        for activity in answer.raw_description.pending_activities
        if activity.activity_id.isdecimal()
    }
