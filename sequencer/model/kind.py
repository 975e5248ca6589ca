"""What the engine asks of a kind of workflow: what may happen in a run, and what follows from it.

A kind is pure: a head and what has happened go in, a `Transition` or one of our errors comes
out. Time, chance and limits are arguments; revisions, the texts of prompts, outputs and who is
alive are not its business. So the same object serves every store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol

from msgspec import Struct, field

from sequencer.errors import SequencerError
from sequencer.model.head import Claim, Flow, Head, Owner, Status, Work
from sequencer.model.limits import RunLimits, utc
from sequencer.model.line.order import Description, place
from sequencer.model.outcome import Decision, Outcome, Verdict
from sequencer.model.standing import Standing, standing
from sequencer.model.step import Step
from sequencer.model.transitions import Fact, Place, Transition
from sequencer.model.workflow import Workflow

Words = Mapping[str, Any]
"""What a person has said with a verb, by name."""


def fresh_head(
    workflow: Workflow, run_id: str, *, at: str, name: str | None, has_definition: bool
) -> Head:
    """Return the head of a run of *workflow* that was never begun."""
    is_net = workflow.graph is not None
    return Head(
        run_id=run_id,
        run_name=name,
        workflow_name=workflow.name,
        workflow_digest=workflow.digest(),
        params=dict(workflow.params),
        expected_step=place(workflow, 0).step,
        last_update=at,
        has_definition=has_definition,
        flow=Flow(rest=Status.IDLE, begun_at=at, marking={}) if is_net else None,
    )


class Performed(Struct, frozen=True):
    """One attempt that has ended, and what is made of it."""

    outcome: Outcome
    step: Step
    """As it was run in the end; the router or a hook may have changed it."""
    place: Place
    agent: str
    log: str | None = None
    """Path of the step log."""
    verdict: Verdict | None = None
    """Of a step that judges."""
    decision: Decision | None = None
    """A hook's, about where the run goes."""
    is_final: bool = False
    """Another attempt would fail in the same way; no agent was run."""
    began_at: str | None = None
    """ISO 8601 UTC, to the millisecond; None: nothing was begun."""
    note: str | None = None
    """What history tells of how its step was chosen, where that is odd."""


class Ended(Struct, frozen=True):
    """An attempt that has ended, ready to become part of a transition."""

    claim: Claim
    performed: Performed
    record: Mapping[str, Any]
    """For the journal."""
    ending: Any = None
    """What its kind has made of it before the lock was taken, where it does that."""
    reference: Any = None
    """Where its output was kept."""
    jitter: float = 0.0
    """A random number below 1, for the date of another attempt."""
    postponed: str | None = None
    """Why this machine could not run it now; it counts as no attempt."""


class Room(Struct, frozen=True):
    """Which steps a process may claim in one transition."""

    owner: Owner
    ttl_s: float
    boottime: float | None
    slots: int
    """How many."""
    gone: frozenset[int] = frozenset()
    """Tokens of claims that may be taken over."""
    limits: RunLimits = field(default=RunLimits())
    closed: Callable[[Head, Any], Collection[str]] = lambda *_: ()
    """The nodes that are not to be begun now, with the run's marking."""
    share: Callable[[Head, Any, str, int], Mapping[str, float]] = lambda *_: {}
    """What is held for an attempt at a node, by unit, where so many may begin now."""


class OpenChange(Protocol):
    """One transition that is being made; whoever opened it lets something happen first."""

    head: Head
    facts: list[Fact]
    granted: list[int]
    """Tokens of the claims that it grants."""

    def settle(self, room: Room | None) -> None:
        """Continue until nothing follows by itself, and claim what *room* allows."""


class Kind(Protocol):
    """Decides over the runs of one workflow."""

    workflow: Workflow
    has_one_place: ClassVar[bool]
    """One step runs at a time, so that an attempt needs no thread of its own."""

    def fresh(
        self, run_id: str, *, at: datetime, name: str | None = None, has_definition: bool = False
    ) -> Head:
        """Return the head of a run, called *name*, that was never begun."""
        return fresh_head(
            self.workflow, run_id, at=utc(at), name=name, has_definition=has_definition
        )

    def begins_with(self, source: Any, before: Head | None = None) -> tuple[str, bytes] | None:
        """Return the document that is kept before the head of a run; None: the head has all.

        *source* says where the workflow is from, if not from the settings. With *before*, the
        run of that head continues under the workflow.
        """
        del source, before
        return None

    def ready(self, head: Head, limits: RunLimits, *, at: datetime) -> Standing:
        """Return what may begin now, or why nothing may, and until when."""
        return standing(head, self.workflow, limits, at)

    def begin(
        self,
        head: Head,
        place: Place,
        owner: Owner,
        *,
        at: datetime,
        ttl_s: float,
        boottime: float | None = None,
        may_take_over: bool = False,
    ) -> Transition:
        """Grant the next token for *place* to *owner*, whose clock since boot is *boottime*.

        Raises:
            ClaimHeld: somebody holds it and *may_take_over* is false.
            TransitionRefused: nothing may begin.
        """

    def open(self, head: Head, *, at: datetime) -> Any:
        """Return a transition of *head* that is to be made, an `OpenChange`.

        Raises:
            DefinitionChanged: see `ensure_definition`; not of a line, whose attempts end all
                the same.
        """

    def close(self, change: Any, work: Work | None = None) -> Transition:
        """Return what *change*, opened here, makes of its head; *work* is what moves with it."""

    def end(self, head: Head, token: int, ended: Ended, *, at: datetime) -> Transition:
        """Return what the end of the attempt with *token* makes of *head*.

        Raises:
            StaleClaim: the claim is gone.
        """

    def expire(self, head: Head, token: int, why: str, *, at: datetime) -> Transition:
        """Give back the claim with *token*, whose attempt has vanished: nothing failed.

        Raises: see `end`.
        """

    def lapse(self, head: Head, *, at: datetime) -> Transition | None:
        """Do what was agreed for what nobody has answered in time; None: there is nothing."""

    def refusal(self, verb: str) -> SequencerError | None:
        """Return why runs of this kind never do what *verb* says; None: they may.

        A verb is a change by hand, a mode, or a way to work: ``turn``,
        ``step-index``.
        """
        del verb
        return None

    def ensure_may(self, verb: str) -> None:
        """Return if runs of this kind do what *verb* says; see `refusal`.

        Raises:
            SequencerError: they never do.
        """
        if (refusal := self.refusal(verb)) is not None:
            raise refusal

    def positions(self, wanted: Collection[str]) -> list[str]:
        """Return the names of the positions *wanted*, which are names or places from 0.

        Raises:
            UnknownName: there is no such position.
            UsageRefused: the kind has none.
        """

    def upcoming(
        self, head: Head | None, count: int, step_index: int | None = None
    ) -> list[Description]:
        """Return at most *count* steps that come next, from *step_index* or where *head* is.

        Without a head the run was never begun.
        """

    def workflow_of(self, head: Head) -> Workflow:
        """Return the workflow of the run of *head*, with what was added to it."""
        del head
        return self.workflow

    def by_hand(self, head: Head, verb: str, words: Words, *, at: datetime, by: str) -> Transition:
        """Return what a person makes of *head* with *verb*.

        Raises:
            TransitionRefused: the run does not allow it as it stands, or its kind never does.
        """
