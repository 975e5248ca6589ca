"""Works on runs of a project: makes attempts, and issues permits.

An attempt is the engine's own: prompt, agent, guard and log are what they are for a run in
files. Here it gets its claim from the run's head, beats to the server, and reports its end.
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
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError
from temporalio.worker import Worker as Server
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sequencer.engine.allowance import Allowance
from sequencer.engine.events import Noticed
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.worker import Worker
from sequencer.errors import (
    NewerSchema,
    RemoteUnreachable,
    SequencerError,
    StaleClaim,
    WorkTreeRefused,
    command,
)
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.model.head import Head, Status, Work
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import OutcomeStatus, Usage
from sequencer.model.transitions import held_claim
from sequencer.model.workflow import ensure_definition, has_definition
from sequencer.plugins.temporal.connection import CALL_S, Inquiry, identity, is_away, unreachable
from sequencer.plugins.temporal.editions import bring, bring_all
from sequencer.plugins.temporal.events import Tell
from sequencer.plugins.temporal.leaving import wait_for_the_end
from sequencer.plugins.temporal.memo import MemoStore
from sequencer.plugins.temporal.news import NewsWatch
from sequencer.plugins.temporal.wire import (
    MERGED,
    UPDATE,
    Ticket,
    error_of,
    packed_error,
    plain_workflow,
    report_of,
)
from sequencer.plugins.temporal.work_orders import permit_of
from sequencer.plugins.temporal.workflow import ATTEMPT, LOST, REFUSED, RunWorkflow
from sequencer.project.task_graphs import TASK_GRAPHS

if TYPE_CHECKING:
    from sequencer.plugins.temporal.client import FleetStore

LONGEST_END = timedelta(days=7)
"""Of attempts that may end before their worker does."""
AWAY_S, AGAIN_S = 600.0, 1.0
"""So long a server may be away before whoever has issued a permit gives up; it is asked again so
often."""
BEATS_S = 5.0
"""Between two beats to the server, which says with its answer that an attempt is to end."""
FIRST_BEAT_S = 0.5
"""A step that is over sooner needs none: a call of the server costs as much as such a step."""
MOST_POLLS = 5
MOST_KNOWN = 100
"""Runs whose makers of attempts are kept, beside those that are at work."""
LOOKS_S = (0.1, 0.4, 1.0, 3.0)
"""Pauses in which a report that was sent is accepted."""
STICKY_S = timedelta(seconds=1)
"""So long a run waits for the worker that knew it, before another one reads its history."""
RUNNER = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules("sequencer", "msgspec")
)
"""What decides over runs. Whatever is passed through it is not watched by it."""
# Why an attempt has ended is told in our own words, wherever that is shown.
logging.getLogger("temporalio.activity").addHandler(logging.NullHandler())


@contextlib.asynccontextmanager
async def deciding(client: Client, queue: str) -> AsyncIterator[None]:
    """Let runs of *queue* be decided over in this process while the block lasts; no attempts."""
    async with Server(
        client,
        task_queue=queue,
        workflows=[RunWorkflow],
        workflow_runner=RUNNER,
        sticky_queue_schedule_to_start_timeout=STICKY_S,
    ):
        yield


class Activities:
    """Makes the attempts that the server hands to this process."""

    def __init__(
        self, worker_of: Callable[[str], tuple[Worker, Head]], tell: Tell = lambda *_: None
    ) -> None:
        """Make each with the worker that *worker_of* returns for the id of its run, at a head.

        *tell* hears what can't be made here.
        """
        self._worker_of, self._tell = worker_of, tell
        self._running: dict[tuple[str, int], Cancellation] = {}
        self.begun = Counter[str]()
        """How many attempts this process has begun, by runs."""
        self._lock = threading.Lock()
        self.is_ending = False
        """None starts any more."""
        self._after = set[asyncio.Future[None]]()

    def runs(self) -> set[str]:
        """Return the runs at which attempts are being made."""
        with self._lock:
            return {run for run, _ in self._running}

    def interrupt(self) -> set[str]:
        """Ask for the end of all that run, and return their runs; none starts any more."""
        with self._lock:
            self.is_ending = True
            for one in self._running.values():
                one.set(StopReason.INTERRUPTED)
            return {run for run, _ in self._running}

    @activity.defn(name=ATTEMPT)
    async def attempt(self, data: dict[str, Any]) -> dict[str, Any]:
        """Make the attempt of one ticket and return its report."""
        run, ticket = activity.info().workflow_id or "", _ticket(data)
        cancellation = Cancellation()
        with self._lock:
            self._running[run, ticket.token] = cancellation
            self.begun[run] += 1
            if self.is_ending:
                cancellation.set(StopReason.INTERRUPTED)
        timeout = activity.info().heartbeat_timeout or timedelta(seconds=60)
        pause_s = min(BEATS_S, timeout.total_seconds() / 4)
        work = asyncio.ensure_future(asyncio.to_thread(self._made, run, ticket, cancellation))
        try:
            await asyncio.wait([work], timeout=FIRST_BEAT_S)
            while not work.done():
                activity.heartbeat(identity())
                await asyncio.wait([work], timeout=pause_s)
            return self._followed(run, ticket.token, work.result())
        except asyncio.CancelledError:
            cancellation.set(_why())
            await asyncio.wait([work])
            if self.is_ending and not work.exception():
                # The server is told at once, instead of after a timeout.
                return work.result()
            raise
        finally:
            with self._lock:
                self._running.pop((run, ticket.token), None)

    def _made(self, run: str, ticket: Ticket, cancellation: Cancellation) -> dict[str, Any]:
        """Make an attempt in a thread of its own."""
        try:
            worker, head = self._worker_of(run)
            if head.claim_with(ticket.token) is None:
                raise _failed("its claim is gone", type=LOST)
            if ticket.has_code and not worker.code.moves:
                message = (
                    "the run's code is in git, but this folder is not a clone with that remote"
                )
                hint = "clone the repository, and work there"
                raise WorkTreeRefused(message, where="store.remote", hint=hint)
            if ticket.merge is not None:
                return {MERGED: _merged(worker, head, ticket)}
            budget = Allowance(ticket.cost_usd, ticket.timeout_s)
            ended, error = worker.attempt(head, ticket.token, budget, cancellation)
        except RemoteUnreachable as away:
            # Nothing is wrong with the step: whoever reaches the server again makes it.
            raise _failed(away.message, type=LOST) from away
        except SequencerError as refusal:
            self._tell(run.rpartition("/")[2], Noticed(f"not run here: {refusal}"))
            raise _refused(refusal) from refusal
        return report_of(ended, error, identity() if self.is_ending else None)

    def _followed(self, run: str, token: int, report: dict[str, Any]) -> dict[str, Any]:
        """Return the *report* of an attempt, whose code people are to see once it is accepted."""
        if "work" in (report.get("record") or report[MERGED]):
            task = asyncio.ensure_future(asyncio.to_thread(self._publish, run, token))
            self._after.add(task)
            task.add_done_callback(self._after.discard)
        return report

    async def published(self) -> None:
        """Wait until people can see the code of the attempts that have ended."""
        if self._after:
            await asyncio.wait(self._after, timeout=sum(LOOKS_S))

    def _publish(self, run: str, token: int) -> None:
        """Let people see the code of *run* if it rests after the attempt with *token*."""
        with contextlib.suppress(SequencerError):
            for pause_s in LOOKS_S:
                time.sleep(pause_s)
                worker, head = self._worker_of(run)
                if head.claim_with(token) is None:
                    # Else the next attempt does it.
                    if not head.claims:
                        worker.code.publish(head)
                    return


def _ticket(data: dict[str, Any]) -> Ticket:
    """Return the ticket in *data*; one that asks for what this release does not know is refused."""
    try:
        return convert(data, Ticket)
    except ValidationError as error:
        newer = NewerSchema("the step's ticket is from a newer release", hint=UPDATE)
        raise _refused(newer) from error


def _refused(why: SequencerError) -> ApplicationError:
    """Return what lets another worker make the attempt."""
    facts = {**packed_error(why), "by": identity()}
    return _failed(why.message, facts, type=REFUSED)


def _failed(message: str, *details: Any, type: str) -> ApplicationError:  # noqa: A002 - theirs
    """Return what the library does not log: we tell of it ourselves."""
    benign = ApplicationErrorCategory.BENIGN
    return ApplicationError(message, *details, type=type, non_retryable=True, category=benign)


def _merged(worker: Worker, head: Head, ticket: Ticket) -> dict[str, Any]:
    """Return what becomes of an attempt's record by merging its work with what *head* has."""
    work = Work.model_validate(ticket.merge)
    made = worker.code.merged(held_claim(head, ticket.token), head, work)
    if isinstance(made, str):
        return {"status": str(OutcomeStatus.FAILED), "error": made, "work": None}
    base = None if head.work is None else head.work.commit
    return {"work": {**made.model_dump(), "base": base}}


