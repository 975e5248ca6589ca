"""Performs steps with the Anthropic Messages API directly: no client program, own tools.

The agent reads and searches the project's files; it writes them, and runs commands, only
where the entry lists ``write``, ``edit`` or ``bash``. A conversation is not kept, so a
step can't continue the one before. Must not be called from a running asyncio loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from sequencer.executors.answers import apply_result, parsed, schema_of, with_structured
from sequencer.executors.client import ANTHROPIC
from sequencer.executors.client_limits import DEFAULT_WAIT_S, Clock, local_clock
from sequencer.executors.environment import agent_environment
from sequencer.executors.messages_loop import (
    CallFailed,
    CallLimited,
    CallRules,
    CallUnanswered,
    Conversation,
    ConversationFailed,
    Dialog,
)
from sequencer.executors.prices import ModelPrice, missing_price, price_of
from sequencer.executors.process import ProcessCore
from sequencer.executors.project_tools import SECRETS, TOOLS, ToolFolder, Workbench
from sequencer.executors.protocol import (
    Cancellation,
    Listener,
    Objection,
    Permits,
    StepRequest,
    time_is_over,
    words,
)
from sequencer.executors.tool_words import MESSAGES, granted, objections, taken
from sequencer.model.addresses import takes_secrets
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import FileMark, ModelName, Step

_CONNECT_TIMEOUT_S = 30.0
_LISTENED_TO = "the key is sent there, so the address has to be https://"
_HOTTEST = 1.0
"""The API's own limit of temperature; other providers go to 2."""

ToolName = Literal["read", "write", "edit", "glob", "grep", "bash"]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$")]


class MessagesOptions(BaseModel):
    """``agents: {NAME: {kind: anthropic, …}}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelName = "claude-sonnet-5-5"
    max_tokens: int = Field(default=32_000, ge=1, le=1_000_000)
    """Of one answer."""
    max_turns: int = Field(default=50, ge=1, le=10_000)
    """Calls of one step that names no number itself."""
    tools: tuple[ToolName, ...] = ("read", "glob", "grep")
    """A step's own lists can only take away from these."""
    api_key_env: VariableName = "ANTHROPIC_API_KEY"
    """Name of the variable with the key; the key itself has no place in a file."""
    base_url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """Of a gateway; without it ANTHROPIC_BASE_URL or the API itself."""
    prices: dict[str, ModelPrice] = {}
    """By model, in USD per million tokens; they replace the list prices."""
    retries: int = Field(default=4, ge=0, le=20)
    """Further tries of a call that broke off or met a busy server."""
    stall_timeout_s: float = Field(default=300.0, gt=0, le=3_600)
    """Silence of the API after which a call is broken off and tried again."""
    limit_wait_s: float = Field(default=DEFAULT_WAIT_S, gt=0, le=86_400)
    """When to ask again after a limit whose end the API does not tell."""
    secrets: tuple[str, ...] = SECRETS
    """Names of files, as shell patterns, that the file tools do not touch."""
    env: dict[str, str] = {}
    """Variables for commands, beside the allow-listed ones."""
    pass_env: tuple[str, ...] = ()
    """Names of further variables of this process that commands get."""
    fail_on_denial: bool = False
    """A refused tool call fails the step; otherwise it is a warning."""

    @field_validator("base_url")
    @classmethod
    def _key_goes_where_nobody_listens(cls, url: str | None) -> str | None:
        if url is not None and not takes_secrets(url):
            raise ValueError(_LISTENED_TO)
        return url


