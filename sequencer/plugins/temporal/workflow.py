"""One run as one Temporal workflow: it holds the head, and works while somebody permits it.

The memo is the run's folder: head, newest facts and documents stand there, so that everybody
can look without a worker; its changes in the server's history are the journal. An attempt is
an activity, whose id is the claim's token. Without a permit nothing happens.

No clock, no chance, no file and no environment: every worker repeats what was decided here.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, convert, to_builtins
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    TimeoutError,  # noqa: A004 - the server's
    TimeoutType,
)

from sequencer.errors import Interrupted, NewerSchema
from sequencer.model.head import Head, Status
from sequencer.model.limits import utc
from sequencer.plugins.temporal.memo import MemoStore
from sequencer.plugins.temporal.wire import (
    COUNTED,
    DETACHED,
    FACTS,
    MERGED,
    UPDATE,
    AttemptReport,
    Ticket,
    amended,
    ensure_change,
    ensure_permit,
    follows,
    head_of,
    is_permit_id,
    packed,
    packed_error,
    worker_name,
)
from sequencer.plugins.temporal.work_orders import NOTE_CHARS, WorkOrder, permit_of

WORKFLOW, ATTEMPT = "sequencer.run", "sequencer.attempt"
OVERTAKEN, REFUSED, LOST = "Overtaken", "Refused", "Lost"
"""A change by hand that was decided over an older head; an attempt that can't start; one whose
worker could not reach the server, or found its claim gone."""
UNTAKEN_S = 600.0
"""After so long without a worker an attempt is put off, which bounds how often it is tried."""
LONGEST_ATTEMPT_S = 7 * 86_400.0
"""Of a step without a time limit of its own."""
MORE_S = 60.0
"""For the end of an agent whose own time is over; its guard ends it."""
MERGES, MERGE_PAUSE_S = 50, 10.0
"""How often the work of an attempt is merged at most, where that is not possible at once."""
ASK_S, LATE_S = 300.0, 60.0
"""After so long a process has to ask for its permit again, and so much later it is gone."""
LONGEST_SLEEP_S = 86_400.0
MOST_SAID = 500
"""Answers that pick a node and are too large to travel: of so many, what they pick is handed on."""
MOST_ENDED = 20
"""Permits whose ends the next execution knows: their processes may not have heard them."""
OPEN_S = 60.0
"""At least so long an execution stays open that was started after a closed one.

The server refuses a second start only while the first is open. Whoever has seen the same closed
execution starts within less time, or looks again; so nobody else's can be passed over."""


def shown(head: Head) -> str:
    """Return how the run of *head* stands, for people who look at the server."""
    made = [
        f"{one.step}, iteration {one.step_index + 1}, attempt {one.attempt}" for one in head.claims
    ]
    return "\n- ".join([f"{head.status}; accepted steps: {head.usage.steps}", *made])


class Dispatched(Struct):
    """An activity that is being made, and whose permission it uses."""

    permit: WorkOrder
    task: asyncio.Task[None]


