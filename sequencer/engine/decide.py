"""When does a process record, claim, wait or end? Decided here, for every kind of workflow.

Pure: no I/O, no clock, no chance. A driver looks at the run, makes a `Seen` of what it found,
asks `next_move`, does what the move says, and looks again.

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
from sequencer.model.kind import Kind, Readiness, ReadinessKind, on_hold
from sequencer.model.limits import parse_time

# --- moves -----------------------------------------------------------------------------


class RecordExpired(Struct, frozen=True):
    """Record what nobody decided or answered in time, or that the run's time is up."""

    message: str = ""
    acts: tuple[Callable[[Any], object], ...] = ()
    """For a graph: each is done in an open change. A sequence has only its gate."""


class TakeClaims(Struct, frozen=True):
    """Claim what can start."""


class Wait(Struct, frozen=True):
    """Sleep until the head changes, an attempt of this process ends, or a time comes."""

    message: str = ""
    until: datetime | None = None
    """When something becomes due by itself; None: nothing does."""
    claim: Claim | None = None
    """The claim whose holder is watched."""
    is_for_others: bool = False
    """Other processes are in the way, so the invocation limits how long this one waits."""
    hint: str = ""
    """What to do if it may not wait any longer."""
    report: str | None = None
    """What is said when the wait starts; None: *message*."""
    date: str | None = None
    """The date that is reported with it, ISO 8601 UTC."""
    needs_person: bool = False
    """Whether it waits for a process that somebody has to start."""


class End(Struct, frozen=True):
    """End this invocation, for a reason or with an error."""

    reason: str = ""
    error: SequencerError | None = None


Move = RecordExpired | TakeClaims | Wait | End


# --- the decision ----------------------------------------------------------------------


def next_move(seen: Seen) -> Move:
    """Return what a process does next that has *seen* this."""
    try:
        if seen.is_over:
            return Wait() if seen.own else End(seen.how_it_ended())
        if (expired := seen.expired()) is not None:
            return expired
        if not seen.is_stopped and seen.tried_at is None and seen.may_claim():
            return TakeClaims()
        return Wait(until=seen.due()) if seen.own else _wait_or_end(seen)
    except SequencerError as error:
        return End(error=error)


def _wait_or_end(seen: Seen) -> Wait | End:
    """Return what a process does that makes no attempt and can't start one."""
    if seen.is_stopped:
        _, held = on_hold(seen.head) or (None, "start again to continue")
        return End(error=Interrupted(seen.interrupted, hint=held))
    reason = seen.reason_to_end()
    return seen.wait() if reason is None else End(reason)


# --- what was seen ---------------------------------------------------------------------


class Seen(ABC):
    """A run as one process sees it at one moment, and what the run's kind says about it."""

    interrupted: ClassVar[str] = "interrupted"
    """What a process says that is asked to end."""

    def __init__(
        self,
        head: Head,
        at: datetime,
        *,
        gone: Collection[int] = (),
        own: Collection[int] = (),
        is_stopped: bool = False,
        tried_at: datetime | None = None,
    ) -> None:
        """Take the facts.

        *gone* are the tokens of claims that may be taken over, *own* those of the attempts
        that this process makes. *tried_at*: this process tried then to claim at this head, so
        there is no more to get until the head changes or something becomes due.
        """
        self.head, self.at = head, at
        self.gone, self.own, self.is_stopped = gone, own, is_stopped
        self.tried_at = tried_at

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Return whether the run has come to an end, good or bad."""

    @abstractmethod
    def how_it_ended(self) -> str:
        """Return in words how the run, which is over, has ended.

        Raises:
            StepFailed: it ended badly.
        """

    @abstractmethod
    def expired(self) -> RecordExpired | None:
        """Return what is to be recorded because its time has passed."""

    @abstractmethod
    def may_claim(self) -> bool:
        """Return whether to try to claim something; a graph finds out only by trying."""

    @abstractmethod
    def due(self) -> datetime | None:
        """Return when something becomes due by itself."""

    @abstractmethod
    def reason_to_end(self) -> str | None:
        """Return why this invocation ends, though the run goes on; None: it waits.

        Raises: see `WorkLoop.work`.
        """

    @abstractmethod
    def wait(self) -> Wait:
        """Return what this process waits for."""


class SequenceSeen(Seen):
    """The run of a cycle or a procedure: one step at a time."""

    interrupted = "interrupted; no step is running"

    def __init__(
        self, head: Head, at: datetime, kind: Kind, budget: SequenceBudget, **more: Any
    ) -> None:
        """Take the facts, see `Seen`; *budget* is what this invocation has done and may do."""
        super().__init__(head, at, **more)
        self._kind, self._budget = kind, budget

    @cached_property
    def here(self) -> Readiness:
        """Whether a step may start, once the claims that may be taken over are gone."""
        head = self.head
        if self.gone and head.claims:
            claims = tuple(claim for claim in head.claims if claim.token not in self.gone)
            head = head.replace(claims=claims)
        return self._kind.ready(head, self._budget.run_limits, at=self.at)

    @property
    def is_over(self) -> bool:
        """Return whether no step comes any more."""
        return self.here.kind is ReadinessKind.COMPLETE

    def how_it_ended(self) -> str:
        """Return in words how the run has ended."""
        return self._budget.reason_to_end(self.here, self.head) or self.here.message

    def expired(self) -> RecordExpired | None:
        """Return that the time of the gate has passed."""
        is_expired = self.here.kind is ReadinessKind.EXPIRED and self.head.gate is not None
        return RecordExpired(self.here.message) if is_expired else None

    def may_claim(self) -> bool:
        """Return whether a step is ready and this invocation may run it."""
        return self.here.kind is ReadinessKind.READY and self._budget.may_claim(self.head)

    def due(self) -> datetime | None:
        """Return when the step becomes due."""
        return parse_time(self.here.until) if self.here.until else None

    def reason_to_end(self) -> str | None:
        """Return why this invocation ends; a limit of its own comes first.

        A pause that ends it as well is what a person wants to read.

        Raises: see `WorkLoop.work`.
        """
        reached = self._budget.reached(self.head)
        if reached is not None and self.head.status is not Status.PAUSED:
            return reached
        return self._budget.reason_to_end(self.here, self.head) or reached

    def wait(self) -> Wait:
        """Return what this process waits for: a date, or other processes."""
        here, head = self.here, self.head
        if here.kind is ReadinessKind.NOT_YET:
            return Wait(here.message, until=self.due(), date=here.until)
        message = here.message
        if here.kind is ReadinessKind.READY:
            why = "is not at a position of this process"
            if self._budget.is_mine(head.step_index):
                why = "goes to a process that has waited longer"
            message = f"step {here.place.step!r} (step_index {head.step_index}) {why}"
        hint = "wait for it with --max-wait"
        return Wait(message, claim=here.claim, is_for_others=True, hint=hint)