class MessagesExecutor:
    """Holds a conversation over the Messages API."""

    kind: ClassVar[str] = "anthropic"
    providers: ClassVar[frozenset[str] | None] = ANTHROPIC
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        words(
            "model provider temperature tools system_prompt append_system_prompt single_turn "
            "max_turns allowed_tools disallowed_tools disallow_all_tools idle_timeout_s "
            "max_cost_usd"
        )
    )

    def __init__(
        self,
        name: str,
        options: MessagesOptions,
        core: ProcessCore,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock = local_clock,
    ) -> None:
        self.name = name
        self.options = options
        self._core = core
        self._environ = os.environ if environ is None else environ
        self._clock = clock

    def missing(self, _folder: Path | None) -> str | None:
        """See `protocol.Installed`."""
        if self._environ.get(self.options.api_key_env):
            return None
        return f"agents.{self.name}: the variable {self.options.api_key_env} is not set"

    def problems(self) -> list[str]:
        """Return what is missing before a step could run: a key, a price."""
        where = f"agents.{self.name}"
        key = self.missing(None)
        found = [] if key is None else [key]
        if price_of(self.options.model, self.options.prices) is None:
            found.append(missing_price(self.options.model, where))
        return found

    def permits(self) -> Permits:
        """Return the tools that the entry gives it."""
        says = f"tools {', '.join(self.options.tools) or 'none'}"
        if "tools" in self.options.model_fields_set:
            return Permits(says)
        return Permits(says, ("tools: [read, glob, grep, edit, write]",))

    def objections(self, step: Step) -> list[Objection]:
        """Return what of the step's tools and temperature can't be had."""
        found = objections(step, MESSAGES, self.name)
        if isinstance(step.complete_when, FileMark):
            reason = "complete_when: {file}, which ends a program, and it starts none"
            found.append(Objection(reason, "leave it out: a step ends with the agent's answer"))
        where = f"agents.{self.name}.tools"
        for name in granted(step, MESSAGES):
            if name not in self.options.tools:
                reason = f"tools: {name}: true, but agent {self.name!r} does not have it"
                found.append(Objection(reason, f"add it to {where}"))
        if step.temperature is not None and step.temperature > _HOTTEST:
            reason = f"temperature {step.temperature:g} is more than the API takes"
            found.append(Objection(reason, f"give at most {_HOTTEST:g}"))
        return found

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Make one attempt."""
        started = time.monotonic()
        if cancellation.reason is not None:
            return Outcome(
                status=OutcomeStatus.INTERRUPTED, error=f"stopped: {cancellation.reason}"
            )
        refusal = self._refusal(request)
        if refusal is not None:
            return Outcome(status=OutcomeStatus.FAILED, error=refusal)
        attempt = _Attempt(self.options, request, listener, cancellation, started)
        conversation = attempt.conversation(self._core, self._environ, self._clock)
        key = self._environ[self.options.api_key_env]
        base_url = self.options.base_url or self._environ.get("ANTHROPIC_BASE_URL")
        outcome = asyncio.run(attempt.hold(conversation, key, base_url))
        usage = conversation.ledger.usage
        seconds = round(time.monotonic() - started, 6)
        update = {
            "usage": usage.model_copy(update={"seconds": seconds}),
            "denials": tuple(conversation.denials),
        }
        # A command of the agent may have written it.
        return apply_result(request.result_path, outcome.model_copy(update=update))

    def _refusal(self, request: StepRequest) -> str | None:
        """Return why the attempt can't even begin."""
        where, step = f"agents.{self.name}", request.step
        if not self._environ.get(self.options.api_key_env):
            return f"{where}: the variable {self.options.api_key_env} is not set; it holds the key"
        base_url = self.options.base_url or self._environ.get("ANTHROPIC_BASE_URL")
        if base_url and not takes_secrets(base_url):
            return f"ANTHROPIC_BASE_URL is {base_url}: {_LISTENED_TO}"
        model = step.model or self.options.model
        is_limited = request.max_cost_usd is not None
        if is_limited and price_of(model, self.options.prices) is None:
            return missing_price(model, where)
        named = (*(step.allowed_tools or ()), *(step.disallowed_tools or ()))
        unknown = sorted(set(named) - set(TOOLS))
        if unknown:
            return f"step {step.name!r}: unknown tool {unknown[0]!r}; there are: {', '.join(TOOLS)}"
        missing = sorted(set(step.allowed_tools or ()) - set(self.options.tools))
        if missing and not (step.single_turn or step.disallow_all_tools):
            return (
                f"step {step.name!r}: allowed_tools names {missing[0]!r}, which agent "
                f"{self.name!r} does not have; add it to {where}.tools"
            )
        return None


