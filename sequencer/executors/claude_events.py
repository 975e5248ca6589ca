"""Understands the stream-json events of claude and judges how a run ended.

The rules hold for 2.1.197 and 2.1.330. Success is exit code 0 **and** a last `result`
event without is_error: an API error ends with subtype "success", an interrupted tool may
end with exit code 0, and a refused edit ends with both and is a warning.

Live usage is an estimate from list prices; the result's own numbers replace it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sequencer.executors.client_events import (
    ERROR_CHARS,
    Event,
    JsonEventParser,
    Rules,
    as_cost,
    as_count,
    as_dict,
    as_list,
    as_number,
    one_line,
    sum_of_costs,
)
from sequencer.executors.prices import Tokens, price_of
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import Kind, Listener
from sequencer.executors.session_marks import marked
from sequencer.model.outcome import Outcome, Usage

_SINCE = "model_usage_since_last_result"
_HINTS: Mapping[str, str] = {
    "error_max_turns": "raise max_turns, or make the step smaller",
    "error_max_budget_usd": "raise max_cost_usd, or make the step smaller",
}
_OWN_WORDS = re.compile(
    r"API Error\b|Claude (?:AI |Code )?usage limit|You(?:'|\u2019)ve (?:hit|reached) (?:your|the) "
    r"|You(?:'|\u2019)re out of |(?:\d+-hour|daily|weekly|monthly|session|usage) limit reached",
    re.IGNORECASE,
)
"""How claude's own words about a limit begin, in versions that give no reason beside them."""
_TOOL_BLOCKS = frozenset({"tool_use", "server_tool_use", "tool_result", "web_search_tool_result"})
_UNAUTHORIZED = 401
_LOGIN = "log in once by hand (claude, then /login), or set ANTHROPIC_API_KEY"


