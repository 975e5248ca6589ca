"""What the engine asks of a kind of workflow: what may happen in a run, and what follows from it.

A kind is pure: a head and what has happened go in, a `Transition` or one of our errors comes
out. Time, chance and limits are arguments; revisions, the texts of prompts, outputs and who is
alive are not its business. So the same object serves every store.

What stands in the way of a step is the same for every kind: `readiness` says it from the head
alone. Not decided here: whether the holder of a claim is alive, and whose position it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from msgspec import Struct, field

from sequencer.errors import SequencerError, TooManyFailures, command
from sequencer.model.commands import RunCommand
from sequencer.model.graph.graph import Graph
from sequencer.model.head import Claim, Flow, Gate, Head, Owner, Status, Work
from sequencer.model.limits import RunLimits, is_past, parse_time, utc
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus, Usage, Verdict
from sequencer.model.sequence.order import Description, place, present
from sequencer.model.step import Step
from sequencer.model.transitions import RETRY, Fact, StepRef, Transition
from sequencer.model.workflow import Workflow

STAGNATED = "stagnated"
"""Key of an attempt's record that says why the run pauses after it: its step repeats itself."""


class CommandContext(Struct, frozen=True, kw_only=True):
    """What a kind needs to apply a command, in addition to the run."""

    at: datetime
    by: str = ""
    """Who decides at a gate, answers or sends a message."""
    fresh: Head | None = None
    """For `commands.Reset`: the head of the new run."""
    used: Mapping[int, Usage] = MappingProxyType({})
    """For a take-over: what was seen of the attempts that lose their claims, by token."""


"""What a person has said with a verb, by name."""


class ReadinessKind(StrEnum):
    """The answers to "may a step start?"."""

    READY = "ready"
    HELD = "held"
    """Somebody runs it."""
    NOT_YET = "not-yet"
    """A date has to come first."""
    PAUSED = "paused"
    STOPPED = "stopped"
    COMPLETE = "complete"
    LIMIT = "limit"
    """A limit of the run is reached."""
    PERSON = "person"
    """A gate waits for a decision, or the run was paused because a step repeats itself."""
    EXPIRED = "expired"
    """A gate waited as long as it may; whoever looks next records what was agreed for that."""
    REFUSED = "refused"
    """The step failed too often; a person has to look."""


MAX_CORRECTION = timedelta(minutes=1)
"""How far a clock may be set back before the pauses that it measured are given up."""

FINAL = frozenset({ReadinessKind.STOPPED, ReadinessKind.COMPLETE, ReadinessKind.LIMIT})
"""Nothing will start until somebody changes the run or its limits."""


class Readiness(Struct, frozen=True):
    """The answer, in words as well."""

    kind: ReadinessKind
    message: str
    place: StepRef
    until: str | None = None
    """For ``not-yet``: ISO 8601 UTC."""
    claim: Claim | None = None
    """For ``held``."""

    @property
    def is_final(self) -> bool:
        """Return whether a waiting process may as well end."""
        return self.kind in FINAL


def readiness(head: Head, workflow: Workflow, limits: RunLimits, now: datetime) -> Readiness:
    """Return what may happen next in the run of *head*."""
    here = present(workflow, head)
    if head.flow is not None and head.flow.rest is Status.FAILED:
        again = command(head.run_name, "retry")
        message = f"the run has ended as {head.flow.status}; {again} tries again"
        return Readiness(ReadinessKind.REFUSED, message, here)
    if head.status is Status.COMPLETE or (here.is_end and not head.is_at_gate):
        return Readiness(ReadinessKind.COMPLETE, _how_it_ended(head), here)
    if head.claims:
        held = head.claims[0]
        message = f"step {held.step!r} is being run by {held.owner.words}"
        message += f" (token {held.token}, since {held.claimed_at})"
        return Readiness(ReadinessKind.HELD, message, here, claim=held)
    blocked = blocked_by(head, limits, now)
    if blocked is not None:
        kind, message = blocked
        if head.asks and workflow.graph is not None:
            message = _with_titles(message, head.asks, workflow.graph)
        return Readiness(kind, message, here)
    due = parse_time(head.not_before) if head.not_before else None
    if due is not None and due > now and not _is_from_another_clock(head, now):
        message = _not_yet(head, here.step)
        return Readiness(ReadinessKind.NOT_YET, message, here, until=head.not_before)
    return Readiness(ReadinessKind.READY, f"step {here.step!r} is ready", here)