class _Attempt:
    """One attempt's deadline, limits and tools."""

    def __init__(
        self,
        options: MessagesOptions,
        request: StepRequest,
        listener: Listener,
        cancellation: Cancellation,
        started: float,
    ) -> None:
        self._options = options
        self._request = request
        self._listener = listener
        self._cancellation = cancellation
        self._deadline = None if request.timeout_s is None else started + request.timeout_s
        idle_s = request.idle_timeout_s
        is_idle_shorter = idle_s is not None and idle_s <= options.stall_timeout_s
        self._idle_timeout_s = idle_s if is_idle_shorter else None
        self._read_timeout_s = self._idle_timeout_s or options.stall_timeout_s

    def seconds_left(self) -> float | None:
        """Return the time until the deadline; negative behind it."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def conversation(
        self, core: ProcessCore, environ: Mapping[str, str], clock: Clock
    ) -> Conversation:
        """Return the conversation that the request asks for."""
        options, request, step = self._options, self._request, self._request.step
        tools = options.tools if step.allowed_tools is None else step.allowed_tools
        if step.single_turn or step.disallow_all_tools:
            tools = ()
        withheld = (*(step.disallowed_tools or ()), *taken(step, MESSAGES))
        model = step.model or options.model
        systems = [s for s in (request.system_prompt, request.append_system_prompt) if s]
        plan = Dialog(
            prompt=request.prompt,
            system="\n\n".join(systems) or None,
            model=model,
            max_tokens=options.max_tokens,
            max_turns=1 if step.single_turn else (step.max_turns or options.max_turns),
            tools=tuple(tool for tool in tools if tool not in withheld),
            temperature=step.temperature,
            schema=schema_of(step),
            max_cost_usd=request.max_cost_usd,
            price=price_of(model, options.prices),
        )
        rules = CallRules(
            retries=options.retries,
            limit_wait_s=options.limit_wait_s,
            idle_timeout_s=self._idle_timeout_s,
            seconds_left=self.seconds_left,
            clock=clock,
            key_variable=options.api_key_env,
        )
        bench = Workbench(
            folder=ToolFolder(request.cwd, self._forbidden(), options.secrets),
            core=core,
            cancellation=self._cancellation,
            environment=self._command_environment(environ),
            seconds_left=self.seconds_left,
            lock=request.lock,
        )
        return Conversation(plan, rules, bench, self._listener)

    async def hold(self, conversation: Conversation, key: str, base_url: str | None) -> Outcome:
        """Return how the conversation ended: by itself, by the deadline, or cancelled."""
        import anthropic  # noqa: PLC0415 - costs a second

        timeout = anthropic.Timeout(self._read_timeout_s, connect=_CONNECT_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        # A redirect would take the prompt, and a key that is a header of its own, elsewhere.
        connection = anthropic.DefaultAsyncHttpxClient(timeout=timeout, follow_redirects=False)
        async with anthropic.AsyncAnthropic(
            api_key=key,
            base_url=base_url,
            timeout=timeout,
            max_retries=0,
            http_client=connection,
        ) as client:
            talk = asyncio.ensure_future(conversation.hold(client))
            # Cancelling the task closes the stream and with it the connection.
            loop.add_reader(self._cancellation.fileno(), talk.cancel)
            try:
                left = self.seconds_left()
                await asyncio.wait({talk}, timeout=left if left is None else max(left, 0.0))
            finally:
                loop.remove_reader(self._cancellation.fileno())
                talk.cancel()
            with suppress(asyncio.CancelledError, CallFailed, ConversationFailed):
                await talk
        return self._judge(talk, conversation)

    def _judge(self, talk: asyncio.Future[str], conversation: Conversation) -> Outcome:
        error = None if talk.cancelled() else talk.exception()
        if talk.cancelled() or (error is not None and self._cancellation.is_set()):
            return self._judge_stop()
        if isinstance(error, CallLimited):
            when = error.not_before
            return Outcome(status=OutcomeStatus.LIMITED, error=str(error), not_before=when)
        if error is not None:
            is_temporary = isinstance(error, CallUnanswered)
            status = OutcomeStatus.UNAVAILABLE if is_temporary else OutcomeStatus.FAILED
            return Outcome(status=status, error=str(error))
        answer = talk.result()
        denials = conversation.denials
        if denials and self._options.fail_on_denial:
            message = f"{len(denials)} tool call(s) were refused: {'; '.join(denials[:3])}"
            return Outcome(status=OutcomeStatus.FAILED, error=message, output=answer)
        outcome = Outcome(status=OutcomeStatus.OK, output=answer)
        is_json = schema_of(self._request.step) is not None
        return with_structured(outcome, parsed(answer)) if is_json else outcome

    def _judge_stop(self) -> Outcome:
        reason = self._cancellation.reason
        if reason is not None:
            return Outcome(status=OutcomeStatus.INTERRUPTED, error=f"stopped: {reason}")
        message = time_is_over(self._request, "the call was broken off")
        return Outcome(status=OutcomeStatus.FAILED, error=message, is_timed_out=True)

    def _forbidden(self) -> tuple[Path, ...]:
        """Return the folder of the run's state, unless the project lies in it."""
        state = self._request.environment.get("SEQUENCER_STATE")
        folders = [self._request.cwd / "sync"]
        if state:
            folders.append(Path(state).parent)
        root = self._request.cwd.resolve()
        return tuple(folder for folder in folders if not root.is_relative_to(folder.resolve()))

    def _command_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        options = self._options
        environment = agent_environment(
            self._request.environment, passed=options.pass_env, extra=options.env, base=environ
        )
        # Not even where pass_env names it: a command has no use for the API's key.
        environment.pop(options.api_key_env, None)
        return environment
