"""Works on runs of a project: makes attempts, and issues work orders.

The engine makes the attempt, with the same prompt, agent, guard and log as for a run in files.
This module takes its claim from the run's head, sends heartbeats, and reports the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError, convert
from temporalio import activity
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError
from temporalio.worker import Worker as Server
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sequencer.engine.allowance import Allowance
from sequencer.engine.events import NoticeGiven
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.worker import Worker
from sequencer.errors import (
    NewerSchema,
    RemoteUnreachable,
    SequencerError,
    StaleClaim,
    WorkTreeRefused,
    format_command,
)
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.history.facts import find_end_index, read_facts
from sequencer.model.head import Head, Status, Work
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import OutcomeStatus, Usage
from sequencer.model.transitions import require_claim
from sequencer.model.workflow import ensure_definition, has_definition
from sequencer.plugins.temporal.connection import (
    CALL_TIMEOUT,
    Inquiry,
    identity,
    is_away,
    make_unreachable_error,
)
from sequencer.plugins.temporal.editions import move_all_to_edition, move_to_edition
from sequencer.plugins.temporal.events import Notify
from sequencer.plugins.temporal.memo import MemoStore
from sequencer.plugins.temporal.news import NewsWatch
from sequencer.plugins.temporal.wire import (
    MERGED,
    UPDATE,
    Ticket,
    pack_error,
    pack_report,
    pack_workflow,
    unpack_error,
)
from sequencer.plugins.temporal.work_order_end import ask_to_leave, wait_for_end
from sequencer.plugins.temporal.work_orders import read_work_order
from sequencer.plugins.temporal.workflow import ATTEMPT, LOST, REFUSED, RunWorkflow
from sequencer.project.task_graphs import TASK_GRAPHS

if TYPE_CHECKING:
    from sequencer.plugins.temporal.client import FleetStore

LONGEST_END = timedelta(days=7)
"""Longest wait for running attempts when a worker ends."""
MAX_AWAY_S, RETRY_PAUSE_S = 600.0, 1.0
"""How long the server may be unreachable before the process with a work order gives up, and the
pause between two tries."""
HEARTBEAT_PAUSE_S = 5.0
"""Seconds between two heartbeats; the server's answer says whether the attempt must end."""
FIRST_HEARTBEAT_S = 0.5
"""A shorter step sends no heartbeat: the call would cost as much as the step."""
MAX_POLLS = 5
MAX_IDLE_RUNS = 100
"""Maximum runs whose workers are kept open in addition to those at work."""
PUBLISH_PAUSES_S = (0.1, 0.4, 1.0, 3.0)
"""Pauses before the checks whether a report was accepted, so that its code can be published."""
STICKY_TIMEOUT = timedelta(seconds=1)
"""How long a run waits for its last worker before another one reads its history."""
RUNNER = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules("sequencer", "msgspec")
)
"""Runs the workflows' code. It does not watch the modules that are passed through."""
# We report why an attempt ended, so the library must not log it.
logging.getLogger("temporalio.activity").addHandler(logging.NullHandler())


@contextlib.asynccontextmanager
async def run_workflows(client: Client, queue: str) -> AsyncIterator[None]:
    """Run the workflows of *queue* in this process during the block; make no attempts."""
    async with Server(
        client,
        task_queue=queue,
        workflows=[RunWorkflow],
        workflow_runner=RUNNER,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
    ):
        yield


