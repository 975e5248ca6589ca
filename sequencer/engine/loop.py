"""The modes in which a process works on a run: combined, sync and tick.

They differ in when they wait and when they end; everything else is the worker's. Waiting
is the store's: it wakes when the head changes, when the holder of a claim ends, or when
this process is asked to stop.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.engine.attempt import Allowance, HeadMoved, Noticed, Running, Waiting, least, left
from sequencer.engine.by_hand import fresh_head
from sequencer.engine.carrier import NOTHING_CARRIED
from sequencer.engine.patience import followed
from sequencer.engine.performing import Performer
from sequencer.engine.worker import LineWorker
from sequencer.errors import (
    ClaimHeld,
    Interrupted,
    StaleClaim,
    StepFailed,
    TooManyFailures,
    UsageRefused,
    WaitsForPerson,
    out_of_resources,
)
from sequencer.executors.protocol import StopReason
from sequencer.model import transitions
from sequencer.model.head import Claim, Gate, Head, Status
from sequencer.model.kind import Ended
from sequencer.model.limits import InvocationLimits, RunLimits, parse_time
from sequencer.model.line.line import EndingKind
from sequencer.model.line.order import place, position_at
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.standing import Readiness, Standing
from sequencer.store.file import FileStore
from sequencer.store.protocol import Store, Turnstile

if TYPE_CHECKING:
    from sequencer.engine.net_worker import NetWorker

MOST_RETRIES = 100
"""As many as a step can ask for."""
_NO_LIMIT = Allowance()
LONGEST_SLEEP_S = 60.0
"""A date is compared with the wall clock at least this often, since people set that clock."""


def counted(number: int, noun: str) -> str:
    """Return how many are done, as a person would say it.

    >>> counted(1, "step"), counted(2, "step")
    ('1 step is', '2 steps are')
    """
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


class Mode(StrEnum):
    """How a process takes part in a run."""

    COMBINED = "combined"
    SYNC = "sync"
    ASYNC = "async"
    TICK = "tick"


class Summary(Struct):
    """What one invocation did, and why it ended."""

    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    failures: int = 0
    limits_met: int = 0
    """Attempts that ended at a usage limit."""
    head: Head | None = None

    @property
    def has_worked(self) -> bool:
        """Return whether an agent was called."""
        return self.usage != Usage() or bool(self.failures or self.limits_met)

    def steps_left(self, max_steps: int) -> int:
        """Return how many of *max_steps* are left.

        None is left behind more usage limits than that: each was a call, and an invocation
        makes at most twice as many calls as it may do steps, failures aside.
        """
        return 0 if self.limits_met > max_steps else max_steps - self.usage.steps

    def reached(self, max_steps: int | None) -> str | None:
        """Return in words that none of *max_steps* is left, if that is so."""
        # As `steps_left` says it; this is asked in each step.
        if max_steps is None or (self.limits_met <= max_steps and self.usage.steps < max_steps):
            return None
        done = f"{counted(self.usage.steps, 'step')} done"
        if self.limits_met > max_steps:
            done += f", and a usage limit was met {self.limits_met} times"
        return f"{done} (--max-steps)"


class EngineLoop(ABC):
    """What every loop of work on a run has: its limits, and what it has told and seen."""

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
        self._waiting_since: float | None = None
        self._last_notice = ""
        self.summary = Summary(head=head)

    def _enter(self) -> None:
        """Have the run's own place there; of a run that has ended what is left is brought home."""
        place, head = self._performer.place, self._known
        if place is not None and head.status is Status.COMPLETE:
            place.end(head)
        elif place is not None:
            place.begin(head, self._stop)

    @abstractmethod
    def work(self) -> Summary:
        """Work until there is a reason to end; the summary says which."""

    def _seen(self) -> Head:
        """Return the run's newest head, once all that was found with it is told."""
        view = self._store.view()
        self._notify(*view.notices, *self._store.take_notices())
        self._known = followed(self._store, self._known, view.head)
        return self._known

    def _notify(self, *texts: str) -> None:
        """Tell what was found in the run's files; a view and an update may find it both."""
        for text in texts:
            if text != self._last_notice:
                self._performer.emit(Noticed(text))
            self._last_notice = text

    def _end(self, head: Head, reason: str) -> Summary:
        self.summary.reason, self.summary.head = reason, head
        return self.summary

    def _count(self, outcome: Outcome, steps: int) -> None:
        """Count an attempt that has ended, and was worth so many *steps*."""
        self.summary.usage = self.summary.usage.plus(outcome.usage, steps=steps)
        self.summary.limits_met += int(outcome.status is OutcomeStatus.LIMITED)

    def _used_up(self) -> str | None:
        """Return which of this invocation's limits on steps and money is reached."""
        limits, usage = self._limits, self.summary.usage
        if (done := self.summary.reached(limits.max_steps)) is not None:
            return done
        if limits.max_cost_usd is not None and usage.cost_usd >= limits.max_cost_usd:
            return f"{usage.cost_usd:.4f} USD are spent (--max-cost)"
        return None