def _why() -> StopReason:
    details = activity.cancellation_details()
    is_ours = details is not None and details.worker_shutdown
    return StopReason.INTERRUPTED if is_ours else StopReason.CLAIM_LOST


def polls(places: int) -> int:
    """Return how often to ask the server for attempts at the same time.

    Each poll holds a place: with one that is left, the server need not be asked for the next
    attempt of a run that is decided over here.
    """
    return max(1, min(MOST_POLLS, places // 2))


def server_of(
    client: Client,
    queue: str,
    attempts: Activities,
    places: int,
    grace: timedelta = timedelta(0),
    *,
    decides: bool = True,
) -> Server:
    """Return what takes work from *queue*, and makes at most so many attempts at once.

    When it is to end, those that run have *grace* for it. Unless it *decides*, it only makes
    attempts.
    """
    return Server(
        client,
        task_queue=queue,
        workflows=[RunWorkflow] if decides else [],
        activities=[attempts.attempt],
        workflow_runner=RUNNER,
        max_concurrent_activities=places,
        max_concurrent_activity_task_polls=polls(places),
        max_heartbeat_throttle_interval=timedelta(seconds=BEATS_S),
        default_heartbeat_throttle_interval=timedelta(seconds=BEATS_S),
        sticky_queue_schedule_to_start_timeout=STICKY_S,
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
    """Issue a permit for the run in *store*, and make attempts until it has ended.

    Raises: see `WorkLoop.work`.
    """
    permit = _permit(worker, mode, limits, store.ttl_s, places)
    end = _ends_at_once(store, permit)
    if end is None:
        store.connection.call(bring(store))
        workers = Workers(store)
        workers.add(store.id, worker)
        attempts = Activities(workers.of)
        workers.in_use = attempts.runs
        emit = worker.performer.emit
        watch = NewsWatch(store, head, lambda: attempts.begun[store.id], emit)
        if place := store.elsewhere():
            emit(Noticed(f"the run's steps run on {place}, where 'sequencer worker' runs"))
        elif "positions" in permit:
            # Its terminal, its clone and its agents make them, whoever else serves the run.
            permit["queue"] = f"{store.options.queue}/{permit['id']}"
        # One work tree has one attempt at a time; other machines may make the rest.
        here = 1 if worker.code.moves else places
        made = _permitted(store, permit, attempts, here, watch, place=place)
        future = store.connection.submit(made)
        try:
            leave = partial(ask_to_leave, store, permit["id"], attempts)
            wait_for_the_end(future, worker.stop, leave, attempts.runs)
            end = store.connection.result(future)
        finally:
            workers.leave(but=worker)
    summary = _summary(store, end)
    now = summary.head
    if now is not None:
        # The last attempt may still be publishing an older head.
        worker.code.publish(now, wait=True)
    if now is not None and now.status is Status.COMPLETE and head.status is not Status.COMPLETE:
        worker.performer.report_completed(max(now.step_index - 1, 0), now)
    if "error" in end:
        raise error_of(end["error"])
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
    """Issue a permit for the run in *store* that needs no process, and return.

    Raises: see `work_on`, of what is known at once.
    """
    permit = {**_permit(worker, mode, limits, store.ttl_s, places), "by": ""}
    end = _ends_at_once(store, permit)
    if end is None:
        store.connection.call(bring(store))
    while not end:
        # Nothing is returned by an execution that the next one follows.
        end = store.connection.call(store.ask(Inquiry("work", permit)))
    if "is_detached" in end:
        told = command(head.run_name, "status")
        return Summary(
            f"detached: workers run the steps; {told} shows how far they are",
            head=store.view().head,
        )
    if "error" in end:
        raise error_of(end["error"])
    return _summary(store, end)


def _summary(store: FleetStore, end: Mapping[str, Any]) -> Summary:
    return Summary(
        end["reason"],
        Usage.model_validate(end["usage"]),
        end["failures"],
        end["limits_met"],
        store.view().head,
    )


def _ends_at_once(store: FleetStore, data: dict[str, Any]) -> dict[str, Any] | None:
    """Return how the permit of *data* ends if nothing can begin; it is asked here first.

    None: the run itself has to say. It may be over there, and then nobody answers.
    """
    seen = store.look()
    if seen is None:
        return None
    if gone := store.connection.call(store.give_back(seen)):
        seen = store.look() or seen
    here = MemoStore(seen.memo, lambda _: None)
    # Who decides over the run may hear of what was given back after this permit has come.
    if untaken := [*gone, *(token for token, who in seen.pending.items() if not who)]:
        data["untaken"] = untaken
    permit, revision = permit_of(data, here), here.head.revision
    permit.advance(seen.pending, datetime.now(UTC), may_claim=False)
    # What was agreed for a gate whose time is over has to be recorded there.
    return permit.end if here.head.revision == revision else None


def serve(
    store: FleetStore, places: int, on_ready: Callable[[Callable[[], None]], None], tell: Tell
) -> None:
    """Make attempts for all runs of the project of *store* until somebody ends it.

    *on_ready* gets what ends it: the first call takes nothing more and lets what runs end, the
    second stops that too. *tell* hears what happens in the attempts.
    """
    workers = Workers(store, tell)
    attempts, stop = Activities(workers.of, tell), Cancellation()
    workers.in_use = attempts.runs

    def end() -> None:
        if stop.is_set():
            attempts.interrupt()
        stop.set(StopReason.INTERRUPTED)

    on_ready(end)
    try:
        store.connection.call(_served(store, attempts, places, stop, tell))
    finally:
        workers.leave()
        stop.close()


async def _served(
    store: FleetStore, attempts: Activities, places: int, stop: Cancellation, tell: Tell
) -> None:
    client = await store.connection.client()
    async with server_of(client, store.options.queue, attempts, places, LONGEST_END):
        bringing = asyncio.create_task(bring_all(store, tell))
        try:
            await asyncio.to_thread(stop.wait)
        finally:
            bringing.cancel()
    await attempts.published()


class Workers:
    """Who makes the attempts of each run that this process meets."""

    def __init__(self, store: FleetStore, tell: Tell = lambda *_: None) -> None:
        """Know none yet; *store* knows the project's others, of which *tell* hears."""
        self._store, self._tell = store, tell
        self._known: dict[str, Worker] = {}
        """By the ids of their runs; those used last are the last."""
        self._own: str | None = None
        self._lock = threading.Lock()
        self.in_use: Callable[[], Collection[str]] = tuple
        """Returns the runs at which attempts are being made."""

    def add(self, run: str, worker: Worker) -> None:
        """Let *worker* make the attempts of *run*, which has this id."""
        self._known[run], self._own = worker, run

    def of(self, run: str) -> tuple[Worker, Head]:
        """Return who makes the attempts of *run*, and its newest head.

        Raises:
            SequencerError: this project has no such run, or can't work on it.
        """
        with self._lock:
            worker = self._known.pop(run, None) or self._made(run)
            self._known[run] = worker
        if (head := worker.store.view().head) is None:
            raise StaleClaim("the run is gone", where=run)
        if has_definition(head, worker.performer.workflow):
            return worker, head
        # Somebody has begun it again, or adopted another definition.
        with self._lock:
            worker = self._made(run)
        ensure_definition(head, worker.performer.workflow)
        return worker, head

    def _made(self, run: str) -> Worker:
        used = {*self.in_use(), self._own, run}
        for old in [one for one in self._known if one not in used][: 1 - MOST_KNOWN]:
            # Each has descriptors and the project's settings; it is made again in some ms.
            self._known.pop(old).leave()
        self._known[run] = worker = self._store.made_worker(run, self._tell)
        return worker

    def leave(self, but: Worker | None = None) -> None:
        """Leave nothing of theirs behind; *but* one is somebody else's to leave."""
        for one in self._known.values():
            if one is not but:
                one.leave()


def _permit(
    worker: Worker, mode: Mode, limits: InvocationLimits, ttl_s: float, places: int
) -> dict[str, Any]:
    performer = worker.performer
    permit = {
        "id": uuid.uuid4().hex,
        "by": identity(),
        "mode": str(mode),
        "ttl_s": ttl_s,
        "places": places,
        "has_code": worker.code.moves,
        "team": {} if performer.tasks is None else TASK_GRAPHS.required().dump(performer.tasks),
        "workflow": plain_workflow(performer.workflow),
        "limits": _plain(limits),
        "run_limits": worker.limits.model_dump(mode="json", exclude_defaults=True),
        "positions": sorted(getattr(worker, "positions", ())),
    }
    return {key: value for key, value in permit.items() if value not in ({}, [], False)}


def _plain(limits: InvocationLimits) -> dict[str, Any]:
    # None is a choice here, and no default.
    return limits.model_dump(mode="json")


async def _permitted(
    store: FleetStore,
    permit: dict[str, Any],
    attempts: Activities,
    places: int,
    watch: NewsWatch,
    *,
    place: str,
) -> dict[str, Any]:
    """Issue *permit*, and return how it has ended; *watch* tells what others do meanwhile.

    *place* is where its attempts are made if not here.
    """
    client, own = await store.connection.client(), permit.get("queue")
    async with contextlib.AsyncExitStack() as stack:
        if not place and own is None:
            here = server_of(client, store.options.queue, attempts, places)
            await stack.enter_async_context(here)
        else:
            # Where nobody decides over the run, this process does.
            queue = store.options.queue_at(place or store.options.place)
            await stack.enter_async_context(deciding(client, queue))
        if own is not None:
            mine = server_of(client, own, attempts, places, decides=False)
            await stack.enter_async_context(mine)
        ended = asyncio.Event()
        following = asyncio.create_task(watch.follow(ended))
        try:
            end = await _end_of(store, permit, attempts, watch)
        except BaseException:
            following.cancel()
            raise
        ended.set()
        await following
    return end


async def _end_of(
    store: FleetStore, permit: dict[str, Any], attempts: Activities, watch: NewsWatch
) -> dict[str, Any]:
    """Return how *permit* ends; a server that is away for a while is waited for."""
    end, number, away_since = dict[str, Any](), uuid.uuid4().hex, 0.0
    while not end:
        asked, handle = time.monotonic(), await store.handle()
        try:
            end = await handle.execute_update("work", permit, id=number)
            number = uuid.uuid4().hex
        except (RPCError, RPCTimeoutOrCancelledError) as error:
            if not is_away(error) or attempts.is_ending:
                raise
            if not away_since or time.monotonic() - asked > CALL_S.total_seconds():
                # The call waited, so that it has reached the server.
                away_since = time.monotonic()
                await watch.tell(f"{unreachable(error, store.options).message}; waiting for it")
            if time.monotonic() - away_since > AWAY_S:
                raise
            # The same number: it may have ended meanwhile, and is not to be issued twice.
            await asyncio.sleep(AGAIN_S)
    return end


def ask_to_leave(store: FleetStore, permit: str, attempts: Activities) -> None:
    """Interrupt what runs here, or ask the run of *store* to take *permit* away."""
    if store.id in attempts.interrupt():
        # Its report tells it, and nothing is claimed in between.
        return

    async def leave() -> None:
        handle = await store.handle()
        with contextlib.suppress(
            RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError
        ):
            await handle.execute_update("leave", permit, rpc_timeout=CALL_S)

    store.connection.submit(leave())
