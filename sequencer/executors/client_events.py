"""Reads the output of command-line clients: one JSON event a line, all of it untrusted.

`JsonEventParser` is the base class of the clients' parsers. A value of an unexpected type counts
as missing, an invalid amount as unknown, and an id that no client would use as none. UTF-8 can
encode each text. An event that would need many times its size in memory, or that a parser can't
process, is shown and has no other effect.
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

from sequencer.executors.answers import replace_surrogates, with_structured
from sequencer.executors.client_limits import (
    DEFAULT_WAIT_S,
    Clock,
    ErrorKind,
    classify,
    find_retry_time,
    find_status,
    is_notice,
    local_clock,
)
from sequencer.executors.observation import EndReasons, Observation
from sequencer.executors.prices import ModelPrice, with_estimated_cost
from sequencer.executors.process import (
    ProcessEnd,
    describe_exit,
)
from sequencer.executors.protocol import Listener, Piece
from sequencer.model.evidence import TurnEnd
from sequencer.model.outcome import Outcome, OutcomeStatus, Quota, SessionFault, Usage
from sequencer.model.whole_numbers import MAX_USED

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
"""An id or a version. It may become a program argument, and has no ``;``, which separates facts."""
_FACT = re.compile(r"([a-z_]{1,30})=([A-Za-z0-9.+-]{1,40})")


def join_mark(session_id: str, facts: Mapping[str, float | int | str]) -> str:
    """Return *session_id* with *facts* appended.

    >>> join_mark("0199", {"cost_usd": 0.5, "version": "2.1.330"})
    '0199;cost_usd=0.5;version=2.1.330'
    """
    return ";".join([session_id, *(f"{name}={value}" for name, value in facts.items())])


def split_mark(mark: str) -> tuple[str, dict[str, str]]:
    """Return the id and the facts of a *mark*; facts that can't be read are left out.

    Raises:
        ValueError: the id is not one that a client would use. It becomes a program argument,
            and any person or program may have edited state.json, from which it comes.
    """
    session_id, *fields = mark.split(";")
    if not _ID.fullmatch(session_id):
        raise ValueError(f"{session_id[:60]!r} is not a session id")
    facts = (_FACT.fullmatch(part) for part in fields)
    return session_id, {fact[1]: fact[2] for fact in facts if fact}


def get_number(facts: Mapping[str, str], name: str) -> float:
    """Return a numeric fact; 0 if it is missing, or not a finite number of at least 0.

    >>> get_number({"cost_usd": "0.5", "version": "x"}, "cost_usd")
    0.5
    """
    try:
        return parse_amount(float(facts.get(name, 0))) or 0.0
    except ValueError:
        return 0.0


LINE_CHARS = 300
"""Maximum characters of a tool's input or result to show; the client's transcript has all."""
ERROR_CHARS = 1_000
READ_CHARS = 8_000
"""Maximum characters of an error to search: an agent can produce megabytes."""
_STDERR_LINES = 20
_UNAUTHORIZED = 401
_TOO_MUCH = frozenset({400, 413})
"""HTTP statuses of an invalid request; its conversation may be the cause."""
_USAGE_CODES = frozenset({2, 64, 78, 126, 127})
"""Exit codes of programs that were called with wrong arguments or could not be run."""
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
"""Longest event with more than ASCII: one wide character makes each take up to four bytes."""
STRUCTURE_BYTES = 256 * 1024
"""Maximum bytes of an event outside its strings: a million lists take 25 times their size."""
_MAX_QUOTES = 100_000
# Also matches at the end of the line; otherwise a string that never ends would be rescanned.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_MAX_DENIALS = 1_000
"""Maximum refused tool calls to remember: a forged result can list any number."""
_DENIAL_CHARS = 160
_NESTED = "(nested too deeply)"


def one_line(value: object, limit: int = LINE_CHARS) -> str:
    r"""Return *value* on one line, cut at *limit* characters.

    >>> one_line({"path": "a.txt", "text": "x\ny"}), one_line("a  b\n c"), one_line("abcdef", 3)
    ('path="a.txt" text="x\\ny"', 'a b c', 'abc…')
    """
    if isinstance(value, dict):
        text = " ".join(f"{one_line(key)}={_to_json(item)}" for key, item in value.items())
    elif isinstance(value, str):
        # Cut before the split: a result may be megabytes long.
        text = " ".join(value[: limit * 4].split())
    else:
        text = _to_json(value)
    return replace_surrogates(text if len(text) <= limit else f"{text[:limit]}…")


def _to_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        # The encoder needs more stack per level than the parser that read the value.
        return _NESTED


def is_affordable(line: bytes) -> bool:
    """Return whether *line*, a JSON text, needs at most a few times its size when it is parsed."""
    if len(line) <= STRUCTURE_BYTES:
        return True
    if len(line) > WIDE_BYTES and not (line.isascii() and b"\\u" not in line):
        return False
    quotes = line.count(b'"') - line.count(b'\\"')
    return quotes <= _MAX_QUOTES and len(_TEXT.sub(b"", line)) <= STRUCTURE_BYTES


def parse_amount(value: object) -> float | None:
    """Return *value* if it is a valid amount; None for -0.0, and for more than `MAX_USED`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= MAX_USED and str(value)[0] != "-" else None


