"""A conversation with a model over the Messages API: ask, run its tools, ask again.

One attempt is one conversation, which is not stored. The cost is counted after every event
and compared with the limit before every call, so one call can exceed a limit. Tools block the
loop, so they run one after the other; they obey deadline and cancellation themselves.

The anthropic package retries nothing after a stream has started, and before that it obeys any
retry-after. Here the same rules decide both, within the step's deadline. Errors within a stream
come from the HTTP library, and an error event has status code 200.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct

from sequencer.executors.answers import (
    build_answer_schema,
    parse_json,
    replace_surrogates,
    with_structured,
)
from sequencer.executors.client_events import (
    ERROR_CHARS,
    ClientEvent,
    TextStreamer,
    one_line,
    parse_amount,
)
from sequencer.executors.client_limits import (
    DEFAULT_WAIT_S,
    TOO_MANY_REQUESTS,
    Clock,
    find_retry_time,
)
from sequencer.executors.observation import EndReasons, Observation, normalize_reason
from sequencer.executors.prices import ModelPrice, Tokens, find_price
from sequencer.executors.project_tools import SECRETS, ToolContext, call_tool, describe_tools
from sequencer.executors.protocol import (
    Listener,
    Piece,
    StepRequest,
    repetition_message,
    timeout_message,
)
from sequencer.executors.tool_words import MESSAGES, removed_tools
from sequencer.executors.wall import Wall
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import AfterValidator, Field
from sequencer.model.addresses import may_receive_secrets
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import ModelName

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message

_CONNECT_TIMEOUT_S = 30.0
LISTENED_TO = "the key is sent there, so the address must start with https://"
ToolName = Literal["read", "write", "edit", "glob", "grep", "bash"]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$")]


def _check_base_url(url: str | None) -> str | None:
    if url is not None and not may_receive_secrets(url):
        raise ValueError(LISTENED_TO)
    return url


class MessagesOptions(Frozen):
    """``agents: {NAME: {kind: anthropic, …}}``."""

    model: ModelName = "claude-sonnet-5-5"
    max_tokens: int = Field(default=32_000, ge=1, le=1_000_000)
    """Limit for one answer."""
    max_turns: int = Field(default=50, ge=1, le=10_000)
    """Maximum calls of a step that sets no max_turns itself."""
    tools: tuple[ToolName, ...] = ("read", "glob", "grep")
    """A step's own lists can only remove some of these."""
    api_key_env: VariableName = "ANTHROPIC_API_KEY"
    """Name of the variable with the key; the key itself must not be in a file."""
    base_url: Annotated[
        str | None, Field(pattern=r"^https?://\S+$"), AfterValidator(_check_base_url)
    ] = None
    """Address of a gateway; default: ANTHROPIC_BASE_URL or the API itself."""
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    """By model, in USD per million tokens; they replace the list prices."""
    retries: int = Field(default=4, ge=0, le=20)
    """Retries of a call that was cut off or found a busy server."""
    stall_timeout_s: float = Field(default=300.0, gt=0, le=3_600)
    """Silence of the API after which a call is broken off and retried."""
    limit_wait_s: float = Field(default=DEFAULT_WAIT_S, gt=0, le=86_400)
    """How long to wait after a usage limit if the API does not say when it ends."""
    secrets: tuple[str, ...] = SECRETS
    """Names of files, as shell patterns, that the file tools do not touch."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for commands, in addition to the ones on the allowlist."""
    pass_env: tuple[str, ...] = ()
    """Names of further variables of this process that commands get."""
    fail_on_denial: bool = False
    """True: a refused tool call fails the step; False: it is only a warning."""
    wall: Wall = Wall.SCOPES
    """The wall around each command that the agent runs."""


TURNS = EndReasons(
    clean=frozenset({"end_turn", "stop_sequence"}),
    cut_off={
        "compaction": "the conversation outgrew the context; make the step smaller",
        "max_tokens": "the answer was cut off at max_tokens; raise it in the agent's entry",
        "model_context_window_exceeded": "the conversation outgrew the context; make the step "
        "smaller",
        "pause_turn": "raise max_turns, or make the step smaller",
        "refusal": "the model refused to answer; change the prompt",
        "tool_use": "raise max_turns, or make the step smaller",
    },
)
"""Values of ``stop_reason``; after a tool_use and a pause_turn the conversation continues."""


