"""The protocol of a kind of workflow: what may happen in a run, and what follows from it.

A kind is pure: it takes a head and an event, and returns a `Transition` or raises an error of
this program. Time, randomness and limits are arguments. A kind knows nothing of revisions, prompt
texts, outputs or live processes, so the same object serves every store.

What prevents a step from starting is the same for every kind: `readiness` decides it from the
head alone. Not decided here: whether the holder of a claim is alive, and which process takes a
position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from msgspec import Struct, field

from sequencer.errors import SequencerError, TooManyFailures, format_command
from sequencer.model.commands import RunCommand
from sequencer.model.graph.graph import Graph
from sequencer.model.head import Claim, Flow, Gate, Head, Owner, Status, Work
from sequencer.model.limits import RunLimits, format_utc_s, is_past, parse_time
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus, Usage, Verdict
from sequencer.model.sequence.order import Description, find_current_ref, find_step_ref
from sequencer.model.step import Step
from sequencer.model.transitions import RETRY, Fact, StepRef, Transition
from sequencer.model.workflow import Workflow

STAGNATED = "stagnated"
"""Key in the record of an attempt: why the run pauses after it, because its step repeats itself."""


class CommandContext(Struct, frozen=True, kw_only=True):
    """What a kind needs to apply a command, in addition to the run."""

    at: datetime
    by: str = ""
    """The person whose decision, answer or message it is."""
    fresh: Head | None = None
    """For `commands.Reset`: the head of the new run."""
    used: Mapping[int, Usage] = MappingProxyType({})
    """The known usage of the attempts that lose their claims by the command, by token."""


class ReadinessKind(StrEnum):
    """The answers to "may a step start?"."""

    READY = "ready"
    HELD = "held"
    """A process runs it."""
    NOT_YET = "not-yet"
    """It waits for a date."""
    PAUSED = "paused"
    STOPPED = "stopped"
    COMPLETE = "complete"
    LIMIT = "limit"
    """A limit of the run is reached."""
    PERSON = "person"
    """A gate waits for a decision, or the run was paused because a step repeats itself."""
    EXPIRED = "expired"
    """A gate has expired; the next process that checks records the configured decision."""
    REFUSED = "refused"
    """The step failed too often; a person has to look."""


MAX_CORRECTION = timedelta(minutes=1)
"""If a clock is set back further than this, the pauses that it measured are ignored."""

FINAL = frozenset({ReadinessKind.STOPPED, ReadinessKind.COMPLETE, ReadinessKind.LIMIT})
"""Nothing starts until a person changes the run or its limits."""


class Readiness(Struct, frozen=True):
    """Whether a step may start, and why, in words."""

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


def _with_titles(message: str, names: Iterable[str], graph: Graph) -> str:
    """Return *message* with a title after each of the quoted node *names*."""
    for name in names:
        title = graph.by_id[name].title if name in graph.by_id else ""
        message = message.replace(repr(name), f"{name!r} ({title})", 1) if title else message
    return message


def describe_retry(step: str, at: str, run_name: str | None) -> str:
    """Return the message that *step* failed and is tried again, with the command to do it now."""
    return f"{step!r} failed; tried again at {at} ({format_command(run_name, 'retry')}: now)"


def _describe_wait(head: Head, step: str) -> str:
    """Return what the run of *head* waits for, and how to start it now if there is a way."""
    if head.not_before_reason == RETRY:
        return describe_retry(step, str(head.not_before), head.run_name)
    return f"{head.not_before_reason or 'not due'}: nothing starts before {head.not_before}"


def find_obstacle(head: Head, limits: RunLimits, now: datetime) -> tuple[ReadinessKind, str] | None:
    """Return the kind and message of what blocks the run: a person's decision or a limit."""
    return _find_person_obstacle(head, now) or _find_limit_obstacle(head, limits)


def make_end_readiness(head: Head) -> Readiness:
    """Return the readiness of a complete run, whose workflow may have changed since its end."""
    end = StepRef(head.step_index, "", "", is_end=True)
    return Readiness(ReadinessKind.COMPLETE, _describe_end(head), end)


def _describe_end(head: Head) -> str:
    if head.was_rejected:
        return f"the run was {head.exit_reason}"
    steps = head.usage.steps
    return f"the run is {head.ended_as or 'complete'} after {steps} step{'s' * (steps != 1)}"


