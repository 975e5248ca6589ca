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


class Usage(Frozen, extra="ignore"):
    """What one attempt, or a run so far, has used."""

    steps: int = Field(default=0, ge=0)
    """Accepted steps; 0 or 1 for one attempt."""
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """What is known of it; `unpriced` says whether that is all."""
    unpriced: int = Field(default=0, ge=0)
    """Calls of agents whose cost nobody told, or not to its end: the rest is unknown."""
    estimated_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Of ``cost_usd``: what was worked out from tokens and prices instead of told."""
    input_tokens: int = Field(default=0, ge=0)
    """Everything that was sent, cache reads and cache writes included."""
    cache_read_tokens: int = Field(default=0, ge=0)
    """Of ``input_tokens``: what the client says was read from a cache."""
    output_tokens: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    rehearsed: int = Field(default=0, ge=0)
    """Attempts at which no agent ran, because a rehearsal stood in for it."""

    def plus(self, other: Usage, *, steps: int | None = None) -> Usage:
        """Return the sum, field by field; *steps* replaces those of *other*."""
        return self.replace(
            steps=self.steps + (other.steps if steps is None else steps),
            cost_usd=round(self.cost_usd + other.cost_usd, 9),
            unpriced=self.unpriced + other.unpriced,
            estimated_usd=round(self.estimated_usd + other.estimated_usd, 9),
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            seconds=round(self.seconds + other.seconds, 6),
            rehearsed=self.rehearsed + other.rehearsed,
        )

    def minus(self, other: Usage) -> Usage:
        """Return what is left without *other*, field by field; nothing becomes negative."""
        left = {name: value - getattr(other, name) for name, value in vars(self).items()}
        return self.replace(**{name: max(round(value, 9), 0) for name, value in left.items()})

    @property
    def known_usd(self) -> float | None:
        """Return the cost as far as it is known; None if nothing of it is."""
        return None if self.unpriced and not self.cost_usd else self.cost_usd


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of *usages*."""
    return reduce(Usage.plus, usages, Usage())


def cost_words(usage: Usage, digits: int = 4) -> str:
    """Return what was spent as people read it; empty if it cost nothing.

    >>> cost_words(Usage(cost_usd=0.5)), cost_words(Usage(cost_usd=0.5, estimated_usd=0.2))
    ('0.5000 USD', '~0.5000 USD')
    >>> cost_words(Usage(cost_usd=0.5, unpriced=2), 2), cost_words(Usage(unpriced=1))
    ('0.50 USD and 2 calls of unknown cost', 'cost unknown')
    """
    if not usage.cost_usd:
        return "cost unknown" if usage.unpriced else ""
    known = f"{'~' if usage.estimated_usd else ''}{usage.cost_usd:.{digits}f} USD"
    if not usage.unpriced:
        return known
    calls = "1 call" if usage.unpriced == 1 else f"{usage.unpriced} calls"
    return f"{known} and {calls} of unknown cost"


def error_words(record: Mapping[str, Any], most: int | None = None) -> str:
    """Return what an attempt failed with and what would have done, from a journal's *record*.

    Each of the two is cut to *most* characters.

    >>> error_words({"error": "no matching branch for 'x'", "hint": "it has to be one of 'a', 'b'"})
    "no matching branch for 'x'; it has to be one of 'a', 'b'"
    """
    said = (str(record.get(key) or "")[:most] for key in ("error", "hint"))
    return "; ".join(filter(None, said))


def used(record: Mapping[str, Any]) -> Usage:
    """Return the figures of a journal's *record*, which leaves out those that are 0."""
    return Usage.model_validate({**record, "steps": 0})


class OutcomeStatus(StrEnum):
    """How an attempt ended."""

    OK = "ok"
    COMPLETE = "complete"
    """Accepted, and the whole run is done."""
    FAILED = "failed"
    LIMITED = "limited"
    """The client's subscription or rate limit is reached: nobody's failure; try after the reset."""
    UNAVAILABLE = "unavailable"
    """The agent can't be had for now (its service is overloaded, failing or out of reach, its
    program is being replaced): nobody's failure; tried again with growing pauses."""
    INTERRUPTED = "interrupted"
    """Stopped by us (signal, lost claim): nobody's failure."""


ACCEPTED = (OutcomeStatus.OK, OutcomeStatus.COMPLETE)
PUT_OFF = (OutcomeStatus.LIMITED, OutcomeStatus.UNAVAILABLE)


Missing = Literal["change", "text", "anything"]
"""What an attempt that ended cleanly has not shown."""


class Quota(Frozen):
    """What a client says of its subscription's limit, of the window that is nearest to it."""

    window: str
    """The client's word: five_hour, seven_day."""
    resets_at: str
    """ISO 8601, UTC."""
    used: float | None = None
    """From 0 to 1; None: the client only says that it is within the limit."""


