"""What a command-line client prints: one JSON event a line, which nobody trusts.

`JsonEventParser` is the base of the clients' parsers. What is of another form than expected is
not there, what is no amount is unknown, and an event that would take many times its size to
read is shown and not read.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from msgspec import Struct, field

from sequencer.executors.answers import with_structured
from sequencer.executors.client_limits import (
    DEFAULT_WAIT_S,
    Clock,
    ErrorKind,
    classify,
    is_notice,
    local_clock,
    not_before,
    status_in,
)
from sequencer.executors.observation import Observation, TurnTable
from sequencer.executors.prices import ModelPrice, estimated
from sequencer.executors.process import (
    ProcessEnd,
    describe_exit,
)
from sequencer.executors.protocol import Listener, Piece
from sequencer.model.evidence import TurnEnd
from sequencer.model.outcome import Outcome, OutcomeStatus, Quota, SessionFault, Usage

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
_FACT = re.compile(r"([a-z_]{1,30})=([A-Za-z0-9.+-]{1,40})")


def marked(session_id: str, facts: Mapping[str, float | int | str]) -> str:
    """Return *session_id* with its *facts*.

    >>> marked("0199", {"cost_usd": 0.5, "version": "2.1.330"})
    '0199;cost_usd=0.5;version=2.1.330'
    """
    return ";".join([session_id, *(f"{name}={value}" for name, value in facts.items())])


def split_mark(mark: str) -> tuple[str, dict[str, str]]:
    """Return the id and the facts of a *mark*; facts that can't be read are left out.

    Raises:
        ValueError: the id is none that a client would give. It becomes a program argument,
            and state.json, from which it comes, may have been edited by anyone.
    """
    session_id, *rest = mark.split(";")
    if not _ID.fullmatch(session_id):
        raise ValueError(f"{session_id[:60]!r} is not a session id")
    facts = (_FACT.fullmatch(part) for part in rest)
    return session_id, {fact[1]: fact[2] for fact in facts if fact}


def number(facts: Mapping[str, str], name: str) -> float:
    """Return a numeric fact; 0 if it is absent or no number.

    >>> number({"cost_usd": "0.5", "version": "x"}, "cost_usd")
    0.5
    """
    try:
        return max(float(facts.get(name, 0)), 0.0)
    except ValueError:
        return 0.0


LINE_CHARS = 300
"""How much of a tool's input or result is shown; the client's own transcript has all."""
ERROR_CHARS = 1_000
_READ_CHARS = 8_000
"""How much of an error is looked through: an agent can make one of megabytes."""
_STDERR_LINES = 20
_UNAUTHORIZED = 401
_TOO_MUCH = frozenset({400, 413})
"""Statuses of a request that is wrong: its conversation may be."""
_USAGE_CODES = frozenset({2, 64, 78, 126, 127})
"""Exit codes of programs that were called in a wrong way, or could not be run."""
_FULL = re.compile(
    r"""(?:prompt|input)[ ]is[ ]too[ ]long | exceeds?[ ]context[ ]limit | context_?length_?exceeded
      | context[ ]window[ ](?:is[ ])?(?:full|exceeded) | out[ ]of[ ]room[ ]in[ ]the[ ]model
      | maximum[ ]context[ ]length | model's[ ](?:maximum[ ])?context[ ]length
      | exceeds[ ]the[ ]context[ ]window | ContextOverflow
      | token[ ]count[ ](?:of[ ]\d+[ ])?exceeds[ ]the
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""How clients and services say that a conversation no longer fits into the model's context."""
WIDE_BYTES = 2 * 1024 * 1024
"""Longest event that may hold more than ASCII: one such letter makes all take four bytes."""
STRUCTURE_BYTES = 256 * 1024
"""What an event may have outside of its texts: a million lists take 25 times their size."""
_MAX_QUOTES = 100_000
# Ends at the line's end as well, or a text without an end would be looked for again and again.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_IMPLAUSIBLE = 2**53
"""Neither a count nor an amount: above it a float is no longer exact."""


