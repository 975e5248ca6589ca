"""Limits of a run and of one invocation, and when a step that was not accepted is tried again.

The limits are checked against counters in the head. The dates are stored in the head, and a
process that waits for one compares it with the wall clock of its own machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sequencer.errors import TooManyFailures, format_command, to_one_line
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.head import Head, Session
from sequencer.model.outcome import Outcome, OutcomeStatus, format_duration
from sequencer.model.step import ContinuedSession, Step

MIN_COSTS = 3
"""With fewer known costs of a step, its usual cost is estimated from `TYPICAL_UNKNOWN_USD`."""
TYPICAL_UNKNOWN_USD = 0.05
TYPICAL_UNKNOWN_SHARE = 0.1
"""The estimate is at most this share of a cap; else a small cap would end after one attempt."""
_RAISE = "; raise it in orchestration.yaml, then 'sequencer trust'"


def typical_cost_usd(head: Head, cap: float) -> float:
    """Return the median cost of an attempt at the current step of *head*, or an estimate."""
    costs = head.recent_costs.get(head.expected_step, ())
    if len(costs) >= MIN_COSTS:
        return median(costs)
    return min(TYPICAL_UNKNOWN_USD, cap * TYPICAL_UNKNOWN_SHARE)


def median(values: Sequence[float]) -> float:
    """Return the middle value of *values*, or the mean of the two middle values.

    >>> median([3, 1, 2]), median([4, 1, 2, 3])
    (2, 2.5)
    """
    sorted_values, middle = sorted(values), len(values) // 2
    return (
        sorted_values[middle]
        if len(sorted_values) % 2
        else (sorted_values[middle - 1] + sorted_values[middle]) / 2
    )


def has_too_little_left(head: Head, cap: float, used: float) -> bool:
    """Return whether *used* USD leave less of *cap* than an attempt usually costs.

    Such an attempt would cost money and then fail. The first attempt is always allowed, because
    its cost is unknown.
    """
    if used >= cap:
        return True
    return used > 0 and cap - used < typical_cost_usd(head, cap)


class RunLimits(Frozen, allow_inf_nan=False):
    """What a run may use in total; the counters are in its head and survive restarts."""

    steps: int | None = Field(default=None, ge=1)
    cost_usd: float | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)
    """Seconds of agent work, including failed attempts; not wall time."""
    failures_in_row: int = Field(default=3, ge=1)
    attempts: int = Field(default=20, ge=1)
    """Attempts at one step, including interrupted and crashed ones."""

    def describe_reached(self, head: Head) -> str | None:
        """Return the message about the limit that *head* has reached; None: it has reached none."""
        usage = head.usage
        if self.steps is not None and usage.steps >= self.steps:
            steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
            return f"the run's limit of {steps} is reached (limits.steps){_RAISE}"
        if self.cost_usd is not None and has_too_little_left(head, self.cost_usd, usage.cost_usd):
            usage_text = f"{usage.cost_usd:.4f}; limits.cost_usd"
            if usage.cost_usd < self.cost_usd:
                usage_text = f"{usage.cost_usd:.4f}, and a step usually takes more than is left; "
                usage_text += "limits.cost_usd"
            return f"the run's limit of {self.cost_usd} USD is reached ({usage_text}){_RAISE}"
        if self.seconds is not None and usage.seconds >= self.seconds:
            usage_text = f"{usage.seconds:.0f} s; limits.seconds"
            return f"the run's limit of {self.seconds:g} s is reached ({usage_text}){_RAISE}"
        return None

    def ensure_may_try(self, head: Head) -> None:
        """Check that the current step may be tried again.

        Raises:
            TooManyFailures: it failed ``failures_in_row`` times, or was started ``attempts`` times
                without an end; continuing would spend money unattended.
        """
        if head.loop is not None and head.loop.exhausted >= self.failures_in_row:
            reason = " ".join(head.loop.reason.split())
            raise TooManyFailures(
                f"step {head.expected_step!r} said no in all its rounds, "
                f"{head.loop.exhausted} times (limits.failures_in_row: "
                f"{self.failures_in_row}){f': {reason}' if reason else ''}",
                hint=_format_retry_hint(head),
            )
        if head.failures_in_row >= self.failures_in_row:
            raise TooManyFailures(
                f"step {head.expected_step!r} failed{_format_in_a_row(head.failures_in_row)} "
                f"(limits.failures_in_row: {self.failures_in_row})",
                hint=_format_retry_hint(head),
            )
        if head.attempt >= self.attempts:
            times = "once" if head.attempt == 1 else f"{head.attempt} times"
            raise TooManyFailures(
                f"step {head.expected_step!r} was started {times} without an end "
                f"(limits.attempts: {self.attempts})",
                hint=_format_retry_hint(head),
            )


def _format_in_a_row(failures: int) -> str:
    return f" {failures} times in a row" if failures > 1 else ""


def _format_retry_hint(head: Head) -> str:
    log, retry = format_command(head.run_name, "log"), format_command(head.run_name, "retry")
    return f"look at {log}, then {retry} or 'skip'"


class InvocationLimits(Frozen, allow_inf_nan=False):
    """What one `run` or one `tick` may use."""

    max_steps: int | None = Field(default=20, ge=1)
    max_cycles: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)
    max_wait_s: float | None = Field(default=None, ge=0)
    """Seconds to wait for a turn; None waits without limit."""
    step_timeout_s: float | None = Field(default=None, gt=0)


DEFAULT_PAUSE_S = 300.0
"""Wait after a usage limit if the client did not report when it resets."""
SHORTEST_PAUSE_S = 5.0
"""Wait after a usage limit whose reset is in the past by this machine's clock."""
MARGIN_S = 10.0
"""Wait after the reported reset, because the service's clock may differ from this machine's."""
JITTER_S = 5.0
"""Up to this much is added at random, so that runs that share an account don't ask together."""
GROWING_PAUSE_S = 30.0
"""It doubles with each attempt at the step, so the second pause is at least 60 s."""
LONGEST_PAUSE_S = 3_600.0
"""Limit for a growing pause; a reset that a client reported may be later."""
LONGEST_OUTAGE_PAUSE_S = 900.0
"""Limit for a growing pause while an agent is unavailable: no one knows when that ends."""
OUTAGE_JITTER = 0.25
"""Up to this share of such a pause is added at random, to spread the load on the service."""
UNEXPLAINED_PAUSES_S = (60.0, 300.0)
"""Waits after the first and the second attempt at which a client failed for an unknown reason
before it did any work. After that, such an attempt counts as a failure."""
MESSAGE_CHARS = 200
"""Limit for the client's message in the reason that the head keeps."""
LATEST_RESET_S = 32 * 86_400.0
"""A reset that is further away counts as this far away."""