LONGEST_WAIT_S = 60.0
"""A longer pause ends the attempt, because a waiting attempt holds its claim.

A limit ends it as limited, any other temporary error as unavailable.
"""
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0
_OK = 200
_UNAUTHORIZED = 401
_SERVER_ERROR = 500
_CONFLICT = 409
_RETRIED = frozenset({408, _CONFLICT, TOO_MANY_REQUESTS})
_PASSING = frozenset({"api_error", "overloaded_error", "rate_limit_error", "timeout_error"})
"""Types of error events for which a retry may help."""


class _Trouble(Struct, frozen=True):
    """The error of one try."""

    text: str
    status: int | None = None
    is_passing: bool = True
    retry_after_s: float | None = None


class NoAnswer(Exception):
    """The conversation ended without an answer; its outcome says why and what to do."""

    def __init__(
        self,
        error: str,
        status: OutcomeStatus = OutcomeStatus.FAILED,
        not_before_at: str | None = None,
    ) -> None:
        super().__init__(error)
        error = replace_surrogates(error)
        self.outcome = Outcome(status=status, error=error, not_before=not_before_at)


class Conversation:
    """One attempt's conversation."""

    def __init__(
        self,
        options: MessagesOptions,
        request: StepRequest,
        context: ToolContext,
        listener: Listener,
        clock: Clock,
    ) -> None:
        self.denials: list[str] = []
        self.observed = Observation(TURNS)
        self.usage = Usage()
        """The usage of the attempt so far, including the try that runs."""
        self._settled = Usage()
        self._options = options
        self._request = request
        self._context = context
        self._listener = listener
        self._clock = clock
        step = request.step
        self._max_turns = 1 if step.single_turn else (step.max_turns or options.max_turns)
        tools = options.tools if step.allowed_tools is None else step.allowed_tools
        if step.single_turn or step.disallow_all_tools:
            tools = ()
        withheld_tools = (*(step.disallowed_tools or ()), *removed_tools(step, MESSAGES))
        self._tools = tuple(tool for tool in tools if tool not in withheld_tools)
        self._model = step.model or options.model
        self._price = find_price(self._model, options.prices)
        """None: the cost is unknown."""
        self._idle_s = request.idle_timeout_s
        """The step's own limit of silence, which replaces the agent's; it is not retried."""

    async def run(self, key: str, base_url: str | None) -> Outcome:
        """Hold the conversation until it ends, times out or is canceled; return the outcome."""
        import anthropic  # noqa: PLC0415 - costs a second

        silence_s = self._idle_s or self._options.stall_timeout_s
        timeout = anthropic.Timeout(silence_s, connect=_CONNECT_TIMEOUT_S)
        loop, cancellation = asyncio.get_running_loop(), self._context.cancellation
        # A redirect would send the prompt, and the key in its header, to another server.
        connection = anthropic.DefaultAsyncHttpxClient(timeout=timeout, follow_redirects=False)
        async with anthropic.AsyncAnthropic(
            api_key=key, base_url=base_url, timeout=timeout, max_retries=0, http_client=connection
        ) as client:
            talk = asyncio.ensure_future(self._exchange_messages(client))
            # Canceling the task closes the stream and with it the connection.
            loop.add_reader(cancellation.fileno(), talk.cancel)
            try:
                left_s = self._context.seconds_left()
                await asyncio.wait({talk}, timeout=left_s if left_s is None else max(left_s, 0.0))
            finally:
                loop.remove_reader(cancellation.fileno())
                talk.cancel()
            try:
                return self._build_success(await talk)
            except NoAnswer as failure:
                return self._build_stopped_outcome() if cancellation.is_set() else failure.outcome
            except asyncio.CancelledError:
                return self._build_stopped_outcome()

    def _build_success(self, answer: str) -> Outcome:
        evidence = self.observed.evidence(is_over=True)
        if self.denials and self._options.fail_on_denial:
            denials_text = "; ".join(self.denials[:3])
            message = f"{len(self.denials)} tool call(s) were refused: {denials_text}"
            failure = Outcome(status=OutcomeStatus.FAILED, error=message, output=answer)
            return failure.replace(evidence=evidence)
        # If the turn was cut off, the error says what to do; the engine judges the outcome.
        outcome = Outcome(
            status=OutcomeStatus.OK, output=answer, error=self.observed.advice, evidence=evidence
        )
        is_json = build_answer_schema(self._request.step) is not None
        return with_structured(outcome, parse_json(answer)) if is_json else outcome

    def _build_stopped_outcome(self) -> Outcome:
        reason = self._context.cancellation.reason
        if reason is not None:
            return Outcome(status=OutcomeStatus.INTERRUPTED, error=f"stopped: {reason}")
        message = timeout_message(self._request, "the call was broken off")
        return Outcome(status=OutcomeStatus.FAILED, error=message, is_timed_out=True)

    async def _exchange_messages(self, client: anthropic.AsyncAnthropic) -> str:
        """Return the model's last message.

        Raises:
            NoAnswer: a limit was reached, a call got no answer, or the model repeats itself.
        """
        prompt = _text_block(self._request.prompt)
        messages: list[dict[str, Any]] = [{"role": "user", "content": [prompt]}]
        for turn in range(1, self._max_turns + 1):
            self._check_budget()
            answer = await self._call(client, self._parameters(messages))
            messages.append({"role": "assistant", "content": answer.content})
            self._observe(answer)
            reason = self.observed.reason
            if reason == "tool_use" and turn < self._max_turns:
                messages.append({"role": "user", "content": self._use_tools(answer)})
                if 0 < self._request.step.most_equal_calls <= self.observed.repeated_calls:
                    raise NoAnswer(repetition_message(self._request))
            elif reason not in {"tool_use", "pause_turn"}:
                return self.observed.said_last
        raise NoAnswer(
            f"no answer after {self._max_turns} turn(s); raise max_turns, or make the step smaller"
        )

    def _observe(self, answer: Message) -> None:
        self.observed.start_message()
        self.observed.reason = normalize_reason(answer.stop_reason)
        for block in answer.content:
            if block.type == "text" and isinstance(block.text, str):
                self.observed.add_text(replace_surrogates(block.text))
            elif block.type == "tool_use":
                self.observed.record_call(block.id, [block.name, block.input])

    def _check_budget(self) -> None:
        limit, cost_usd = self._request.max_cost_usd, self.usage.cost_usd
        if limit is not None and cost_usd >= limit:
            no_answer = NoAnswer(
                f"the budget is spent: {cost_usd:.4f} of {limit:.4f} USD; raise max_cost_usd"
            )
            no_answer.outcome = no_answer.outcome.replace(is_over_budget=True)
            raise no_answer

    def _count(self, tokens: Tokens, is_over: bool) -> None:
        """Count the tokens of the current try; add them to the total when it *is_over*."""
        cost = self._price.cost_usd(tokens) if self._price else 0.0
        running_usage = Usage(
            cost_usd=cost,
            estimated_usd=cost,
            input_tokens=tokens.sent,
            cache_read_tokens=tokens.cache_read,
            output_tokens=tokens.output,
        )
        usage = self._settled.plus(running_usage).replace(unpriced=int(self._price is None))
        if is_over:
            self._settled = usage
        if usage != self.usage:
            self.usage = usage
            self._listener.report_usage(usage)

    def _parameters(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        *earlier_messages, last_message = messages
        if last_message["role"] == "user":
            # The next call reads everything up to this block from the cache.
            *blocks, end = last_message["content"]
            marked_block = {**end, "cache_control": {"type": "ephemeral"}}
            last_message = {**last_message, "content": [*blocks, marked_block]}
        request, step = self._request, self._request.step
        parameters: dict[str, Any] = {
            "model": self._model,
            "max_tokens": self._options.max_tokens,
            "messages": [*earlier_messages, last_message],
        }
        systems = [
            prompt for prompt in (request.system_prompt, request.append_system_prompt) if prompt
        ]
        if systems:
            parameters["system"] = "\n\n".join(systems)
        if self._tools:
            parameters["tools"] = describe_tools(self._tools)
        if step.temperature is not None:
            # The package has no such parameter; the API accepts it if the model does.
            parameters["extra_body"] = {"temperature": step.temperature}
        output_format = _to_output_format(build_answer_schema(step))
        if output_format is not None:
            parameters["output_config"] = {"format": output_format}
        return parameters

    def _use_tools(self, answer: Message) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for block in answer.content:
            if block.type != "tool_use":
                continue
            call = f"{one_line(block.name)} {one_line(block.input)}"
            self._write_line(f"-> {call}", Piece.ACTION)
            result = call_tool(block.name, block.input, self._tools, self._context)
            sign = "<- error:" if result.is_error else "<-"
            self._write_line(f"{sign} {one_line(result.text)}", Piece.ACTION)
            self.observed.record_result(block.id, [result.text, result.is_error])
            if result.is_refused:
                self.denials.append(one_line(call, 160))
            results.append(
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": [_text_block(result.text)],
                    "is_error": result.is_error,
                }
            )
        return results

    def _write_line(self, text: str, kind: Piece) -> None:
        self._listener.write(f"{text}\n".encode("utf-8", "replace"), kind)

    async def _call(self, client: anthropic.AsyncAnthropic, parameters: dict[str, Any]) -> Message:
        """Return the whole answer to one request; the listener gets its text as it is streamed.

        Raises:
            NoAnswer: limited if the limit lasts longer than `LONGEST_WAIT_S`, the step's
                deadline, or all retries; unavailable if the service did not answer after the
                retries, or asks for a pause that is too long; failed for any other error.
        """
        attempt = 0
        while True:
            stream = _Stream(self._listener, self._count)
            try:
                return await stream.read(client, parameters)
            except _exception_types() as error:
                trouble = self._classify_error(error)
            finally:
                stream.close()
            attempt += 1
            delay_s = trouble.retry_after_s
            if delay_s is None:
                delay_s = float(min(_FIRST_DELAY_S * 2 ** (attempt - 1), _LONGEST_DELAY_S))
            left_s, retries = self._context.seconds_left(), self._options.retries
            is_too_late = left_s is not None and delay_s >= left_s
            is_too_long = delay_s > LONGEST_WAIT_S
            if not trouble.is_passing or is_too_late or is_too_long or attempt > retries:
                raise self._build_no_answer(trouble, attempt)
            notice = f"retrying in {delay_s:.1f} s, {attempt} of {retries}"
            self._write_line(f"{trouble.text}; {notice}", Piece.NOTICE)
            await asyncio.sleep(delay_s)

    def _classify_error(self, error: Exception) -> _Trouble:
        import anthropic  # noqa: PLC0415 - costs a second

        name = type(error).__name__
        if isinstance(error, anthropic.APIStatusError):
            return self._classify_status_error(error)
        if "Timeout" in name:
            if self._idle_s is not None:
                silence_text = f"no progress for {self._idle_s:g} s; the call was broken off\n"
                hint_text = "raise idle_timeout_s only if its answers take that long"
                return _Trouble(f"{silence_text}{hint_text}", is_passing=False)
            return _Trouble(f"the API was silent for too long ({name})")
        if isinstance(error, anthropic.APIConnectionError):
            return _Trouble(f"the API can't be reached: {error.__cause__ or error}")
        if isinstance(error, (anthropic.AnthropicError, ValueError)):
            is_unreadable = isinstance(error, ValueError)
            name = "the API's answer can't be read" if is_unreadable else name
            return _Trouble(f"{name}: {one_line(str(error), ERROR_CHARS)}", is_passing=False)
        return _Trouble(f"the API's answer broke off: {name}: {error}")

    def _classify_status_error(self, error: anthropic.APIStatusError) -> _Trouble:
        body = ClientEvent.from_value(error.body).get_object("error")
        message = one_line(body.get("message") or error.message, ERROR_CHARS)
        kind = one_line(body.get_text("type"))
        status = error.status_code
        if status == _OK:
            status = TOO_MANY_REQUESTS if kind == "rate_limit_error" else _OK
            text = f"the API's answer broke off: {kind}: {message}"
            return _Trouble(text, status, kind in _PASSING)
        headers = error.response.headers
        should_retry = headers.get("x-should-retry")
        is_passing = should_retry == "true"
        if should_retry is None:
            is_passing = status in _RETRIED or status >= _SERVER_ERROR
        text = f"the API refused the call (HTTP {status} {kind}): {message}"
        if status == _UNAUTHORIZED:
            text += f"\ncheck the key in {self._options.api_key_env}"
            is_passing = False
        # A header never makes a limit a failure: the step ends as limited instead.
        is_passing = is_passing or status == TOO_MANY_REQUESTS
        return _Trouble(text, status, is_passing, _retry_after_s(headers, self._clock()))

    def _build_no_answer(self, trouble: _Trouble, attempt: int) -> NoAnswer:
        text = trouble.text + (f" ({attempt} tries)" if attempt > 1 else "")
        if trouble.status != TOO_MANY_REQUESTS:
            if trouble.is_passing and (trouble.retry_after_s or 0.0) > LONGEST_WAIT_S:
                text += f"\nit asks for a pause of {trouble.retry_after_s:.0f} s"
            is_temporary = trouble.is_passing and trouble.status != _CONFLICT
            return NoAnswer(
                text, OutcomeStatus.UNAVAILABLE if is_temporary else OutcomeStatus.FAILED
            )
        now, delay_s, wait_s = self._clock(), trouble.retry_after_s, self._options.limit_wait_s
        epoch_s = None if delay_s is None else now.timestamp() + delay_s
        retry_time = find_retry_time(trouble.text, now, default_wait_s=wait_s, epoch_s=epoch_s)
        return NoAnswer(text, OutcomeStatus.LIMITED, retry_time)


