"""One call of the Messages API: streamed, tried again while that makes sense.

The package retries nothing once a stream has begun and obeys any retry-after before it;
here both are decided by the same rules and within the step's deadline. Errors that begin
in mid-stream are the HTTP library's own, and an error event has status code 200.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from sequencer.executors.client_events import ERROR_CHARS, as_dict, one_line
from sequencer.executors.client_limits import TOO_MANY_REQUESTS, Clock, not_before
from sequencer.executors.prices import Tokens
from sequencer.executors.protocol import Kind, Listener

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message

LONGEST_WAIT_S = 60.0
"""A limit that lasts longer ends the step as limited instead of keeping it waiting."""
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0
_OK = 200
_UNAUTHORIZED = 401
_SERVER_ERROR = 500
_CONFLICT = 409
_RETRIED = frozenset({408, _CONFLICT, TOO_MANY_REQUESTS})
_PASSING = frozenset({"api_error", "overloaded_error", "rate_limit_error", "timeout_error"})
"""Types of an error event that another try may get round."""


class CallFailed(Exception):
    """The call got no answer; the message says why and what to do."""


class CallUnanswered(CallFailed):
    """The service is overloaded, failing or out of reach; it may answer in a while."""


class CallLimited(CallFailed):
    """The account's limit is reached until *not_before*."""

    def __init__(self, message: str, not_before_at: str) -> None:
        super().__init__(message)
        self.not_before = not_before_at


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """How long and how often one call is tried."""

    retries: int
    limit_wait_s: float
    idle_timeout_s: float | None
    """The step's own limit of silence, if it is what breaks a call off: not tried again."""
    seconds_left: Callable[[], float | None]
    clock: Clock
    key_variable: str


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What went wrong in one try."""

    text: str
    status: int | None = None
    is_passing: bool = True
    retry_after_s: float | None = None


async def call(
    client: anthropic.AsyncAnthropic,
    parameters: dict[str, Any],
    rules: CallRules,
    listener: Listener,
    count: Callable[[Tokens, bool], None],
) -> Message:
    """Return the whole answer to one request; text goes to *listener* as it comes.

    *count* is told the tokens of the present try so far, and True when a try has ended:
    a try that broke off is charged too.

    Raises:
        CallLimited: the limit lasts longer than `LONGEST_WAIT_S`, the step's deadline, or
            all tries.
        CallUnanswered: the service did not answer, after the tries that it deserves.
        CallFailed: any other error.
    """
    attempt = 0
    while True:
        stream = _Stream(listener, count)
        try:
            return await stream.read(client, parameters)
        except _caught() as error:
            trouble = _explain(error, rules)
        finally:
            stream.close()
        attempt += 1
        delay_s = _delay_s(trouble, attempt)
        left = rules.seconds_left()
        is_too_late = left is not None and delay_s >= left
        if not trouble.is_passing or is_too_late or attempt > rules.retries:
            raise _final(trouble, attempt, rules)
        if trouble.status == TOO_MANY_REQUESTS and delay_s > LONGEST_WAIT_S:
            raise _final(trouble, attempt, rules)
        again = f"asking again in {delay_s:.1f} s, {attempt} of {rules.retries}"
        listener.write(f"{trouble.text}; {again}\n".encode(), Kind.NOTICE)
        await asyncio.sleep(delay_s)


class _Stream:
    """One try: shows its text, counts its tokens."""

    def __init__(self, listener: Listener, count: Callable[[Tokens, bool], None]) -> None:
        self._listener = listener
        self._count = count
        self._tokens = Tokens()
        self._open_line: Kind | None = None

    async def read(self, client: anthropic.AsyncAnthropic, parameters: dict[str, Any]) -> Message:
        async with client.messages.stream(**parameters) as stream:
            async for event in stream:
                if event.type == "message_start":
                    self._take_usage(event.message.usage)
                elif event.type == "message_delta":
                    self._take_usage(event.usage)
                elif event.type == "content_block_delta":
                    self._take_delta(event.delta)
                elif event.type == "content_block_stop":
                    self._end_line()
            return await stream.get_final_message()

    def close(self) -> None:
        self._end_line()
        self._count(self._tokens, True)  # noqa: FBT003 - the meaning is in `call`

    def _take_delta(self, delta: Any) -> None:
        for name, kind in (("text", Kind.RESPONSE), ("thinking", Kind.THOUGHT)):
            text = getattr(delta, name, None)
            if isinstance(text, str) and text:
                self._listener.write(text.encode("utf-8", "replace"), kind)
                self._open_line = None if text.endswith("\n") else kind

    def _end_line(self) -> None:
        if self._open_line is not None:
            self._listener.write(b"\n", self._open_line)
            self._open_line = None

    def _take_usage(self, usage: Any) -> None:
        creation = getattr(usage, "cache_creation", None)
        seen = self._tokens
        # Later events may leave out what the first one said; counts never fall.
        hour = max(getattr(creation, "ephemeral_1h_input_tokens", 0) or 0, seen.cache_write_1h)
        written = getattr(usage, "cache_creation_input_tokens", 0) or 0
        self._tokens = Tokens(
            input=max(getattr(usage, "input_tokens", 0) or 0, seen.input),
            output=max(getattr(usage, "output_tokens", 0) or 0, seen.output),
            cache_read=max(getattr(usage, "cache_read_input_tokens", 0) or 0, seen.cache_read),
            cache_write=max(written - hour, seen.cache_write, 0),
            cache_write_1h=hour,
        )
        self._count(self._tokens, False)  # noqa: FBT003 - the meaning is in `call`


def _caught() -> tuple[type[Exception], ...]:
    """Return what a call may raise: the package's errors and those of its HTTP library."""
    import anthropic  # noqa: PLC0415 - costs a second

    libraries = (sys.modules.get(name) for name in ("httpx2", "httpx"))
    transport = tuple(library.HTTPError for library in libraries if library is not None)
    return (anthropic.AnthropicError, *transport)


