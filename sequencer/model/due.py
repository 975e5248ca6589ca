"""When a step that was not accepted is to be tried again by itself.

The dates are for the head and for a sleeping process; both compare them with the wall
clock of the machine that looks.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.standing import parse_time
from sequencer.model.step import Step

DEFAULT_PAUSE_S = 300.0
"""Wait after a usage limit whose reset the client did not tell."""
SHORTEST_PAUSE_S = 5.0
"""Wait after a usage limit whose reset is over already, by this machine's clock."""
MARGIN_S = 10.0
"""Wait after the reset that a client told: the service's clock may be behind this machine's."""
JITTER_S = 5.0
"""Added at random, so that runs that share an account do not all ask in the same moment."""
GROWING_PAUSE_S = 30.0
"""Doubled with each attempt at the step, the second pause is at least 60 s."""
LONGEST_PAUSE_S = 3_600.0
"""Of a pause that has grown; a reset that a client told may be later."""
LONGEST_OUTAGE_PAUSE_S = 900.0
"""Of a pause that has grown while an agent can't be had: nobody tells when that ends."""
OUTAGE_JITTER = 0.25
"""Share of such a pause that is added at random, for a service that comes back to many."""
SAID_CHARS = 200
"""Of what a client said, in the reason that the head keeps."""
LATEST_RESET_S = 32 * 86_400.0
"""A reset further away than a month is not believed."""

POSTPONED_S = 10.0
"""Before it nobody tries again what a machine had no process or descriptor for."""


def limit_end(outcome: Outcome, attempt: int, now: datetime, jitter: float) -> str:
    """Return when to ask again after a usage limit that the *attempt*-th try has met.

    A client may tell no date, one that can't be read, or one that is over. Whatever it
    tells, the pauses grow while the step makes no progress.
    """
    told = parse_time(outcome.not_before) if outcome.not_before else None
    wait_s = DEFAULT_PAUSE_S
    if told is not None:
        told_s = min((told - now).total_seconds(), LATEST_RESET_S) + MARGIN_S
        wait_s = max(told_s, SHORTEST_PAUSE_S)
    if attempt > 1:
        grown_s = GROWING_PAUSE_S * 2.0 ** min(attempt - 1, 40)
        wait_s = max(wait_s, min(grown_s, LONGEST_PAUSE_S))
    return iso(now + timedelta(seconds=wait_s + JITTER_S * jitter))


def outage_end(attempt: int, now: datetime, jitter: float) -> str:
    """Return when to try again after the *attempt*-th try has found the agent unavailable."""
    grown_s = GROWING_PAUSE_S * 2.0 ** min(attempt - 1, 40)
    wait_s = min(grown_s, LONGEST_OUTAGE_PAUSE_S)
    return iso(now + timedelta(seconds=wait_s * (1 + OUTAGE_JITTER * jitter)))


def due_again(outcome: Outcome, attempt: int, now: datetime, jitter: float) -> str:
    """Return when to try again after *outcome*, which puts the step off.

    *jitter* is a random number below 1: runs that share an account must not all ask at once.
    """
    if outcome.status is OutcomeStatus.UNAVAILABLE:
        return outage_end(attempt, now, jitter)
    return limit_end(outcome, attempt, now, jitter)


def why_put_off(outcome: Outcome, agent: str) -> str:
    """Return why the step of *outcome* waits, on one line that fits into a head."""
    if outcome.status is OutcomeStatus.LIMITED:
        return f"usage limit of agent {agent!r}"
    said = " ".join((outcome.error or "no reason given").split())
    return f"the agent is unavailable ({said[:SAID_CHARS]}{'…' * (len(said) > SAID_CHARS)})"


def bounded(outcome: Outcome, attempt: int, max_attempts: int) -> Outcome:
    """Return *outcome*; one that puts the step off at the last attempt allowed is a failure.

    Who says "limit" or "overloaded" each time would else be asked for as long as the run lasts.
    """
    if attempt < max_attempts or not outcome.is_put_off:
        return outcome
    is_limit = outcome.status is OutcomeStatus.LIMITED
    what = "the client reported a limit again" if is_limit else "the agent is still unavailable"
    error = (
        f"{what}, and this was attempt {attempt} without progress "
        f"(limits.max_attempts: {max_attempts}): {outcome.error or 'no reason given'}"
    )
    return outcome.replace(status=OutcomeStatus.FAILED, error=error, not_before=None)


def tries_of(step: Step) -> int:
    """Return how often *step* is tried, the first time included."""
    return 1 if step.retry is None else step.retry.max_attempts


def retry_at(step: Step, failures: int, now: datetime) -> str | None:
    """Return when *step* is due again after *failures* in a row; None if no try is left."""
    retry = step.retry
    if retry is None or failures >= retry.max_attempts:
        return None
    return iso(now + timedelta(seconds=retry.delay_s(failures)))


def iso(due: datetime) -> str:
    """Return *due* as heads have it: ISO 8601, UTC, milliseconds."""
    in_utc = due.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc(at: datetime) -> str:
    """Return *at*, a time in UTC, as heads have it where nobody waits for it: whole seconds."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_past(due: str | None, now: datetime) -> bool:
    """Return whether *due* is a date that is over by *now*."""
    date = parse_time(due) if due else None
    return date is not None and date <= now