def _with_titles(message: str, names: Iterable[str], graph: Graph) -> str:
    """Return *message* with the titles of the nodes *names*, which it quotes."""
    for name in names:
        title = graph.by_id[name].title if name in graph.by_id else ""
        message = message.replace(repr(name), f"{name!r} ({title})", 1) if title else message
    return message


def tried_again(step: str, at: str, run_name: str | None) -> str:
    """Return in words that *step* has failed and is tried again, and how that is now."""
    return f"{step!r} failed; tried again at {at} ({command(run_name, 'retry')}: now)"


def _not_yet(head: Head, step: str) -> str:
    """Return what the run of *head* waits for, and how a person need not."""
    if head.not_before_reason == RETRY:
        return tried_again(step, str(head.not_before), head.run_name)
    return f"{head.not_before_reason or 'not due'}: nothing starts before {head.not_before}"


def blocked_by(head: Head, limits: RunLimits, now: datetime) -> tuple[ReadinessKind, str] | None:
    """Return which person's decision or which limit of the run stands in the way, if one does."""
    return _by_people(head, now) or _by_limits(head, limits)


def _how_it_ended(head: Head) -> str:
    if head.was_rejected:
        return f"the run was {head.exit_reason}"
    steps = head.usage.steps
    return f"the run is {head.ended_as or 'complete'} after {steps} step{'s' * (steps != 1)}"


def _is_from_another_clock(head: Head, now: datetime) -> bool:
    """Return whether ``not_before`` was set at a time that is still to come.

    The clock was set back since, or was wrong when it was read: to wait for its dates could
    take years, and what waits for them is a pause of minutes.
    """
    since = parse_time(head.not_before_since) if head.not_before_since else None
    return since is not None and now < since - MAX_CORRECTION


def on_hold(head: Head) -> tuple[ReadinessKind, str] | None:
    """Return that somebody has stopped or paused the run, and what lets it continue."""
    if head.exit:
        return ReadinessKind.STOPPED, _stopped_words(head)
    if head.status is Status.PAUSED or head.pause_requested:
        # With a reason it was no person, and somebody has to look.
        why = f": {head.exit_reason}" if head.exit_reason else ""
        message = f"the run is paused{why}; {command(head.run_name, 'resume')} lets it continue"
        return ReadinessKind.PERSON if why else ReadinessKind.PAUSED, message
    return None


def _by_people(head: Head, now: datetime) -> tuple[ReadinessKind, str] | None:
    """Return what somebody decided or has to decide."""
    if (held := on_hold(head)) is not None:
        return held
    if head.gate is not None and head.gate.is_open:
        return _at_gate(head.gate, now)
    if head.status is Status.WAITING_APPROVAL:
        if head.asks:
            names = ", ".join(map(repr, head.asks))
            gives = command(head.run_name, "answer NODE VALUE")
            return ReadinessKind.PERSON, f"{names} waits for an answer; {gives} gives it"
        return ReadinessKind.PERSON, "the run waits for an approval"
    return None


def _stopped_words(head: Head) -> str:
    if head.moved_to is not None:
        return f"the run was moved to {head.moved_to}; this is a closed copy"
    reason = f": {head.exit_reason}" if head.exit_reason else ""
    return f"the run was stopped{reason}; {command(head.run_name, 'resume')} lets it continue"


def gate_over(gate: Gate, now: datetime) -> str:
    """Return the message that *gate* has expired; empty if it has not."""
    if not is_past(gate.expires_at, now):
        return ""
    return f"nobody decided about {gate.step!r} until {gate.expires_at}: {gate.on_timeout}"


def _at_gate(gate: Gate, now: datetime) -> tuple[ReadinessKind, str]:
    if over := gate_over(gate, now):
        return ReadinessKind.EXPIRED, over
    until = f" until {gate.expires_at}, then {gate.on_timeout}" if gate.expires_at else ""
    return ReadinessKind.PERSON, (
        f"{gate.step!r} waits for a decision{until}; "
        "'sequencer inbox' shows it, 'sequencer answer' decides"
    )