class ClaudeParser(JsonEventParser):
    """Parser of ``claude -p --output-format=stream-json --verbose``."""

    client = "claude"

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._results: list[Event] = []
        self._version: str | None = None
        self._calls: dict[str, tuple[str, Tokens]] = {}
        self._streamed: set[str] = set()
        self._current: str | None = None
        self._open_line: Kind | None = None
        self._reset_epoch_s: float | None = None

    def take(self, event: Event, listener: Listener) -> None:
        """Take one event."""
        session = event.get("session_id")
        if isinstance(session, str):
            self.session_id = session
        match event.get("type"):
            case "system":
                self._take_system(event, listener)
            case "assistant":
                self._take_assistant(event, listener)
            case "user":
                self._take_tool_results(event, listener)
            case "stream_event":
                self._take_delta(event, listener)
            case "rate_limit_event":
                self._take_rate_limit(as_dict(event.get("rate_limit_info")), listener)
            case "result":
                self._take_result(event, listener)

    def is_progress(self, event: Event) -> bool:
        """See `JsonEventParser`; the pieces in which text and tool calls are streamed count."""
        match event.get("type"):
            case "assistant" | "user":
                content = as_list(as_dict(event.get("message")).get("content"))
                is_error = bool(event.get("is_api_error_message"))
                return not is_error and any(_says(as_dict(block)) for block in content)
            case "stream_event":
                raw = as_dict(event.get("event"))
                return _says(as_dict(raw.get("delta"))) or _says(as_dict(raw.get("content_block")))
        return False

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the last result together."""
        if not self._results:
            reason = self.stderr_text or f"claude ended with exit code {end.exit_code}"
            return self._judged(f"no result from claude: {reason}", end, is_own=False)
        result = self._results[-1]
        if end.exit_code == 0 and result.get("is_error") is False:
            # There only where a form was asked for, and only once claude has checked it.
            structured = result.get("structured_output")
            return self.answered(_text(result.get("result")), end, structured)
        return self._judge_error(result, end)

    def marked_session(self) -> str | None:
        """Return the session id with the cost so far, where the client counts by session."""
        if self.session_id is None:
            return None
        facts: dict[str, float | str] = {}
        if self._results and _SINCE in self._results[-1]:
            # Only a client that says what was used *since* counts its total by session;
            # its budget is then compared with that total too.
            facts["cost_usd"] = round(as_cost(self._results[-1].get("total_cost_usd")), 6)
        if self._version:
            facts["version"] = self._version
        return marked(self.session_id, facts)

    def _take_system(self, event: Event, listener: Listener) -> None:
        match event.get("subtype"):
            case "init":
                version = event.get("claude_code_version")
                self._version = version if isinstance(version, str) else None
                mode = event.get("permissionMode")
                text = f"claude {version}, model {event.get('model')}, permission mode {mode}"
                self.say(listener, text, Kind.NOTICE)
            case "api_retry":
                status = event.get("error_status")
                delay_s = as_cost(event.get("retry_delay_ms")) / 1000
                attempt = f"{event.get('attempt')} of {event.get('max_retries')}"
                reason = f"{event.get('error')} (HTTP {status})" if status else event.get("error")
                text = f"claude asks again in {delay_s:.1f} s, {attempt}: {reason}"
                self._own_line(listener, text, Kind.NOTICE)
            case "permission_denied":
                text = f"refused: {event.get('tool_name')}: {one_line(event.get('message'))}"
                self._own_line(listener, text, Kind.ERROR)
            case "model_fallback":
                self._own_line(listener, f"claude: {one_line(event)}", Kind.NOTICE)

    def _take_assistant(self, event: Event, listener: Listener) -> None:
        message = as_dict(event.get("message"))
        key = str(message.get("id"))
        self._count_call(key, message, listener)
        for block in map(as_dict, as_list(message.get("content"))):
            match block.get("type"):
                case "text" if event.get("is_api_error_message"):
                    self._own_line(listener, _text(block.get("text")), Kind.ERROR)
                case "text" if key not in self._streamed:
                    self._own_line(listener, _text(block.get("text")), Kind.RESPONSE)
                case "thinking" if key not in self._streamed:
                    self._own_line(listener, _text(block.get("thinking")), Kind.THOUGHT)
                case "tool_use":
                    text = f"-> {block.get('name')} {one_line(block.get('input'))}"
                    self._own_line(listener, text, Kind.ACTION)

    def _take_tool_results(self, event: Event, listener: Listener) -> None:
        for block in map(as_dict, as_list(as_dict(event.get("message")).get("content"))):
            if block.get("type") != "tool_result":
                continue
            content = block.get("content")
            parts = (as_dict(part).get("text", "") for part in as_list(content))
            text = content if isinstance(content, str) else " ".join(map(_text, parts))
            sign = "<- error:" if block.get("is_error") else "<-"
            self._own_line(listener, f"{sign} {one_line(text)}", Kind.ACTION)

    def _take_delta(self, event: Event, listener: Listener) -> None:
        """Show text as it is written; only present with --include-partial-messages."""
        raw = as_dict(event.get("event"))
        match raw.get("type"):
            case "message_start":
                message = as_dict(raw.get("message"))
                self._current = str(message.get("id"))
                self._streamed.add(self._current)
                self._count_call(self._current, message, listener)
            case "content_block_delta":
                delta = as_dict(raw.get("delta"))
                for name, kind in (("text", Kind.RESPONSE), ("thinking", Kind.THOUGHT)):
                    text = _text(delta.get(name))
                    if text:
                        listener.write(text.encode("utf-8", "replace"), kind)
                        self._open_line = None if text.endswith("\n") else kind
            case "content_block_stop":
                self._end_line(listener)
            case "message_delta" if self._current is not None:
                self._count_call(self._current, raw, listener)

    def _take_rate_limit(self, info: Event, listener: Listener) -> None:
        is_rejected = info.get("status") == "rejected"
        # "allowed" and "allowed_warning" take an earlier rejection back.
        self._reset_epoch_s = as_number(info.get("resetsAt")) if is_rejected else None
        if info.get("status") not in (None, "allowed"):
            text = f"claude: limit {info.get('rateLimitType')}: {info.get('status')}"
            self._own_line(listener, text, Kind.NOTICE)

    def _take_result(self, event: Event, listener: Listener) -> None:
        self._results.append(event)
        for denial in map(as_dict, as_list(event.get("permission_denials"))):
            line = f"{denial.get('tool_name')} {one_line(denial.get('tool_input'), 120)}"
            if line not in self.denials:
                self.denials.append(line)
        if event.get("is_error"):
            self._own_line(listener, _error_of(event), Kind.ERROR)
        self.count(listener, self._charged())

    def _charged(self) -> Usage:
        """Return what this run of the program used, whatever its session used before."""
        last = self._results[-1]
        if _SINCE in last:
            shares = [as_dict(result.get(_SINCE)) for result in self._results]
        else:
            # Older clients count by run: the last total has everything.
            shares = [as_dict(last.get("modelUsage"))]
            if not shares[0]:
                return _plainly_charged(last)
        models = [as_dict(entry) for share in shares for entry in share.values()]
        names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
        return sum_of_costs(model.get("costUSD") for model in models).replace(
            input_tokens=sum(as_count(model.get(name)) for model in models for name in names),
            output_tokens=sum(as_count(model.get("outputTokens")) for model in models),
        )

    def _count_call(self, key: str, message: Event, listener: Listener) -> None:
        """Count one API call's usage; a call reports several times, the last one stands."""
        usage = as_dict(message.get("usage"))
        if not usage or self._results:
            return
        model, seen = self._calls.get(key, (str(message.get("model")), Tokens()))
        tokens = Tokens(
            input=max(as_count(usage.get("input_tokens")), seen.input),
            output=max(as_count(usage.get("output_tokens")), seen.output),
            cache_read=max(as_count(usage.get("cache_read_input_tokens")), seen.cache_read),
            cache_write=max(as_count(usage.get("cache_creation_input_tokens")), seen.cache_write),
        )
        self._calls[key] = (model, tokens)
        own, calls = self.rules.prices, self._calls.values()
        prices = [(price_of(name, own), used) for name, used in calls]
        cost = round(sum(price.cost_usd(used) for price, used in prices if price), 9)
        total = Usage(
            cost_usd=cost,
            estimated_usd=cost,
            unpriced=int(any(price is None for price, _ in prices)),
            input_tokens=sum(used.sent for _, used in self._calls.values()),
            output_tokens=sum(used.output for _, used in self._calls.values()),
        )
        self.count(listener, total)

    def _judge_error(self, result: Event, end: ProcessEnd) -> Outcome:
        status = as_count(result.get("api_error_status")) or None
        subtype = str(result.get("subtype"))
        hint = _HINTS.get(subtype) or (_LOGIN if status == _UNAUTHORIZED else "")
        text = f"claude: {_error_of(result)}"
        if subtype in _HINTS:
            return self.failed(f"{text}\n{hint}", end)
        if result.get("is_error") is False:
            text = f"claude ended with exit code {end.exit_code} after a result: {text}"
            return self.failed(text, end)
        is_own = status is not None or _is_clients_own(result)
        return self._judged(text, end, is_own=is_own, status=status, hint=hint)

    def _judged(
        self, text: str, end: ProcessEnd, *, is_own: bool, status: int | None = None, hint: str = ""
    ) -> Outcome:
        """Return *limited* if the client said so: an event that refused, or a text *is_own*."""
        if not is_own and self._reset_epoch_s is None:
            return self.failed(f"{text}\n{hint}".rstrip(), end)
        return self.refused_or_failed(
            text, end, status=status, epoch_s=self._reset_epoch_s, hint=hint
        )

    def _own_line(self, listener: Listener, text: str, kind: Kind) -> None:
        self._end_line(listener)
        self.say(listener, text, kind)

    def _end_line(self, listener: Listener) -> None:
        if self._open_line is not None:
            listener.write(b"\n", self._open_line)
            self._open_line = None


def _says(block: Event) -> bool:
    """Return whether *block*, or a piece of one, is text, a tool call or its result."""
    if block.get("type") in _TOOL_BLOCKS:
        return True
    return any(_text(block.get(name)) for name in ("text", "thinking", "partial_json"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _plainly_charged(result: Event) -> Usage:
    """Return the usage of a result that does not list its models."""
    usage = as_dict(result.get("usage"))
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum_of_costs([result.get("total_cost_usd")]).replace(
        input_tokens=sum(as_count(usage.get(name)) for name in names),
        output_tokens=as_count(usage.get("output_tokens")),
    )


def _is_clients_own(result: Event) -> bool:
    """Return whether the text of a result without a status is claude's own, and not its agent's."""
    reason = result.get("terminal_reason")
    if isinstance(reason, str):
        return reason == "api_error"
    return _OWN_WORDS.match(_error_of(result)) is not None


def _error_of(result: Event) -> str:
    """Return the most telling text of a result with an error."""
    errors = "; ".join(map(_text, as_list(result.get("errors"))))
    parts = (_text(result.get("result")), errors, _text(result.get("terminal_reason")))
    text = next((part for part in parts if part), str(result.get("subtype")))
    return one_line(text, ERROR_CHARS)