class Activities:
    """Makes the attempts that the server hands to this process."""

    def __init__(
        self, build_worker: Callable[[str], tuple[Worker, Head]], notify: Notify = lambda *_: None
    ) -> None:
        """Make attempts; *build_worker* returns a run's worker and newest head for the run's id.

        *notify* gets a notice for each attempt that can't be made here.
        """
        self._build_worker, self._notify = build_worker, notify
        self._running: dict[tuple[str, int], Cancellation] = {}
        self.started = Counter[str]()
        """How many attempts this process has started, by run."""
        self._lock = threading.Lock()
        self.is_ending = False
        """No attempt starts anymore."""
        self._publishing = set[asyncio.Future[None]]()

    def runs(self) -> set[str]:
        """Return the runs that have running attempts here."""
        with self._lock:
            return {run for run, _ in self._running}

    def interrupt(self) -> set[str]:
        """Ask all running attempts to end, start no others, and return the runs of the attempts."""
        with self._lock:
            self.is_ending = True
            for cancellation in self._running.values():
                cancellation.set(StopReason.INTERRUPTED)
            return {run for run, _ in self._running}

    @activity.defn(name=ATTEMPT)
    async def attempt(self, data: dict[str, Any]) -> dict[str, Any]:
        """Make the attempt of one ticket and return its report."""
        run, ticket = activity.info().workflow_id or "", _unpack_ticket(data)
        cancellation = Cancellation()
        with self._lock:
            self._running[run, ticket.token] = cancellation
            self.started[run] += 1
            if self.is_ending:
                cancellation.set(StopReason.INTERRUPTED)
        timeout = activity.info().heartbeat_timeout or timedelta(seconds=60)
        pause_s = min(HEARTBEAT_PAUSE_S, timeout.total_seconds() / 4)
        work = asyncio.create_task(asyncio.to_thread(self._make_attempt, run, ticket, cancellation))
        try:
            await asyncio.wait([work], timeout=FIRST_HEARTBEAT_S)
            while not work.done():
                activity.heartbeat(identity())
                await asyncio.wait([work], timeout=pause_s)
            return self._publish_later(run, ticket.token, work.result())
        except asyncio.CancelledError:
            cancellation.set(_stop_reason())
            await asyncio.wait([work])
            if self.is_ending and not work.exception():
                # With a report the server knows at once, not only after a timeout.
                return work.result()
            raise
        finally:
            with self._lock:
                self._running.pop((run, ticket.token), None)

    def _make_attempt(self, run: str, ticket: Ticket, cancellation: Cancellation) -> dict[str, Any]:
        """Make an attempt and return its report; runs in a separate thread."""
        try:
            worker, head = self._build_worker(run)
            if head.find_claim(ticket.token) is None:
                raise _make_error("its claim is gone", type=LOST)
            if ticket.has_code and not worker.code.moves:
                message = (
                    "the run's code is in git, but this folder is not a clone with that remote"
                )
                hint = "clone the repository, and work there"
                raise WorkTreeRefused(message, where="store.remote", hint=hint)
            if ticket.merge is not None:
                return {MERGED: _merge_work(worker, head, ticket)}
            budget = Allowance(ticket.cost_usd, ticket.timeout_s)
            result, error = worker.run_attempt(head, ticket.token, budget, cancellation)
        except RemoteUnreachable as failure:
            # Nothing is wrong with the step: a worker that reaches the server makes it.
            raise _make_error(failure.message, type=LOST) from failure
        except SequencerError as refusal:
            self._notify(run.rpartition("/")[2], NoticeGiven(f"not run here: {refusal}"))
            raise _make_refusal(refusal) from refusal
        return pack_report(result, error, identity() if self.is_ending else None)

    def _publish_later(self, run: str, token: int, report: dict[str, Any]) -> dict[str, Any]:
        """Return *report*; if it has work, start a task that publishes the code once accepted."""
        if "work" in (report.get("record") or report[MERGED]):
            task = asyncio.ensure_future(asyncio.to_thread(self._publish, run, token))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)
        return report

    async def wait_for_publishing(self) -> None:
        """Wait until the code of ended attempts is published, at most all `PUBLISH_PAUSES_S`."""
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=sum(PUBLISH_PAUSES_S))

    def _publish(self, run: str, token: int) -> None:
        """Publish the code of *run* once the attempt with *token* is accepted, if no other runs."""
        with contextlib.suppress(SequencerError):
            for pause_s in PUBLISH_PAUSES_S:
                time.sleep(pause_s)
                worker, head = self._build_worker(run)
                if head.find_claim(token) is None:
                    # Otherwise the next attempt publishes it.
                    if not head.claims:
                        worker.code.publish(head)
                    return


def _unpack_ticket(data: dict[str, Any]) -> Ticket:
    """Return the ticket in *data*; refuse one with fields that this release does not know."""
    try:
        return convert(data, Ticket)
    except ValidationError as error:
        refusal = NewerSchema("the step's ticket is from a newer release", hint=UPDATE)
        raise _make_refusal(refusal) from error


