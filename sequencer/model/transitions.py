"""Every change of a head, as pure functions from head to `Transition`.

The rules are in docs/protocol.md: step_index moves on acceptance only, a token is granted once
and never reused, and the holder of a claim needs its token to change the head. Not decided here:
whether a claim may be taken over (that depends on its owner), and which step comes next
(`sequence.order`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import ClaimHeld, StaleClaim, TransitionRefused, WaitsForPerson
from sequencer.model.head import Claim, Gate, Head, Owner, Session, Status
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage, sum_usages
from sequencer.model.whole_numbers import MAX_USED

CLAIM_LOST = "claim-lost"
"""The reason of a release that only counts the usage of an attempt that had lost its claim."""


class Event(StrEnum):
    """The events that a journal records."""

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
    """All tokens of a node that does no work have reached it."""
    PASSED = "passed"
    """The run has left a node that does no work."""
    ASKED = "asked"
    """A node's question waits for a person."""
    ANSWERED = "answered"
    EXPIRED = "expired"
    """No one answered in time."""
    LOOPED = "looped"
    """A back edge was followed."""
    DIVERTED = "diverted"
    """After a permanent failure, the run continues at its error node."""
    EXHAUSTED = "exhausted"
    """A back edge was not followed, because the run has reached its limit of loops."""
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    GROWN = "grown"
    """Tasks were added to the graph."""
    TOLD = "told"
    """A message was sent to a step or task."""
    WARNED = "warned"
    """A budget is almost or completely used up."""


class Fact(Struct, frozen=True):
    """One event with its details; a transition has one or more facts."""

    event: Event
    step: str
    step_index: int
    """The index of the step that the event is about, not of the new head."""
    token: int = 0
    attempt: int = 0
    outcome: Mapping[str, Any] | None = None
    """Details such as status, output, usage or a note."""


class Transition(Struct, frozen=True):
    """A new head and the facts that led to it; the store adds revision and offset."""

    head: Head
    facts: tuple[Fact, ...]
    document: tuple[str, bytes] | None = None
    """Name and content of a document to store before the head."""
    keeps: frozenset[str] | None = None
    """Other documents of the marking to keep; None: keep all."""

    def combine(self, later: Transition) -> Transition:
        """Return both as one transition: one journal record, accepted or lost together."""
        return Transition(later.head, self.facts + later.facts)


class StepRef(Struct, frozen=True):
    """A position of a run in its workflow: an index and the step there."""

    step_index: int
    step: str
    """Name of the step to run; empty after the end of a procedure."""
    prompt: str
    is_end: bool = False
    stage: Literal["step", "fix"] = "step"
    """fix: the fixer of the step at this index, see `Loop`."""


def resting_status(head: Head) -> Status:
    """Return the status of *head* while no process holds a claim and nothing stops the run."""
    if head.flow is not None:
        return head.flow.rest
    if head.is_at_gate:
        return Status.WAITING_APPROVAL
    if head.failures_in_row:
        return Status.FAILED
    if head.step_index == 0 and head.usage.steps == 0:
        return Status.IDLE
    return Status.WAITING_NEXT


def update_head(head: Head, at: str, **update: Any) -> Head:
    """Return *head* with the fields of *update*, last updated at *at*."""
    return head.replace(last_update=at, **update)


NO_DATE: Mapping[str, None] = dict.fromkeys(("not_before", "not_before_reason", "not_before_since"))
"""Values of a head whose next step waits for no date."""


def move_head(head: Head, at: str, target: StepRef, **update: Any) -> Head:
    """Return *head* at *target*, with the counters of the step that it leaves cleared."""
    return update_head(
        head,
        at,
        step_index=target.step_index,
        iteration=target.step_index + 1,
        expected_step=target.step,
        failures_in_row=0,
        attempt=0,
        **{**NO_DATE, "loop": None, **update},
    )


def refresh_status(head: Head) -> Head:
    """Return *head* with the status that follows from its claims and fields."""
    if head.claims:
        return head.replace(status=Status.RUNNING)
    if head.pause_requested:
        return head.replace(status=Status.PAUSED, pause_requested=False)
    return head.replace(status=resting_status(head))


def refresh_status_by_hand(head: Head, new: Head) -> Head:
    """Return *new*, which a command created from *head*, at rest; only `resume` ends a pause."""
    if head.status is Status.PAUSED:
        return new.replace(status=Status.PAUSED)
    return refresh_status(new)


def claims_without(head: Head, token: int) -> tuple[Claim, ...]:
    """Return the claims of *head* except the one with *token*."""
    return tuple([claim for claim in head.claims if claim.token != token])


def require_claim(head: Head, token: int) -> Claim:
    """Return the claim with *token*.

    Raises:
        StaleClaim: it is not in the head, because another process took over the step, or a person
            rewound the run or decided the step; the holder's result must not be accepted.
    """
    claim = head.find_claim(token)
    if claim is None:
        newest = f", newest token {head.token}" if head.token != token else ""
        message = f"token {token} is stale because its claim is gone; the run is at revision "
        message += f"{head.revision}, step_index {head.step_index}{newest}"
        raise StaleClaim(
            message, hint="the output was kept; 'sequencer history' shows what happened"
        )
    return claim


