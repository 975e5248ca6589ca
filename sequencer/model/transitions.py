"""Every change of a head, as pure functions from head to `Transition`.

The rules are those of docs/protocol.md: step_index moves on acceptance only, tokens are
granted once and never reused, a change by the holder of a claim needs the claim's token.
Not decided here: whether a claim may be taken over (that takes a look at the owner), and
which step comes next (`line.order`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import ClaimHeld, StaleClaim, TransitionRefused, WaitsForPerson
from sequencer.model.head import Claim, Gate, Head, Owner, Session, Status
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage


class Event(StrEnum):
    """What a journal record says has happened."""

    INITIALISED = "initialised"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    TAKEN_OVER = "taken-over"
    APPROVED = "approved"
    REJECTED = "rejected"
    FEEDBACK = "feedback"
    PAUSED = "paused"
    RESUMED = "resumed"
    STAMPED = "stamped"
    SKIPPED = "skipped"
    EDITED = "edited"
    REWOUND = "rewound"
    RESET = "reset"
    ADOPTED = "adopted"
    COMPLETED = "completed"
    INVALID = "invalid"
    """A step that judges said "no"; its fixer or another try follows."""
    FIXED = "fixed"
    """The fixer of a step that judges was accepted; step_index stays."""
    STARTED = "started"
    """A node that does no work was reached, with all its tokens."""
    PASSED = "passed"
    """A node that does no work was left."""
    ASKED = "asked"
    """A node's question waits for a person."""
    ANSWERED = "answered"
    EXPIRED = "expired"
    """Nobody answered in time."""
    LOOPED = "looped"
    """A back edge was followed."""
    DIVERTED = "diverted"
    """After a failure for good the run goes on at its error node."""
    EXHAUSTED = "exhausted"
    """A back edge was not followed, because the run may not loop so often."""
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    GROWN = "grown"
    """Tasks were added to the graph."""
    TOLD = "told"
    """A task was sent a message."""
    WARNED = "warned"
    """A budget comes to its end, or is at its end."""


class Fact(Struct, frozen=True):
    """One thing that happened; a transition has one or more."""

    event: Event
    step: str
    step_index: int
    """Of the step that the event is about, not of the head that follows."""
    token: int = 0
    attempt: int = 0
    outcome: Mapping[str, Any] | None = None
    """What is worth keeping about it: status, output, usage, note."""


class Transition(Struct, frozen=True):
    """A new head and the facts that led to it; the store adds revision and offset."""

    head: Head
    facts: tuple[Fact, ...]
    document: tuple[str, bytes] | None = None
    """Name and content, to be kept before the head."""
    keeps: frozenset[str] | None = None
    """Other documents of the marking that stay; None: all do."""

    def then(self, later: Transition) -> Transition:
        """Return both as one transition: one journal record, accepted or lost together."""
        return Transition(later.head, self.facts + later.facts)


class StepRef(Struct, frozen=True):
    """Where a run stands in its workflow: an index and the step there."""

    step_index: int
    step: str
    """Name of the step to run; empty behind the end of a procedure."""
    prompt: str
    is_end: bool = False
    stage: Literal["step", "fix"] = "step"
    """fix: the fixer of the step at this index, see `Loop`."""


def resting_status(head: Head) -> Status:
    """Return the status that *head* has when nobody holds a claim and nothing stops it."""
    if head.flow is not None:
        return head.flow.rest
    if head.is_at_gate:
        return Status.WAITING_APPROVAL
    if head.failures_in_row:
        return Status.FAILED
    if head.step_index == 0 and head.usage.steps == 0:
        return Status.IDLE
    return Status.WAITING_NEXT


def changed(head: Head, at: str, **update: Any) -> Head:
    """Return *head* with *update*, written at *at*."""
    return head.replace(last_update=at, **update)