def _make_refusal(error: SequencerError) -> ApplicationError:
    """Return the error that lets another worker make the attempt."""
    facts = {**pack_error(error), "by": identity()}
    return _make_error(error.message, facts, type=REFUSED)


def _make_error(message: str, *details: Any, type: str) -> ApplicationError:  # noqa: A002 - theirs
    """Return an error that the library does not log: we report it ourselves."""
    benign = ApplicationErrorCategory.BENIGN
    return ApplicationError(message, *details, type=type, non_retryable=True, category=benign)


def _merge_work(worker: Worker, head: Head, ticket: Ticket) -> dict[str, Any]:
    """Merge the ticket's work with the work of *head*; return the changes to the record."""
    work = Work.model_validate(ticket.merge)
    merge_result = worker.code.merge_work(require_claim(head, ticket.token), head, work)
    if isinstance(merge_result, str):
        return {"status": str(OutcomeStatus.FAILED), "error": merge_result, "work": None}
    base = None if head.work is None else head.work.commit
    return {"work": {**merge_result.model_dump(), "base": base}}


def _stop_reason() -> StopReason:
    details = activity.cancellation_details()
    is_ours = details is not None and details.worker_shutdown
    return StopReason.INTERRUPTED if is_ours else StopReason.CLAIM_LOST


def polls(places: int) -> int:
    """Return how many polls for attempts may wait at the server at the same time.

    Each poll reserves a place. With a free place, the next attempt of a run whose workflow runs
    here needs no poll.
    """
    return max(1, min(MAX_POLLS, places // 2))


def build_server(
    client: Client,
    queue: str,
    attempts: Activities,
    places: int,
    grace: timedelta = timedelta(0),
    *,
    decides: bool = True,
) -> Server:
    """Return the server of *queue*, which makes at most *places* attempts at the same time.

    When it ends, running attempts get *grace* to finish. Unless it *decides*, it runs no
    workflows.
    """
    return Server(
        client,
        task_queue=queue,
        workflows=[RunWorkflow] if decides else [],
        activities=[attempts.attempt],
        workflow_runner=RUNNER,
        max_concurrent_activities=places,
        max_concurrent_activity_task_polls=polls(places),
        max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_PAUSE_S),
        default_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_PAUSE_S),
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        graceful_shutdown_timeout=grace,
    )


# --- one invocation ----------------------------------------------------------------


def work_on(
    store: FleetStore,
    worker: Worker,
    mode: Mode,
    limits: InvocationLimits,
    *,
    head: Head,
    places: int,
) -> Summary:
    """Issue a work order for the run in *store*, and make attempts until it has ended.

    Raises: see `WorkLoop.work`.
    """
    order = _new_order(worker, mode, limits, store.ttl_s, places)
    end = _immediate_end(store, order)
    if end is None:
        store.connection.call(move_to_edition(store))
        workers = Workers(store)
        workers.add(store.id, worker)
        attempts = Activities(workers.find_worker)
        workers.in_use = attempts.runs
        emit = worker.performer.emit
        watch = NewsWatch(store, head, lambda: attempts.started[store.id], emit)
        if place := store.find_worker_location():
            emit(NoticeGiven(f"the run's steps run on {place}, where 'sequencer worker' runs"))
        elif "positions" in order:
            # This process must make them: it has the terminal, the clone and the agents.
            order["queue"] = f"{store.options.queue}/{order['id']}"
        # One work tree has one attempt at a time; other machines may make the rest.
        local_places = 1 if worker.code.moves else places
        work = _work_until_end(store, order, attempts, local_places, watch, place=place)
        future = store.connection.submit(work)
        try:
            leave = partial(ask_to_leave, store, order["id"], attempts.interrupt)
            wait_for_end(future, worker.stop, leave, attempts.runs)
            end = store.connection.wait_for_result(future)
        finally:
            workers.leave(but=worker)
    summary = _summary(store, end)
    state = summary.head
    if state is not None:
        # The last attempt may still be publishing an older head.
        worker.code.publish(state, wait=True)
    if state is not None and state.status is Status.COMPLETE and head.status is not Status.COMPLETE:
        end_index = find_end_index(read_facts(store.history(head.revision)))
        if end_index is not None:
            worker.performer.report_completed(end_index, state)
    if "error" in end:
        raise unpack_error(end["error"])
    return summary


