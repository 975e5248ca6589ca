"""The modes in which a process works on a run: combined, sync and tick.

They differ in when they wait and when they end; the worker does everything else. The store
does the waiting: it wakes when the head changes, when the holder of a claim ends, or when
this process is asked to stop.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sequencer.engine.allowance import left
from sequencer.engine.attempt import Running
from sequencer.engine.awaited import AwaitedStep
from sequencer.engine.events import HeadMoved, Noticed, Waiting
from sequencer.engine.patience import followed
from sequencer.engine.queue import Queue
from sequencer.engine.stint import LineStint, Mode, Summary
from sequencer.engine.worker import LineWorker
from sequencer.errors import (
    ClaimHeld,
    Interrupted,
    StaleClaim,
    out_of_resources,
)
from sequencer.executors.cancellation import StopReason
from sequencer.model.head import Claim, Gate, Head, Status
from sequencer.model.kind import Readiness, Standing
from sequencer.model.limits import InvocationLimits, parse_time
from sequencer.model.line.order import position_at
from sequencer.model.outcome import OutcomeStatus

if TYPE_CHECKING:
    from sequencer.engine.net_stint import NetStint
    from sequencer.engine.net_worker import NetWorker

LOOK_S = 1.0
"""After so much work of agents the limits of the run are read again."""
LONGEST_SLEEP_S = 60.0
"""A date is compared with the wall clock at least this often, since people change that clock."""


class EngineLoop(ABC):
    """What every loop of work on a run has: its limits, and what it has reported and seen."""

    def __init__(
        self, worker: LineWorker | NetWorker, mode: Mode, limits: InvocationLimits, head: Head
    ) -> None:
        """Start at *head*, the run as it is."""
        if mode is Mode.TICK:
            # The next tick tries again.
            worker.patience.wait_s = 0.0
        self._store, self._performer, self._stop = worker.store, worker.performer, worker.stop
        self._mode = mode
        self._limits = limits
        self._known = head
        self._default_wait_s: float | None = None
        """How long it waits for others by default."""
        self._waiting_since: float | None = None
        self._last_notice, self._told_wait = "", ""
        self._unlooked_s = 0.0
        """Work of agents since the limits of the run were read."""
        self.summary = Summary(head=head)

    def work(self) -> Summary:
        """Work until there is a reason to end; the summary says which.

        Raises:
            StepFailed: a step failed and has no automatic try left, or a graph's run ended
                badly.
            TooManyFailures: the step failed too often before.
            ClaimHeld: others hold all available steps for longer than this mode waits.
            WaitsForPerson: a person must decide or answer.
            Interrupted: this process was asked to end; its claims were released.
            MachineBusy: this machine could run no agent; its claims were released.
        """
        place, head = self._performer.place, self._known
        if place is not None and head.status is Status.COMPLETE:
            # Bring home what is left of a run that has ended.
            place.end(head)
        elif place is not None:
            place.begin(head, self._stop)
        self._begin()
        try:
            while (reason := self._continue()) is None:
                pass
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(None)
        self.summary.reason, self.summary.head = reason, self._known
        if self._mode is Mode.TICK and self._known.status is not Status.COMPLETE:
            self.summary.obstacle = self._performer.carrier.obstacle(self._known)
        return self.summary

    @abstractmethod
    def _begin(self) -> None:
        """Look at the run for the first time."""

    @abstractmethod
    def _continue(self) -> str | None:
        """Do what can be done now, or wait; return why the work ends, if it does."""

    @abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """Leave nothing running, after the work or after the *error* that ended it."""

    def _renew_limits(self, worker: LineWorker | NetWorker, stint: LineStint | NetStint) -> None:
        """Let *worker* and *stint* keep to the limits of the run that count now."""
        self._unlooked_s = 0.0
        self._notify(*filter(None, (worker.renew_limits(),)))
        stint.keep_to(worker.limits)

    def _seen(self) -> Head:
        """Return the run's newest head, and report what was found with it."""
        view = self._store.view()
        self._notify(*view.notices, *self._store.take_notices())
        self._known = followed(self._store, self._known, view.head)
        return self._known

    def _notify(self, *texts: str) -> None:
        """Report what was found in the run's files; a view and an update may both find it."""
        for text in texts:
            if text != self._last_notice:
                self._performer.emit(Noticed(text))
            self._last_notice = text

    @property
    def _longest_wait_s(self) -> float | None:
        """Return how long this mode waits for others; None means without limit."""
        if self._mode is Mode.TICK:
            return 0.0
        own = self._limits.max_wait_s
        return self._default_wait_s if own is None else own

    def _left_to_wait(
        self, message: str, hint: str, told: str, *, needs_person: bool = False
    ) -> float | None:
        """Report a wait for others; return how long it may last, None: without limit.

        What was *told* last is not said again.

        Raises:
            ClaimHeld: this mode has waited as long as it may.
        """
        limit, now = self._longest_wait_s, time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if limit != 0.0 and told != self._told_wait:
            self._told_wait = told
            self._performer.emit(Waiting(told, needs_person=needs_person))
        rest = left(limit, now - self._waiting_since)
        if rest is not None and rest <= 0:
            raise ClaimHeld(message, hint=hint)
        return rest