def moved(head: Head, at: str, place: StepRef, **update: Any) -> Head:
    """Return *head* at *place*, with the counters of the step that it leaves cleared."""
    return changed(
        head,
        at,
        step_index=place.step_index,
        iteration=place.step_index + 1,
        expected_step=place.step,
        failures_in_row=0,
        attempt=0,
        not_before=None,
        not_before_reason=None,
        not_before_since=None,
        **({"loop": None} | update),
    )


def at_rest(head: Head) -> Head:
    """Return *head* with the status of a run in which nobody works."""
    if head.claims:
        return head.replace(status=Status.RUNNING)
    if head.pause_requested:
        return head.replace(status=Status.PAUSED, pause_requested=False)
    return head.replace(status=resting_status(head))


def at_rest_by_hand(head: Head, new: Head) -> Head:
    """Return *new*, which a person has made of *head*, at rest; only `resume` ends a pause."""
    if head.status is Status.PAUSED:
        return new.replace(status=Status.PAUSED)
    return at_rest(new)


def without_claim(head: Head, token: int) -> tuple[Claim, ...]:
    """Return the claims of *head* but the one with *token*."""
    return tuple([claim for claim in head.claims if claim.token != token])


def held_claim(head: Head, token: int) -> Claim:
    """Return the claim with *token*.

    Raises:
        StaleClaim: it is not in the head, because the step was taken over, rewound or
            decided by hand; whatever its holder produced must not be accepted.
    """
    claim = head.claim_with(token)
    if claim is None:
        message = f"token {token} is stale: the run is at revision {head.revision}, "
        message += f"step_index {head.step_index}, newest token {head.token}"
        raise StaleClaim(
            message, hint="the output was kept; 'sequencer history' shows who continued"
        )
    return claim


def initialise(head: Head, told: Mapping[str, Any] | None = None) -> Transition:
    """Return the first transition of a run; *told* is kept with it."""
    fact = Fact(Event.INITIALISED, head.expected_step, head.step_index, outcome=told)
    return Transition(head, (fact,))


def ensure_claimable(head: Head) -> None:
    """Return if a step may be started, claims of others aside.

    Raises:
        TransitionRefused: the run is complete, stopped or paused.
        WaitsForPerson: a gate waits for a decision.
    """
    if head.status is Status.COMPLETE:
        raise TransitionRefused("the run is complete", hint="'sequencer reset' starts a new one")
    if head.exit:
        reason = f": {head.exit_reason}" if head.exit_reason else ""
        raise TransitionRefused(
            f"the run was stopped{reason}", hint="'sequencer resume' lets it continue"
        )
    if head.status is Status.PAUSED or head.pause_requested:
        raise TransitionRefused("the run is paused", hint="'sequencer resume' lets it continue")
    if head.status is Status.WAITING_APPROVAL:
        raise WaitsForPerson("the run is waiting for an approval")


_AT_ONCE: Mapping[str, None] = dict.fromkeys(
    ("not_before", "not_before_reason", "not_before_since")
)
"""Of a head whose next step waits for no date."""


def claim(
    head: Head,
    place: StepRef,
    owner: Owner,
    *,
    at: str,
    ttl_s: float,
    at_boottime: float | None = None,
    may_take_over: bool = False,
    used: Usage | None = None,
) -> Transition:
    """Grant the next token for *place* to *owner*, whose clock since boot is *at_boottime*.

    *used* is what was seen of an attempt whose claim it takes over.

    Raises:
        ClaimHeld: somebody holds the step, and *may_take_over* is false.
        TransitionRefused: see `ensure_claimable`.
    """
    ensure_claimable(head)
    held = _held_at(head, place.step_index) if head.claims else None
    if held is not None and not may_take_over:
        raise held_by(held)
    token, attempt = head.token + 1, head.attempt + 1
    # Not checked: a step makes one, of values that were.
    granted = Claim.model_construct(
        token=token,
        step=place.step,
        step_index=place.step_index,
        attempt=attempt,
        owner=owner,
        claimed_at=at,
        ttl_s=ttl_s,
        claimed_boottime=at_boottime,
    )
    others = without_claim(head, held.token) if held else head.claims
    new = changed(
        head,
        at,
        usage=head.usage.plus(used, steps=0) if held and used else head.usage,
        token=token,
        attempt=attempt,
        claims=(*others, granted),
        status=Status.RUNNING,
        expected_step=place.step,
        last_prompt=place.prompt,
        **_AT_ONCE,
    )
    fact = Fact(Event.CLAIMED, place.step, place.step_index, token, attempt)
    return Transition(new, (fact,) if held is None else (taken_over(held, used), fact))