class LineLoop(EngineLoop):
    """Works on a run in one mode until a limit, an end or an error."""

    def __init__(
        self, worker: LineWorker, mode: Mode, limits: InvocationLimits, head: Head
    ) -> None:
        """Start at *head*, the run as it is."""
        super().__init__(worker, mode, limits, head)
        self._worker = worker
        self._cycle_length = len(worker.workflow.steps)
        self._first_cycle = head.step_index // self._cycle_length
        self._failing_at, self._failures_seen = head.step_index, head.failures_in_row
        self._queue = self._new_queue()
        own, run = limits, worker.limits
        caps = (own.max_cost_usd, own.step_timeout_s, run.max_cost_usd, run.max_seconds)
        self._has_budget = any(cap is not None for cap in caps)

    def work(self) -> Summary:
        """Run steps until there is a reason to end; the summary says which.

        Raises:
            StepFailed: a step failed and has no automatic try left.
            TooManyFailures: the step failed too often before.
            ClaimHeld: somebody else runs the step, for longer than this mode waits.
            WaitsForPerson: a gate waits.
            Interrupted: this process was asked to end; the claim was released.
            MachineBusy: this machine could not run the agent; the claim was released.
        """
        self._enter()
        try:
            return self._work()
        finally:
            if self._queue is not None:
                self._queue.leave()

    def _work(self) -> Summary:
        head, turn = self._seen(), None
        while True:
            self._ensure_not_interrupted()
            if turn is None:
                # An end of the run is news; that the last allowed step reached it is not.
                reached = None if head.status is Status.COMPLETE else self._reached(head)
                if reached is not None:
                    return self._end(head, reached)
                here = self._worker.standing_for_claim(head)
                if here.kind is Readiness.EXPIRED and head.gate is not None:
                    self._notify(here.message)
                    head = self._expire(head.gate)
                    continue
                reason = self._reason_to_end(here, head)
                if reason is not None:
                    return self._end(head, reason)
                turn = self._take_turn(here, head)
                if turn is None:
                    head = self._seen()
                    continue
            head, turn = self._run(turn)

    def _expire(self, gate: Gate) -> Head:
        """Record what was agreed for *gate* when nobody decides."""
        was = self._worker.control.lapse()
        if was.status is Status.COMPLETE:
            self._worker.performer.tell_completed(gate.step_index, was)
        return self._seen()

    def _ensure_not_interrupted(self) -> None:
        if self._worker.stop.is_set():
            raise Interrupted("interrupted; no step is running", hint="start again to go on")

    # --- why to end ----------------------------------------------------------------

    def _reached(self, head: Head) -> str | None:
        """Return which limit of this invocation is reached."""
        if self._mode is Mode.TICK and self.summary.usage.steps:
            return "the step that was due is done"
        if (done := self._used_up()) is not None:
            return done
        cycles, most = (
            head.step_index // self._cycle_length - self._first_cycle,
            self._limits.max_cycles,
        )
        if most is not None and cycles >= most:
            return f"{counted(cycles, 'cycle')} done (--max-cycles)"
        return None

    def _reason_to_end(self, here: Standing, head: Head) -> str | None:
        """Return why this mode ends now, or None if it waits or works.

        Raises: see `work`.
        """
        if self._mode is Mode.ASYNC and (why := _end_beside(here, head)) is not None:
            return why
        if here.is_final:
            return here.message
        if here.kind is Readiness.PERSON:
            raise WaitsForPerson(here.message)
        self._ensure_not_failed_elsewhere(head)
        if here.kind is Readiness.REFUSED:
            self._worker.limits.ensure_may_try(head)
            raise TooManyFailures(here.message)
        if here.kind is Readiness.PAUSED and self._mode is not Mode.SYNC:
            return here.message
        if here.kind is Readiness.NOT_YET and self._mode is Mode.TICK:
            return f"nothing due: {here.message}"
        is_mine = self._worker.is_mine(head.step_index)
        if self._mode is Mode.TICK and here.kind is Readiness.READY and not is_mine:
            return f"nothing due: step {here.place.step!r} is at another position"
        return None

    def _ensure_not_failed_elsewhere(self, head: Head) -> None:
        """Raise if a step failed for good in another process while this one looked on.

        A failure from before is no reason to end: whoever starts now is to try again.
        """
        if head.step_index != self._failing_at:
            self._failing_at, self._failures_seen = head.step_index, 0
        has_failed = head.status is Status.FAILED and head.failures_in_row > self._failures_seen
        if has_failed and head.not_before is None:
            raise StepFailed(
                f"step {head.expected_step!r} failed in another process",
                hint="look at 'sequencer log', then start again",
            )
        self._failures_seen = min(self._failures_seen, head.failures_in_row)

    # --- taking a turn -------------------------------------------------------------

    def _take_turn(self, here: Standing, head: Head) -> Running | None:
        """Claim the step that is ready, or wait for a change and return None."""
        if here.kind is Readiness.NOT_YET:
            self._sleep_until(here, head)
            return None
        if here.kind in (Readiness.READY, Readiness.HELD) and self._worker.is_mine(head.step_index):
            if here.claim is not None or not self._may_claim(head):
                self._wait(here, head)
                return None
            prepared = self._worker.performer.prepare(here.place)
            try:
                claimed = self._worker.claim(head, prepared)
            except ClaimHeld:
                # Somebody was quicker between the look and the lock.
                if self._longest_wait_s == 0.0:
                    raise
                return None
            self._waiting_since = None
            if claimed is not None and self._queue is not None:
                self._queue.leave()
            return claimed
        self._wait(here, head)
        return None

    def _new_queue(self) -> Queue | None:
        """Return the queue of this mode; who does not wait does not queue."""
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

    @property
    def _longest_wait_s(self) -> float | None:
        """Return how long this mode waits for a turn; None is without limit."""
        if self._mode is Mode.TICK:
            return 0.0
        default = None if self._mode is Mode.SYNC else 0.0
        return default if self._limits.max_wait_s is None else self._limits.max_wait_s

    def _wait(self, here: Standing, head: Head) -> None:
        """Sleep until the head changes.

        Raises:
            ClaimHeld: this mode has waited as long as it may.
        """
        limit = self._longest_wait_s
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
            if limit != 0.0:
                self._worker.performer.emit(Waiting(self._waits_for(here, head)))
        rest = left(limit, now - self._waiting_since)
        if rest is not None and rest <= 0:
            hint = "wait for it with --max-wait"
            if here.claim is not None:
                hint += ", or 'sequencer takeover --force' if its holder is gone"
            raise ClaimHeld(self._waits_for(here, head), hint=hint)
        if self._queue is None or self._queue.enter():
            # A turn that comes while we sleep is to start at once.
            self._worker.performer.agents.warm_up()
        if self._sleep(head, rest, here.claim):
            self._waiting_since = None

    def _sleep(self, head: Head, timeout_s: float | None, claim: Claim | None = None) -> bool:
        """Sleep until the head changes, or longer if others come first; see `Store.wait`."""
        fd = self._worker.stop.fileno()
        if self._queue is not None:
            return self._queue.wait(head, timeout_s, fd, claim)
        return self._worker.store.wait(head.revision, timeout_s, wake_fd=fd, claim=claim)

    def _waits_for(self, here: Standing, head: Head) -> str:
        if here.kind is Readiness.READY:
            why = "is left to who has waited longer"
            if not self._worker.is_mine(head.step_index):
                why = "is not ours"
            return f"step {head.expected_step!r} (step_index {head.step_index}) {why}"
        return here.message

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
            ended = self._worker.perform(turn, self._budget(turn.head))
        except BaseException as error:
            self._worker.abandon(turn, error)
            if (busy := out_of_resources(error)) is not None:
                raise busy from error
            raise
        outcome = ended.performed.outcome
        self._count(outcome, steps=int(ended.ending.has_worked))
        head, following = self._worker.finish(turn, ended, self._may_go_on)
        if self._mode is not Mode.ASYNC:
            self._worker.performer.emit(HeadMoved(head))
        self._notify(*self._worker.store.take_notices())
        if head.status is Status.COMPLETE and self._mode is not Mode.ASYNC:
            self._worker.performer.tell_completed(turn.claim.step_index, head)
        if outcome.status is OutcomeStatus.INTERRUPTED:
            self._raise_interrupted(turn)
        if ended.ending.kind is EndingKind.FAIL:
            self.summary.failures += 1
            self._failing_at, self._failures_seen = head.step_index, head.failures_in_row
            if head.not_before is None or self._mode is Mode.TICK:
                raise self._step_failed(turn, ended)
        return head, following

    def _may_go_on(self, head: Head) -> bool:
        if self._reached(head) is not None:
            return False
        return self._queue is None or not self._queue.yields(head.step_index)

    def _step_failed(self, turn: Running, ended: Ended) -> StepFailed:
        hint = "start again to try it again, or 'sequencer skip' / 'stamp ok'"
        if self._mode is Mode.ASYNC:
            hint = f"--step-index {turn.claim.step_index} starts with it again"
        return StepFailed(
            f"step {turn.claim.step!r} (iteration {turn.claim.step_index + 1}, attempt "
            f"{turn.claim.attempt}) failed: {ended.performed.outcome.error or 'no reason given'}",
            where=str(ended.record.get("log")),
            hint=hint,
        )

    def _raise_interrupted(self, turn: Running) -> None:
        if turn.cancellation.reason is StopReason.INTERRUPTED:
            raise Interrupted(
                f"interrupted in step {turn.claim.step!r}; the claim was released",
                hint="start again to go on",
            )
        if turn.cancellation.reason is StopReason.LEASE_LOST:
            raise StaleClaim(
                f"the heartbeat of step {turn.claim.step!r} could not be written; it was stopped",
                where=str(self._worker.store.state_path.parent),
            )

    def _budget(self, head: Head) -> Allowance:
        """Return what is left for one attempt under the invocation's and the run's limits."""
        limits, run, spent = self._limits, self._worker.limits, self.summary.usage
        if not self._has_budget:
            return _NO_LIMIT
        return Allowance(
            least(
                left(limits.max_cost_usd, spent.cost_usd),
                left(run.max_cost_usd, head.usage.cost_usd),
            ),
            least(limits.step_timeout_s, left(run.max_seconds, head.usage.seconds)),
        )


