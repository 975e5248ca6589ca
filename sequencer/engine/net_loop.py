"""One process at work on a graph run, from its start to a reason to end.

The loop records what has ended, claims what can start, and sleeps until an attempt ends,
another process changes the run, or a time comes: the next try, the end of a question, or the
limit of the run. Waiting for a person needs no process: the invocation ends then.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from sequencer.engine.attempt import Running
from sequencer.engine.events import HeadMoved, Waiting
from sequencer.engine.loop import LONGEST_SLEEP_S, LOOK_S, EngineLoop
from sequencer.engine.markings import NetChanges
from sequencer.engine.net_stint import NetStint, waiting_words
from sequencer.engine.net_worker import NetWorker
from sequencer.engine.performing import Performer
from sequencer.engine.stint import Mode
from sequencer.errors import (
    Interrupted,
    SequencerError,
    out_of_resources,
)
from sequencer.executors.cancellation import StopReason
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits, RunLimits, parse_time
from sequencer.model.net.marking import Marking
from sequencer.model.net.net import overdue, time_left_ms
from sequencer.store.protocol import Store

LOOK_AT_HOLDERS_S = 5.0
"""How often several holders in other processes are checked; a single one is waited for."""


class NetLoop(EngineLoop):
    """Works until the flow is over, waits for a person, or a limit is reached."""

    def __init__(self, worker: NetWorker, mode: Mode, limits: InvocationLimits, head: Head) -> None:
        """Start at *head*, the run as it is."""
        super().__init__(worker, mode, limits, head)
        self._worker = worker
        self._control = worker.control
        self._tended_at = datetime.now(UTC)
        self._was_over = self._control.net.is_over(head)
        self._told_of = ""
        """When the next try comes, as last reported."""
        self._unrecorded: list[Running] = []
        """Attempts that have ended and could not be recorded."""
        self._stint = NetStint(mode, limits, worker.limits, head, worker.capacity)
        self.summary = self._stint.summary
        worker.shares.own_usd = self._stint.usd_left
        worker.attempt_timeout_s = limits.step_timeout_s

    def _begin(self) -> None:
        self._performer.emit(HeadMoved(self._known))
        self._worker.tidy(self._known)

    def _leave(self, error: BaseException | None) -> None:
        if error is not None:
            self._end_attempts(error)
            # An interrupt means: end now.
            if isinstance(error, Interrupted) or not isinstance(error, SequencerError):
                return
        # Removes what is no longer needed; how the work ended is already decided.
        with contextlib.suppress(SequencerError, OSError):
            # What others hold by now must not be mistaken for claims of gone processes.
            if (head := self._store.view().head) is not None:
                self._worker.tidy(head)

    def _continue(self) -> str | None:
        attempts = self._worker.attempts
        attempts.drain()
        self._record_ended()
        revision = self._do_what_is_due()
        head, marking = self._look()
        pause_s = None
        if self._control.net.is_over(head):
            if not attempts.running:
                return self._stint.end_of_the_run(head, marking)
        elif self._worker.is_stopped:
            if not attempts.running:
                raise Interrupted("interrupted", hint="start again to continue")
        else:
            reason = None if attempts.running else self._reason_to_end(head, marking)
            if reason is not None:
                return reason
            pause_s = self._pause_s(marking)
        self._sleep(head, revision, pause_s)
        return None

    # --- continuing ----------------------------------------------------------------

    def _record_ended(self) -> None:
        worker = self._worker
        # All that have ended by now share one transition: it costs as much as that for one step.
        while ended := list(iter(worker.attempts.next_ended, None)):
            for one in ended:
                self._take_in(one)
            if self._unlooked_s >= LOOK_S:
                # Before they are recorded: that may claim the next nodes.
                self._renew_limits(worker, self._stint)
            self._unrecorded = ended
            head = worker.record(ended, self._steps_left)
            self._unrecorded = []
            worker.code.leave(head, worker.attempts.running)
            for one in ended:
                self._count_anew(one)
            self._notify(*self._control.store.take_notices())
            if head is not None:
                self._went_on(head)
            for one in ended:
                is_stuck = one.busy is not None and not worker.attempts.running
                if one.error is not None and (one.ends_the_work or is_stuck):
                    raise one.busy or one.error

    def _take_in(self, ended: Running) -> None:
        if ended.ends_the_work:
            # A process that can't continue starts nothing else.
            self._worker.is_stopped = True
        self._stint.tried()
        if ended.performed is not None and ended.error is None:
            self._stint.count(ended.claim.step, ended.performed.outcome)
            self._unlooked_s += ended.performed.outcome.usage.seconds

    def _count_anew(self, ended: Running) -> None:
        """Correct the counts now that it is known how the run takes *ended*."""
        is_whole = ended.performed is not None and ended.error is None
        outcome = ended.performed.outcome if ended.performed and is_whole else None
        self._stint.count_again(ended.claim.step, outcome, ended.taken)

    def _went_on(self, head: Head) -> None:
        self._known, self._waiting_since = head, None
        if self._control.net.is_over(head) and not self._was_over:
            self._was_over = True
            self._worker.performer.tell_completed(head.step_index, head)

    def _do_what_is_due(self) -> int:
        """Record expiries, enforce the time limit, and claim what can start.

        Returns the revision that this was based on: a newer one may have more to do.
        """
        head, marking = self._look()
        worker = self._worker
        if self._control.net.is_over(head):
            return head.revision
        self._tended_at = now = datetime.now(UTC)
        acts = overdue(marking, now, self._time_left_ms(head, marking, now))
        for act in acts:
            self._went_on(worker.update(act, self._steps_left, head.run_id))
        return self._claim(head)

    def _time_left_ms(self, head: Head, marking: Marking, now: datetime) -> float:
        left_ms = time_left_ms(head, marking, now)
        # How long a dead process worked is settled when its nodes are taken over.
        return math.inf if left_ms < math.inf and self._worker.gone(head) else left_ms

    def _claim(self, head: Head) -> int:
        """Claim what can start, if this process has a place; return the revision it looked at."""
        worker = self._worker
        left = self._steps_left(head)
        is_full = len(worker.attempts.running) >= worker.places
        may_go_on = left is None or len(worker.attempts.running) < left
        if worker.is_stopped or is_full or not may_go_on or worker.must_wait(head):
            return head.revision
        has_work = worker.gone(head) or self._control.net.startable(head)
        if not worker.attempts.running and has_work:
            worker.code.ensure_ready(head, lambda: bool(self._look()[0].claims))
        before = head.revision
        head = worker.update(None, self._steps_left, head.run_id)
        if head.revision != before:
            self._went_on(head)
        return head.revision

    def _look(self) -> tuple[Head, Marking]:
        self._known, marking = self._control.marking(self._seen())
        self._worker.keep_only(self._known)
        return self._known, marking

    # --- limits --------------------------------------------------------------------

    def _steps_left(self, head: Head) -> int | None:
        """Return how many steps this invocation may still run."""
        del head
        return self._stint.steps_left()

    # --- reasons to end ------------------------------------------------------------

    def _reason_to_end(self, head: Head, marking: Marking) -> str | None:
        """Return why this invocation ends although the flow continues; None: it waits.

        Raises: see `EngineLoop.work`.
        """
        now = datetime.now(UTC)
        if (reason := self._stint.reason_to_end(head, marking, now)) is not None:
            return reason
        if self._stint.waits_for_others(head, now):
            message = waiting_words(head)
            hint = "use 'sequencer takeover --force' if their processes are really gone"
            self._left_to_wait(message, hint, f"{message}; this process waits")
        elif (first := self._stint.next_try(marking)) is not None and first != self._told_of:
            self._told_of = first
            self._performer.emit(Waiting("the next try starts", first))
        return None

    # --- sleeping ------------------------------------------------------------------

    def _pause_s(self, marking: Marking) -> float:
        """Return for how long nothing can become due."""
        now = datetime.now(UTC)
        left = [LONGEST_SLEEP_S]
        # What was due before waits for a free place, and an attempt that ends wakes us.
        dues = (due for due in _dues(marking) if due > self._tended_at)
        left += [(due - now).total_seconds() for due in dues]
        left.append(self._time_left_ms(self._known, marking, now) / 1000)
        if self._waiting_since is not None and self._limits.max_wait_s is not None:
            left.append(self._waiting_since + self._limits.max_wait_s - time.monotonic())
        return max(min(left), 0.0)

    def _sleep(self, head: Head, revision: int, timeout_s: float | None) -> None:
        """Sleep until the run has another *revision*, or an attempt of this process ends."""
        worker = self._worker
        foreign = worker.foreign(head)
        if len(foreign) > 1:
            timeout_s = min(timeout_s or LONGEST_SLEEP_S, LOOK_AT_HOLDERS_S)
        if not worker.attempts.running:
            worker.performer.agents.warm_up()
        self._control.store.wait(
            revision,
            timeout_s,
            wake_fd=worker.attempts.fileno(),
            claim=foreign[0] if foreign else None,
        )

    def _end_attempts(self, error: BaseException) -> None:
        """Stop what still runs, after *error*, and record it as released if possible."""
        worker = self._worker
        worker.is_stopped = True
        worker.attempts.cancel(StopReason.INTERRUPTED)
        again = self._unrecorded if out_of_resources(error) else []
        while worker.attempts.running:
            ended = worker.attempts.next_ended()
            if ended is None:
                worker.attempts.wait()
            elif out_of_resources(self._recorded_at_last(ended)):
                again.append(ended)
        # What agents held is free now, and no agent takes what remains.
        worker.attempts.free_reserve()
        for ended in again:
            self._recorded_at_last(ended)

    def _recorded_at_last(self, ended: Running) -> Exception | None:
        """Record *ended* if possible; return why not."""
        try:
            self._worker.record([ended], self._steps_left)
        except (SequencerError, OSError) as error:
            # The reason for the end is reported elsewhere; no other agent may be left running.
            return error
        return None


def _dues(marking: Marking) -> Iterator[datetime]:
    for active in marking.active.values():
        date = parse_time(active.due) if active.due else None
        if date is not None:
            yield date


def on_nodes(
    store: Store, performer: Performer, limits: RunLimits, places: int
) -> tuple[NetWorker, type[NetLoop]]:
    """Return what works on the graph's run in *store*, *places* nodes at a time."""
    grower = None if performer.tasks is None else performer.tasks.grower
    nodes = NetChanges(store, performer.workflow, grower)
    return NetWorker(nodes, performer, limits, places), NetLoop
