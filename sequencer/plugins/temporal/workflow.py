"""One run as one Temporal workflow: it holds the head, and works while it has a work order.

The memo is the run's folder. It has the head, the newest facts and the documents, so anyone can
read them without a worker; its changes in the server's history are the journal. An attempt is
an activity, and its id is the claim's token. Without a work order nothing happens.

This code uses no clock, random numbers, files or environment: every worker that replays the
history must decide the same.
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
from sequencer.model.limits import format_utc_s
from sequencer.plugins.temporal.memo import MemoStore
from sequencer.plugins.temporal.wire import (
    COUNTED,
    DETACHED,
    FACTS,
    MERGED,
    UPDATE,
    AttemptReport,
    Ticket,
    amend_report,
    ensure_change,
    ensure_work_order,
    is_successor_queue,
    is_work_order_id,
    pack_error,
    pack_head,
    unpack_head,
    worker_name,
)
from sequencer.plugins.temporal.work_orders import (
    MAX_TIMER_S,
    NOTE_CHARS,
    WorkOrder,
    read_work_order,
)

WORKFLOW, ATTEMPT = "sequencer.run", "sequencer.attempt"
OVERTAKEN, REFUSED, LOST = "Overtaken", "Refused", "Lost"
"""Error types: a command decided on an older head; an attempt that can't start; an attempt whose
worker could not reach the server, or whose claim was gone."""
UNTAKEN_S = 600.0
"""An attempt that no worker takes for this long is postponed, which limits the tries."""
LONGEST_ATTEMPT_S = 7 * 86_400.0
"""Time limit of an attempt whose step has none."""
MAX_CALLS = 8
"""Maximum agent calls in one attempt, each with the step's time limit: the router, the step's agent
and its fallback agents. The worker ends each in time; the server only ends a worker that hangs."""
MORE_S = 60.0
"""Extra time for an agent to end after its step's time limit; its guard ends it."""
MERGES, MERGE_PAUSE_S = 50, 10.0
"""Maximum tries to merge the work of an attempt, and the pause between two of them."""
ASK_S, LATE_S = 300.0, 60.0
"""A process asks about its work order every `ASK_S`; `LATE_S` later it counts as gone."""
LONGEST_SLEEP_S = 86_400.0
MAX_SHORT_TEXTS = 500
"""Maximum short texts of large answers (`AttemptReport.said`) that the next execution gets."""
MAX_ENDED = 20
"""Maximum ended work orders that the next execution gets, for processes that missed the answer."""
OPEN_S = 60.0
"""Shortest life of an execution that was started after a closed one.

The server refuses a second start only while the first execution is open. Another process that
has seen the same closed execution either starts one sooner than this or looks again, so no
execution is skipped."""


def describe_state(head: Head) -> str:
    """Return the state of the run of *head*, for the server's web view."""
    lines = [
        f"{claim.step}, iteration {claim.step_index + 1}, attempt {claim.attempt}"
        for claim in head.claims
    ]
    return "\n- ".join([f"{head.status}; accepted steps: {head.usage.steps}", *lines])


class Dispatched(Struct):
    """An activity that is running, and the work order that it belongs to."""

    order: WorkOrder
    task: asyncio.Task[None]