def _by_limits(head: Head, limits: RunLimits) -> tuple[ReadinessKind, str] | None:
    """Return which limit of the run stands in the way."""
    if (reached := limits.reached(head)) is not None:
        return ReadinessKind.LIMIT, reached
    try:
        limits.ensure_may_try(head)
    except TooManyFailures as error:
        return ReadinessKind.REFUSED, error.in_one_line
    return None


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


class AttemptResult(Struct, frozen=True):
    """One attempt that has ended: how, and what its run and the journal are to have of it."""

    outcome: Outcome
    step: Step
    """As it was run in the end; the router or a hook may have changed it."""
    place: StepRef
    agent: str
    token: int = 0
    """Of its claim. 0: it had none, as in a simulation."""
    attempt: int = 0
    """Which try at its step it was, from 1."""
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
    ending: Any = None
    """What its kind makes of it before the lock is taken, where it does that."""
    record: Mapping[str, Any] = MappingProxyType({})
    """For the journal."""
    reference: Any = None
    """Where its output was kept."""
    jitter: float = 0.0
    """A random number below 1, for the date of another attempt."""
    postponed: str | None = None
    """Why this machine could not run it now; it counts as no attempt."""

    @property
    def has_failed(self) -> bool:
        """Return whether the attempt failed: neither put off nor interrupted, nor a judge's no."""
        if self.decision is not None:
            return self.decision.move is Move.FAIL
        return self.outcome.status is OutcomeStatus.FAILED and self.verdict is None


class Capacity(Struct, frozen=True):
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
    closes_with_each: bool = False
    """Each claim may close other nodes, even where nothing is held for it."""
    used: Mapping[int, Usage] = field(default_factory=dict)
    """What was seen of the use of the attempts that are gone, by their tokens."""


def slots_at(
    head: Head, limits: RunLimits, slots: int, gone: Collection[int], now: datetime
) -> int:
    """Return how many of a process's free *slots* the run of *head* lets it use.

    Claims whose tokens are in *gone* do not count: they may be taken over.
    """
    if slots <= 0 or blocked_by(head, limits, now) is not None:
        return 0
    if (most := limits.steps) is None:
        return slots
    # All that run now may be accepted.
    running = len(head.claims) - len(gone)
    return max(min(slots, most - head.usage.steps - running), 0)


class OpenChange(Protocol):
    """One transition that is being made; whoever opened it lets something happen first."""

    head: Head
    facts: list[Fact]
    granted: list[int]
    """Tokens of the claims that it grants."""

    def settle(self, capacity: Capacity | None) -> None:
        """Continue until nothing follows by itself, and claim what *capacity* allows."""


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

    def ready(self, head: Head, limits: RunLimits, *, at: datetime) -> Readiness:
        """Return what may begin now, or why nothing may, and until when."""
        return readiness(head, self.workflow, limits, at)

    def open(self, head: Head, *, at: datetime) -> Any:
        """Return a transition of *head* that is to be made, an `OpenChange`.

        Raises:
            DefinitionChanged: see `ensure_definition`; not of a line, whose attempts end all
                the same.
        """

    def take(self, change: Any, ended: AttemptResult) -> object:
        """Let *ended* end in *change*, opened here; a graph returns what the run makes of it.

        Raises:
            StaleClaim: its claim is gone.
        """

    def close(self, change: Any, work: Work | None = None) -> Transition:
        """Return what *change*, opened here, makes of its head; *work* is what moves with it."""

    def expire(self, head: Head, token: int, why: str, *, at: datetime) -> Transition:
        """Give back the claim with *token*, whose attempt has vanished: nothing failed.

        Raises:
            StaleClaim: the claim is gone.
        """

    def expire_waits(self, head: Head, *, at: datetime) -> Transition | None:
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

    def apply(self, head: Head, command: RunCommand, context: CommandContext) -> Transition:
        """Return the transition of *command* from *head*.

        Raises:
            TransitionRefused: the run does not allow it as it stands, or its kind never does.
        """