def _is_from_another_clock(head: Head, now: datetime) -> bool:
    """Return whether ``not_before`` was set at a time in the future.

    Then the clock was set back, or was wrong when the date was set. Such a date could be years
    away, although the pause was meant to take minutes.
    """
    start = parse_time(head.not_before_since) if head.not_before_since else None
    return start is not None and now < start - MAX_CORRECTION


def find_hold(head: Head) -> tuple[ReadinessKind, str] | None:
    """Return who has stopped or paused the run and how to continue it; None: it is not held."""
    if head.exit:
        return ReadinessKind.STOPPED, _describe_stop(head)
    if head.status is Status.PAUSED or head.pause_requested:
        # A pause with a reason was set by the program, so a person has to look.
        suffix = f": {head.exit_reason}" if head.exit_reason else ""
        message = (
            f"the run is paused{suffix}; {format_command(head.run_name, 'resume')} lets it continue"
        )
        return ReadinessKind.PERSON if suffix else ReadinessKind.PAUSED, message
    return None


def _find_person_obstacle(head: Head, now: datetime) -> tuple[ReadinessKind, str] | None:
    """Return what a person has decided or has to decide."""
    if (hold := find_hold(head)) is not None:
        return hold
    if head.gate is not None and head.gate.is_open:
        return _find_gate_obstacle(head.gate, now)
    if head.status is Status.WAITING_APPROVAL:
        if head.asks:
            names = ", ".join(map(repr, head.asks))
            answer = format_command(head.run_name, "answer NODE VALUE")
            return ReadinessKind.PERSON, f"{names} waits for an answer; {answer} gives it"
        return ReadinessKind.PERSON, "the run waits for an approval"
    return None


def _describe_stop(head: Head) -> str:
    if head.moved_to is not None:
        return f"the run was moved to {head.moved_to}; this is a closed copy"
    reason = f": {head.exit_reason.rstrip(' .')}" if head.exit_reason else ""
    return (
        f"the run was stopped{reason}; {format_command(head.run_name, 'resume')} lets it continue"
    )


def describe_expired_gate(gate: Gate, now: datetime) -> str:
    """Return the message that *gate* has expired; empty if it has not."""
    if not is_past(gate.expires_at, now):
        return ""
    return f"no one decided about {gate.step!r} by {gate.expires_at}: {gate.on_timeout}"


def _find_gate_obstacle(gate: Gate, now: datetime) -> tuple[ReadinessKind, str]:
    if message := describe_expired_gate(gate, now):
        return ReadinessKind.EXPIRED, message
    expiry_text = f" until {gate.expires_at}, then {gate.on_timeout}" if gate.expires_at else ""
    return ReadinessKind.PERSON, (
        f"{gate.step!r} waits for a decision{expiry_text}; "
        "'sequencer inbox' shows it, 'sequencer answer' decides"
    )


def _find_limit_obstacle(head: Head, limits: RunLimits) -> tuple[ReadinessKind, str] | None:
    """Return the limit that prevents the next step, if one does."""
    if (message := limits.describe_reached(head)) is not None:
        return ReadinessKind.LIMIT, message
    try:
        limits.ensure_may_try(head)
    except TooManyFailures as error:
        return ReadinessKind.REFUSED, error.in_one_line
    return None


def fresh_head(
    workflow: Workflow, run_id: str, *, at: str, name: str | None, has_definition: bool
) -> Head:
    """Return the head of a new run of *workflow*, in which nothing has started."""
    is_graph = workflow.graph is not None
    return Head(
        run_id=run_id,
        run_name=name,
        workflow_name=workflow.name,
        workflow_digest=workflow.digest(),
        params=dict(workflow.params),
        expected_step=find_step_ref(workflow, 0).step,
        last_update=at,
        has_definition=has_definition,
        flow=Flow(rest=Status.IDLE, begun_at=at, marking={}) if is_graph else None,
    )


