"""The store of a run on Temporal: reads the run, and makes people's changes.

Reading needs no worker: the memo has the head, and the events are the journal. A change is
decided here on the newest head, by the same code as for a run in files. The workflow accepts it
if nothing has happened since; otherwise it is decided again.

Not promised: that outputs of more than 64 KiB leave the machine that made them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from temporalio.client import (
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from sequencer.engine.dispatch import RemoteAttempt
from sequencer.engine.events import Emit
from sequencer.errors import CorruptState, StaleClaim, StorageFailed, UsageRefused
from sequencer.files.textfile import slug
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.transitions import Transition
from sequencer.plugins.temporal.connection import (
    CALL_TIMEOUT,
    FleetOptions,
    Inquiry,
    is_gone,
)
from sequencer.plugins.temporal.editions import take_over
from sequencer.plugins.temporal.events import Notify, RunSeen
from sequencer.plugins.temporal.remote_run import START_S, RemoteRun, format_process
from sequencer.plugins.temporal.wire import (
    DETACHED,
    FACTS,
    RUN,
    build_run_owner,
    documents_in,
    ensure_documents_fit,
    measure_documents,
    pack_facts,
    pack_head,
    unpack_head,
)
from sequencer.plugins.temporal.workflow import OVERTAKEN, WORKFLOW
from sequencer.store import results
from sequencer.store.highwater import HighWaterMark
from sequencer.store.protocol import Change, Liveness, View
from sequencer.store.queue import WaitQueue, queue_file_name
from sequencer.store.recovery import ensure_shared_is_newest
from sequencer.store.watch import wait_readable

if TYPE_CHECKING:
    from sequencer.engine.invocation_budget import Mode, Summary
    from sequencer.engine.worker import Worker
    from sequencer.model.limits import InvocationLimits

ANSWER_S = timedelta(seconds=2)
"""Time for a worker to take a change; after that, this process runs the workflow itself."""
MAX_RACES = 1_000
_MARKED = "state.temporal.json"
"""The run's file name in the user's records; there is no such file."""
LOOKS_S = (0.1, 2.0)
"""Shortest and longest pause between two polls of a run that a process waits for."""


class FleetStore(RemoteRun):
    """One run on Temporal; see `store.protocol.Store`."""

    def __init__(
        self,
        state_path: Path,
        run: str | None,
        options: FleetOptions,
        serving: Callable[[], ModuleType],
    ) -> None:
        """Use the run whose folder is called *run*; its outputs here go next to *state_path*.

        *serving* returns the module that works on runs, which is slow to import.
        """
        super().__init__(options.workflow_id(run), options)
        self._serving = serving
        self.ttl_s, self.retry_for_s = options.ttl_s, 0.0
        self.state_path = state_path
        self.run = run
        self._results = state_path.parent / results.NAME
        # A run in files may use the same folder, and has a separate record.
        self._mark = HighWaterMark(state_path.with_name(_MARKED), is_shared=True)
        self._seen: RunSeen | None = None
        self._changed: dict[str, str | None] = {}
        self._new_folders: list[Path] | None = None
        """Result folders of the current change, which may contain a person's words."""
        self._is_reached = True
        self.build_worker: Callable[[str | None, Emit], Worker] | None = None
        """Returns the engine's worker for the run of this name; set if the project may act."""

    def __repr__(self) -> str:
        """Return the run's id and its server, for debugging."""
        return f"<FleetStore {self.id} at {self.options.address}>"

    def make_worker(self, run: str, notify: Notify) -> Worker:
        """Return the engine's worker for the project's run with the id *run*.

        *notify* gets the run's name and each event of its attempts.

        Raises:
            StaleClaim: the run no longer exists.
            SequencerError: this project can't work on it.
        """
        description = self.connection.call(self.sibling(run).fetch_description())
        head = None if description is None else unpack_head(description.memo)
        if head is None or self.build_worker is None:
            raise StaleClaim("the run is gone", where=run)
        folder = None if head.run_name is None else slug(head.run_name)
        if self.options.workflow_id(folder) != run:
            # Its outputs and logs would go into another run's folder.
            raise CorruptState(f"says that it is the run {head.run_name!r}", where=run)
        return self.build_worker(head.run_name, partial(notify, head.run_name))

    def run_names(self) -> list[str]:
        """Return the names of the project's named runs; one that just started may be missing."""
        return self.connection.call(self._names())

    async def _names(self) -> list[str]:
        client, names = await self.connection.connect(), set[str]()
        query = f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{self.options.prefix}/'"
        async for execution in client.list_workflows(query, rpc_timeout=CALL_TIMEOUT):
            name = (await execution.memo()).get(RUN, {}).get("run_name")
            names.update([] if name is None else [name])
        return sorted(names)

    def list_attempt_processes(self) -> Mapping[int, str]:
        description = self._seen or self.refresh_description()
        pending = {} if description is None else description.pending
        return {token: format_process(maker) for token, maker in pending.items()}

    def find_worker_location(self) -> str:
        description = self._seen or self.refresh_description()
        place = "" if description is None else self.options.parse_queue(description.queue)[1]
        return "" if place == self.options.place else place

    def list_detached_orders(self) -> list[dict[str, Any]]:
        description = self._seen or self.refresh_description()
        entries: list[dict[str, Any]] = (
            [] if description is None else description.memo.get(DETACHED, [])
        )
        return entries

    def list_ended_attempts(self) -> list[RemoteAttempt]:
        reader = self.connection.call(self.read())
        return [attempt for _, attempt in sorted(reader.made.items())]

    @staticmethod
    def ensure_served(worker: Worker) -> None:
        if worker.performer.tasks is not None and not worker.code.moves:
            raise UsageRefused(
                "Temporal can share out a team's tasks only if git moves their work",
                where="store.kind",
                hint="work in a clone of the project that has the remote store.remote, or keep its "
                "runs in files or git",
            )

    def close(self) -> None:
        """Close the run's record; the connection belongs to the process and stays open."""
        self._mark.close()

    def take_notices(self) -> list[str]:
        """Return an empty list: nothing is ever restored here."""
        return []

    # --- reading -------------------------------------------------------------------

    def view(self) -> View:
        description = self.refresh_description()
        return View(None if description is None else unpack_head(description.memo))

    def refresh_description(self) -> RunSeen | None:
        """Return the run as the server describes it now; None: it was never started."""
        self._is_reached = False
        self._seen = self.connection.call(self.fetch_description())
        self._is_reached = True
        return self._seen

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the accepted facts of all executions of the run, oldest first.

        This reads the whole history, even for a large *after*.
        """
        for record in self.connection.call(self.read()).records:
            if record["revision"] > after:
                yield record

    def read_document(self, name: str) -> bytes | None:
        if name in self._changed:
            text = self._changed[name]
        else:
            description = self._seen or self.refresh_description()
            text = None if description is None else description.memo.get(name)
        return None if text is None else str(text).encode()

    def keep_document(self, name: str, data: bytes) -> None:
        self._changed[name] = data.decode()

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        known_names = () if self._seen is None else self._seen.memo
        removed_names = [
            name for name in known_names if name.startswith(prefix) and name not in keep
        ]
        self._changed.update(dict.fromkeys(removed_names))

    # --- changing ------------------------------------------------------------------

    def update(self, change: Change) -> Head:
        for _ in range(MAX_RACES):
            seen_at, description, old_head = self._read_newest()
            self._changed, self._new_folders = {}, []
            try:
                transition = change(old_head)
                if transition is None and old_head is not None:
                    return old_head
                if transition is None:
                    message = "the run was never started, so its first change has to create it"
                    raise ValueError(message)
                revision = 1 if old_head is None else old_head.revision + 1
                head = transition.head.replace(revision=revision, journal_offset=0)
                parts = {**pack_head(head), FACTS: pack_facts(transition.facts, None)}
                if self.connection.call(self._submit_change(description, parts, seen_at)):
                    self._mark.record_head(head)
                    return head
            finally:
                self._changed, self._new_folders = {}, None
        raise StorageFailed(f"lost {MAX_RACES} races for the run in a row", where=self.id)

    def _read_newest(self) -> tuple[float, RunSeen | None, Head | None]:
        """Return (time, run, head): the newest state, and when it was read, by `time.monotonic`.

        Raises:
            CorruptState: the server's data is older than what this user has seen before.
        """
        doubted_revision = 0
        while True:
            seen_at, description = time.monotonic(), self.refresh_description()
            head = None if description is None else unpack_head(description.memo)
            if head is None or (later_mark := self._mark.find_later_mark(head)) is None:
                return seen_at, description, head
            if head.revision == doubted_revision:
                ensure_shared_is_newest(head, later_mark, self.id)
            # Another process of this user may have noted a newer head since the read.
            doubted_revision = head.revision

    async def _submit_change(
        self, description: RunSeen | None, parts: dict[str, Any], seen_at: float
    ) -> bool:
        """Return whether the run accepted *parts*; False: it has changed since *description*.

        *seen_at* is the time of *description*, by `time.monotonic`.
        """
        if description is None or not description.is_open:
            # An outdated description could skip an execution; see `OPEN_S`.
            is_old = time.monotonic() - seen_at > START_S.total_seconds()
            return not is_old and await self._start_with_documents(description, parts)
        additions = {"documents": self._changed, "outputs": self._new_outputs()}
        change = {**parts, **{key: value for key, value in additions.items() if value}}
        inquiry = Inquiry("accept", change)
        try:
            await self.ask(inquiry)
        except WorkflowUpdateFailedError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type == OVERTAKEN:
                # An earlier try of this same change may be what got ahead of it.
                return inquiry.is_unknown and await self._was_accepted(inquiry.number)
            raise
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    async def ask(self, inquiry: Inquiry) -> Any:
        """Return the run's answer; if no worker answers, this process runs the workflow itself."""
        handle = await self.get_handle()

        async def ask(wait: timedelta) -> Any:
            name, number = inquiry.update, inquiry.number
            return await handle.execute_update(name, inquiry.argument, id=number, rpc_timeout=wait)

        try:
            return await ask(ANSWER_S)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            inquiry.is_unknown = True
            queue = await take_over(self)
            async with self._serving().run_workflows(await self.connection.connect(), queue):
                return await ask(CALL_TIMEOUT)

    def _new_outputs(self) -> dict[str, str]:
        """Return the outputs that the current change wrote here, for readers on other machines."""
        paths = [folder / results.OUTPUT for folder in self._new_folders or ()]
        return {path.parent.name: path.read_text("utf-8") for path in paths if path.exists()}

    async def _was_accepted(self, number: str) -> bool:
        """Return whether the history has the change *number*, which got no answer at first."""
        for execution in await self.executions():
            async for event in self.events(execution):
                attributes = event.workflow_execution_update_accepted_event_attributes
                if attributes.protocol_instance_id == number:
                    return True
        return False

    def receive_run(
        self, first: Transition, documents: Mapping[str, bytes], state: Mapping[str, Any]
    ) -> bool:
        """Continue a run here that moves to the server; return False if the server has it already.

        *first* is its first revision here. *state* has the ``outputs`` of earlier attempts by
        name, and under `BEFORE` the earlier facts.
        """
        description = self.refresh_description()
        if description is not None and description.is_open:
            if unpack_head(description.memo).moved_to is None:
                return False
            self.connection.call(
                self.terminate_execution(description.execution, "the run was moved")
            )
        self._changed = {name: data.decode() for name, data in documents.items()}
        parts = {**pack_head(first.head), FACTS: pack_facts(first.facts, None)}
        description = None if description is None else replace(description, memo={})
        try:
            return self.connection.call(self._start_with_documents(description, parts, state))
        finally:
            self._changed = {}

    async def _start_with_documents(
        self,
        description: RunSeen | None,
        parts: dict[str, Any],
        state: Mapping[str, Any] | None = None,
    ) -> bool:
        known_documents = {} if description is None else documents_in(description.memo)
        documents = {
            name: text
            for name, text in {**known_documents, **self._changed}.items()
            if text is not None
        }
        ensure_documents_fit(measure_documents(documents))
        return await self.start_execution(description, {**parts, **documents}, state)

    # --- claims and waiting --------------------------------------------------------

    def owner(self) -> Owner:
        """Return the owner of all the run's claims: not this process, but the run itself."""
        description = self._seen or self.refresh_description()
        return build_run_owner("" if description is None else description.memo[RUN]["run_id"])

    def liveness(self, claim: Claim) -> Liveness:
        description = self._seen or self.refresh_description()
        if description is None or claim.token not in description.pending:
            return Liveness.EXPIRED
        return Liveness.DEAD if is_gone(description.pending[claim.token]) else Liveness.ALIVE

    def beat(self, claim: Claim, number: int) -> None:
        """Check that the server can be reached; the activity renews the lease.

        Raises:
            OSError: it can't.
        """
        del claim, number
        if not self._is_reached:
            raise OSError("the server does not answer")

    def find_result_folder(self, name: str) -> Path:
        """Return the folder of the attempt called *name*.

        If another machine ran it, its output is fetched from the server's history.
        """
        folder = results.find_attempt_folder(self._results, name)
        attempt = results.parse_attempt_name(name)
        if attempt is not None and not (folder / results.OUTPUT).exists():
            output = self.connection.call(self.output(name, attempt[1]))
            if output:
                results.write_output(folder, output.encode("utf-8", "replace"))
        return folder

    def result_folder(self, step_index: int, token: int) -> Path:
        folder = results.attempt_folder(self._results, step_index, token)
        if self._new_folders is not None:
            self._new_folders.append(folder)
        return folder

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """Sleep until the head's revision differs from *revision*; return whether it does.

        It polls the server less and less often. False: it timed out, or *wake_fd* is readable.
        """
        del claim
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause, longest = LOOKS_S
        while True:
            head = self.view().head
            if head is not None and head.revision != revision:
                return True
            remaining_s = pause if deadline is None else min(pause, deadline - time.monotonic())
            fds = () if wake_fd is None else (wake_fd,)
            if remaining_s <= 0 or wait_readable(fds, remaining_s):
                return False
            pause = min(2 * pause, longest)

    def wait_queue(self, positions: Collection[str]) -> WaitQueue:
        """Return this machine's queue for *positions*; the server orders all machines."""
        return WaitQueue(self.state_path.parent / queue_file_name(positions))

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
        self._read_newest()
        act = self._serving().detach if is_detached else self._serving().work_on
        summary: Summary = act(self, worker, mode, limits, head=head, places=places)
        if (newest_head := self.view().head) is not None:
            self._mark.record_head(newest_head)
        return summary