POSTPONED_S = 10.0
"""Wait after a machine had no process or file descriptor left for an attempt."""


FIRST_TIME = datetime(1, 1, 3, tzinfo=UTC)
LAST_TIME = datetime(9999, 12, 29, tzinfo=UTC)
"""The range of times that can be converted to every zone, with room for a margin of an hour."""


def parse_time(text: str) -> datetime | None:
    """Return the ISO 8601 time in *text*, UTC if it has no zone; None: it is not a time.

    A time outside of `FIRST_TIME` and `LAST_TIME` is moved to the nearer of them, so that a date
    from a file can't make a conversion fail.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max(moment, FIRST_TIME), LAST_TIME)


def limit_end(outcome: Outcome, attempt: int, now: datetime, jitter: float) -> str:
    """Return when to try again after attempt number *attempt* met a usage limit.

    A client may report no date, a malformed one, or one in the past. In every case, the pauses
    grow while the step makes no progress.
    """
    reset = parse_time(outcome.not_before) if outcome.not_before else None
    wait_s = DEFAULT_PAUSE_S
    if reset is not None:
        reset_s = min((reset - now).total_seconds(), LATEST_RESET_S) + MARGIN_S
        wait_s = max(reset_s, SHORTEST_PAUSE_S)
    if attempt > 1:
        grown_s = GROWING_PAUSE_S * 2.0 ** min(attempt - 1, 40)
        wait_s = max(wait_s, min(grown_s, LONGEST_PAUSE_S))
    return format_utc_ms(now + timedelta(seconds=wait_s + JITTER_S * jitter))


def outage_end(attempt: int, now: datetime, jitter: float) -> str:
    """Return when to try again after attempt number *attempt* found the agent unavailable."""
    grown_s = GROWING_PAUSE_S * 2.0 ** min(attempt - 1, 40)
    wait_s = min(grown_s, LONGEST_OUTAGE_PAUSE_S)
    return format_utc_ms(now + timedelta(seconds=wait_s * (1 + OUTAGE_JITTER * jitter)))


def compute_pause_end(outcome: Outcome, attempt: int, now: datetime, jitter: float) -> str:
    """Return when to try again after *outcome*, which postpones the step.

    *jitter* is a random number below 1: runs that share an account must not all ask together.
    """
    if outcome.status is OutcomeStatus.UNAVAILABLE:
        if outcome.is_unexplained and attempt <= len(UNEXPLAINED_PAUSES_S):
            wait_s = UNEXPLAINED_PAUSES_S[attempt - 1] * (1 + OUTAGE_JITTER * jitter)
            return format_utc_ms(now + timedelta(seconds=wait_s))
        return outage_end(attempt, now, jitter)
    return limit_end(outcome, attempt, now, jitter)


def describe_postponement(outcome: Outcome, agent: str) -> str:
    """Return why the step of *outcome* waits, on one line that is short enough for a head."""
    if outcome.status is OutcomeStatus.LIMITED:
        return f"usage limit of agent {agent!r}"
    message = to_one_line(outcome.error or "no reason given")
    cause = "the agent is unavailable"
    if outcome.is_unexplained:
        cause = "the agent failed before it did any work, for an unknown reason"
    return f"{cause} ({message[:MESSAGE_CHARS]}{'…' * (len(message) > MESSAGE_CHARS)})"


def postpone_unexplained(outcome: Outcome, attempt: int) -> Outcome:
    """Return *outcome*; an unexplained failure in the first two attempts is put off."""
    is_failed = outcome.status is OutcomeStatus.FAILED
    if not (is_failed and outcome.is_unexplained and attempt <= len(UNEXPLAINED_PAUSES_S)):
        return outcome
    return outcome.replace(status=OutcomeStatus.UNAVAILABLE)


def limit_attempts(outcome: Outcome, attempt: int, max_attempts: int) -> Outcome:
    """Return *outcome*, as a failure if it postpones the step after the last allowed attempt.

    Otherwise a client that always reports "limit" or "overloaded" would be asked forever. An
    unexplained failure is postponed first, see `postpone_unexplained`.
    """
    if outcome.is_unexplained:
        outcome = postpone_unexplained(outcome, attempt)
    if attempt < max_attempts or not outcome.is_put_off:
        return outcome
    is_limit = outcome.status is OutcomeStatus.LIMITED
    cause = "the client reported a limit again" if is_limit else "the agent is still unavailable"
    error = (
        f"{cause}, and this was attempt {attempt} without progress "
        f"(limits.attempts: {max_attempts}): {outcome.error or 'no reason given'}"
    )
    return outcome.replace(status=OutcomeStatus.FAILED, error=error, not_before=None)


def find_renewal_reason(session: Session, step: Step, now: datetime) -> str | None:
    """Return the reason why *step* starts a new session; None: it continues *session*."""
    limits = step.continue_session
    if not isinstance(limits, ContinuedSession):
        return None
    if limits.max_steps is not None and session.steps >= limits.max_steps:
        return f"the last one had {session.steps} steps (continue_session.max_steps)"
    sent_tokens = session.context_tokens
    if (
        limits.max_context is not None
        and sent_tokens is not None
        and sent_tokens > limits.max_context
    ):
        return f"the last one has grown to {sent_tokens:,} tokens (continue_session.max_context)"
    used_at = parse_time(session.used_at) if session.used_at else None
    idle_s = 0.0 if used_at is None else (now - used_at).total_seconds()
    if limits.max_idle_s is not None and idle_s > limits.max_idle_s:
        return f"the last one was used {format_duration(idle_s)} ago (continue_session.max_idle_s)"
    return None


def get_max_tries(step: Step) -> int:
    """Return how often *step* is tried, including the first time."""
    return 1 if step.retry is None else step.retry.max_attempts


def compute_retry_date(step: Step, failures: int, now: datetime) -> str | None:
    """Return when *step* is due again after *failures* in a row; None: no try is left."""
    retry = step.retry
    if retry is None or failures >= retry.max_attempts:
        return None
    return format_utc_ms(now + timedelta(seconds=retry.delay_s(failures)))


def format_utc_ms(due: datetime) -> str:
    """Return *due* in the format of heads: ISO 8601, UTC, milliseconds."""
    in_utc = due.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_utc_s(at: datetime) -> str:
    """Return *at*, a UTC time, in the format of dates that no process waits for: whole seconds.

    >>> format_utc_s(datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
    '2026-01-02T03:04:05Z'
    """
    return f"{at.isoformat()[:19]}Z"


def is_past(due: str | None, now: datetime) -> bool:
    """Return whether *due* is a date that is not later than *now*."""
    date = parse_time(due) if due else None
    return date is not None and date <= now
