"""Understands the events of ``opencode run --format json`` and judges how a run ended.

Success is exit code 0, no error event, and a last step that ended with reason "stop". At
a refused tool call opencode ends at once, with exit code 0 and without an answer: that is
a failure whatever fail_on_denial says, because the step was broken off.
"""

from __future__ import annotations

import re

from sequencer.executors.client_events import (
    Event,
    JsonEventParser,
    Rules,
    as_count,
    as_dict,
    one_line,
    sum_of_costs,
)
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import Kind, Listener
from sequencer.model.outcome import Outcome, Usage

_REFUSED = re.compile(
    r"rejected permission|prevents you from using|unavailable tool", re.IGNORECASE
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_UNAUTHORIZED = 401


class OpencodeParser(JsonEventParser):
    """Parser of ``opencode run --format=json``."""

    client = "opencode"

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._answer: list[str] = []
        self._error: Event | None = None
        self._last_reason: str | None = None
        self._sum = Usage()

    def take(self, event: Event, listener: Listener) -> None:
        """Take one event."""
        session = event.get("sessionID")
        if isinstance(session, str):
            self.session_id = session
        part = as_dict(event.get("part"))
        match event.get("type"):
            case "text":
                text = str(part.get("text", ""))
                self._answer.append(text)
                self.say(listener, text, Kind.RESPONSE)
            case "reasoning":
                self.say(listener, str(part.get("text", "")), Kind.THOUGHT)
            case "tool_use":
                self._take_tool(part, listener)
            case "step_finish":
                self._take_step(part, listener)
            case "error":
                self._error = as_dict(event.get("error"))
                self.say(listener, f"opencode: {self._error_text()}", Kind.ERROR)

    def is_progress(self, event: Event) -> bool:
        """See `JsonEventParser`."""
        kind = event.get("type")
        is_spoken = kind in ("text", "reasoning")
        return kind == "tool_use" or (is_spoken and bool(as_dict(event.get("part")).get("text")))

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code, the errors and the end of the last step together."""
        answer = "\n".join(self._answer)
        if self._error is not None:
            data = as_dict(self._error.get("data"))
            status = as_count(data.get("statusCode")) or None
            # The headers come along for a reset time that the message lacks.
            headers = one_line(as_dict(data.get("responseHeaders")), 600)
            wait = re.search(r"retry-after\S*|resets?_at\S*", headers)
            text = f"opencode: {self._error_text()}" + (f" ({wait[0]})" if wait else "")
            hint = "log in: opencode auth login" if status == _UNAUTHORIZED else ""
            return self.refused_or_failed(text, end, status=status, hint=hint)
        if end.exit_code != 0:
            reason = _ANSI.sub("", self.stderr_text) or "no reason given"
            text = f"opencode ended with exit code {end.exit_code}: {reason}"
            return self.failed(text, end)
        if self._last_reason == "stop":
            return self.answered(answer, end)
        if self.denials:
            text = f"opencode broke off at a refused tool call: {self.denials[-1]}"
            return self.failed(f"{text}\nallow it under permission: in the agent's entry", end)
        return self.failed(f"opencode ended without an answer ({self._last_reason})", end)

    def _take_tool(self, part: Event, listener: Listener) -> None:
        self._answer.clear()  # said before a tool call, so not the final answer
        state = as_dict(part.get("state"))
        given = as_dict(state.get("input"))
        call = f"{part.get('tool')} {one_line(given)}"
        self.say(listener, f"-> {call}", Kind.ACTION)
        # A tool that was taken away is called by way of one that is named so.
        is_invalid = part.get("tool") == "invalid"
        error = given.get("error") if is_invalid else state.get("error")
        if state.get("status") != "error" and not is_invalid:
            self.say(listener, f"<- {one_line(state.get('output'))}", Kind.ACTION)
            return
        self.say(listener, f"<- error: {one_line(error)}", Kind.ACTION)
        if _REFUSED.search(str(error)):
            self.denials.append(one_line(call, 160))

    def _take_step(self, part: Event, listener: Listener) -> None:
        self._last_reason = str(part.get("reason"))
        tokens = as_dict(part.get("tokens"))
        cache = as_dict(tokens.get("cache"))
        sent = (tokens.get("input"), cache.get("read"), cache.get("write"))
        step = sum_of_costs([part.get("cost")]).replace(
            input_tokens=sum(map(as_count, sent)),
            output_tokens=as_count(tokens.get("output")) + as_count(tokens.get("reasoning")),
        )
        self._sum = self._sum.plus(step)
        self.count(listener, self._sum.replace(unpriced=min(self._sum.unpriced, 1)))

    def _error_text(self) -> str:
        error = self._error or {}
        message = as_dict(error.get("data")).get("message") or error.get("message")
        return one_line(f"{error.get('name')}: {message}")