def one_line(value: object, limit: int = LINE_CHARS) -> str:
    r"""Return *value* on one line, cut at *limit* characters.

    >>> one_line({"path": "a.txt", "text": "x\ny"}), one_line("a  b\n c"), one_line("abcdef", 3)
    ('path="a.txt" text="x\\ny"', 'a b c', 'abc…')
    """
    if isinstance(value, dict):
        text = " ".join(f"{key}={_json(item)}" for key, item in value.items())
    elif isinstance(value, str):
        # Cut before the split: a result may be megabytes long.
        text = " ".join(value[: limit * 4].split())
    else:
        text = _json(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def is_affordable(line: bytes) -> bool:
    """Return whether *line*, a JSON text, takes no more than a few times its size when read."""
    if len(line) <= STRUCTURE_BYTES:
        return True
    if len(line) > WIDE_BYTES and not (line.isascii() and b"\\u" not in line):
        return False
    quotes = line.count(b'"') - line.count(b'\\"')
    return quotes <= _MAX_QUOTES and len(_TEXT.sub(b"", line)) <= STRUCTURE_BYTES


def as_number(value: object) -> float | None:
    """Return *value* if it is a number that can be an amount, else None; -0.0 can't."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < _IMPLAUSIBLE and str(value)[0] != "-" else None


class ClientEvent(dict[str, Any]):
    """An object of a client's stream; nobody trusts it, so what is of another form is not there.

    >>> event = ClientEvent(usage={"in": 3, "out": -1}, parts=[{"text": "a"}, None])
    >>> event.sub("usage").count("in", "out"), [part.text("text") for part in event.each("parts")]
    (3, ['a', ''])
    """

    @classmethod
    def of(cls, value: object) -> ClientEvent:
        """Return *value*, or an empty object if it is none."""
        return cls(value) if isinstance(value, dict) else cls()

    def sub(self, name: str) -> ClientEvent:
        """Return the object called *name*."""
        return self.of(self.get(name))

    def each(self, name: str) -> list[ClientEvent]:
        """Return what is in the list called *name*."""
        found = self.get(name)
        return [self.of(one) for one in found] if isinstance(found, list) else []

    def text(self, name: str) -> str:
        """Return the text called *name*."""
        found = self.get(name)
        return found if isinstance(found, str) else ""

    def count(self, *names: str) -> int:
        """Return the sum of the counts called *names*."""
        return sum(int(as_number(self.get(name)) or 0) for name in names)

    def cost(self, name: str) -> float:
        """Return the sum of money called *name*."""
        return as_number(self.get(name)) or 0.0


def sum_of_costs(values: Iterable[object]) -> Usage:
    """Return the sum of what a client told as *values*; one that is no amount is unknown."""
    known = [as_number(value) for value in values]
    cost = sum(value for value in known if value is not None)
    return Usage(cost_usd=round(cost, 9), unpriced=int(None in known))


def larger(one: Usage, other: Usage) -> Usage:
    """Return what is more in either, figure by figure; a line may have been written by an agent.

    What was sent and not read from a cache is a figure of its own, because it costs more.

    >>> larger(Usage(input_tokens=9, cache_read_tokens=9), Usage(input_tokens=5)).input_tokens
    14
    """
    cached = max(one.cache_read_tokens, other.cache_read_tokens)
    fresh = max(each.input_tokens - each.cache_read_tokens for each in (one, other))
    return max(one, other, key=lambda each: each.cost_usd).replace(
        unpriced=max(one.unpriced, other.unpriced),
        input_tokens=fresh + cached,
        cache_read_tokens=cached,
        output_tokens=max(one.output_tokens, other.output_tokens),
    )


class Rules(Struct, frozen=True, kw_only=True):
    """How a parser judges what is not the client's to say."""

    fail_on_denial: bool = False
    limit_wait_s: float = DEFAULT_WAIT_S
    clock: Clock = field(default=local_clock)
    model: str | None = None
    """That was asked for; None: the client's own choice."""
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)


class Speaker:
    """Writes what a model says while it says it, and whole lines between."""

    _open_line: Piece | None = None

    def say(self, listener: Listener, text: str, kind: Piece) -> None:
        """Write *text* as a line of its own."""
        self.end_line(listener)
        if text:
            listener.write(f"{text}\n".encode("utf-8", "replace"), kind)

    def stream(self, listener: Listener, text: str, kind: Piece) -> None:
        """Write *text*, which is a piece of what comes."""
        if text:
            listener.write(text.encode("utf-8", "replace"), kind)
            self._open_line = None if text.endswith("\n") else kind

    def end_line(self, listener: Listener) -> None:
        """End the line that what was streamed has left open."""
        if self._open_line is not None:
            listener.write(b"\n", self._open_line)
            self._open_line = None


