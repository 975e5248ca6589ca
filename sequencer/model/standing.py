"""What may happen next in a run, from its head alone.

Pure: the same head, limits and time give the same answer in every mode and process. Not
decided here: whether the holder of a claim is alive, and whose position it is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from sequencer.errors import TooManyFailures
from sequencer.model.head import Claim, Gate, Head, Status
from sequencer.model.limits import RunLimits, parse_time
from sequencer.model.line.order import present
from sequencer.model.names import command
from sequencer.model.transitions import Place
from sequencer.model.workflow import Workflow


class Readiness(StrEnum):
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
    """A gate waits for a decision."""
    EXPIRED = "expired"
    """A gate waited as long as it may; whoever looks next records what was agreed for that."""
    REFUSED = "refused"
    """The step failed too often; a person has to look."""


MAX_CORRECTION = timedelta(minutes=1)
"""How far a clock may be set back before the pauses that it measured are given up."""

FINAL = frozenset({Readiness.STOPPED, Readiness.COMPLETE, Readiness.LIMIT})
"""Nothing will start until somebody changes the run or its limits."""


class Standing(Struct, frozen=True):
    """The answer, in words as well."""

    kind: Readiness
    message: str
    place: Place
    until: str | None = None
    """For ``not-yet``: ISO 8601 UTC."""
    claim: Claim | None = None
    """For ``held``."""

    @property
    def is_final(self) -> bool:
        """Return whether a waiting process may as well end."""
        return self.kind in FINAL


def standing(head: Head, workflow: Workflow, limits: RunLimits, now: datetime) -> Standing:
    """Return what may happen next in the run of *head*."""
    here = present(workflow, head)
    if head.flow is not None and head.flow.rest is Status.FAILED:
        again = command(head.run_name, "retry")
        message = f"the run has ended as {head.flow.status}; {again} tries again"
        return Standing(Readiness.REFUSED, message, here)
    if head.status is Status.COMPLETE or (here.is_end and not head.is_at_gate):
        return Standing(Readiness.COMPLETE, _how_it_ended(head), here)
    if head.claims:
        held = head.claims[0]
        message = f"step {held.step!r} is run by process {held.owner.pid} on {held.owner.host}"
        message += f" (token {held.token}, since {held.claimed_at})"
        return Standing(Readiness.HELD, message, here, claim=held)
    blocked = blocked_by(head, limits, now)
    if blocked is not None:
        return Standing(*blocked, here)
    due = parse_time(head.not_before) if head.not_before else None
    if due is not None and due > now and not _is_from_another_clock(head, now):
        message = f"{head.not_before_reason or 'not due'}: nothing starts before {head.not_before}"
        return Standing(Readiness.NOT_YET, message, here, until=head.not_before)
    return Standing(Readiness.READY, f"step {here.step!r} is ready", here)


def blocked_by(head: Head, limits: RunLimits, now: datetime) -> tuple[Readiness, str] | None:
    """Return which person's decision or which limit of the run stands in the way, if one does."""
    return _by_people(head, now) or _by_limits(head, limits)


def _how_it_ended(head: Head) -> str:
    if head.was_rejected:
        return f"the run was {head.exit_reason}"
    return f"the run is complete after {head.usage.steps} steps"


def _is_from_another_clock(head: Head, now: datetime) -> bool:
    """Return whether ``not_before`` was set at a time that is still to come.

    The clock was set back since, or was wrong when it was read: to wait for its dates could
    take years, and what waits for them is a pause of minutes.
    """
    since = parse_time(head.not_before_since) if head.not_before_since else None
    return since is not None and now < since - MAX_CORRECTION


def _by_people(head: Head, now: datetime) -> tuple[Readiness, str] | None:
    """Return what somebody decided or has to decide."""
    if head.exit:
        reason = f": {head.exit_reason}" if head.exit_reason else ""
        return Readiness.STOPPED, f"the run was stopped{reason}; 'sequencer resume' lets it go on"
    if head.status is Status.PAUSED or head.pause_requested:
        return Readiness.PAUSED, "the run is paused; 'sequencer resume' lets it go on"
    if head.gate is not None and head.gate.is_open:
        return _at_gate(head.gate, now)
    if head.status is Status.WAITING_APPROVAL:
        if head.asks:
            names = ", ".join(map(repr, head.asks))
            gives = command(head.run_name, "answer NODE VALUE")
            return Readiness.PERSON, f"{names} waits for an answer; {gives} gives it"
        return Readiness.PERSON, "the run waits for an approval"
    return None


def _at_gate(gate: Gate, now: datetime) -> tuple[Readiness, str]:
    expires = parse_time(gate.expires_at) if gate.expires_at else None
    if expires is not None and expires <= now:
        message = f"nobody decided about {gate.step!r} until {gate.expires_at}: {gate.on_timeout}"
        return Readiness.EXPIRED, message
    until = f" until {gate.expires_at}, then {gate.on_timeout}" if expires else ""
    return Readiness.PERSON, (
        f"{gate.step!r} waits for a decision{until}; "
        "'sequencer approve', 'reject' or 'feedback \"…\"' decides"
    )


def _by_limits(head: Head, limits: RunLimits) -> tuple[Readiness, str] | None:
    """Return which limit of the run stands in the way."""
    if (reached := limits.reached(head)) is not None:
        return Readiness.LIMIT, reached
    try:
        limits.ensure_may_try(head)
    except TooManyFailures as error:
        return Readiness.REFUSED, str(error)
    return None
