"""What an executor returns about one attempt at a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import reduce
from typing import Any, Literal

from msgspec import Struct

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.evidence import Evidence
from sequencer.model.whole_numbers import MAX_USED


class Usage(Frozen, extra="ignore"):
    """What one attempt, or a run so far, has used."""

    steps: int = Field(default=0, ge=0)
    """Accepted steps; 0 or 1 for one attempt."""
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The known cost; it is complete if `unpriced` is 0."""
    unpriced: int = Field(default=0, ge=0)
    """Calls of agents whose cost is unknown, or known only in part."""
    estimated_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The part of ``cost_usd`` that was computed from tokens and prices, not reported."""
    input_tokens: int = Field(default=0, ge=0)
    """Everything that was sent, including cache reads and cache writes."""
    cache_read_tokens: int = Field(default=0, ge=0)
    """The part of ``input_tokens`` that was read from a cache, according to the client."""
    output_tokens: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    rehearsed: int = Field(default=0, ge=0)
    """Attempts at which no agent ran, because they were rehearsed."""

    def plus(self, other: Usage, *, steps: int | None = None) -> Usage:
        """Return the sum of each field, at most `MAX_USED`; *steps* replaces those of *other*."""
        cost_usd, estimated_usd = self.cost_usd, self.estimated_usd
        if other.cost_usd:
            cost_usd = round(cost_usd + other.cost_usd, 9)
            estimated_usd = round(estimated_usd + other.estimated_usd, 9)
        return self.replace(
            steps=self.steps + (other.steps if steps is None else steps),
            cost_usd=cost_usd,
            unpriced=self.unpriced + other.unpriced,
            estimated_usd=estimated_usd,
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            seconds=round(self.seconds + other.seconds, 6),
            rehearsed=self.rehearsed + other.rehearsed,
        ).cap()

    def cap(self) -> Usage:
        """Return the same with no figure above `MAX_USED`.

        No real figure is that large; an agent that forges one must not make a run unreadable.

        >>> Usage(input_tokens=2**60, output_tokens=5).cap().input_tokens == MAX_USED
        True
        """
        tokens = self.input_tokens + self.cache_read_tokens + self.output_tokens
        if tokens <= MAX_USED and self.cost_usd + self.estimated_usd <= MAX_USED:
            return self
        return self.replace(**{name: min(value, MAX_USED) for name, value in vars(self).items()})

    def minus(self, other: Usage) -> Usage:
        """Return the difference of each field, but at least 0."""
        values = vars(self)
        return self.replace(
            **{
                name: max(round(values[name] - value, 9), 0)
                for name, value in vars(other).items()
                if value
            }
        )

    @property
    def known_usd(self) -> float | None:
        """Return the known part of the cost; None: the cost is unknown."""
        return None if self.unpriced and not self.cost_usd else self.cost_usd


def sum_usages(usages: Iterable[Usage]) -> Usage:
    """Return the sum of *usages*."""
    return reduce(Usage.plus, usages, Usage())


def format_cost(usage: Usage, digits: int = 4) -> str:
    """Return the cost in words; empty if it cost nothing.

    >>> format_cost(Usage(cost_usd=0.5)), format_cost(Usage(cost_usd=0.5, estimated_usd=0.2))
    ('0.5000 USD', '~0.5000 USD')
    >>> format_cost(Usage(cost_usd=0.5, unpriced=2), 2), format_cost(Usage(unpriced=1))
    ('0.50 USD and 2 calls of unknown cost', 'cost unknown')
    """
    if not usage.cost_usd:
        return "cost unknown" if usage.unpriced else ""
    cost_text = f"{'~' if usage.estimated_usd else ''}{usage.cost_usd:.{digits}f} USD"
    if not usage.unpriced:
        return cost_text
    calls = "1 call" if usage.unpriced == 1 else f"{usage.unpriced} calls"
    return f"{cost_text} and {calls} of unknown cost"


def format_error(record: Mapping[str, Any], most: int | None = None) -> str:
    """Return the error and the hint of an attempt from the *record* of a journal.

    Each of the two is cut to *most* characters.

    >>> format_error({"error": "no matching branch for 'x'", "hint": "it has to be 'a' or 'b'"})
    "no matching branch for 'x'; it has to be 'a' or 'b'"
    """
    parts = (str(record.get(key) or "")[:most] for key in ("error", "hint"))
    return "; ".join(filter(None, parts))


def read_usage(record: Mapping[str, Any]) -> Usage:
    """Return the usage in a *record* of a journal, which leaves out figures that are 0."""
    return Usage.model_validate({**record, "steps": 0})


MAX_MARK_CHARS = 1000
"""Longest text that a run keeps of a conversation: the client's id, and its executor's notes."""


class OutcomeStatus(StrEnum):
    """How an attempt ended."""

    OK = "ok"
    COMPLETE = "complete"
    """Accepted, and the whole run is done."""
    FAILED = "failed"
    LIMITED = "limited"
    """The client's subscription or rate limit is reached: no failure; retried after the reset."""
    UNAVAILABLE = "unavailable"
    """The agent can't be used now (its service is overloaded, failing or unreachable, or its
    program is being replaced): no failure; retried with growing pauses."""
    INTERRUPTED = "interrupted"
    """Stopped by this program (signal, lost claim): no failure."""