@workflow.defn(name=WORKFLOW)
class RunWorkflow:
    """Holds the head of one run."""

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        """Start with the memo, and with what an earlier execution hands on as *state*."""
        known = {key: workflow.memo_value(key) for key in workflow.memo()}
        self._store = MemoStore(known, self._publish)
        self._store.outputs.update(state.get("outputs", {}))
        self._store.said.update(state.get("said", {}))
        self._permits = {one["id"]: permit_of(one, self._store) for one in state.get("permits", ())}
        self._detached: list[dict[str, Any]] = list(known.get(DETACHED, ()))
        for permit in self._permits.values():
            permit.silent_since = workflow.now()
        self._gone: dict[str, dict[str, Any]] = dict(state.get("ended", {}))
        """How permits have ended that somebody may ask for again."""
        self._attempts: dict[int, Dispatched] = {}
        """By the tokens of their claims."""
        after_another = timedelta(seconds=OPEN_S if state.get("after") else 0)
        self._open_until = workflow.info().start_time + after_another
        self._is_woken = False
        self._is_moving = False
        """This execution ends, and the next one goes on."""
        self._queue: str | None = None
        """Where that is to be; None: where this one is."""

    def _publish(self, changed: dict[str, Any]) -> None:
        """Change the memo; what permits have counted must outlive whoever could replay it."""
        counted = {one.id: one.budget.kept() for one in self._permits.values() if one.is_detached}
        workflow.upsert_memo({**changed, COUNTED: counted} if counted else changed)

    @workflow.run
    async def run(self, state: dict[str, Any]) -> None:
        """Work as permits say until the run is complete."""
        del state
        while True:
            self._is_woken = False
            self._advance()
            if not self._attempts:
                if self._is_over():
                    await workflow.wait_condition(workflow.all_handlers_finished)
                    if self._is_over():
                        return
                if self._is_ending():
                    await self._move()
            try:
                await workflow.wait_condition(lambda: self._is_woken, timeout=self._pause())
            except builtins.TimeoutError:
                continue

    def _is_over(self) -> bool:
        return self._has_ended() and workflow.now() >= self._open_until

    def _has_ended(self) -> bool:
        head = self._store.head
        return (head.status is Status.COMPLETE or head.moved_to is not None) and not self._permits

    def _is_ending(self) -> bool:
        """Return whether nothing more is to be claimed here: the history is long, or it moves."""
        return self._queue is not None or workflow.info().is_continue_as_new_suggested()

    async def _move(self) -> None:
        """Continue as a new execution, whose history is short."""
        self._is_moving = True
        await workflow.wait_condition(workflow.all_handlers_finished)
        permits = [one.kept() for one in self._permits.values() if one.end is None]
        memo = {**packed(self._store.head), FACTS: [], **self._store.documents}
        if self._detached:
            memo[DETACHED] = self._detached
        state = {"permits": permits, "outputs": self._store.newest_outputs()}
        told = {one.id: one.end for one in self._permits.values() if one.end is not None}
        if ended := list({**self._gone, **told}.items())[-MOST_ENDED:]:
            state["ended"] = dict(ended)
        if self._store.said:
            state["said"] = dict(list(self._store.said.items())[-MOST_SAID:])
        workflow.continue_as_new(state, memo=memo, task_queue=self._queue)

    def _pause(self) -> timedelta | None:
        """Return how long nothing can become due; None: until somebody wakes us."""
        open_ones = [one for one in self._permits.values() if one.end is None]
        dues = [one.until for one in open_ones if one.until is not None]
        dues += filter(None, map(_heard_until, self._permits.values()))
        if self._has_ended() and not self._is_over():
            dues.append(self._open_until)
        if not dues:
            return None
        left_s = (min(dues) - workflow.now()).total_seconds()
        return timedelta(seconds=min(max(left_s, 0.01), LONGEST_SLEEP_S))

    def _advance(self) -> None:
        """Do all that can be done now."""
        for token in [one for one in self._attempts if not self._store.head.claim_with(one)]:
            self._attempts.pop(token).task.cancel()
        for permit in tuple(self._permits.values()):
            if (until := _heard_until(permit)) is not None and until <= workflow.now():
                # Whoever works on without its process would do so for ever.
                permit.vanish()
                self._gone[permit.id] = self._permits.pop(permit.id).end or {}
            if permit.end is None:
                live, may_claim = tuple(self._attempts), not self._is_ending()
                for token in permit.advance(live, workflow.now(), may_claim=may_claim):
                    self._begin(token, permit)
            if permit.end is not None and permit.is_detached:
                self._permits.pop(permit.id)
                self._tell_detached(permit)
        # No event; only who looks at the server asks for it.
        workflow.set_current_details(shown(self._store.head))

    def _tell_detached(self, permit: WorkOrder) -> None:
        """Let everybody see *permit*, which no process waits for: the open ones and this."""
        others = [one for one in self._detached if one["id"] != permit.id and "end" not in one]
        known = [one for one in self._detached if one["id"] == permit.id]
        since = known[0]["since"] if known else utc(workflow.now())
        self._detached = [*others, permit.told(since, workflow.now())]
        workflow.upsert_memo({DETACHED: self._detached})

    # --- what is asked of it -------------------------------------------------------

    @workflow.update
    async def work(self, data: dict[str, Any]) -> dict[str, Any]:
        """Take a permit and return how it has ended; nothing: its process is to ask again.

        One that no process waits for is taken, and that is all there is to return.
        """
        if any(one["id"] == data["id"] for one in self._detached):
            # Asked again by a process that has not heard the answer.
            return {"is_detached": True}
        if data["id"] in self._gone:
            return self._gone[data["id"]]
        if data["id"] not in self._permits:
            if self._is_moving:
                return {}
            self._permits[data["id"]] = permit_of(data, self._store)
        permit, self._is_woken = self._permits[data["id"]], True
        if permit.is_detached:
            self._tell_detached(permit)
            self._advance()
            return permit.end or {"is_detached": True}
        permit.listeners += 1
        with contextlib.suppress(builtins.TimeoutError):
            await workflow.wait_condition(
                lambda: permit.end is not None or self._is_moving, timeout=timedelta(seconds=ASK_S)
            )
        permit.listeners -= 1
        self._is_woken, permit.silent_since = True, workflow.now()
        if permit.end is None:
            return {}
        if self._permits.pop(data["id"], None) is not None:
            self._gone[permit.id] = permit.end
        return permit.end

    @work.validator
    def _is_readable(self, data: dict[str, Any]) -> None:
        try:
            ensure_permit(data, workflow.info().task_queue)
            permit_of(data, self._store)
        except Exception as error:
            raise ApplicationError(_unread("the permit", error).message, type=REFUSED) from error

    @workflow.update
    async def leave(self, permit: str) -> None:
        """Take a permit away: its process is to end."""
        if permit in self._permits:
            told = Interrupted("interrupted; no step is running", hint="start again to continue")
            self._permits[permit].finish("", told)

    @leave.validator
    def _is_permit(self, permit: str) -> None:
        if not is_permit_id(permit):
            raise ApplicationError("this is not the id of a permit", type=REFUSED)

    @workflow.update
    async def change_queue(self, queue: str) -> None:
        """Continue on *queue*, whose workers know more, once no attempt is being made."""
        self._queue = None if queue == workflow.info().task_queue else queue
        self._is_woken = True

    @change_queue.validator
    def _is_queue(self, queue: str) -> None:
        if not follows(queue, workflow.info().task_queue):
            raise ApplicationError("no workers of this project serve such a queue", type=REFUSED)

    @workflow.update
    async def accept(self, change: dict[str, Any]) -> None:
        """Accept what a person has made of the head, which everybody can see."""
        self._store.outputs.update(change.get("outputs", {}))
        self._store.change_documents(change.get("documents", {}))
        self._store.write(head_of(change), change[FACTS])
        self._is_woken = True

    @accept.validator
    def _is_newest(self, change: dict[str, Any]) -> None:
        try:
            head = head_of(change)
            ensure_change(change)
        except Exception as error:
            raise ApplicationError(_unread("the change", error).message, type=REFUSED) from error
        if head.revision != self._store.head.revision + 1:
            raise ApplicationError("the run has changed in the meantime", type=OVERTAKEN)

    # --- attempts ------------------------------------------------------------------

    def _begin(self, token: int, permit: WorkOrder) -> None:
        self._attempts[token] = Dispatched(
            permit, asyncio.create_task(self._attempt(token, permit))
        )

    async def _attempt(self, token: int, permit: WorkOrder) -> None:
        """Let a worker make the attempt with *token*, and record how it has ended."""
        try:
            data = await self._made(token, permit, permit.ticket(token), permit.queue)
            while (ticket := permit.merging(token, data["record"])) is not None:
                made = await self._merged(token, permit, ticket)
                data = amended(data, made[MERGED])
            self._record(token, permit, data)
        except ActivityError as error:
            self._lose(token, permit, error)
        except Exception as error:  # noqa: BLE001 - else nobody hears of it, and it is made again
            self._attempts.pop(token, None)
            told = packed_error(_unread("what an attempt has reported", error))
            permit.give_back(token, told, workflow.now())
            self._is_woken = True

    async def _made(
        self, token: int, permit: WorkOrder, ticket: Ticket, queue: str | None = None
    ) -> Any:
        """Return what a worker of *queue*, or of the run's own, returns for *ticket*."""
        own_s = permit.timeout_s(token)
        most_s = LONGEST_ATTEMPT_S if own_s is None else own_s + MORE_S
        return await workflow.start_activity(
            ATTEMPT,
            to_builtins(ticket),
            task_queue=queue,
            summary=permit.words(token),
            # The head counts attempts, and grants their tokens; the server does neither.
            activity_id=str(token),
            retry_policy=RetryPolicy(maximum_attempts=1),
            start_to_close_timeout=timedelta(seconds=most_s),
            schedule_to_start_timeout=timedelta(
                seconds=UNTAKEN_S if queue is None else permit.ttl_s
            ),
            heartbeat_timeout=timedelta(seconds=permit.ttl_s),
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
        )

    async def _merged(self, token: int, permit: WorkOrder, ticket: Ticket) -> Any:
        """Return what becomes of work that is merged; its agent is not to be paid again."""
        for _ in range(MERGES):
            try:
                return await self._made(token, permit, ticket)
            except ActivityError as error:
                if isinstance(error.cause, CancelledError):
                    raise
                await asyncio.sleep(MERGE_PAUSE_S)
        return await self._made(token, permit, ticket)

    def _record(self, token: int, permit: WorkOrder, data: Any) -> None:
        if self._attempts.pop(token, None) is None:
            return
        granted = permit.record(
            token,
            convert(data, AttemptReport),
            tuple(self._attempts),
            workflow.now(),
            jitter=workflow.random().random(),
            may_claim=not self._is_ending(),
        )
        for one in granted:
            self._begin(one, permit)
        self._is_woken = True

    def _lose(self, token: int, permit: WorkOrder, error: ActivityError) -> None:
        """Note that the attempt with *token* has vanished; whoever goes on takes its place."""
        if self._attempts.pop(token, None) is None:
            return
        self._is_woken, cause, now = True, error.cause, workflow.now()
        live = tuple(self._attempts)
        if isinstance(cause, ApplicationError) and cause.type == REFUSED:
            facts: Mapping[str, Any] = cause.details[0]
            if facts["by"] == permit.by:
                permit.give_back(token, facts, now)
            else:
                # What one machine lacks, another one may have.
                why = f"{worker_name(facts['by'])}: {facts['message']}"
                hint = f"; {facts['hint']}" if "hint" in facts else ""
                permit.put_off(token, why + hint, live, now)
        elif isinstance(cause, TimeoutError):
            if cause.type is TimeoutType.SCHEDULE_TO_START:
                permit.put_off(token, "no worker has taken it", live, now)
                if permit.queue is not None:
                    # Its process alone serves that.
                    permit.vanish()
            elif permit.by in cause.last_heartbeat_details:
                permit.vanish()
        elif _is_gone(cause, permit.by):
            permit.vanish()
        elif not isinstance(cause, CancelledError) and not _is_lost(cause):
            permit.give_back(token, {"type": "", "message": str(cause)}, now)


def _heard_until(permit: WorkOrder) -> datetime | None:
    """Return until when the process of *permit* has to ask for it; None: it waits, or none does."""
    if permit.listeners or permit.is_detached or permit.silent_since is None:
        return None
    return permit.silent_since + timedelta(seconds=LATE_S)


def _unread(what: str, error: Exception) -> NewerSchema:
    """Return that *what* came in can't be read, because of *error*."""
    text = f"{what} can't be read by this release: {type(error).__name__}: {error}"
    return NewerSchema(text[:NOTE_CHARS], hint=UPDATE)


def _is_gone(cause: BaseException | None, by: str) -> bool:
    """Return whether another process has given the attempt back because *by* is gone."""
    return isinstance(cause, ApplicationError) and cause.type == LOST and by in cause.details


def _is_lost(cause: BaseException | None) -> bool:
    """Return whether its worker has given the attempt back: it ends, or could not go on."""
    return isinstance(cause, ApplicationError) and cause.type in ("WorkerShutdown", LOST)