class AttemptResult(Struct, frozen=True):
    """The result of one attempt: how it ended, and what the run and the journal keep of it."""

    outcome: Outcome
    step: Step
    """The step as it was run; the router or a hook may have changed it."""
    place: StepRef
    agent: str
    token: int = 0
    """Token of its claim. 0: it had no claim, as in a simulation."""
    attempt: int = 0
    """The number of this attempt at its step, from 1."""
    log: str | None = None
    """Path of the step log."""
    verdict: Verdict | None = None
    """The verdict, for a step that judges."""
    decision: Decision | None = None
    """The decision of a hook about where the run goes."""
    is_final: bool = False
    """Another attempt would fail in the same way; no agent was run."""
    began_at: str | None = None
    """ISO 8601 UTC, to the millisecond; None: no agent was started."""
    note: str | None = None
    """How its step was chosen, if that is unusual; the history shows it."""
    ending: Any = None
    """What its kind has decided about it before the lock was taken, if it does that."""
    record: Mapping[str, Any] = MappingProxyType({})
    """What the journal records about it."""
    reference: Any = None
    """Reference to its stored output."""
    jitter: float = 0.0
    """A random number below 1, for the date of the next attempt."""
    postponed: str | None = None
    """Why this machine could not run it now; it is tried again soon."""
    is_given_back: bool = False
    """Postponed before anything was paid, so it does not count as an attempt. Never on Temporal: no
    process ends there, so only the count of attempts limits the tries."""

    @property
    def has_failed(self) -> bool:
        """Return whether it failed: postponed, interrupted and a judge's "no" are not failures."""
        if self.decision is not None:
            return self.decision.move is Move.FAIL
        return self.outcome.status is OutcomeStatus.FAILED and self.verdict is None


class Capacity(Struct, frozen=True):
    """How many and which steps a process may claim in one transition."""

    owner: Owner
    ttl_s: float
    boottime: float | None
    """Seconds since the boot of the owner's machine, now; None: its leases don't use them."""
    slots: int
    """How many steps."""
    expired_tokens: frozenset[int] = frozenset()
    """Tokens of claims that may be taken over."""
    limits: RunLimits = field(default=RunLimits())
    closed: Callable[[Head, Any], Collection[str]] = lambda *_: ()
    """Returns, for a head and its marking, the nodes that must not start now."""
    share: Callable[[Head, Any, str, int], Mapping[str, float]] = lambda *_: {}
    """Returns the share of each unit to reserve for an attempt at a node. Its last argument is how
    many attempts may start now."""
    excluded: Callable[[Head, Any], Collection[str]] = lambda *_: ()
    """Returns, for a head and its marking, the nodes that its claims exclude."""
    used: Mapping[int, Usage] = field(default_factory=dict)
    """The known usage of the expired claims, by token."""


def count_slots(
    head: Head, limits: RunLimits, slots: int, expired_tokens: Collection[int], now: datetime
) -> int:
    """Return how many of a process's free *slots* it may use for the run of *head*.

    Claims in *expired_tokens* do not count, because they may be taken over.
    """
    if slots <= 0 or find_obstacle(head, limits, now) is not None:
        return 0
    if (max_steps := limits.steps) is None:
        return slots
    # Every running attempt may still be accepted and then counts as a step.
    running_count = len(head.claims) - len(expired_tokens)
    return max(min(slots, max_steps - head.usage.steps - running_count), 0)


class OpenChange(Protocol):
    """A transition under construction: the caller applies an event, then calls `settle`."""

    head: Head
    facts: list[Fact]
    granted: list[int]
    """Tokens of the claims that this transition grants."""

    def settle(self, capacity: Capacity | None) -> None:
        """Apply everything that follows automatically, and claim what *capacity* allows."""