def _explain(error: Exception, rules: CallRules) -> _Trouble:
    import anthropic  # noqa: PLC0415 - costs a second

    name = type(error).__name__
    if isinstance(error, anthropic.APIStatusError):
        return _explain_status(error, rules)
    if "Timeout" in name:
        if rules.idle_timeout_s is not None:
            silent = f"no progress for {rules.idle_timeout_s:g} s; the call was broken off\n"
            return _Trouble(f"{silent}raise idle_timeout_s, or leave it out", is_passing=False)
        return _Trouble(f"the API was silent for too long ({name})")
    if isinstance(error, anthropic.APIConnectionError):
        return _Trouble(f"the API can't be reached: {error.__cause__ or error}")
    if isinstance(error, anthropic.AnthropicError):
        return _Trouble(f"{name}: {error}", is_passing=False)
    return _Trouble(f"the API's answer broke off: {name}: {error}")


def _explain_status(error: anthropic.APIStatusError, rules: CallRules) -> _Trouble:
    body = as_dict(as_dict(error.body).get("error"))
    message = one_line(body.get("message") or error.message, ERROR_CHARS)
    kind = str(body.get("type", ""))
    status = error.status_code
    if status == _OK:
        status = TOO_MANY_REQUESTS if kind == "rate_limit_error" else _OK
        return _Trouble(f"the API's answer broke off: {kind}: {message}", status, kind in _PASSING)
    headers = error.response.headers
    said = headers.get("x-should-retry")
    is_passing = status in _RETRIED or status >= _SERVER_ERROR if said is None else said == "true"
    text = f"the API refused the call (HTTP {status} {kind}): {message}"
    if status == _UNAUTHORIZED:
        text += f"\ncheck the key in {rules.key_variable}"
        is_passing = False
    # A limit is never given up at once because of a header: it may end the step as limited.
    is_passing = is_passing or status == TOO_MANY_REQUESTS
    return _Trouble(text, status, is_passing, _retry_after_s(headers, rules))


def _retry_after_s(headers: Any, rules: CallRules) -> float | None:
    """Return the seconds of a retry-after header, which may also hold a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max((aware - rules.clock()).total_seconds(), 0.0)


def _delay_s(trouble: _Trouble, attempt: int) -> float:
    if trouble.retry_after_s is not None:
        return trouble.retry_after_s
    return float(min(_FIRST_DELAY_S * 2 ** (attempt - 1), _LONGEST_DELAY_S))


def _final(trouble: _Trouble, attempt: int, rules: CallRules) -> CallFailed:
    tries = f" ({attempt} tries)" if attempt > 1 else ""
    if trouble.status != TOO_MANY_REQUESTS:
        is_temporary = trouble.is_passing and trouble.status != _CONFLICT
        return (CallUnanswered if is_temporary else CallFailed)(f"{trouble.text}{tries}")
    now = rules.clock()
    after = trouble.retry_after_s
    epoch_s = None if after is None else now.timestamp() + after
    when = not_before(trouble.text, now, default_wait_s=rules.limit_wait_s, epoch_s=epoch_s)
    return CallLimited(f"{trouble.text}{tries}", when)
