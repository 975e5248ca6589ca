"""A run on Temporal as a store: what everybody can see of it, and changes by hand.

Looking takes no worker: the memo has the head, and the events are the journal. A change is
decided here, over the newest head and by the same code as for a run in files; the workflow
takes it if nothing has happened since, and else it is decided again.

Not promised: that outputs of more than 64 KiB are anywhere but where they were made.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from sequencer.documents.textfile import slug
from sequencer.engine.attempt import Emit
from sequencer.engine.dispatch import Made
from sequencer.errors import CorruptState, StaleClaim, StorageFailed, UsageRefused, command
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.transitions import Transition
from sequencer.plugins.temporal.connection import (
    CALL_S,
    Connection,
    FleetOptions,
    Inquiry,
    connection,
    is_gone,
    is_without_namespace,
)
from sequencer.plugins.temporal.editions import ensure_known, take_over
from sequencer.plugins.temporal.events import EventReader, RunSeen, Tell, plain
from sequencer.plugins.temporal.wire import (
    BEFORE,
    DETACHED,
    FACTS,
    RUN,
    documents_in,
    ensure_fitting,
    head_of,
    own_facts,
    owner_of,
    packed,
    sizes_of,
    worker_name,
)
from sequencer.plugins.temporal.workflow import LOST, OVERTAKEN, WORKFLOW
from sequencer.store import results
from sequencer.store.highwater import HighWaterMark
from sequencer.store.protocol import Change, Liveness, View
from sequencer.store.queue import FileTurnstile, file_name
from sequencer.store.recovery import ensure_shared_is_newest
from sequencer.store.watch import readable

if TYPE_CHECKING:
    from sequencer.engine.stint import Mode, Summary
    from sequencer.engine.worker import Worker
    from sequencer.model.limits import InvocationLimits

ANSWER_S = timedelta(seconds=2)
"""So long a worker has time to take a change; then this process brings one itself."""
START_S = timedelta(seconds=20)
"""So old may what was seen of a closed run be, and so long may the start of the next execution
take: together less than `OPEN_S`."""
MOST_RACES = 1_000
_UNTAKEN = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
LOOKS_S = (0.1, 2.0)
"""Between two looks at a run that somebody watches: the shortest and the longest pause."""

Heard = Callable[[EventReader, list[dict[str, Any]]], None]
"""Is given what was read by then, and the facts that the newest event tells of."""


def process_words(who: str) -> str:
    """Return the process whose `identity` is *who*, for people.

    >>> process_words("12@there#m/b/n/7"), process_words("")
    ('process 12 on there', '')
    """
    pid, _, host = worker_name(who).partition("@")
    return f"process {pid} on {host}" if who else ""


class FleetStore:
    """One run on Temporal; see `store.protocol.Store`."""

    def __init__(self, state_path: Path, run: str | None, options: FleetOptions) -> None:
        """Use the run whose folder is called *run*; *state_path* is where its outputs go here."""
        self.ttl_s, self.patience_s = options.ttl_s, 0.0
        self.state_path = state_path
        self.run, self.options = run, options
        self.id = options.workflow_id(run)
        self._results = state_path.parent / results.NAME
        self._mark = HighWaterMark(state_path, is_shared=True)
        self._seen: RunSeen | None = None
        self._changed: dict[str, str | None] = {}
        self._made: list[Path] | None = None
        """Where a change that is being made may have kept what a person has said."""
        self._is_reached = True
        self.worker_of: Callable[[str | None, Emit], Worker] | None = None
        """Returns who makes attempts at the run of this name, in a project that may act."""

    def __repr__(self) -> str:
        """Return which run of the server it is."""
        return f"<FleetStore {self.id} at {self.options.address}>"

    def sibling(self, run: str) -> FleetStore:
        """Return the store of *run*, which has this id, to look at and to bring here."""
        other = FleetStore(self.state_path, None, self.options)
        other.id = run
        return other

    def made_worker(self, run: str, tell: Tell) -> Worker:
        """Return who makes attempts at *run*, which has this id, one of the project's others.

        They are told of to *tell*, with the run's name.

        Raises:
            StaleClaim: there is no such run any more.
            SequencerError: this project can't work on it.
        """
        head = self.sibling(run).view().head
        if head is None or self.worker_of is None:
            raise StaleClaim("the run is gone", where=run)
        folder = None if head.run_name is None else slug(head.run_name)
        if self.options.workflow_id(folder) != run:
            # Its outputs and logs would be put where another run has its own.
            raise CorruptState(f"says that it is the run {head.run_name!r}", where=run)
        return self.worker_of(head.run_name, partial(tell, head.run_name))

    @cached_property
    def _working(self) -> ModuleType:
        from sequencer.plugins.temporal import worker  # noqa: PLC0415 - a third more to load, and most look

        return worker

    @property
    def connection(self) -> Connection:
        """Return this process's way to the server."""
        return connection(self.options)

    async def handle(self, execution: str | None = None) -> WorkflowHandle[Any, Any]:
        """Return the handle of the run's newest *execution*, or of that one."""
        client = await self.connection.client()
        return client.get_workflow_handle(self.id, run_id=execution)

    def run_names(self) -> list[str]:
        """See `engine.dispatch.Dispatching`; one that has just begun may not be listed yet."""
        return self.connection.call(self._names())

    async def _names(self) -> list[str]:
        client, found = await self.connection.client(), set[str]()
        asked = f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{self.options.prefix}/'"
        async for one in client.list_workflows(asked, rpc_timeout=CALL_S):
            name = (await one.memo()).get(RUN, {}).get("run_name")
            found.update([] if name is None else [name])
        return sorted(found)

    def makers(self) -> Mapping[int, str]:
        """See `engine.dispatch.Dispatching`."""
        seen = self._seen or self.look()
        pending = {} if seen is None else seen.pending
        return {token: process_words(who) for token, who in pending.items()}

    def elsewhere(self) -> str:
        """See `engine.dispatch.Dispatching`."""
        seen = self._seen or self.look()
        place = "" if seen is None else self.options.served_by(seen.queue)[1]
        return "" if place == self.options.place else place

    def detached(self) -> list[dict[str, Any]]:
        """See `engine.dispatch.Dispatching`."""
        seen = self._seen or self.look()
        found: list[dict[str, Any]] = [] if seen is None else seen.memo.get(DETACHED, [])
        return found

    def made(self) -> list[Made]:
        """See `engine.dispatch.Dispatching`."""
        reader = self.connection.call(self.read())
        return [one for _, one in sorted(reader.made.items())]

    @staticmethod
    def ensure_served(worker: Worker) -> None:
        """See `engine.dispatch.Dispatching`."""
        performer = worker.performer
        message, hint = "", "keep its runs in files or git"
        if performer.team is not None and not worker.code.moves:
            message = "Temporal can share out a team's tasks only if git moves their work"
            hint = f"work in a clone of the project that has the remote store.remote, or {hint}"
        elif performer.place is not None:
            message = "Temporal can't share out the steps of a run with its own worktree"
        if message:
            raise UsageRefused(message, where="store.kind", hint=hint)

    def close(self) -> None:
        """See `Store.close`: the connection is the process's."""
        self._mark.close()

    def take_notices(self) -> list[str]:
        """See `Store.take_notices`: nothing is ever restored here."""
        return []

    # --- reading -------------------------------------------------------------------

    def view(self) -> View:
        """See `Store.view`."""
        seen = self.look()
        return View(None if seen is None else head_of(seen.memo))

    def look(self) -> RunSeen | None:
        """Return the run as the server tells of it now; None: it was never begun."""
        self._is_reached = False
        self._seen = self.connection.call(self.described())
        self._is_reached = True
        return self._seen

    async def described(self) -> RunSeen | None:
        """See `look`, for who is on the loop."""
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

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """See `Store.history`: whole, over all executions that the run has had."""
        for record in self.connection.call(self.read()).records:
            if record["revision"] > after:
                yield record

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

    def document(self, name: str) -> bytes | None:
        """See `Store.document`."""
        if name in self._changed:
            text = self._changed[name]
        else:
            seen = self._seen or self.look()
            text = None if seen is None else seen.memo.get(name)
        return None if text is None else str(text).encode()

    def keep_document(self, name: str, data: bytes) -> None:
        """See `Store.keep_document`."""
        self._changed[name] = data.decode()

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """See `Store.forget_documents`."""
        known = () if self._seen is None else self._seen.memo
        gone = [name for name in known if name.startswith(prefix) and name not in keep]
        self._changed.update(dict.fromkeys(gone))

    # --- changing ------------------------------------------------------------------

    def update(self, change: Change) -> Head:
        """See `Store.update`."""
        for _ in range(MOST_RACES):
            looked, seen = time.monotonic(), self.look()
            self._changed, self._made = {}, []
            before = None if seen is None else head_of(seen.memo)
            if before is not None:
                self._ensure_newest(before)
            try:
                made = change(before)
                if made is None and before is not None:
                    return before
                if made is None:
                    message = "the run was never started, so its first change has to create it"
                    raise ValueError(message)
                revision = 1 if before is None else before.revision + 1
                head = made.head.replace(revision=revision, journal_offset=0)
                parts = {**packed(head), FACTS: own_facts(made.facts, None)}
                if self.connection.call(self._accepted(seen, parts, looked)):
                    self._mark.note(head)
                    return head
            finally:
                self._changed, self._made = {}, None
        raise StorageFailed(f"lost {MOST_RACES} races for the run in a row", where=self.id)

    def _ensure_newest(self, head: Head) -> None:
        """Return unless *head*, as the server has it, is behind what this user has seen of it.

        Raises:
            CorruptState: the server's data went back.
        """
        ensure_shared_is_newest(head, self._mark.shown_beyond(head), self.id)

    async def _accepted(self, seen: RunSeen | None, parts: dict[str, Any], looked: float) -> bool:
        """Return whether *parts* were accepted; False: the run was not as it was *seen*.

        That was *looked* for then, by `time.monotonic`.
        """
        if seen is None or not seen.is_open:
            is_old = time.monotonic() - looked > START_S.total_seconds()
            return not is_old and await self._started(seen, parts)
        more = {"documents": self._changed, "outputs": self._said()}
        change = {**parts, **{key: value for key, value in more.items() if value}}
        asked = Inquiry("accept", change)
        try:
            await self.ask(asked)
        except WorkflowUpdateFailedError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type == OVERTAKEN:
                return asked.is_unknown and await self._was_accepted(asked.number)
            raise
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    async def ask(self, asked: Inquiry) -> Any:
        """Return the run's answer; where no worker lives, this process gives it."""
        handle = await self.handle()

        async def ask(wait: timedelta) -> Any:
            name, number = asked.update, asked.number
            return await handle.execute_update(name, asked.argument, id=number, rpc_timeout=wait)

        try:
            return await ask(ANSWER_S)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            asked.is_unknown = True
            queue = await take_over(self)
            async with self._working.deciding(await self.connection.client(), queue):
                return await ask(CALL_S)

    def _said(self) -> dict[str, str]:
        """Return what was kept here during a change, for those who read it elsewhere."""
        kept = [folder / results.OUTPUT for folder in self._made or ()]
        return {path.parent.name: path.read_text("utf-8") for path in kept if path.exists()}

    async def _was_accepted(self, number: str) -> bool:
        """Return whether the change *number*, of which nobody could tell, was accepted."""
        for execution in await self.executions():
            async for event in self.events(execution):
                told = event.workflow_execution_update_accepted_event_attributes
                if told.protocol_instance_id == number:
                    return True
        return False

    def arrive(
        self, told: Transition, documents: Mapping[str, bytes], state: Mapping[str, Any]
    ) -> bool:
        """Continue a run here that was elsewhere; return False if it is there already.

        *told* is what it begins with here. *state* has ``outputs`` of earlier attempts, by
        their names, and what has happened `BEFORE`.
        """
        seen = self.look()
        if seen is not None and seen.is_open:
            if head_of(seen.memo).moved_to is None:
                return False
            self.connection.call(self.ended(seen.execution, "the run was moved"))
        self._changed = {name: data.decode() for name, data in documents.items()}
        parts = {**packed(told.head), FACTS: own_facts(told.facts, None)}
        seen = None if seen is None else replace(seen, memo={})
        try:
            return self.connection.call(self._started(seen, parts, state))
        finally:
            self._changed = {}

    async def ended(self, execution: str, why: str) -> None:
        """End *execution*, which no worker ends."""
        handle = await self.handle(execution)
        try:
            await handle.terminate(reason=why, rpc_timeout=CALL_S)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    async def _started(
        self, seen: RunSeen | None, parts: dict[str, Any], state: Mapping[str, Any] | None = None
    ) -> bool:
        known = {} if seen is None else documents_in(seen.memo)
        kept = {k: v for k, v in {**known, **self._changed}.items() if v is not None}
        ensure_fitting(sizes_of(kept))
        return await self.started(seen, {**parts, **kept}, state)

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

    # --- claims and waiting --------------------------------------------------------

    def owner(self) -> Owner:
        """See `Store.owner`: the run grants claims to whoever takes them."""
        seen = self._seen or self.look()
        return owner_of("" if seen is None else seen.memo[RUN]["run_id"])

    def liveness(self, claim: Claim) -> Liveness:
        """See `Store.liveness`."""
        seen = self._seen or self.look()
        if seen is None or claim.token not in seen.pending:
            return Liveness.EXPIRED
        return Liveness.DEAD if is_gone(seen.pending[claim.token]) else Liveness.ALIVE

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

    def beat(self, claim: Claim, number: int) -> None:
        """See `Store.beat`: the activity beats; here shows whether the server can be reached."""
        del claim, number
        if not self._is_reached:
            raise OSError("the server does not answer")

    def kept_result(self, name: str) -> Path:
        """See `Store.kept_result`; one of another machine is fetched from the history."""
        folder = results.kept(self._results, name)
        attempt = results.attempt_of(name)
        if attempt is not None and not (folder / results.OUTPUT).exists():
            output = self.connection.call(self._output(name, attempt[1]))
            if output:
                results.keep(folder, output.encode("utf-8", "replace"))
        return folder

    async def _output(self, name: str, token: int) -> str | None:
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

    def result_folder(self, step_index: int, token: int) -> Path:
        """See `Store.result_folder`."""
        made = results.folder(self._results, step_index, token)
        if self._made is not None:
            self._made.append(made)
        return made

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """See `Store.wait`: looks now and then, ever less often."""
        del claim
        until = None if timeout_s is None else time.monotonic() + timeout_s
        pause, longest = LOOKS_S
        while True:
            head = self.view().head
            if head is not None and head.revision != revision:
                return True
            left = pause if until is None else min(pause, until - time.monotonic())
            fds = () if wake_fd is None else (wake_fd,)
            if left <= 0 or readable(fds, left):
                return False
            pause = min(2 * pause, longest)

    def turnstile(self, positions: Collection[str]) -> FileTurnstile:
        """See `Store.turnstile`: of this machine; the server keeps the order of all."""
        return FileTurnstile(self.state_path.parent / file_name(positions))

    def work(
        self,
        worker: Worker,
        mode: Mode,
        limits: InvocationLimits,
        head: Head,
        places: int,
        *,
        is_detached: bool,
    ) -> Summary:
        """See `engine.dispatch.Dispatching`."""
        self._ensure_newest(head)
        act = self._working.detach if is_detached else self._working.work_on
        made: Summary = act(self, worker, mode, limits, head=head, places=places)
        if (now := self.view().head) is not None:
            self._mark.note(now)
        return made


def _pending(found: WorkflowExecutionDescription) -> dict[int, str]:
    return {
        int(one.activity_id): "" if one.state == _UNTAKEN else one.last_worker_identity
        for one in found.raw_description.pending_activities
        if one.activity_id.isdecimal()
    }