class ClientEvent(dict[str, Any]):
    """An object in a client's stream; a value of another type than asked for counts as missing.

    >>> event = ClientEvent(usage={"in": 3, "out": -1}, parts=[{"text": "a"}, None])
    >>> event.get_object("usage").sum_counts("in", "out")
    3
    >>> [part.get_text("text") for part in event.get_objects("parts")]
    ['a', '']
    """

    @classmethod
    def from_value(cls, value: object) -> ClientEvent:
        """Return *value*, or an empty object if it is not an object."""
        return cls(value) if isinstance(value, dict) else cls()

    def get_object(self, name: str) -> ClientEvent:
        """Return the object called *name*."""
        return self.from_value(self.get(name))

    def get_objects(self, name: str) -> list[ClientEvent]:
        """Return the objects in the list called *name*."""
        value = self.get(name)
        return [self.from_value(item) for item in value] if isinstance(value, list) else []

    def get_text(self, name: str) -> str:
        """Return the text called *name*, which UTF-8 can encode."""
        value = self.get(name)
        return replace_surrogates(value) if isinstance(value, str) else ""

    def get_id(self, name: str) -> str | None:
        """Return the id or version called *name*; None: it is missing, or no client would use it.

        It goes into the head, the journal and the next call of the client, and an agent can
        print anything as if it were its client.

        >>> ClientEvent(id="0199-ab").get_id("id"), ClientEvent(id="0199;cost_usd=9").get_id("id")
        ('0199-ab', None)
        """
        value = self.get(name)
        return value if isinstance(value, str) and _ID.fullmatch(value) else None

    def describe(self, name: str, limit: int = LINE_CHARS) -> str:
        """Return the value called *name*, of any type, on one line; see `one_line`."""
        return one_line(self.get(name), limit)

    def sum_counts(self, *names: str) -> int:
        """Return the sum of the counts called *names*."""
        return sum(int(parse_amount(self.get(name)) or 0) for name in names)

    def get_amount(self, name: str) -> float:
        """Return the amount called *name*; 0 if it is not valid."""
        return parse_amount(self.get(name)) or 0.0


def sum_of_costs(values: Iterable[object]) -> Usage:
    """Return the sum of a client's *values* as usage; an invalid amount makes the cost unknown."""
    amounts = [parse_amount(value) for value in values]
    cost = sum(value for value in amounts if value is not None)
    return Usage(cost_usd=round(cost, 9), unpriced=int(None in amounts))