class LineLoop(EngineLoop):
    """Works on a run in one mode until a limit, an end or an error."""

    def __init__(
        self, worker: LineWorker, mode: Mode, limits: InvocationLimits, head: Head
    ) -> None:
        """Start at *head*, the run as it is."""
        super().__init__(worker, mode, limits, head)
        self._worker = worker
        self._stint = LineStint(
            worker.workflow, mode, limits, worker.limits, head, positions=worker.positions
        )
        self.summary = self._stint.summary
        self._turn: Running | None = None
        """The step that this process holds and will run."""
        self._default_wait_s = None if mode is Mode.SYNC else 0.0
        self._queue = self._new_queue()
        self._awaited = AwaitedStep(worker.workflow, worker.store, mode, worker.positions, head)

    def _begin(self) -> None:
        self._seen()

    def _leave(self, error: BaseException | None) -> None:
        del error
        if self._queue is not None:
            self._queue.leave()

    def _continue(self) -> str | None:
        if self._stop.is_set():
            raise Interrupted("interrupted; no step is running", hint="start again to continue")
        if self._turn is None:
            head = self._known
            # The end of the run, or its pause, is news; reaching it with the last step is not.
            is_news = head.status in (Status.COMPLETE, Status.PAUSED)
            reached = None if is_news else self._stint.reached(head)
            if reached is not None:
                return reached
            here = self._worker.standing_for_claim(head)
            if here.kind is Readiness.EXPIRED and head.gate is not None:
                self._expire(here, head.gate)
                return None
            if (reason := self._stint.reason_to_end(here, head)) is not None:
                return reason
            self._turn = self._take_turn(here, head)
            if self._turn is None:
                self._seen()
                self._renew_limits(self._worker, self._stint)
                return None
        self._known, self._turn = self._run(self._turn)
        return None

    def _expire(self, here: Standing, gate: Gate) -> None:
        """Record the configured decision for *gate*, because nobody decided."""
        self._notify(here.message)
        was = self._worker.control.lapse()
        if was.status is Status.COMPLETE:
            self._performer.tell_completed(gate.step_index, was)
        self._seen()

    # --- taking a turn -------------------------------------------------------------

    def _take_turn(self, here: Standing, head: Head) -> Running | None:
        """Claim the step that is ready, or wait for a change and return None."""
        if here.kind is Readiness.NOT_YET:
            self._sleep_until(here, head)
            return None
        if here.kind in (Readiness.READY, Readiness.HELD) and self._stint.is_mine(head.step_index):
            if here.claim is not None or not self._may_claim(head):
                self._wait(here, head)
                return None
            prepared = self._worker.performer.prepare(here.place)
            try:
                claimed = self._worker.claim(head, prepared)
            except ClaimHeld:
                # Another process was quicker between the look and the lock.
                if self._longest_wait_s == 0.0:
                    raise
                return None
            self._waiting_since, self._told_wait = None, ""
            if claimed is not None and self._queue is not None:
                self._queue.leave()
            return claimed
        self._wait(here, head)
        return None

    def _new_queue(self) -> Queue | None:
        """Return the queue of this mode; a process that does not wait does not queue."""
        if self._mode is not Mode.SYNC or self._longest_wait_s == 0.0:
            return None
        worker = self._worker
        return Queue(
            worker.store,
            worker.positions,
            lambda index: position_at(worker.workflow, index),
        )

    def _may_claim(self, head: Head) -> bool:
        return self._queue is None or self._queue.may_claim(head)

    def _wait(self, here: Standing, head: Head) -> None:
        """Sleep until the head changes.

        Raises:
            ClaimHeld: this mode has waited as long as it may.
        """
        awaited = self._awaited
        awaited.see(here, head)
        needs_person = awaited.needs_person
        rest = self._left_to_wait(*awaited.refusal, awaited.words, needs_person=needs_person)
        if (soon := awaited.looks_again_in_s) is not None:
            rest = soon if rest is None else min(rest, soon)
        if self._queue is None or self._queue.enter():
            # A turn that comes while we sleep must start at once.
            self._worker.performer.agents.warm_up()
        if self._sleep(head, rest, here.claim):
            self._waiting_since = None

    def _sleep(self, head: Head, timeout_s: float | None, claim: Claim | None = None) -> bool:
        """Sleep until the head changes, or longer if others are first; see `Store.wait`."""
        fd = self._worker.stop.fileno()
        if self._queue is not None:
            return self._queue.wait(head, timeout_s, fd, claim)
        return self._worker.store.wait(head.revision, timeout_s, wake_fd=fd, claim=claim)

    def _sleep_until(self, here: Standing, head: Head) -> None:
        due = parse_time(here.until or "")
        if due is None:
            return
        self._worker.performer.emit(Waiting(here.message, here.until))
        pause = (due - datetime.now(UTC)).total_seconds()
        if pause > 0:
            self._sleep(head, min(pause, LONGEST_SLEEP_S))

    # --- running it ----------------------------------------------------------------

    def _run(self, turn: Running) -> tuple[Head, Running | None]:
        try:
            ended = self._worker.perform(turn, self._stint.budget(turn.head))
        except BaseException as error:
            self._worker.abandon(turn, error)
            if (busy := out_of_resources(error)) is not None:
                raise busy from error
            raise
        outcome = ended.performed.outcome
        self._unlooked_s += outcome.usage.seconds
        if self._unlooked_s >= LOOK_S:
            # Before it is recorded: that may claim the next step.
            self._renew_limits(self._worker, self._stint)
        self._stint.count(ended)
        head, following = self._worker.finish(turn, ended, self._may_go_on)
        if self._mode is not Mode.ASYNC:
            self._worker.performer.emit(HeadMoved(head))
        if notices := self._worker.store.take_notices():
            self._notify(*notices)
        if head.status is Status.COMPLETE and self._mode is not Mode.ASYNC:
            self._worker.performer.tell_completed(turn.claim.step_index, head)
        if outcome.status is OutcomeStatus.INTERRUPTED:
            self._raise_interrupted(turn)
        self._stint.ensure_goes_on(ended, head)
        return head, following

    def _may_go_on(self, head: Head) -> bool:
        if self._stint.reached(head) is not None:
            return False
        return self._queue is None or not self._queue.yields(head.step_index)

    def _raise_interrupted(self, turn: Running) -> None:
        if turn.cancellation.reason is StopReason.INTERRUPTED:
            raise Interrupted(
                f"interrupted in step {turn.claim.step!r}; the claim was released",
                hint="start again to continue",
            )
        if turn.cancellation.reason is StopReason.LEASE_LOST:
            raise StaleClaim(
                f"the heartbeat of step {turn.claim.step!r} can't be written; the step was stopped",
                where=str(self._worker.store.state_path.parent),
            )