def _end_beside(here: Standing, head: Head) -> str | None:
    """Return why nothing follows in mode async, which has nobody to wait for."""
    if head.gate is not None and head.gate.is_open:
        return f"{head.gate.step!r} asks for a decision, and mode async has no run to keep it in"
    if here.kind is not Readiness.COMPLETE:
        return None
    if here.place.is_end:
        return "the procedure is complete"
    return "the agent says that everything is done"


def work_beside(
    performer: Performer,
    limits: InvocationLimits,
    step_index: int,
    state_path: Path,
    on_ready: Callable[[Callable[[], None]], None] | None = None,
) -> Summary:
    """Run steps from *step_index* on in mode async: in a run that only this call knows.

    Agents are told *state_path*, which is neither read nor written.

    Raises: see `LineLoop.work`.
    """
    if performer.place is not None:
        raise UsageRefused(
            "mode async has no run, and worktree: true gives one to a run",
            hint="choose another --mode, or leave worktree out",
        )
    first = place(performer.workflow, step_index)
    fresh = fresh_head(performer.workflow).replace(
        step_index=step_index, iteration=step_index + 1, expected_step=first.step
    )
    # A step's own retries are all that bounds its failures.
    own = RunLimits(max_failures_in_row=MOST_RETRIES, max_attempts=performer.max_attempts)
    performer = replace(performer, carrier=NOTHING_CARRIED)
    with TemporaryDirectory(prefix="sequencer-async-", ignore_cleanup_errors=True) as folder:
        store = FileStore(Path(folder).resolve() / "state.json", allow_network_fs=True)
        worker = LineWorker(store, performer, own, state_path=state_path)
        try:
            if on_ready is not None:
                on_ready(worker.interrupt)
            head = store.update(lambda _: transitions.initialise(fresh))
            return replace(LineLoop(worker, Mode.ASYNC, limits, head).work(), head=None)
        finally:
            worker.leave()