def max_usage(first: Usage, second: Usage) -> Usage:
    """Return the larger of two usages, figure by figure, because an agent may forge a line.

    Tokens that were not read from a cache are a separate figure, because they cost more.

    >>> max_usage(Usage(input_tokens=9, cache_read_tokens=9), Usage(input_tokens=5)).input_tokens
    14
    """
    cached_tokens = max(first.cache_read_tokens, second.cache_read_tokens)
    uncached_tokens = max(usage.input_tokens - usage.cache_read_tokens for usage in (first, second))
    return max(first, second, key=lambda usage: usage.cost_usd).replace(
        unpriced=max(first.unpriced, second.unpriced),
        input_tokens=uncached_tokens + cached_tokens,
        cache_read_tokens=cached_tokens,
        output_tokens=max(first.output_tokens, second.output_tokens),
    )


class Rules(Struct, frozen=True, kw_only=True):
    """The settings with which a parser judges outcomes."""

    fail_on_denial: bool = False
    limit_wait_s: float = DEFAULT_WAIT_S
    clock: Clock = field(default=local_clock)
    model: str | None = None
    """The requested model; None: the client chooses."""
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)


class TextStreamer:
    """Writes the text of a model while it is streamed, and whole lines in between."""

    _open_line: Piece | None = None

    def write_line(self, listener: Listener, text: str, kind: Piece) -> None:
        """Write *text* as a separate line."""
        self.end_line(listener)
        if text:
            listener.write(f"{text}\n".encode("utf-8", "replace"), kind)

    def stream(self, listener: Listener, text: str, kind: Piece) -> None:
        """Write *text*, a piece of streamed text."""
        if text:
            listener.write(text.encode("utf-8", "replace"), kind)
            self._open_line = None if text.endswith("\n") else kind

    def end_line(self, listener: Listener) -> None:
        """End the line that streamed text left open, if there is one."""
        if self._open_line is not None:
            listener.write(b"\n", self._open_line)
            self._open_line = None


class _LineOutput(Listener):
    """Collects what a parser reports about one line, and passes it on when the parser is done.

    The listener's exceptions must reach the caller; this way, none is taken for the parser's.
    """

    def __init__(self) -> None:
        self._parts: list[Usage | tuple[bytes, Piece]] = []

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        self._parts.append((data, kind))

    def report_usage(self, usage: Usage) -> None:
        self._parts.append(usage)

    def pass_on(self, listener: Listener) -> None:
        """Give all parts to *listener*, in their order."""
        for part in self._parts:
            if isinstance(part, Usage):
                listener.report_usage(part)
            else:
                listener.write(*part)