ACCEPTED = (OutcomeStatus.OK, OutcomeStatus.COMPLETE)
PUT_OFF = (OutcomeStatus.LIMITED, OutcomeStatus.UNAVAILABLE)


Missing = Literal["change", "text", "anything"]
"""The evidence that is missing from an attempt that ended cleanly."""


class Quota(Frozen):
    """What a client reports about the subscription limit that is nearest to being reached."""

    window: str
    """The client's word: five_hour, seven_day."""
    resets_at: str
    """ISO 8601, UTC."""
    used: float | None = None
    """From 0 to 1; None: the client only reports that the limit is not reached."""


class SessionFault(StrEnum):
    """What an attempt reveals about the conversation that it should continue."""

    LOST = "lost"
    """The conversation is unknown to the client, expired, in use elsewhere or full."""
    SUSPECT = "suspect"
    """The conversation may be why the attempt failed."""


class Outcome(Frozen):
    """The result of one attempt; frozen."""

    status: OutcomeStatus
    output: str = ""
    """The agent's final answer, not its transcript."""
    structured: Any = None
    """The answer as JSON, if the client was asked for JSON, or if the agent wrote something other
    than a text to its result file; else None."""
    error: str | None = None
    """Why it failed: what, and what to do; one to three lines."""
    usage: Usage = Usage()
    session_id: str | None = None
    """The client's own id of the conversation, to continue it; `session_mark` is what is kept."""
    session_steps: int = 1
    """Accepted steps of that conversation, including this one."""
    context_tokens: int | None = None
    """Tokens that the last call sent, or the whole attempt if the client doesn't report calls.
    None: the client reports neither."""
    session_fault: SessionFault | None = None
    """None: the conversation is not at fault, or none was continued."""
    is_unexplained: bool = False
    """The client failed for an unknown reason before it did any work."""
    is_timed_out: bool = False
    """Its time limit ended it; the idle limit does not count here."""
    is_over_budget: bool = False
    """Its budget ended it, or left nothing for it."""
    cut_from_bytes: int | None = None
    """The full length of the answer, if only its end was kept."""
    denials: tuple[str, ...] = ()
    """Tool calls that the client refused, one short line each."""
    exit_code: int | None = None
    """The exit code of the agent's process; negative: a signal; None: an in-process executor."""
    not_before: str | None = None
    """For ``limited``: ISO 8601 UTC time of the reset."""
    quota: Quota | None = None
    """None: the client reports none."""
    prompt: str | None = None
    """The prompt that was run, if the router chose another one."""
    evidence: Evidence | None = None
    """The evidence of the attempt; None: no agent ran."""
    missing: Missing | None = None
    """The missing evidence, if it ended cleanly but failed because its step expects more."""

    @property
    def session_mark(self) -> str | None:
        r"""Return `session_id`; None: there is none, or it is a text that can't be an id.

        It is from a client, so it may be anything; half of a surrogate pair is not printable.

        >>> marks = ("0199;cost_usd=0.5", "a\nb", "\ud800", "x" * 2000, "", None)
        >>> [Outcome(status=OutcomeStatus.OK, session_id=mark).session_mark for mark in marks]
        ['0199;cost_usd=0.5', None, None, None, None, None]
        """
        mark = self.session_id
        return mark if mark and len(mark) <= MAX_MARK_CHARS and mark.isprintable() else None

    @property
    def is_put_off(self) -> bool:
        """Return whether the step is postponed: nothing failed, and it is retried automatically."""
        return self.status in PUT_OFF

    @property
    def is_accepted(self) -> bool:
        """Return whether the step counts as done."""
        return self.status in ACCEPTED