PATIENCE_S = 5.0
"""How long a step that could be begun is left to those who have waited longer; on a machine
under load, waking up and claiming can take a second."""
RECHECK_S = 5.0
"""How often who is not the first looks at the run, to say what is new and to end in time."""
PASSES_S = 20.0
"""For how long whoever had to pass others, because they did not come, gives way to nobody."""


class Queue:
    """One process's place among those that wait for the same steps."""

    def __init__(
        self, store: Store, positions: Collection[str], position_at: Callable[[int], str]
    ) -> None:
        """Queue with those that work at *positions*; *position_at* names a step's position."""
        self._store = store
        self._position_at = position_at
        self._positions = frozenset(positions)
        self._own = store.turnstile(positions)
        self._others: dict[str, list[Turnstile]] = {}
        self._is_queued = False
        self._left_to_others: int | None = None
        """The step that this process could have claimed with the acceptance of its own."""
        self._passes_until, self._is_passing = 0.0, False
        self._seen, self._seen_at = 0, 0.0

    def yields(self, step_index: int) -> bool:
        """Return whether this process leaves the step to somebody who waits for it."""
        if time.monotonic() < self._passes_until:
            return False
        position = self._position_at(step_index)
        if position not in self._others:
            # Those of every position, and those of this one alone.
            sets = {frozenset[str](), frozenset((position,))} - {self._positions}
            self._others[position] = [self._store.turnstile(names) for names in sets]
        is_wanted = self._own.is_awaited() or any(
            turnstile.is_awaited() for turnstile in self._others[position]
        )
        self._left_to_others = step_index if is_wanted else None
        return is_wanted

    def may_claim(self, head: Head) -> bool:
        """Return whether the step of *head*, which could be begun, is this process's to claim."""
        now, self._is_passing = time.monotonic(), False
        if now < self._passes_until:
            return True
        if head.step_index != self._left_to_others and self._is_first():
            return True
        if head.revision != self._seen:
            self._seen, self._seen_at = head.revision, now
        if now - self._seen_at < PATIENCE_S:
            return False
        # A stopped process must not hold up the run.
        self._is_passing = True
        return True

    def _is_first(self) -> bool:
        return self.enter() if self._is_queued else not self._own.is_awaited()

    def enter(self) -> bool:
        """Be in the queue from now on; return whether nobody has waited longer."""
        self._is_queued = True
        return self._own.enter()

    def wait(
        self, head: Head, timeout_s: float | None, wake_fd: int, claim: Claim | None = None
    ) -> bool:
        """Sleep until this process has to look at the run; return whether *head* is old.

        The arguments are those of `Store.wait`.
        """
        is_ready = head.revision == self._seen
        pause = PATIENCE_S if is_ready else RECHECK_S
        limit = pause if timeout_s is None else min(timeout_s, pause)
        if not self.enter():
            self._own.wait(limit, wake_fd)
        elif not is_ready:
            return self._store.wait(head.revision, timeout_s, wake_fd=wake_fd, claim=claim)
        elif head.step_index == self._left_to_others:
            return self._store.wait(head.revision, limit, wake_fd=wake_fd)
        newest = self._store.view().head
        return newest is None or newest.revision != head.revision

    def leave(self) -> None:
        """Give the place back, with the claim in hand or at the end of the work."""
        if self._is_passing:
            self._passes_until, self._is_passing = time.monotonic() + PASSES_S, False
        self._own.leave()
        self._is_queued, self._left_to_others = False, None