class Kind(Protocol):
    """Decides about the runs of one workflow."""

    workflow: Workflow
    has_one_place: ClassVar[bool]
    """One step runs at a time, so that an attempt needs no separate thread."""

    def __repr__(self) -> str:
        """Return its class and the name of its workflow."""
        return f"<{type(self).__name__} of {self.workflow.name!r}>"

    def create_head(
        self, run_id: str, *, at: datetime, name: str | None = None, has_definition: bool = False
    ) -> Head:
        """Return the head of a new run called *name*, in which nothing has started."""
        return fresh_head(
            self.workflow, run_id, at=format_utc_s(at), name=name, has_definition=has_definition
        )

    def build_start_document(
        self, source: Any, before: Head | None = None
    ) -> tuple[str, bytes] | None:
        """Return the document to store before the head of a run; None: the head is enough.

        *source* says where the workflow comes from, if not from the settings. With *before*, the
        run of that head continues under this workflow.
        """
        del source, before
        return None

    def check_readiness(self, head: Head, limits: RunLimits, *, at: datetime) -> Readiness:
        """Return whether a step may start now, and if not, why and until when."""
        current_ref = find_current_ref(self.workflow, head)
        if head.flow is not None and head.flow.rest is Status.FAILED:
            retry_command = format_command(head.run_name, "retry")
            message = f"the run has ended as {head.flow.status}; {retry_command} tries again"
            return Readiness(ReadinessKind.REFUSED, message, current_ref)
        if head.status is Status.COMPLETE or (current_ref.is_end and not head.is_at_gate):
            return Readiness(ReadinessKind.COMPLETE, _describe_end(head), current_ref)
        if head.claims:
            claim = head.claims[0]
            message = f"step {claim.step!r} is being run by {claim.owner.words}"
            message += f" (token {claim.token}, since {claim.claimed_at})"
            return Readiness(ReadinessKind.HELD, message, current_ref, claim=claim)
        obstacle = find_obstacle(head, limits, at)
        if obstacle is not None:
            kind, message = obstacle
            if head.asks and self.workflow.graph is not None:
                message = _with_titles(message, head.asks, self.workflow.graph)
            return Readiness(kind, message, current_ref)
        due_time = parse_time(head.not_before) if head.not_before else None
        if due_time is not None and due_time > at and not _is_from_another_clock(head, at):
            message = _describe_wait(head, current_ref.step)
            return Readiness(ReadinessKind.NOT_YET, message, current_ref, until=head.not_before)
        return Readiness(ReadinessKind.READY, f"step {current_ref.step!r} is ready", current_ref)

    def open(self, head: Head, *, at: datetime) -> Any:
        """Start a transition of *head*; return it as an `OpenChange`.

        Raises:
            DefinitionChanged: see `ensure_definition`; a sequence does not raise it, because its
                attempts may end under a changed definition.
        """

    def apply_result(self, change: Any, result: AttemptResult) -> object:
        """Apply *result* to *change*, which `open` returned; a graph returns what follows from it.

        Raises:
            StaleClaim: its claim is gone.
        """

    def close(self, change: Any, work: Work | None = None) -> Transition:
        """Return *change*, which `open` returned, as a transition; *work* is the code to record."""

    def expire(self, head: Head, token: int, why: str, *, at: datetime) -> Transition:
        """Release the claim with *token*, whose attempt has disappeared; that is not a failure.

        Raises:
            StaleClaim: the claim is gone.
        """

    def expire_waits(self, head: Head, *, at: datetime) -> Transition | None:
        """Apply what is configured for expired gates and questions; None: there are none."""

    def refusal(self, verb: str) -> SequencerError | None:
        """Return the error that says why this kind does not support *verb*; None: it does.

        A verb is a command, a mode, or a way to work: ``turn``, ``step-index``.
        """
        del verb
        return None

    def ensure_supported(self, verb: str) -> None:
        """Check that this kind supports *verb*; see `refusal`.

        Raises:
            SequencerError: it does not.
        """
        if (refusal := self.refusal(verb)) is not None:
            raise refusal

    def resolve_positions(self, wanted: Collection[str]) -> list[str]:
        """Return the names of the positions *wanted*, which are names or numbers from 0.

        Raises:
            UnknownName: there is no such position.
            UsageRefused: the kind has none.
        """

    def list_upcoming(
        self, head: Head | None, count: int, step_index: int | None = None
    ) -> list[Description]:
        """Return at most *count* steps that come next, from *step_index* or where *head* is.

        Without a head, the run has not started yet.
        """

    def get_workflow(self, head: Head) -> Workflow:
        """Return the workflow of the run of *head*, with the tasks that were added to it."""
        del head
        return self.workflow

    def apply(self, head: Head, command: RunCommand, context: CommandContext) -> Transition:
        """Return the transition of *command* from *head*.

        Raises:
            TransitionRefused: the current state of the run, or its kind, does not allow it.
        """