@workflow.defn(name=WORKFLOW)
class RunWorkflow:
    """Holds the head of one run."""

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        """Start from the memo and from the *state* that the previous execution passed on."""
        memo = {key: workflow.memo_value(key) for key in workflow.memo()}
        self._store = MemoStore(memo, self._publish)
        self._store.outputs.update(state.get("outputs", {}))
        self._store.short_texts.update(state.get("said", {}))
        self._orders = {
            data["id"]: read_work_order(data, self._store) for data in state.get("permits", ())
        }
        self._detached: list[dict[str, Any]] = list(memo.get(DETACHED, ()))
        for order in self._orders.values():
            order.silent_since = workflow.now()
        self._ended: dict[str, dict[str, Any]] = dict(state.get("ended", {}))
        """Results of ended work orders, by id: a process may ask again."""
        self._attempts: dict[int, Dispatched] = {}
        """Running attempts, by the tokens of their claims."""
        after_another = timedelta(seconds=OPEN_S if state.get("after") else 0)
        self._open_until = workflow.info().start_time + after_another
        self._is_woken = False
        self._is_continuing = False
        """This execution is ending, and the next one continues."""
        self._queue: str | None = None
        """Queue of the next execution; None: the queue of this one."""

    def _publish(self, changes: dict[str, Any]) -> None:
        """Change the memo, with the counts of detached work orders.

        They must survive even if no worker is left that can replay this history.
        """
        counts = {
            order.id: order.budget.to_data() for order in self._orders.values() if order.is_detached
        }
        workflow.upsert_memo({**changes, COUNTED: counts} if counts else changes)

    @workflow.run
    async def run(self, state: dict[str, Any]) -> None:
        """Work as the work orders say until the run is complete."""
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
                    await self._continue_as_new()
            try:
                await workflow.wait_condition(lambda: self._is_woken, timeout=self._compute_pause())
            except builtins.TimeoutError:
                continue

    def _is_over(self) -> bool:
        return self._has_ended() and workflow.now() >= self._open_until

    def _has_ended(self) -> bool:
        head = self._store.head
        return (head.status is Status.COMPLETE or head.moved_to is not None) and not self._orders

    def _is_ending(self) -> bool:
        """Return whether to claim nothing more: the history is long, or the queue changes."""
        return self._queue is not None or workflow.info().is_continue_as_new_suggested()

    def _may_claim(self, order: WorkOrder) -> bool:
        return not self._is_ending() and not order.is_suspected

    async def _continue_as_new(self) -> None:
        """End this execution and start the next one, whose history is empty.

        The next one gets the head and the documents in its memo. In its state it gets the open
        work orders, and the newest outputs and answers, limited so that they fit into one message.
        """
        self._is_continuing = True
        await workflow.wait_condition(workflow.all_handlers_finished)
        open_orders = [order.to_data() for order in self._orders.values() if order.end is None]
        memo = {**pack_head(self._store.head), FACTS: [], **self._store.documents}
        if self._detached:
            memo[DETACHED] = self._detached
        state = {"permits": open_orders, "outputs": self._store.newest_outputs()}
        new_ends = {order.id: order.end for order in self._orders.values() if order.end is not None}
        if newest_ends := list({**self._ended, **new_ends}.items())[-MAX_ENDED:]:
            state["ended"] = dict(newest_ends)
        if self._store.short_texts:
            state["said"] = dict(list(self._store.short_texts.items())[-MAX_SHORT_TEXTS:])
        workflow.continue_as_new(state, memo=memo, task_queue=self._queue)

    def _compute_pause(self) -> timedelta | None:
        """Return the time until something is due; None: nothing is, until an event wakes this."""
        open_orders = [order for order in self._orders.values() if order.end is None]
        dues = [order.until for order in open_orders if order.until is not None]
        dues += filter(None, map(_find_answer_deadline, self._orders.values()))
        if self._has_ended() and not self._is_over():
            dues.append(self._open_until)
        if not dues:
            return None
        left_s = (min(dues) - workflow.now()).total_seconds()
        return timedelta(seconds=min(max(left_s, 0.01), LONGEST_SLEEP_S))

    def _advance(self) -> None:
        """Do everything possible now."""
        for token in [token for token in self._attempts if not self._store.head.find_claim(token)]:
            self._attempts.pop(token).task.cancel()
        for order in tuple(self._orders.values()):
            if (
                deadline := _find_answer_deadline(order)
            ) is not None and deadline <= workflow.now():
                # Otherwise its attempts would continue without the process, forever.
                order.vanish()
                self._ended[order.id] = self._orders.pop(order.id).end or {}
            if order.end is None:
                live_tokens, may_claim = tuple(self._attempts), self._may_claim(order)
                for token in order.advance(live_tokens, workflow.now(), may_claim=may_claim):
                    self._start(token, order)
            if order.end is not None and order.is_detached:
                self._orders.pop(order.id)
                self._show_detached(order)
        # This adds no event to the history; the server asks for it when someone looks.
        workflow.set_current_details(describe_state(self._store.head))

    def _show_detached(self, order: WorkOrder) -> None:
        """Put the entry of the detached work order *order* into the memo, after the open ones."""
        open_entries = [
            entry for entry in self._detached if entry["id"] != order.id and "end" not in entry
        ]
        old_entries = [entry for entry in self._detached if entry["id"] == order.id]
        since = old_entries[0]["since"] if old_entries else format_utc_s(workflow.now())
        self._detached = [*open_entries, order.entry(since, workflow.now())]
        workflow.upsert_memo({DETACHED: self._detached})

    # --- requests: their names are known to other releases ---------------------------

    @workflow.update
    async def work(self, data: dict[str, Any]) -> dict[str, Any]:
        """Take the work order in *data* and return its end; an empty answer means "ask again".

        A detached work order is only taken: the answer does not wait for its end.
        """
        if any(entry["id"] == data["id"] for entry in self._detached):
            # The process asks again because it missed the answer.
            return {"is_detached": True}
        if data["id"] in self._ended:
            return self._ended[data["id"]]
        if data["id"] not in self._orders:
            if self._is_continuing:
                return {}
            self._orders[data["id"]] = read_work_order(data, self._store)
        order, self._is_woken = self._orders[data["id"]], True
        if order.is_detached:
            self._show_detached(order)
            self._advance()
            return order.end or {"is_detached": True}
        order.listeners += 1
        order.is_suspected = False
        with contextlib.suppress(builtins.TimeoutError):
            await workflow.wait_condition(
                lambda: order.end is not None or order.is_suspected or self._is_continuing,
                timeout=timedelta(seconds=ASK_S),
            )
        order.listeners -= 1
        self._is_woken, order.silent_since = True, workflow.now()
        if order.end is None:
            return {}
        if self._orders.pop(data["id"], None) is not None:
            self._ended[order.id] = order.end
        return order.end

    @work.validator
    def _ensure_readable(self, data: dict[str, Any]) -> None:
        try:
            ensure_work_order(data, workflow.info().task_queue)
            read_work_order(data, self._store)
        except Exception as error:
            message = _make_unreadable_error("the work order", error).message
            raise ApplicationError(message, type=REFUSED) from error

    @workflow.update
    async def leave(self, order_id: str) -> None:
        """End a work order because its process is ending."""
        if order_id in self._orders:
            error = Interrupted("interrupted; no step is running", hint="start again to continue")
            self._orders[order_id].finish("", error)

    @leave.validator
    def _ensure_order_id(self, order_id: str) -> None:
        if not is_work_order_id(order_id):
            raise ApplicationError("this is not the id of a work order", type=REFUSED)

    @workflow.update
    async def change_queue(self, queue: str) -> None:
        """Continue on *queue*, which newer workers serve, once no attempt is running."""
        self._queue = None if queue == workflow.info().task_queue else queue
        self._is_woken = True

    @change_queue.validator
    def _ensure_queue(self, queue: str) -> None:
        if not is_successor_queue(queue, workflow.info().task_queue):
            raise ApplicationError("no workers of this project serve such a queue", type=REFUSED)

    @workflow.update
    async def accept(self, change: dict[str, Any]) -> None:
        """Accept a person's change, which their process decided on the head in the memo."""
        self._store.outputs.update(change.get("outputs", {}))
        self._store.change_documents(change.get("documents", {}))
        self._store.write(unpack_head(change), change[FACTS])
        self._is_woken = True

    @accept.validator
    def _ensure_newest(self, change: dict[str, Any]) -> None:
        try:
            head = unpack_head(change)
            ensure_change(change)
        except Exception as error:
            message = _make_unreadable_error("the change", error).message
            raise ApplicationError(message, type=REFUSED) from error
        if head.revision != self._store.head.revision + 1:
            raise ApplicationError("the run has changed in the meantime", type=OVERTAKEN)

    # --- attempts ------------------------------------------------------------------

    def _start(self, token: int, order: WorkOrder) -> None:
        self._attempts[token] = Dispatched(
            order, asyncio.create_task(self._make_attempt(token, order))
        )

    async def _make_attempt(self, token: int, order: WorkOrder) -> None:
        """Let a worker make the attempt with *token*, and record its end."""
        try:
            data = await self._run_activity(token, order, order.ticket(token), order.queue)
            while (ticket := order.make_merge_ticket(token, data["record"])) is not None:
                result = await self._merge(token, order, ticket)
                data = amend_report(data, result[MERGED])
            self._record(token, order, data)
        except ActivityError as error:
            self._handle_lost_attempt(token, order, error)
        except Exception as error:  # noqa: BLE001 - else it is lost, and the attempt is repeated
            self._attempts.pop(token, None)
            facts = pack_error(_make_unreadable_error("what an attempt has reported", error))
            order.release_with_error(token, facts, workflow.now())
            self._is_woken = True

    async def _run_activity(
        self, token: int, order: WorkOrder, ticket: Ticket, queue: str | None = None
    ) -> Any:
        """Return the answer of a worker of *queue* to *ticket*; None: the run's own queue."""
        return await workflow.start_activity(
            ATTEMPT,
            to_builtins(ticket),
            task_queue=queue,
            summary=order.describe_attempt(token),
            # The head counts attempts and grants tokens, so the server must not retry.
            activity_id=str(token),
            retry_policy=RetryPolicy(maximum_attempts=1),
            start_to_close_timeout=limit_activity(order.timeout_s(token)),
            schedule_to_start_timeout=timedelta(
                seconds=UNTAKEN_S if queue is None else order.ttl_s
            ),
            heartbeat_timeout=timedelta(seconds=order.ttl_s),
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
        )

    async def _merge(self, token: int, order: WorkOrder, ticket: Ticket) -> Any:
        """Return the result of a merge; tried often, since the agent's work is paid already."""
        for _ in range(MERGES):
            try:
                return await self._run_activity(token, order, ticket)
            except ActivityError as error:
                if isinstance(error.cause, CancelledError):
                    raise
                await asyncio.sleep(MERGE_PAUSE_S)
        return await self._run_activity(token, order, ticket)

    def _record(self, token: int, order: WorkOrder, data: Any) -> None:
        if self._attempts.pop(token, None) is None:
            return
        new_tokens = order.record(
            token,
            convert(data, AttemptReport),
            tuple(self._attempts),
            workflow.now(),
            jitter=workflow.random().random(),
            may_claim=self._may_claim(order),
        )
        for new_token in new_tokens:
            self._start(new_token, order)
        self._is_woken = True

    def _handle_lost_attempt(self, token: int, order: WorkOrder, error: ActivityError) -> None:
        """Handle an attempt that ended without a report; its claim expires or is released."""
        if self._attempts.pop(token, None) is None:
            return
        self._is_woken, cause, now = True, error.cause, workflow.now()
        live_tokens = tuple(self._attempts)
        if isinstance(cause, ApplicationError) and cause.type == REFUSED:
            facts: Mapping[str, Any] = cause.details[0]
            if facts["by"] == order.by:
                order.release_with_error(token, facts, now)
            else:
                # Another machine may have what this one is missing.
                reason = f"{worker_name(facts['by'])}: {facts['message']}"
                hint = f"; {facts['hint']}" if "hint" in facts else ""
                order.postpone(token, reason + hint, live_tokens, now)
        elif isinstance(cause, TimeoutError):
            if cause.type is TimeoutType.SCHEDULE_TO_START:
                order.postpone(token, "no worker has taken it", live_tokens, now)
                # Only its own process serves such a queue.
                order.is_suspected = order.is_suspected or order.queue is not None
            elif order.by in cause.last_heartbeat_details:
                # The process may be gone, but perhaps it only could not reach the server. It is
                # asked to call again; if it does not, the order ends after `LATE_S`.
                order.is_suspected = True
        elif _is_gone(cause, order.by):
            order.vanish()
        elif not isinstance(cause, CancelledError) and not _is_lost(cause):
            order.release_with_error(token, {"type": "", "message": str(cause)}, now)