def detach(
    store: FleetStore,
    worker: Worker,
    mode: Mode,
    limits: InvocationLimits,
    *,
    head: Head,
    places: int,
) -> Summary:
    """Issue a work order for the run in *store* that needs no process, and return.

    Raises: see `work_on`; only errors that are known before a step runs.
    """
    order = {**_new_order(worker, mode, limits, store.ttl_s, places), "by": ""}
    end = _immediate_end(store, order)
    if end is None:
        store.connection.call(move_to_edition(store))
    while not end:
        # An execution that is moving answers with nothing: ask the next one.
        end = store.connection.call(store.ask(Inquiry("work", order)))
    if "is_detached" in end:
        status = format_command(head.run_name, "status")
        return Summary(
            f"detached: workers run the steps; {status} shows how far they are",
            head=store.view().head,
        )
    if "error" in end:
        raise unpack_error(end["error"])
    return _summary(store, end)


def _summary(store: FleetStore, end: Mapping[str, Any]) -> Summary:
    return Summary(
        end["reason"],
        Usage.model_validate(end["usage"]),
        end["failures"],
        end["limits_met"],
        store.view().head,
    )


def _immediate_end(store: FleetStore, data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the end of the work order in *data* if nothing can start; None: the run decides.

    It is decided on a copy of the memo: the execution may be closed and then gives no answer.
    """
    description = store.refresh_description()
    if description is None:
        return None
    if lost_tokens := store.connection.call(store.release_lost_attempts(description)):
        description = store.refresh_description() or description
    copy = MemoStore(description.memo, lambda _: None)
    # The workflow may learn of the released attempts only after it gets this work order.
    if untaken_tokens := [
        *lost_tokens,
        *(token for token, maker in description.pending.items() if not maker),
    ]:
        data["untaken"] = untaken_tokens
    order, revision = read_work_order(data, copy), copy.head.revision
    order.advance(description.pending, datetime.now(UTC), may_claim=False)
    # A change here, such as an expired gate, must be recorded in the run itself.
    return order.end if copy.head.revision == revision else None


def serve(
    store: FleetStore, places: int, on_ready: Callable[[Callable[[], None]], None], notify: Notify
) -> None:
    """Make attempts for all runs of the project of *store* until it is asked to end.

    *on_ready* gets a function for that: its first call starts no more attempts and waits for the
    running ones, its second call stops those too. *notify* gets the attempts' events.
    """
    workers = Workers(store, notify)
    attempts, stop = Activities(workers.find_worker, notify), Cancellation()
    workers.in_use = attempts.runs

    def end() -> None:
        if stop.is_set():
            attempts.interrupt()
        stop.set(StopReason.INTERRUPTED)

    on_ready(end)
    try:
        store.connection.call(_serve_until_stopped(store, attempts, places, stop, notify))
    finally:
        workers.leave()
        stop.close()


async def _serve_until_stopped(
    store: FleetStore, attempts: Activities, places: int, stop: Cancellation, notify: Notify
) -> None:
    client = await store.connection.connect()
    async with build_server(client, store.options.queue, attempts, places, LONGEST_END):
        bringing = asyncio.create_task(move_all_to_edition(store, notify))
        try:
            await asyncio.to_thread(stop.wait)
        finally:
            bringing.cancel()
    await attempts.wait_for_publishing()


class Workers:
    """The engine's worker of each run for which this process makes attempts."""

    def __init__(self, store: FleetStore, notify: Notify = lambda *_: None) -> None:
        """Start with none; *store* makes them when needed, and *notify* gets their events."""
        self._store, self._notify = store, notify
        self._known: dict[str, Worker] = {}
        """Workers by run id, most recently used last."""
        self._own: str | None = None
        self._lock = threading.Lock()
        self.in_use: Callable[[], Collection[str]] = tuple
        """Returns the runs that have running attempts."""

    def add(self, run: str, worker: Worker) -> None:
        """Let *worker* make the attempts of the run with the id *run*."""
        self._known[run], self._own = worker, run

    def find_worker(self, run: str) -> tuple[Worker, Head]:
        """Return the worker of the run with the id *run*, and the run's newest head.

        Raises:
            SequencerError: this project has no such run, or can't work on it.
        """
        with self._lock:
            worker = self._known.pop(run, None) or self._open(run)
            self._known[run] = worker
        if (head := worker.store.view().head) is None:
            raise StaleClaim("the run is gone", where=run)
        if has_definition(head, worker.performer.workflow):
            return worker, head
        # The run was started again, or has adopted another definition.
        with self._lock:
            worker = self._open(run)
        ensure_definition(head, worker.performer.workflow)
        return worker, head

    def _open(self, run: str) -> Worker:
        used_runs = {*self.in_use(), self._own, run}
        idle_runs = [name for name in self._known if name not in used_runs]
        for old_name in idle_runs[: 1 - MAX_IDLE_RUNS]:
            # Each holds file descriptors, and opening it again takes only milliseconds.
            self._known.pop(old_name).close()
        self._known[run] = worker = self._store.make_worker(run, self._notify)
        return worker

    def leave(self, but: Worker | None = None) -> None:
        """Let all workers clean up, except *but*, which the caller handles."""
        for worker in self._known.values():
            if worker is not but:
                worker.close()


def _new_order(
    worker: Worker, mode: Mode, limits: InvocationLimits, ttl_s: float, places: int
) -> dict[str, Any]:
    performer = worker.performer
    order = {
        "id": uuid.uuid4().hex,
        "by": identity(),
        "mode": str(mode),
        "ttl_s": ttl_s,
        "places": places,
        "has_code": worker.code.moves,
        "team": {} if performer.tasks is None else TASK_GRAPHS.require().dump(performer.tasks),
        "workflow": pack_workflow(performer.workflow),
        "limits": _dump_limits(limits),
        "run_limits": worker.limits.model_dump(mode="json", exclude_defaults=True),
        "positions": sorted(getattr(worker, "positions", ())),
    }
    return {key: value for key, value in order.items() if value not in ({}, [], False)}


def _dump_limits(limits: InvocationLimits) -> dict[str, Any]:
    # None is a choice here, not a default to leave out.
    return limits.model_dump(mode="json")


async def _work_until_end(
    store: FleetStore,
    order: dict[str, Any],
    attempts: Activities,
    places: int,
    watch: NewsWatch,
    *,
    place: str,
) -> dict[str, Any]:
    """Issue *order*, make attempts, and return its end; *watch* reports what other processes do.

    *place* is where the attempts are made if not here.
    """
    client, own_queue = await store.connection.connect(), order.get("queue")
    async with contextlib.AsyncExitStack() as stack:
        if not place and own_queue is None:
            server = build_server(client, store.options.queue, attempts, places)
            await stack.enter_async_context(server)
        else:
            # There may be no other worker that runs the workflow.
            queue = store.options.queue_at(place or store.options.place)
            await stack.enter_async_context(run_workflows(client, queue))
        if own_queue is not None:
            server = build_server(client, own_queue, attempts, places, decides=False)
            await stack.enter_async_context(server)
        end_event = asyncio.Event()
        watch_task = asyncio.create_task(watch.follow(end_event))
        try:
            end = await _issue_order(store, order, attempts, watch)
        except BaseException:
            watch_task.cancel()
            raise
        end_event.set()
        await watch_task
    return end


async def _issue_order(
    store: FleetStore, order: dict[str, Any], attempts: Activities, watch: NewsWatch
) -> dict[str, Any]:
    """Issue *order* and return its end; give up `MAX_AWAY_S` after the server went away."""
    end, update_id, away_since = dict[str, Any](), uuid.uuid4().hex, 0.0
    while not end:
        start_time, handle = time.monotonic(), await store.get_handle()
        try:
            end = await handle.execute_update("work", order, id=update_id)
            update_id = uuid.uuid4().hex
        except (RPCError, RPCTimeoutOrCancelledError) as error:
            if not is_away(error) or attempts.is_ending:
                raise
            if not away_since or time.monotonic() - start_time > CALL_TIMEOUT.total_seconds():
                # A call that waited longer than its time limit had reached the server.
                away_since = time.monotonic()
                problem = make_unreachable_error(error, store.options)
                await watch.notify(f"{problem.message}; waiting for it")
            if time.monotonic() - away_since > MAX_AWAY_S:
                raise
            # Keep the id: the order may have ended already, and must not be issued twice.
            await asyncio.sleep(RETRY_PAUSE_S)
    return end
