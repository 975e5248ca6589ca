"""Decides when a process records, claims, waits or ends, for every kind of workflow.

Pure: no I/O, no clock, no random numbers. A driver looks at the run, makes a `Seen` of it, asks
`next_move`, does that move, and looks again.

The order of the questions is the same for every kind. The kinds differ in the answers, so each
has its own `Seen`: `SequenceSeen` for cycles and procedures, and `decide_graph.GraphSeen` for
graphs. Not decided here: how many steps an open change claims; see `Capacity`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from msgspec import Struct

from sequencer.engine.invocation_budget import SequenceBudget
from sequencer.errors import Interrupted, SequencerError
from sequencer.model.head import Claim, Head, Status
from sequencer.model.kind import Kind, Readiness, ReadinessKind, find_hold
from sequencer.model.limits import parse_time

# --- moves -----------------------------------------------------------------------------


class RecordExpired(Struct, frozen=True):
    """Record that no one decided or answered in time, or that the run's time is up."""

    message: str = ""
    acts: tuple[Callable[[Any], object], ...] = ()
    """For a graph: functions that are called with an open change. A sequence has only its gate."""


class TakeClaims(Struct, frozen=True):
    """Claim the steps that can start."""


class Wait(Struct, frozen=True):
    """Sleep until the head changes, an attempt of this process ends, or a time comes."""

    message: str = ""
    until: datetime | None = None
    """When something becomes due even without a change; None: nothing does."""
    claim: Claim | None = None
    """The claim whose holder is watched."""
    is_for_others: bool = False
    """Whether it waits for other processes; the invocation limits how long."""
    hint: str = ""
    """What to do if the process may not wait any longer."""
    report: str | None = None
    """The message at the start of the wait; None: *message*."""
    date: str | None = None
    """The date in that message, ISO 8601 UTC."""
    needs_person: bool = False
    """Whether it waits for a process that a person has to start."""


class End(Struct, frozen=True):
    """End this invocation, for a reason or with an error."""

    reason: str = ""
    error: SequencerError | None = None


Move = RecordExpired | TakeClaims | Wait | End


# --- the decision ----------------------------------------------------------------------


def next_move(seen: Seen) -> Move:
    """Return the next move of the process that has *seen* the run."""
    try:
        if seen.is_over:
            return Wait() if seen.running else End(seen.describe_end())
        if (claim := seen.find_expired()) is not None:
            return claim
        if not seen.is_stopped and seen.tried_at is None and seen.may_claim():
            return TakeClaims()
        return Wait(until=seen.find_due_time()) if seen.running else _wait_or_end(seen)
    except SequencerError as error:
        return End(error=error)


def _wait_or_end(facts: Seen) -> Wait | End:
    """Return the move of a process that runs no attempt and can't start one."""
    if facts.is_stopped:
        _, hint = find_hold(facts.head) or (None, "start again to continue")
        return End(error=Interrupted(facts.interrupted, hint=hint))
    reason = facts.find_end_reason()
    return facts.make_wait() if reason is None else End(reason)


# --- the facts -------------------------------------------------------------------------


class Seen(ABC):
    """A run as one process sees it at one moment, and the answers of the run's kind."""

    interrupted: ClassVar[str] = "interrupted"
    """The message of a process that was asked to end."""

    def __init__(
        self,
        head: Head,
        at: datetime,
        *,
        expired_tokens: Collection[int] = (),
        running: Collection[int] = (),
        is_stopped: bool = False,
        tried_at: datetime | None = None,
    ) -> None:
        """Note the facts.

        *expired_tokens* are the claims that may be taken over, *running* the tokens of the
        attempts of this process. *tried_at* is when this process tried to claim at this head:
        there is nothing more to claim until the head changes or something becomes due.
        """
        self.head, self.at = head, at
        self.expired_tokens, self.running, self.is_stopped = expired_tokens, running, is_stopped
        self.tried_at = tried_at

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Return whether the run has ended, well or badly."""

    @abstractmethod
    def describe_end(self) -> str:
        """Return a sentence about how the run ended; call it only if the run is over.

        Raises:
            StepFailed: it ended badly.
        """

    @abstractmethod
    def find_expired(self) -> RecordExpired | None:
        """Return the move that records what has expired; None: nothing has."""

    @abstractmethod
    def may_claim(self) -> bool:
        """Return whether to try a claim; in a graph, only trying shows if a node can start."""

    @abstractmethod
    def find_due_time(self) -> datetime | None:
        """Return when something becomes due even without a change; None: nothing does."""

    @abstractmethod
    def find_end_reason(self) -> str | None:
        """Return why this invocation ends although the run continues; None: it waits.

        Raises: see `WorkLoop.work`.
        """

    @abstractmethod
    def make_wait(self) -> Wait:
        """Return the `Wait` to make, with its reason."""


class SequenceSeen(Seen):
    """The run of a cycle or a procedure: one step at a time."""

    interrupted = "interrupted; no step is running"

    def __init__(
        self, head: Head, at: datetime, kind: Kind, budget: SequenceBudget, **more: Any
    ) -> None:
        """Note the facts of `Seen`; *budget* is what this invocation has done and may do."""
        super().__init__(head, at, **more)
        self._kind, self._budget = kind, budget

    @cached_property
    def readiness(self) -> Readiness:
        """Whether a step may start, as if the expired claims had been removed."""
        head = self.head.drop_claims(self.expired_tokens)
        return self._kind.check_readiness(head, self._budget.run_limits, at=self.at)

    @property
    def is_over(self) -> bool:
        """Return whether there are no more steps."""
        return self.readiness.kind is ReadinessKind.COMPLETE

    def describe_end(self) -> str:
        """Return a sentence about how the run ended."""
        return self._budget.find_end_reason(self.readiness, self.head) or self.readiness.message

    def find_expired(self) -> RecordExpired | None:
        """Return the move that records that the gate has expired; None: it has not."""
        is_expired = self.readiness.kind is ReadinessKind.EXPIRED and self.head.gate is not None
        return RecordExpired(self.readiness.message) if is_expired else None

    def may_claim(self) -> bool:
        """Return whether a step is ready and this invocation may run it."""
        return self.readiness.kind is ReadinessKind.READY and self._budget.may_claim(self.head)

    def find_due_time(self) -> datetime | None:
        """Return when the step becomes due."""
        return parse_time(self.readiness.until) if self.readiness.until else None

    def find_end_reason(self) -> str | None:
        """Return why this invocation ends; its own limits come first.

        If the run is also paused, the pause wins: a person wants to know about it.

        Raises: see `WorkLoop.work`.
        """
        reason = self._budget.find_reached_limit(self.head)
        if reason is not None and self.head.status is not Status.PAUSED:
            return reason
        return self._budget.find_end_reason(self.readiness, self.head) or reason

    def make_wait(self) -> Wait:
        """Return the `Wait` for a date, or for other processes."""
        readiness, head = self.readiness, self.head
        if readiness.kind is ReadinessKind.NOT_YET:
            return Wait(readiness.message, until=self.find_due_time(), date=readiness.until)
        message = readiness.message
        if readiness.kind is ReadinessKind.READY:
            reason = "is not at a position of this process"
            if self._budget.is_mine(head.step_index):
                reason = "goes to a process that has waited longer"
            message = f"step {readiness.place.step!r} (step_index {head.step_index}) {reason}"
        hint = "wait for it with --max-wait"
        return Wait(message, claim=readiness.claim, is_for_others=True, hint=hint)
