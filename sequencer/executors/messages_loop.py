"""A conversation with a model over the Messages API: ask, run its tools, ask again.

One attempt, one conversation; nothing of it is kept. Its cost is counted after every
event and compared with the limit before every call, so a limit can be overshot by one
call. Tools block the loop, which is what orders them; they obey deadline and
cancellation themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequencer.executors.client_events import one_line
from sequencer.executors.messages_call import CallRules, call
from sequencer.executors.prices import ModelPrice, Tokens
from sequencer.executors.project_tools import Workbench, call_tool, describe_tools
from sequencer.executors.protocol import Kind, Listener
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
class Plan:
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

    def __init__(self, plan: Plan, rules: CallRules, bench: Workbench, listener: Listener) -> None:
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
            self._say(f"-> {shown}", Kind.ACTION)
            done = call_tool(block.name, block.input, self._plan.tools, self._bench)
            self._say(
                f"{'<- error:' if done.is_error else '<-'} {one_line(done.text)}", Kind.ACTION
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

    def _say(self, text: str, kind: Kind) -> None:
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