def initialize(head: Head, details: Mapping[str, Any] | None = None) -> Transition:
    """Return the first transition of a run; its fact keeps *details*."""
    fact = Fact(Event.INITIALISED, head.expected_step, head.step_index, outcome=details)
    return Transition(head, (fact,))


def ensure_claimable(head: Head) -> None:
    """Check that a step may be started; claims are not checked.

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


def claim(
    head: Head,
    target: StepRef,
    owner: Owner,
    *,
    at: str,
    ttl_s: float,
    at_boottime: float | None = None,
    may_take_over: bool = False,
    used: Usage | None = None,
) -> Transition:
    """Grant the next token for *target* to *owner*, whose clock since boot is *at_boottime*.

    *used* is the known usage of the attempt whose claim *owner* takes over.

    Raises:
        ClaimHeld: a process holds the step, and *may_take_over* is false.
        TransitionRefused: see `ensure_claimable`.
    """
    ensure_claimable(head)
    rival = _find_claim_at(head, target.step_index) if head.claims else None
    if rival is not None and not may_take_over:
        raise claim_held_error(rival)
    token, attempt = head.token + 1, head.attempt + 1
    # Without checks, which take time: every value was checked before.
    grant = Claim.model_construct(
        token=token,
        step=target.step,
        step_index=target.step_index,
        attempt=attempt,
        owner=owner,
        claimed_at=at,
        ttl_s=ttl_s,
        claimed_boottime=at_boottime,
    )
    claims = claims_without(head, rival.token) if rival else head.claims
    new_head = update_head(
        head,
        at,
        usage=head.usage.plus(used, steps=0) if rival and used else head.usage,
        token=token,
        attempt=attempt,
        claims=(*claims, grant),
        status=Status.RUNNING,
        expected_step=target.step,
        last_prompt=target.prompt,
        **NO_DATE,
    )
    fact = Fact(Event.CLAIMED, target.step, target.step_index, token, attempt)
    return Transition(new_head, (fact,) if rival is None else (take_over_fact(rival, used), fact))


def _find_claim_at(head: Head, step_index: int) -> Claim | None:
    return next((claim for claim in head.claims if claim.step_index == step_index), None)


def claim_held_error(claim: Claim) -> ClaimHeld:
    """Return the error for a process that wants the step of *claim*, which is held."""
    return ClaimHeld(
        f"step {claim.step!r} (step_index {claim.step_index}) is being run by {claim.owner.words}, "
        f"token {claim.token}",
        hint="wait for it (--max-wait), or 'sequencer takeover --force' if it is really gone",
    )


def take_over_fact(claim: Claim, used: Usage | None, note: str | None = None) -> Fact:
    """Return the fact that *claim* was taken over, with the known usage *used* of its attempt."""
    details: dict[str, Any] = {"note": note or f"token {claim.token} of {claim.owner.words}"}
    if used is not None:
        details |= {"usage": used.model_dump(exclude_defaults=True), "incomplete": True}
    event = Event.TAKEN_OVER
    return Fact(event, claim.step, claim.step_index, claim.token, claim.attempt, outcome=details)


def drop(head: Head, claim: Claim, used: Usage, *, at: str) -> Transition:
    """Drop *claim* of a process that is gone, without a new claim; count its usage *used*."""
    total_usage = head.usage.plus(used, steps=0)
    new_head = update_head(head, at, claims=claims_without(head, claim.token), usage=total_usage)
    return Transition(refresh_status(new_head), (take_over_fact(claim, used),))


def drop_claims(head: Head, used: Mapping[int, Usage], note: str) -> tuple[Head, tuple[Fact, ...]]:
    """Return *head* without claims, with the usage *used* of their attempts, and the facts of it.

    *used* has what is known, by token. *note* says why the claims are dropped.
    """
    facts = tuple(take_over_fact(claim, used.get(claim.token), note) for claim in head.claims)
    usage = head.usage.plus(sum_usages(used.values()), steps=0)
    return head.replace(claims=(), usage=usage), facts


def charge(
    head: Head, claim: Claim, usage: Usage, record: Mapping[str, Any], *, at: str
) -> Transition:
    """Count the *usage* of an attempt whose *claim* is gone; its result does not count."""
    new_head = update_head(head, at, usage=head.usage.plus(usage, steps=0))
    event = Event.RELEASED
    fact = Fact(event, claim.step, claim.step_index, claim.token, claim.attempt, outcome=record)
    return Transition(new_head, (fact,))


def make_session(outcome: Outcome, executor: str, at: str) -> Session | None:
    """Return the conversation of *outcome*, accepted at *at*; None: it has none."""
    mark, tokens = outcome.session_mark, outcome.context_tokens
    if mark is None:
        return None
    return Session(
        executor=executor,
        id=mark,
        steps=outcome.session_steps,
        context_tokens=None if tokens is None else min(tokens, MAX_USED),
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
    """Accept the step that *token* holds, and move to *following*.

    The journal keeps *record*. With *gate*, the run waits there for a person even if the agent
    said "complete", which is not an approval; the gate may keep it, see `Gate.completes_run`.

    Raises:
        StaleClaim: see `require_claim`.
    """
    held_claim = require_claim(head, token)
    session = head.session
    if executor is not None:
        session = make_session(outcome, executor, at) if outcome.session_id else None
    new_head = move_head(
        head,
        at,
        following,
        claims=claims_without(head, token),
        usage=head.usage.plus(outcome.usage, steps=1),
        last_prompt=outcome.prompt or head.last_prompt,
        session=session,
        gate=gate or head.gate,
    )
    step_usage = outcome.usage
    if step_usage.cost_usd and not step_usage.unpriced:
        new_head = new_head.with_cost(held_claim.step, step_usage.cost_usd)
    fact = Fact(
        Event.SUCCEEDED,
        held_claim.step,
        held_claim.step_index,
        token,
        held_claim.attempt,
        outcome=record,
    )
    is_done = outcome.status is OutcomeStatus.COMPLETE or following.is_end
    if is_done and not new_head.is_at_gate:
        complete_head = new_head.replace(status=Status.COMPLETE, pause_requested=False)
        return Transition(complete_head, (fact, replace(fact, event=Event.COMPLETED, outcome=None)))
    return Transition(refresh_status(new_head), (fact,))


def end_attempt(
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
    """Record that the attempt with *token* ended with *event*; step_index stays.

    The run counts *steps* more accepted steps, and the journal keeps *record*.

    Raises:
        StaleClaim: see `require_claim`.
    """
    held_claim = require_claim(head, token)
    total_usage = head.usage.plus(usage, steps=steps) if usage else head.usage
    new_head = update_head(
        head, at, claims=claims_without(head, token), usage=total_usage, **update
    )
    fact = Fact(
        event, held_claim.step, held_claim.step_index, token, held_claim.attempt, outcome=record
    )
    return Transition(refresh_status(new_head), (fact,))


RETRY = "retry"
"""Value of ``not_before_reason`` while a failed step waits for its next try."""


def _wait_fields(not_before: str | None, reason: str | None, at: str) -> dict[str, Any]:
    """Return the fields that keep a head from starting a step before *not_before*, if it is set."""
    return {
        "not_before": not_before,
        "not_before_reason": reason if not_before else None,
        "not_before_since": at if not_before else None,
    }


def failure_number(head: Head) -> int:
    """Return how many failures in a row the current step of *head* has if its attempt fails now.

    A judge's "no" resets the failures in a row, but not the count of its used-up rounds.
    """
    loop = head.loop
    exhausted_count = loop.exhausted if loop is not None and loop.stage == "verify" else 0
    return max(head.failures_in_row, exhausted_count) + 1


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

    *not_before* is the date of the next automatic try, if the step has one left.

    Raises: see `end_attempt`.
    """
    wait_fields = _wait_fields(not_before, RETRY, at)
    return end_attempt(
        head,
        token,
        Event.FAILED,
        outcome.usage,
        at=at,
        record=record,
        failures_in_row=failure_number(head),
        **wait_fields,
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
    """Release the claim with *token*; the run stays where it is, and nothing failed.

    The attempt counts, even if it hit a usage limit and is due again at *not_before*: this limits
    how often an agent is asked without progress. If it asked no agent, see `give_attempt_back`.

    Raises: see `end_attempt`.
    """
    wait_fields = _wait_fields(not_before, reason, at)
    return end_attempt(head, token, Event.RELEASED, usage, at=at, record=record, **wait_fields)


def give_attempt_back(head: Head) -> Head:
    """Return *head* with the running attempt taken out of the count; its token stays used up."""
    return head.replace(attempt=max(head.attempt - 1, 0))


def pause_after(head: Head, ended: Fact, why: str) -> Transition:
    """Pause the run of *head* after the fact *ended*; *why* is the reason.

    A run that is over or waits for a person stays as it is.
    """
    if head.status is Status.COMPLETE or head.is_at_gate or head.exit:
        return Transition(head, ())
    fact = replace(ended, event=Event.PAUSED, outcome={"note": why})
    if head.claims:
        return Transition(head.replace(pause_requested=True, exit_reason=why), (fact,))
    return Transition(head.replace(status=Status.PAUSED, exit_reason=why), (fact,))


def build_fact(event: Event, head: Head, note: str | None = None) -> Fact:
    """Return the fact that *event* happened at the current step of *head*."""
    outcome = {"note": note} if note else None
    return Fact(event, head.expected_step, head.step_index, head.token, head.attempt, outcome)


def with_completion_fact(fact: Fact, head: Head) -> tuple[Fact, ...]:
    """Return *fact*, followed by the fact that the run is complete if *head* is."""
    if head.status is not Status.COMPLETE:
        return (fact,)
    return (fact, Fact(Event.COMPLETED, fact.step, fact.step_index, fact.token, fact.attempt))