def _held_at(head: Head, step_index: int) -> Claim | None:
    return next((claim for claim in head.claims if claim.step_index == step_index), None)


def held_by(held: Claim) -> ClaimHeld:
    """Return that somebody holds *held*, for whoever wanted its step."""
    return ClaimHeld(
        f"step {held.step!r} (step_index {held.step_index}) is being run by {held.owner.words}, "
        f"token {held.token}",
        hint="wait for it (--max-wait), or 'sequencer takeover --force' if it is really gone",
    )


def taken_over(held: Claim, used: Usage | None, note: str | None = None) -> Fact:
    """Return that somebody else has the step of *held*, and what was *used* of it by then."""
    told: dict[str, Any] = {"note": note or f"token {held.token} of {held.owner.words}"}
    if used is not None:
        told |= {"usage": used.model_dump(exclude_defaults=True), "incomplete": True}
    event = Event.TAKEN_OVER
    return Fact(event, held.step, held.step_index, held.token, held.attempt, outcome=told)


def drop(head: Head, held: Claim, used: Usage, *, at: str) -> Transition:
    """Drop the claim *held* of a process that is gone, and has *used* that; nobody takes it."""
    spent = head.usage.plus(used, steps=0)
    new = changed(head, at, claims=without_claim(head, held.token), usage=spent)
    return Transition(at_rest(new), (taken_over(held, used),))


def session_of(outcome: Outcome, executor: str, at: str) -> Session | None:
    """Return the conversation of an *outcome* that was accepted at *at*; None: there is none."""
    if not outcome.session_id:
        return None
    return Session(
        executor=executor,
        id=outcome.session_id,
        steps=outcome.session_steps,
        context_tokens=outcome.context_tokens,
        used_at=at,
    )


def succeed(
    head: Head,
    token: int,
    outcome: Outcome,
    following: StepRef,
    *,
    at: str,
    record: Mapping[str, Any],
    executor: str | None = None,
    gate: Gate | None = None,
) -> Transition:
    """Accept the step that is held with *token* and move to *following*.

    *record* is what the journal keeps of the outcome. With *gate* the run waits there for a
    person, whatever the agent said: its "complete" is no approval.

    Raises:
        StaleClaim: see `held_claim`.
    """
    held = held_claim(head, token)
    session = head.session
    if executor is not None:
        session = session_of(outcome, executor, at) if outcome.session_id else None
    new = moved(
        head,
        at,
        following,
        claims=without_claim(head, token),
        usage=head.usage.plus(outcome.usage, steps=1),
        last_prompt=outcome.prompt or head.last_prompt,
        session=session,
        gate=gate or head.gate,
    )
    used = outcome.usage
    if used.cost_usd and not used.unpriced:
        new = new.costing(held.step, used.cost_usd)
    fact = Fact(Event.SUCCEEDED, held.step, held.step_index, token, held.attempt, outcome=record)
    is_done = outcome.status is OutcomeStatus.COMPLETE or following.is_end
    if is_done and not new.is_at_gate:
        done = new.replace(status=Status.COMPLETE, pause_requested=False)
        return Transition(done, (fact, replace(fact, event=Event.COMPLETED, outcome=None)))
    return Transition(at_rest(new), (fact,))