class SessionFault(StrEnum):
    """What an attempt says about the conversation that it was to continue."""

    LOST = "lost"
    """It is unknown to the client, expired, in use elsewhere or full."""
    SUSPECT = "suspect"
    """It may be why the attempt has failed."""


class Outcome(Frozen):
    """The result of one attempt; frozen."""

    status: OutcomeStatus
    output: str = ""
    """The agent's final answer, not its transcript."""
    structured: Any = None
    """The answer as JSON, where the client was asked for it or the agent wrote it to its result
    file as anything but a text; None elsewhere."""
    error: str | None = None
    """Why it failed: what, and what to do; one to three lines."""
    usage: Usage = Usage()
    session_id: str | None = None
    """The client's own id of the conversation, to continue it."""
    session_steps: int = 1
    """Accepted steps of that conversation, this one included."""
    context_tokens: int | None = None
    """What was sent in the last call; of the whole attempt where the client doesn't tell calls
    apart. None: it tells neither."""
    session_fault: SessionFault | None = None
    """None: the conversation is not to blame, or none was continued."""
    is_unexplained: bool = False
    """The client failed before it did any work, for a reason that nobody knows."""
    is_timed_out: bool = False
    """Its time limit ended it; silence has a limit of its own."""
    is_over_budget: bool = False
    """The budget that it was given ended it, or left nothing for it."""
    cut_from_bytes: int | None = None
    """How long the answer was, where only the end of it was kept."""
    denials: tuple[str, ...] = ()
    """Tool calls that the client refused, one short line each."""
    exit_code: int | None = None
    """The agent process's; negative for a signal, absent for an in-process executor."""
    not_before: str | None = None
    """For ``limited``: ISO 8601 UTC time of the reset."""
    quota: Quota | None = None
    """None: the client reports none."""
    prompt: str | None = None
    """The prompt that was run, where the router chose another one."""
    evidence: Evidence | None = None
    """What the attempt has shown; None: no agent ran."""
    missing: Missing | None = None
    """Why it failed, if it ended cleanly and has not shown what its step expects."""

    @property
    def is_put_off(self) -> bool:
        """Return whether nothing failed, and the step is due again by itself."""
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
    """Accept it and go to the step that is named."""
    SKIP = "skip"
    """Accept it and skip the next step."""
    GATE = "gate"
    """Accept it and wait for a person."""
    FAIL = "fail"
    """Do not accept it: the attempt failed."""
    COMPLETE = "complete"
    """Accept it and end the run."""


class Decision(Struct, frozen=True):
    """One of these moves, and why."""

    move: Move
    target: str | None = None
    """For ``goto``: the name of a step of the same workflow."""
    reason: str = ""
    """One line, kept in the journal."""

    @property
    def why(self) -> str:
        """Return the reason in words, also where none was given."""
        return self.reason or "no reason given"


_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def duration(seconds: float) -> str:
    """Return *seconds* as a person says them.

    >>> duration(4.25), duration(75), duration(7_260), duration(90_000)
    ('4.2 s', '1 min 15 s', '2 h 1 min', '1 d 1 h')
    """
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{seconds:.1f} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def spent(usage: Usage) -> str:
    """Return tokens and money; empty for an agent that uses neither.

    >>> spent(Usage(input_tokens=1200, output_tokens=34, cost_usd=0.5)), spent(Usage())
    ('1,200 + 34 tokens, 0.5000 USD', '')
    >>> spent(Usage(input_tokens=1200, output_tokens=34, cache_read_tokens=900))
    '1,200 + 34 tokens (900 from the cache)'
    """
    parts = []
    if usage.input_tokens or usage.output_tokens:
        cached = usage.cache_read_tokens
        from_cache = f" ({cached:,} from the cache)" if cached else ""
        parts.append(f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens{from_cache}")
    parts += [cost] if (cost := cost_words(usage)) else []
    parts += [f"{usage.rehearsed} rehearsed: no agent ran"] if usage.rehearsed else []
    return ", ".join(parts)


VerdictSource = Literal["structured", "json", "exit-code", "none"]


class Verdict(Struct, frozen=True):
    """Yes or no, why, and where that was found."""

    is_pass: bool
    reason: str
    """May be empty where it was a yes."""
    source: VerdictSource


_THOUSAND, _MILLION = 1000, 1_000_000


def amount(count: int) -> str:
    """Return *count* in at most five characters, as a column of a table has room for it.

    >>> amount(950), amount(1_234), amount(56_789), amount(999_999), amount(7_654_321)
    ('950', '1.2k', '56.8k', '1.0M', '7.7M')
    """
    if count < _THOUSAND:
        return str(count)
    if count < 99_950:  # noqa: PLR2004 - would be 100.0k
        return f"{count / _THOUSAND:.1f}k"
    if count < 999_500:  # noqa: PLR2004 - would be 1000k
        return f"{count / _THOUSAND:.0f}k"
    return f"{count / _MILLION:.1f}M"
