"""The loop of a process that works on a run: it makes the moves that `decide` returns.

Modes differ in the answers of `decide`. Kinds differ in how a move is made, see `InlineLoop` and
`ThreadedLoop`. The store does the waiting: it wakes when the head changes, when the holder of
a claim ends, when an attempt of this process ends, or when this process is asked to stop.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import UTC, datetime
from typing import Generic, TypeVar

from sequencer.engine.allowance import subtract_used
from sequencer.engine.changes import follow_run
from sequencer.engine.decide import End, RecordExpired, Seen, TakeClaims, Wait, next_move
from sequencer.engine.events import NoticeGiven, Waiting
from sequencer.engine.invocation_budget import InvocationBudget, Mode, Summary
from sequencer.engine.worker import Worker
from sequencer.errors import ClaimHeld, RemoteUnreachable
from sequencer.model.head import Head, Status
from sequencer.model.outcome import Outcome

LOOK_S = 1.0
"""After this much work of agents, the limits of the run are read again."""
LONGEST_SLEEP_S = 60.0
"""A date is compared with the wall clock at least this often, because that clock may be set."""


def pause_s(until: datetime | None, most_s: float | None = LONGEST_SLEEP_S) -> float | None:
    """Return the seconds from now to *until*, at most *most_s*; None: no limit."""
    if until is None:
        return most_s
    pause = max((until - datetime.now(UTC)).total_seconds(), 0.0)
    return min(pause, LONGEST_SLEEP_S if most_s is None else most_s)


AnyWorker = TypeVar("AnyWorker", bound=Worker)
AnyBudget = TypeVar("AnyBudget", bound=InvocationBudget)
AnySeen = TypeVar("AnySeen", bound=Seen)


class WorkLoop(ABC, Generic[AnyWorker, AnyBudget, AnySeen]):
    """Works on a run in one mode until a limit, an end or an error."""

    def __init__(
        self, worker: AnyWorker, budget: AnyBudget, head: Head, default_wait_s: float | None
    ) -> None:
        """Start at *head*.

        *default_wait_s* is how long it waits for other processes; None: no limit.
        """
        self._store, self._performer, self._stop = worker.store, worker.performer, worker.stop
        self._worker, self._budget = worker, budget
        self._is_tick = budget.mode is Mode.TICK
        wait_s = budget.limits.max_wait_s
        self._longest_wait_s = default_wait_s if wait_s is None else wait_s
        if self._is_tick:
            # The next tick tries again.
            self._longest_wait_s = worker.retry_policy.wait_s = 0.0
        self._known, self._is_newest = head, False
        """The newest known head, and whether this process has just made it."""
        self._tried_at: datetime | None = None
        """When this process last tried to claim at that head; None: it has not."""
        self._waiting_since: float | None = None
        self._last_notice = ""
        self._last_wait: tuple[str, str | None] = "", None
        self._unlooked_s = 0.0
        """How long agents have worked since the limits of the run were read, in seconds."""
        self.summary = budget.summary

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
        workspace, head = self._performer.workspace, self._known
        if head.status is Status.COMPLETE:
            # An earlier process may have ended before it could merge the run's work.
            workspace.end(head)
        else:
            workspace.begin(head, self._stop)
        self._begin(head)
        try:
            reason = self._work()
        except BaseException as error:
            self._clean_up(error)
            raise
        self._clean_up(None)
        self.summary.reason, self.summary.head = reason, self._known
        if self._is_tick and self._known.status is not Status.COMPLETE:
            self.summary.obstacle = workspace.find_obstacle(self._known)
        return self.summary

    def _work(self) -> str:
        """Make moves until one of them ends the work; return the reason.

        Raises: see `work`.
        """
        while (end := self._make_move()) is None:
            pass
        if end.error is not None:
            raise end.error
        return end.reason

    def _make_move(self) -> End | None:
        """Do the next move; return it if it is the last."""
        self._record_ends()
        head = self._known if self._is_newest else self._read_newest_head()
        self._is_newest = False
        now = datetime.now(UTC)
        facts = self._collect_facts(head, now)
        self._known = facts.head
        match next_move(facts):
            case Wait() as move:
                self._wait(facts, move)
                self._tried_at = None
                if not facts.running:
                    self._renew_limits()
            case TakeClaims():
                if (newest_head := self._claim(facts)) is not None:
                    self._continue_at(newest_head, tried_at=now)
            case RecordExpired() as move:
                self._notify(move.message)
                # The record of the expiry may make the next steps ready.
                if (newest_head := self._expire(facts, move)) is not None:
                    self._continue_at(newest_head, tried_at=None)
            case End() as move:
                return move
        return None

    # --- the parts in which kinds of runs differ ------------------------------------

    @abstractmethod
    def _begin(self, head: Head) -> None:
        """Clean up after earlier processes."""

    @abstractmethod
    def _record_ends(self) -> None:
        """Record the attempts that have ended."""

    @abstractmethod
    def _collect_facts(self, head: Head, now: datetime) -> AnySeen:
        """Return the facts for a decision about *head*; they may have a newer head."""

    @abstractmethod
    def _expire(self, facts: AnySeen, move: RecordExpired) -> Head | None:
        """Record what has expired; return the newest head. None: look again."""

    @abstractmethod
    def _claim(self, facts: AnySeen) -> Head | None:
        """Claim and start the steps that can start; return the newest head. None: look again."""

    def _describe_wait(self, facts: AnySeen, move: Wait) -> Wait:
        """Return *move*, a wait for other processes, with the message for a person."""
        del facts
        return move

    @abstractmethod
    def _sleep(self, facts: AnySeen, move: Wait, timeout_s: float | None) -> bool:
        """Sleep as `Store.wait` does; return whether the wait for others starts over."""

    @abstractmethod
    def _clean_up(self, error: BaseException | None) -> None:
        """Stop everything that still runs, after the work or after the *error* that ended it."""

    # --- reading -------------------------------------------------------------------

    def _continue_at(self, head: Head, *, tried_at: datetime | None) -> None:
        """Continue at *head*, which this process has just made; see `Seen` for *tried_at*."""
        if head.revision != self._known.revision:
            self._waiting_since = None
        self._known, self._is_newest, self._tried_at = head, True, tried_at

    def _read_newest_head(self) -> Head:
        """Return the run's newest head, and report the notices that come with it."""
        view, known_head = self._store.view(), self._known
        if view.has_edit:
            # An edit of the file counts once it is recorded; a restored file is reported once.
            with suppress(RemoteUnreachable):
                self._store.update(lambda _: None)
                view = self._store.view()
        self._notify(*self._store.take_notices(), *view.notices)
        self._known = follow_run(self._store, known_head, view.head)
        if self._known.revision != known_head.revision:
            self._tried_at = None
        return self._known

    def _notify(self, *texts: str) -> None:
        """Report *texts*, once each: a view and an update may both find the same fault."""
        for text in texts:
            if text and text != self._last_notice:
                self._performer.emit(NoticeGiven(text))
                self._last_notice = text

    def _count_work(self, outcome: Outcome) -> None:
        """Read the limits of the run again after enough work, before the work is recorded.

        The record may claim the next step, which must obey the new limits.
        """
        self._unlooked_s += outcome.usage.seconds
        if self._unlooked_s >= LOOK_S:
            self._renew_limits()

    def _renew_limits(self) -> None:
        """Read the limits of the run again, and apply them from now on."""
        self._unlooked_s = 0.0
        self._notify(self._worker.renew_limits())
        self._budget.apply_limits(self._worker.limits)

    # --- waiting -------------------------------------------------------------------

    @property
    def _waits_for_others(self) -> bool:
        """Return whether this process may wait for other processes."""
        return self._longest_wait_s != 0.0

    def _wait(self, facts: AnySeen, move: Wait) -> None:
        """Sleep as long as *move* says.

        Raises:
            ClaimHeld: this process has waited for others as long as it may.
        """
        most_s: float | None = LONGEST_SLEEP_S
        if move.is_for_others:
            move = self._describe_wait(facts, move)
        if not move.is_for_others or self._waits_for_others:
            self._report(move)
        if move.is_for_others:
            most_s = self._compute_wait_left(move)
        if self._sleep(facts, move, pause_s(move.until, most_s)):
            self._waiting_since = None

    def _compute_wait_left(self, move: Wait) -> float | None:
        """Return how long the wait for others may still last; None: no limit.

        Raises:
            ClaimHeld: this process has waited as long as it may.
        """
        limit, now = self._longest_wait_s, time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        rest = subtract_used(limit, now - self._waiting_since)
        if rest is not None and rest <= 0:
            raise ClaimHeld(move.message, hint=move.hint)
        return rest

    def _report(self, move: Wait) -> None:
        """Report a wait, unless it is the same as the one reported last."""
        text = move.message if move.report is None else move.report
        if text and (text, move.date) != self._last_wait:
            self._last_wait = text, move.date
            self._performer.emit(Waiting(text, move.date, needs_person=move.needs_person))