def limit_activity(limit_s: float | None) -> timedelta:
    """Return the server's limit for an attempt at a step whose own limit is *limit_s*."""
    if limit_s is None:
        return timedelta(seconds=LONGEST_ATTEMPT_S)
    return timedelta(seconds=min(MAX_CALLS * limit_s + MORE_S, MAX_TIMER_S))


def _find_answer_deadline(order: WorkOrder) -> datetime | None:
    """Return when the process of *order* must ask again; None: it is waiting, or there is none."""
    if order.listeners or order.is_detached or order.silent_since is None:
        return None
    return order.silent_since + timedelta(seconds=LATE_S)


def _make_unreadable_error(subject: str, error: Exception) -> NewerSchema:
    """Return the error that says that *subject* can't be read, because of *error*."""
    text = f"{subject} can't be read by this release: {type(error).__name__}: {error}"
    return NewerSchema(text[:NOTE_CHARS], hint=UPDATE)


def _is_gone(cause: BaseException | None, maker: str) -> bool:
    """Return whether another process has given the attempt back because *maker* is gone."""
    return isinstance(cause, ApplicationError) and cause.type == LOST and maker in cause.details


def _is_lost(cause: BaseException | None) -> bool:
    """Return whether the worker gave the attempt back: it is ending, or could not continue."""
    return isinstance(cause, ApplicationError) and cause.type in ("WorkerShutdown", LOST)