class JsonEventParser(TextStreamer, ABC):
    """Base class of the clients' parsers; one instance parses one attempt."""

    client: str
    """The client's name, for messages."""
    turns: ClassVar[EndReasons]
    """The client's reasons for the end of a turn."""
    login: str = ""
    """The hint for a person if the service refuses the credentials."""
    lost_session: ClassVar[re.Pattern[str]]
    """The client's messages for a conversation that it does not know or can't continue."""
    usage_codes: frozenset[int] = _USAGE_CODES

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.observed = Observation(self.turns)
        self.session_id: str | None = None
        self.denials: list[str] = []
        self.quota: Quota | None = None
        # The cost is unknown until the client reports it.
        self.usage = Usage(unpriced=1)
        # The usage call by call, if the client reports that before the sum.
        self.seen = Usage()
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._has_unread = False
        self.refused: str | None = None
        """Why the service refuses every request, and what to do; the client is ended for it."""
        self.last_sent: int | None = None
        """Tokens that were sent in the last call; None: the client reports only a sum."""

    def feed_line(self, line: bytes, listener: Listener) -> bool:
        """Process one line of stdout without its newline; write what people should see.

        Return whether it shows progress: text, a tool call or its result.
        """
        value, is_readable = None, is_affordable(line)
        if is_readable:
            with suppress(ValueError, RecursionError):
                value = json.loads(line)
        if isinstance(value, dict):
            output = _LineOutput()
            try:
                has_progressed = self.process_event(ClientEvent(value), output)
            except Exception:  # noqa: BLE001 - an agent can print anything, and must not end this process
                self.skip()
            else:
                output.pass_on(listener)
                return has_progressed
        if line.startswith(b"{"):
            self.skip()
        if line.strip():
            listener.write(line + b"\n", Piece.OUTPUT)
        if not is_readable:
            # A line that is too large to parse is a tool's result, so the agent has worked.
            self._has_unread = True
        return not is_readable

    def skip(self) -> None:
        """Record that an event could not be parsed; it may be a tool's result."""
        self.observed.close_calls()

    @property
    def has_worked(self) -> bool:
        """Return whether the agent has written text or called a tool."""
        return self.observed.has_text or self.observed.tool_calls > 0 or self._has_unread

    def feed_stderr(self, line: bytes) -> None:
        """Store the last lines of stderr, which have usage errors; the listener has them by now."""
        text = line.decode("utf-8", "replace").strip()
        if text:
            self._stderr.append(text)

    def store_session_id(self, event: ClientEvent, name: str) -> None:
        """Store the conversation's id, called *name* in *event*, unless there already is one.

        The first one wins: the client prints it before its agent can print anything.
        """
        self.session_id = self.session_id or event.get_id(name)

    def record_denial(self, text: str) -> None:
        """Record a tool call that the client refused; *text* says which one."""
        if len(self.denials) < _MAX_DENIALS:
            self.denials.append(one_line(text, _DENIAL_CHARS))

    @abstractmethod
    def process_event(self, event: ClientEvent, listener: Listener) -> bool:
        """Process one event; return whether it has text, a tool call or its result.

        A client that hangs continues to send events without any of these.
        """

    @abstractmethod
    def finish(self, end: ProcessEnd) -> Outcome:
        """Return the outcome with all usage so far.

        Called for every process that ran. If the process was stopped (``ended_by``), the caller
        replaces status and error and keeps output, usage and session.
        """

    @property
    def stderr_text(self) -> str:
        """Return the last lines of stderr as one line."""
        return one_line(" ".join(self._stderr), ERROR_CHARS)

    def report_usage(self, listener: Listener, usage: Usage) -> None:
        """Report the usage so far to *listener*, if it has changed."""
        usage = usage.cap()
        if usage != self.usage:
            self.usage = usage
            listener.report_usage(usage)

    def report_tokens(self, listener: Listener, usage: Usage) -> None:
        """Report the tokens of a client that reports no cost; it is estimated or unknown."""
        rules, unpriced_usage = self.rules, usage.replace(unpriced=1)
        self.report_usage(listener, with_estimated_cost(unpriced_usage, rules.model, rules.prices))

    def build_success(
        self, text: str, end: ProcessEnd, structured: Any = None, *, is_over: bool = True
    ) -> Outcome:
        """Return the outcome of an attempt that the client calls a success.

        The evidence says whether the turn ended by itself, and the engine judges that; if it did
        not, ``error`` says what to do. *is_over* is False if more came after the last message.
        A limit, an outage or a refusal instead of an answer is not a success.
        """
        if structured is None and is_notice(text):
            error = f"{self.client} ended with exit code {end.exit_code}: {one_line(text)}"
            return self.classify_failure(error, end, is_own=True)
        evidence = self.observed.evidence(is_over=is_over)
        if self.denials and self.rules.fail_on_denial:
            denials_text = "; ".join(self.denials[:3])
            return self.build_failure(
                f"{self.client} was refused {len(self.denials)} tool call(s): {denials_text}\n"
                "allow them in the agent's entry, or set fail_on_denial: false",
                end,
                output=text,
            ).replace(evidence=evidence)
        advice = self.observed.advice if evidence.turn_end is TurnEnd.CUT_OFF else None
        outcome = self._outcome(OutcomeStatus.OK, end, advice)
        return with_structured(outcome.replace(output=text, evidence=evidence), structured)

    def build_done_outcome(self, end: ProcessEnd) -> Outcome:
        """Return the outcome of an agent that was ended because its file appeared."""
        self.observed.close_calls()
        self.observed.reason = None
        return self.build_success("", end)

    def build_failure(self, error: str, end: ProcessEnd, *, output: str = "") -> Outcome:
        """Return the outcome of an attempt that failed for a reason other than a limit."""
        text = error if len(error) <= ERROR_CHARS else f"{error[:ERROR_CHARS]}…"
        return self._outcome(OutcomeStatus.FAILED, end, text).replace(output=output)

    def classify_failure(
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

        *is_own*: the client itself reported the error in its structured output. Otherwise a tool
        may have printed it, about another service's limit, so the attempt has failed. It has also
        failed if the client did not end by itself: an agent can imitate its client and then kill
        it. Exit code 0 does not turn the error into an answer; but after a tool call, the agent
        may have written it, so the date in it is ignored.
        """
        error = error[:READ_CHARS]
        kind = ErrorKind.LIMIT if epoch_s is not None else classify(error, status)
        is_believed = epoch_s is not None or is_own
        is_away = is_believed and kind in (ErrorKind.LIMIT, ErrorKind.OUTAGE)
        if is_away and end.is_cut_short:
            exit_text = describe_exit(end).splitlines()[0]
            hint = f"this is not believed of a client that ended so: {exit_text}"
        elif is_away and kind is ErrorKind.LIMIT:
            reset_time = self._find_reset_time(error, end, epoch_s)
            text = f"limit reached: {one_line(error)}"
            return self._outcome(OutcomeStatus.LIMITED, end, text).replace(not_before=reset_time)
        elif is_away:
            text = one_line(error, ERROR_CHARS)
            return self._outcome(OutcomeStatus.UNAVAILABLE, end, text)
        status = find_status(error) if status is None else status
        hint = hint or (self.login if status == _UNAUTHORIZED else "")
        outcome = self.build_failure(f"{error}\n{hint}".rstrip(), end)
        if (is_own or not self.has_worked) and self._is_about_session(error):
            return outcome.replace(session_fault=SessionFault.LOST)
        is_unexplained = self._is_unexplained(end, ErrorKind.UNKNOWN if is_away else kind)
        is_silent = end.ended_by in {"idle", "timeout"} and not self.has_worked
        is_suspect = is_unexplained or is_silent or (is_own and status in _TOO_MUCH)
        return outcome.replace(
            is_unexplained=is_unexplained,
            session_fault=SessionFault.SUSPECT if is_suspect else None,
        )

    def _find_reset_time(self, error: str, end: ProcessEnd, epoch_s: float | None) -> str:
        """Return when a limit ends, according to *error* or *epoch_s*."""
        now, wait_s = self.rules.clock(), self.rules.limit_wait_s
        if end.exit_code == 0 and (self.observed.tool_calls or self._has_unread):
            error, epoch_s = "", None
        return find_retry_time(error, now, default_wait_s=wait_s, epoch_s=epoch_s)

    def _is_about_session(self, error: str) -> bool:
        return self.lost_session.search(error) is not None or _FULL.search(error) is not None

    def _is_unexplained(self, end: ProcessEnd, kind: ErrorKind) -> bool:
        """Return whether the client may succeed if it is simply started again."""
        is_wrong = kind is ErrorKind.REFUSAL or end.exit_code in self.usage_codes
        return not (self.has_worked or end.is_cut_short or is_wrong)

    def session_mark(self) -> str | None:
        """Return the session id, with the facts that a later step needs."""
        return self.session_id

    def _outcome(self, status: OutcomeStatus, end: ProcessEnd, error: str | None = None) -> Outcome:
        # If the client was ended, its agent may have forged the sum: the client's own comes last.
        usage = max_usage(self.usage, self.seen).cap() if end.is_cut_short else self.usage
        return Outcome(
            status=status,
            error=error,
            usage=usage.replace(seconds=end.seconds),
            session_id=self.session_mark(),
            denials=tuple(self.denials),
            exit_code=end.exit_code,
            quota=self.quota,
            evidence=self.observed.evidence(is_over=False),
            context_tokens=self.last_sent or usage.input_tokens or None,
        )