def ended(
    head: Head,
    token: int,
    event: Event,
    usage: Usage | None,
    *,
    at: str,
    record: Mapping[str, Any] | None,
    steps: int = 0,
    **update: Any,
) -> Transition:
    """Return that the attempt with *token* has ended as *event* says; step_index stays.

    *steps* is how many of its own the run counts for it, *record* what the journal keeps.

    Raises:
        StaleClaim: see `held_claim`.
    """
    held = held_claim(head, token)
    used = head.usage.plus(usage, steps=steps) if usage else head.usage
    new = changed(head, at, claims=without_claim(head, token), usage=used, **update)
    fact = Fact(event, held.step, held.step_index, token, held.attempt, outcome=record)
    return Transition(at_rest(new), (fact,))


RETRY = "retry"
"""Reason of a head whose step has failed and is tried again at its date."""


def _waits(not_before: str | None, reason: str | None, at: str) -> dict[str, Any]:
    """Return the fields of a head in which no step starts before *not_before*, if that is set."""
    return {
        "not_before": not_before,
        "not_before_reason": reason if not_before else None,
        "not_before_since": at if not_before else None,
    }


def failure_number(head: Head) -> int:
    """Return how often the present step of *head* has failed once its attempt fails.

    A judge's "no" ends a row of failures, but not the count of its rounds that were used up.
    """
    loop = head.loop
    used_up = loop.exhausted if loop is not None and loop.stage == "verify" else 0
    return max(head.failures_in_row, used_up) + 1


def fail(
    head: Head,
    token: int,
    outcome: Outcome,
    *,
    at: str,
    record: Mapping[str, Any],
    not_before: str | None = None,
) -> Transition:
    """Record that the attempt with *token* failed; step_index stays.

    *not_before* is the date of the next automatic attempt, if the step has a retry left.

    Raises: see `ended`.
    """
    waits = _waits(not_before, RETRY, at)
    return ended(
        head,
        token,
        Event.FAILED,
        outcome.usage,
        at=at,
        record=record,
        failures_in_row=failure_number(head),
        **waits,
    )


def release(
    head: Head,
    token: int,
    *,
    at: str,
    record: Mapping[str, Any] | None = None,
    usage: Usage | None = None,
    not_before: str | None = None,
    reason: str | None = None,
) -> Transition:
    """Give the claim with *token* back; the run is what it was, and nothing failed.

    The attempt counts, also one that met a usage limit and is due again at *not_before*:
    that bounds how often an agent is asked without progress.

    Raises: see `ended`.
    """
    waits = _waits(not_before, reason, at)
    return ended(head, token, Event.RELEASED, usage, at=at, record=record, **waits)


def pause_after(head: Head, ended: Fact, why: str) -> Transition:
    """Let the run of *head* pause after what *ended* says, because of *why*.

    A run that is over, or waits for a person anyway, stays as it is.
    """
    if head.status is Status.COMPLETE or head.is_at_gate or head.exit:
        return Transition(head, ())
    fact = replace(ended, event=Event.PAUSED, outcome={"note": why})
    if head.claims:
        return Transition(head.replace(pause_requested=True, exit_reason=why), (fact,))
    return Transition(head.replace(status=Status.PAUSED, exit_reason=why), (fact,))


def fact_at(event: Event, head: Head, note: str | None = None) -> Fact:
    """Return that *event* has happened where *head* is."""
    outcome = {"note": note} if note else None
    return Fact(event, head.expected_step, head.step_index, head.token, head.attempt, outcome)


def with_end(fact: Fact, head: Head) -> tuple[Fact, ...]:
    """Return *fact*, and that the run is complete if *head* is."""
    if head.status is not Status.COMPLETE:
        return (fact,)
    return (fact, Fact(Event.COMPLETED, fact.step, fact.step_index, fact.token, fact.attempt))
