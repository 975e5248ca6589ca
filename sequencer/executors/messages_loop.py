"""A conversation with a model over the Messages API: ask, run its tools, ask again.

One attempt, one conversation; nothing of it is kept. Its cost is counted after every
event and compared with the limit before every call, so a limit can be overshot by one
call. Tools block the loop, which is what orders them; they obey deadline and
cancellation themselves.

The package retries nothing once a stream has started and obeys any retry-after before it;
here both are decided by the same rules and within the step's deadline. Errors in mid-stream
are the HTTP library's own, and an error event has status code 200.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from sequencer.executors.client import ERROR_CHARS, as_dict, one_line
from sequencer.executors.client_limits import TOO_MANY_REQUESTS, Clock, not_before
from sequencer.executors.prices import ModelPrice, Tokens
from sequencer.executors.project_tools import Workbench, call_tool, describe_tools
from sequencer.executors.protocol import Listener, Piece
from sequencer.model.outcome import Usage

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message

_HINTS = {
    "max_tokens": "the answer was cut at max_tokens; raise it in the agent's entry",
    "refusal": "the model refused to answer; change the prompt",
    "model_context_window_exceeded": "the conversation no longer fits; make the step smaller",
}
"""By stop reason."""


class ConversationFailed(Exception):
    """The conversation ended without an answer; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """What is asked, and within which limits."""

    prompt: str
    system: str | None
    model: str
    max_tokens: int
    max_turns: int
    tools: Sequence[str]
    max_cost_usd: float | None
    price: ModelPrice | None
    """None: the cost is not known."""
    schema: dict[str, Any] | None = None
    """JSON Schema of the answer."""
    temperature: float | None = None


@dataclass(slots=True)
class Ledger:
    """What the attempt has used so far, the try that runs included."""

    price: ModelPrice | None
    listener: Listener
    settled: Usage = field(default_factory=Usage)
    usage: Usage = field(default_factory=Usage)

    def count(self, tokens: Tokens, is_over: bool) -> None:
        """Take the tokens of the try that runs; settle them once it *is_over*."""
        cost = self.price.cost_usd(tokens) if self.price else 0.0
        running = Usage(
            cost_usd=cost,
            estimated_usd=cost,
            input_tokens=tokens.sent,
            output_tokens=tokens.output,
        )
        usage = self.settled.plus(running).replace(unpriced=int(self.price is None))
        if is_over:
            self.settled = usage
        if usage != self.usage:
            self.usage = usage
            self.listener.used(usage)


class Conversation:
    """One attempt's conversation."""

    def __init__(
        self, plan: Dialog, rules: CallRules, bench: Workbench, listener: Listener
    ) -> None:
        self.denials: list[str] = []
        self.ledger = Ledger(plan.price, listener)
        self._plan = plan
        self._rules = rules
        self._bench = bench
        self._listener = listener

    async def hold(self, client: anthropic.AsyncAnthropic) -> str:
        """Return the model's final answer.

        Raises:
            ConversationFailed: a limit was reached, or the model ended without an answer.
            CallFailed: a call got no answer.
        """
        messages: list[dict[str, Any]] = [{"role": "user", "content": [_text(self._plan.prompt)]}]
        for turn in range(1, self._plan.max_turns + 1):
            self._check_budget()
            answer = await call(
                client, self._parameters(messages), self._rules, self._listener, self.ledger.count
            )
            messages.append({"role": "assistant", "content": answer.content})
            if answer.stop_reason in {"end_turn", "stop_sequence"}:
                return "\n".join(block.text for block in answer.content if block.type == "text")
            if answer.stop_reason == "tool_use" and turn < self._plan.max_turns:
                messages.append({"role": "user", "content": self._use_tools(answer)})
            elif answer.stop_reason not in {"tool_use", "pause_turn"}:
                reason = str(answer.stop_reason)
                raise ConversationFailed(_HINTS.get(reason, f"unknown stop reason {reason!r}"))
        message = f"no answer after {self._plan.max_turns} turn(s); raise max_turns, or make the "
        raise ConversationFailed(f"{message}step smaller")

    def _check_budget(self) -> None:
        limit, spent = self._plan.max_cost_usd, self.ledger.usage.cost_usd
        if limit is not None and spent >= limit:
            message = f"the budget is spent: {spent:.4f} of {limit:.4f} USD; raise max_cost_usd"
            raise ConversationFailed(message)

    def _parameters(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        *before, last = messages
        if last["role"] == "user":
            # Everything up to here is read from the cache by the next call.
            *blocks, end = last["content"]
            marked = {**end, "cache_control": {"type": "ephemeral"}}
            last = {**last, "content": [*blocks, marked]}
        parameters: dict[str, Any] = {
            "model": self._plan.model,
            "max_tokens": self._plan.max_tokens,
            "messages": [*before, last],
        }
        if self._plan.system is not None:
            parameters["system"] = self._plan.system
        if self._plan.tools:
            parameters["tools"] = describe_tools(self._plan.tools)
        if self._plan.temperature is not None:
            # The package has no such parameter; the API takes it where the model does.
            parameters["extra_body"] = {"temperature": self._plan.temperature}
        output_format = _format(self._plan.schema)
        if output_format is not None:
            parameters["output_config"] = {"format": output_format}
        return parameters

    def _use_tools(self, answer: Message) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for block in answer.content:
            if block.type != "tool_use":
                continue
            shown = f"{block.name} {one_line(block.input)}"
            self._say(f"-> {shown}", Piece.ACTION)
            done = call_tool(block.name, block.input, self._plan.tools, self._bench)
            self._say(
                f"{'<- error:' if done.is_error else '<-'} {one_line(done.text)}", Piece.ACTION
            )
            if done.is_refused:
                self.denials.append(one_line(shown, 160))
            results.append(
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": [_text(done.text)],
                    "is_error": done.is_error,
                }
            )
        return results

    def _say(self, text: str, kind: Piece) -> None:
        self._listener.write(f"{text}\n".encode("utf-8", "replace"), kind)


def _format(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return *schema* as the API takes one; None where it has no form that the API knows."""
    if schema is None:
        return None
    import anthropic  # noqa: PLC0415 - costs a second

    try:
        return {"type": "json_schema", "schema": anthropic.transform_schema(dict(schema))}
    except (ValueError, TypeError, AttributeError, RecursionError):
        # Not everything that JSON Schema can say; the answer is checked behind the step.
        return None


def _text(text: str) -> dict[str, Any]:
    # The API refuses an empty text block; a tool may well have said nothing.
    return {"type": "text", "text": text or "(nothing)"}


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
        listener.write(f"{trouble.text}; {again}\n".encode(), Piece.NOTICE)
        await asyncio.sleep(delay_s)


class _Stream:
    """One try: shows its text, counts its tokens."""

    def __init__(self, listener: Listener, count: Callable[[Tokens, bool], None]) -> None:
        self._listener = listener
        self._count = count
        self._tokens = Tokens()
        self._open_line: Piece | None = None

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
        for name, kind in (("text", Piece.RESPONSE), ("thinking", Piece.THOUGHT)):
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