def _to_output_format(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return *schema* in the API's format; None: the API does not support it."""
    if schema is None:
        return None
    import anthropic  # noqa: PLC0415 - costs a second

    try:
        return {"type": "json_schema", "schema": anthropic.transform_schema(dict(schema))}
    except (ValueError, TypeError, AttributeError, RecursionError):
        # The API supports only a part of JSON Schema; the engine checks the answer anyway.
        return None


def _text_block(text: str) -> dict[str, Any]:
    # The API refuses an empty text block, but a tool may have no output.
    return {"type": "text", "text": text or "(nothing)"}


class _Stream(TextStreamer):
    """One try of a call: shows its text and counts its tokens."""

    def __init__(self, listener: Listener, count: Callable[[Tokens, bool], None]) -> None:
        self._listener = listener
        self._count = count
        self._tokens = Tokens()

    async def read(self, client: anthropic.AsyncAnthropic, parameters: dict[str, Any]) -> Message:
        async with client.messages.stream(**parameters) as stream:
            async for event in stream:
                if event.type == "message_start":
                    self._process_usage(event.message.usage)
                elif event.type == "message_delta":
                    self._process_usage(event.usage)
                elif event.type == "content_block_delta":
                    for name, kind in (("text", Piece.RESPONSE), ("thinking", Piece.THOUGHT)):
                        text = getattr(event.delta, name, None)
                        self.stream(self._listener, text if isinstance(text, str) else "", kind)
                elif event.type == "content_block_stop":
                    self.end_line(self._listener)
            return await stream.get_final_message()

    def close(self) -> None:
        self.end_line(self._listener)
        self._count(self._tokens, True)  # noqa: FBT003 - the meaning is in `call`

    def _process_usage(self, usage: Any) -> None:
        creation = getattr(usage, "cache_creation", None)
        tokens = self._tokens
        # Later events may leave counts out; counts never fall.
        hour = max(_read_count(creation, "ephemeral_1h_input_tokens"), tokens.cache_write_1h)
        cache_write = _read_count(usage, "cache_creation_input_tokens")
        self._tokens = Tokens(
            input=max(_read_count(usage, "input_tokens"), tokens.input),
            output=max(_read_count(usage, "output_tokens"), tokens.output),
            cache_read=max(_read_count(usage, "cache_read_input_tokens"), tokens.cache_read),
            cache_write=max(cache_write - hour, tokens.cache_write, 0),
            cache_write_1h=hour,
        )
        self._count(self._tokens, False)  # noqa: FBT003 - the meaning is in `call`


def _read_count(usage: Any, name: str) -> int:
    """Return the count called *name*, or 0 if it is not valid: the package does not check them."""
    return int(parse_amount(getattr(usage, name, None)) or 0)


def _exception_types() -> tuple[type[Exception], ...]:
    """Return the exceptions of a call: the package's own and its HTTP library's.

    ValueError is the package's for an answer or a tool's input that is not valid JSON.
    """
    import anthropic  # noqa: PLC0415 - costs a second

    libraries = (sys.modules.get(name) for name in ("httpx2", "httpx"))
    transport = tuple(library.HTTPError for library in libraries if library is not None)
    return (anthropic.AnthropicError, ValueError, *transport)


def _retry_after_s(headers: Any, now: datetime) -> float | None:
    """Return the seconds of a retry-after header, which may also be a date; None: no valid one."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    zoned_moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max((zoned_moment - now).total_seconds(), 0.0)