class JsonEventParser(Speaker, ABC):
    """Base of the clients' parsers; one instance for one attempt."""

    client: str
    """The client's name, for messages."""
    turns: ClassVar[TurnTable]
    """The reasons that it gives for the end of a turn."""
    login: str = ""
    """What a person does where the service knows nobody by the credentials."""
    gone: ClassVar[re.Pattern[str]]
    """How the client says that it does not know a conversation, or can't continue it."""
    usage_codes: frozenset[int] = _USAGE_CODES

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.observed = Observation(self.turns)
        self.session_id: str | None = None
        self.denials: list[str] = []
        self.quota: Quota | None = None
        # It ran, and until the client says so nobody knows at what cost.
        self.usage = Usage(unpriced=1)
        # What was observed call by call, where the client tells it before its sum.
        self.seen = Usage()
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._has_unread = False
        self.refused: str | None = None
        """Why the service refuses whatever the client asks for, and what to do; it is ended."""
        self.last_sent: int | None = None
        """Tokens that were sent in the last call; None: the client tells a sum only."""

    def feed_line(self, line: bytes, listener: Listener) -> bool:
        """Take one line of stdout without its newline; write what people should see.

        Return whether it shows progress: text, a tool call or its result.
        """
        found, is_readable = None, is_affordable(line)
        if is_readable:
            with suppress(ValueError, RecursionError):
                found = json.loads(line)
        if isinstance(found, dict):
            return self.take(ClientEvent(found), listener)
        if line.startswith(b"{"):
            self.skip()
        if line.strip():
            listener.write(line + b"\n", Piece.OUTPUT)
        if not is_readable:
            # What is too large to be read is a tool's result, and no sign of life.
            self._has_unread = True
        return not is_readable

    def skip(self) -> None:
        """Take it that there was an event which nobody can read: a tool's result, say."""
        self.observed.settle()

    @property
    def has_worked(self) -> bool:
        """Return whether there was text or a tool call of the agent."""
        return self.observed.has_text or self.observed.tool_calls > 0 or self._has_unread

    def feed_stderr(self, line: bytes) -> None:
        """Keep the last lines of stderr, where usage errors are; the listener has had them."""
        text = line.decode("utf-8", "replace").strip()
        if text:
            self._stderr.append(text)

    @abstractmethod
    def take(self, event: ClientEvent, listener: Listener) -> bool:
        """Take one event; return whether it has text, a tool call or its result.

        A client that hangs goes on sending events that have none of them.
        """

    @abstractmethod
    def finish(self, end: ProcessEnd) -> Outcome:
        """Return the outcome with all usage so far.

        Called for every process that ran. Where it was stopped (``ended_by``), the status
        and the error are replaced afterwards; output, usage and session are kept.
        """

    @property
    def stderr_text(self) -> str:
        """Return the last lines of stderr as one line."""
        return one_line(" ".join(self._stderr), ERROR_CHARS)

    def count(self, listener: Listener, usage: Usage) -> None:
        """Tell the usage so far, if it differs from what was told."""
        if usage != self.usage:
            self.usage = usage
            listener.used(usage)

    def count_tokens(self, listener: Listener, usage: Usage) -> None:
        """Tell the tokens of a client that knows no cost: that is estimated, or unknown."""
        rules, unknown = self.rules, usage.replace(unpriced=1)
        self.count(listener, estimated(unknown, rules.model, rules.prices))

    def answered(
        self, text: str, end: ProcessEnd, structured: Any = None, *, is_over: bool = True
    ) -> Outcome:
        """Return the outcome of an attempt that the client calls a success.

        Whether its turn ended by itself is in the evidence, for others to judge; what to do
        where it did not is in ``error``. Without *is_over* more came after its last word. A
        limit, an outage or a refusal in place of an answer is no success.
        """
        if structured is None and is_notice(text):
            error = f"{self.client} ended with exit code {end.exit_code}: {one_line(text)}"
            return self.refused_or_failed(error, end, is_own=True)
        shown = self.observed.evidence(is_over=is_over)
        if self.denials and self.rules.fail_on_denial:
            listed = "; ".join(self.denials[:3])
            return self.failed(
                f"{self.client} was refused {len(self.denials)} tool call(s): {listed}\n"
                "allow them in the agent's entry, or set fail_on_denial: false",
                end,
                output=text,
            ).replace(evidence=shown)
        advice = self.observed.advice if shown.turn_end is TurnEnd.CUT_OFF else None
        outcome = self._outcome(OutcomeStatus.OK, end, advice)
        return with_structured(outcome.replace(output=text, evidence=shown), structured)

    def done(self, end: ProcessEnd) -> Outcome:
        """Return the outcome where the agent was ended because its file has appeared."""
        self.observed.settle()
        self.observed.reason = None
        return self.answered("", end)

    def failed(self, error: str, end: ProcessEnd, *, output: str = "") -> Outcome:
        """Return the outcome of an attempt that failed for a reason other than a limit."""
        text = error if len(error) <= ERROR_CHARS else f"{error[:ERROR_CHARS]}…"
        return self._outcome(OutcomeStatus.FAILED, end, text).replace(output=output)

    def refused_or_failed(
        self,
        error: str,
        end: ProcessEnd,
        *,
        is_own: bool,
        status: int | None = None,
        epoch_s: float | None = None,
        hint: str = "",
    ) -> Outcome:
        """Return *limited* or *unavailable* if *error* or *status* says so, else *failed*.

        Only what the client itself said in its structured output *is_own*. What its tools
        printed may be of any other service's limit, and that has failed. So has what a client
        said that did not end by itself: an agent can write as its client, and end it before it
        says more. Exit code 0 does not make an answer of it. But where a tool was called before,
        the agent may have written it, and nobody waits for the date that it names.
        """
        error = error[:_READ_CHARS]
        found = ErrorKind.LIMIT if epoch_s is not None else classify(error, status)
        is_believed = epoch_s is not None or is_own
        is_away = is_believed and found in (ErrorKind.LIMIT, ErrorKind.OUTAGE)
        if is_away and end.is_cut_short:
            ended = describe_exit(end).splitlines()[0]
            hint = f"this is not believed of a client that ended so: {ended}"
        elif is_away and found is ErrorKind.LIMIT:
            when = self._when(error, end, epoch_s)
            text = f"limit reached: {one_line(error)}"
            return self._outcome(OutcomeStatus.LIMITED, end, text).replace(not_before=when)
        elif is_away:
            text = one_line(error, ERROR_CHARS)
            return self._outcome(OutcomeStatus.UNAVAILABLE, end, text)
        status = status_in(error) if status is None else status
        hint = hint or (self.login if status == _UNAUTHORIZED else "")
        outcome = self.failed(f"{error}\n{hint}".rstrip(), end)
        if (is_own or not self.has_worked) and self._is_about_session(error):
            return outcome.replace(session_fault=SessionFault.LOST)
        is_unexplained = self._is_unexplained(end, ErrorKind.UNKNOWN if is_away else found)
        is_silent = end.ended_by in {"idle", "timeout"} and not self.has_worked
        is_suspect = is_unexplained or is_silent or (is_own and status in _TOO_MUCH)
        return outcome.replace(
            is_unexplained=is_unexplained,
            session_fault=SessionFault.SUSPECT if is_suspect else None,
        )

    def _when(self, error: str, end: ProcessEnd, epoch_s: float | None) -> str:
        """Return when a limit is over, as *error* or *epoch_s* tells it."""
        now, wait_s = self.rules.clock(), self.rules.limit_wait_s
        if end.exit_code == 0 and (self.observed.tool_calls or self._has_unread):
            error, epoch_s = "", None
        return not_before(error, now, default_wait_s=wait_s, epoch_s=epoch_s)

    def _is_about_session(self, error: str) -> bool:
        return self.gone.search(error) is not None or _FULL.search(error) is not None

    def _is_unexplained(self, end: ProcessEnd, found: ErrorKind) -> bool:
        """Return whether the client may do its work if it is simply started again."""
        is_wrong = found is ErrorKind.REFUSAL or end.exit_code in self.usage_codes
        return not (self.has_worked or end.is_cut_short or is_wrong)

    def marked_session(self) -> str | None:
        """Return the session id, with what a later step has to know about it."""
        return self.session_id

    def _outcome(self, status: OutcomeStatus, end: ProcessEnd, error: str | None = None) -> Outcome:
        # The sum of one that was ended may be its agent's word; its own would have come last.
        usage = larger(self.usage, self.seen) if end.is_cut_short else self.usage
        return Outcome(
            status=status,
            error=error,
            usage=usage.replace(seconds=end.seconds),
            session_id=self.marked_session(),
            denials=tuple(self.denials),
            exit_code=end.exit_code,
            quota=self.quota,
            evidence=self.observed.evidence(is_over=False),
            context_tokens=self.last_sent or usage.input_tokens or None,
        )