class Move(StrEnum):
    """What can follow a step whose attempt has ended."""

    NEXT = "next"
    """Accept it and go to the next step."""
    RETRY = "retry"
    """Do not accept it: the same step again."""
    GOTO = "goto"
    """Accept it and go to the named step."""
    SKIP = "skip"
    """Accept it and skip the next step."""
    GATE = "gate"
    """Accept it and wait for a person."""
    FAIL = "fail"
    """Do not accept it: the attempt failed."""
    COMPLETE = "complete"
    """Accept it and end the run."""


class Decision(Struct, frozen=True):
    """A move, and the reason for it."""

    move: Move
    target: str | None = None
    """For ``goto``: the name of a step of the same workflow."""
    reason: str = ""
    """One line, kept in the journal."""

    @property
    def why(self) -> str:
        """Return the reason; if there is none, say so."""
        return self.reason or "no reason given"


_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def format_duration(seconds: float) -> str:
    """Return *seconds* in the units that people use.

    >>> format_duration(4.25), format_duration(75), format_duration(7_260), format_duration(90_000)
    ('4.2 s', '1 min 15 s', '2 h 1 min', '1 d 1 h')
    """
    whole_seconds = int(seconds)
    if whole_seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if whole_seconds < _HOUR_S:
        return f"{whole_seconds // _MINUTE_S} min {whole_seconds % _MINUTE_S} s"
    if whole_seconds < _DAY_S:
        return f"{whole_seconds // _HOUR_S} h {whole_seconds % _HOUR_S // _MINUTE_S} min"
    return f"{whole_seconds // _DAY_S} d {whole_seconds % _DAY_S // _HOUR_S} h"


def format_usage(usage: Usage) -> str:
    """Return the tokens and the cost in words; empty if there are none.

    >>> format_usage(Usage(input_tokens=1200, output_tokens=34, cost_usd=0.5))
    '1,200 + 34 tokens, 0.5000 USD'
    >>> format_usage(Usage())
    ''
    >>> format_usage(Usage(input_tokens=1200, output_tokens=34, cache_read_tokens=900))
    '1,200 + 34 tokens (900 from the cache)'
    """
    parts = []
    if usage.input_tokens or usage.output_tokens:
        cached_tokens = usage.cache_read_tokens
        from_cache = f" ({cached_tokens:,} from the cache)" if cached_tokens else ""
        parts.append(f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens{from_cache}")
    parts += [cost] if (cost := format_cost(usage)) else []
    parts += [f"{usage.rehearsed} rehearsed: no agent ran"] if usage.rehearsed else []
    return ", ".join(parts)


VerdictSource = Literal["structured", "json", "exit-code", "none"]


class Verdict(Struct, frozen=True):
    """The yes or no of a judge, its reason, and where the verdict was found."""

    is_pass: bool
    reason: str
    """May be empty for a yes."""
    source: VerdictSource


_THOUSAND, _MILLION = 1000, 1_000_000


def format_count(count: int) -> str:
    """Return *count* in at most five characters, to fit into a table column.

    >>> [format_count(count) for count in (950, 1_234, 56_789, 999_999, 7_654_321)]
    ['950', '1.2k', '56.8k', '1.0M', '7.7M']
    """
    if count < _THOUSAND:
        return str(count)
    if count < 99_950:  # noqa: PLR2004 - would be 100.0k
        return f"{count / _THOUSAND:.1f}k"
    if count < 999_500:  # noqa: PLR2004 - would be 1000k
        return f"{count / _THOUSAND:.0f}k"
    return f"{count / _MILLION:.1f}M"
