"""Understands the stream-json events of gemini and judges how a run ended.

Success is exit code 0 and a result event with status success: ended by TERM, gemini exits
with 0 and without a result. A tool that the approval mode does not allow is not offered
at all; a call of it fails as "not registered" and counts as refused.
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
)
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import Kind, Listener
from sequencer.model.outcome import Outcome, Usage

_CODE = re.compile(r"""["']?(?:code|status)["']?[:=]\s*(\d{3})\b""")
_REFUSALS = frozenset({"tool_not_registered", "policy_violation", "permission_denied"})
_HINTS = {
    41: "choose how to log in once by hand (gemini), or set GEMINI_API_KEY",
    42: "the prompt was empty",
    53: "raise model.maxSessionTurns in gemini's settings",
}
"""By exit code."""


class GeminiParser(JsonEventParser):
    """Parser of ``gemini --output-format=stream-json``."""

    client = "gemini"

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._answer: list[str] = []
        self._result: Event | None = None
        self._tools: dict[str, str] = {}
        self._is_line_open = False

    def take(self, event: Event, listener: Listener) -> None:
        """Take one event."""
        match event.get("type"):
            case "init":
                session = event.get("session_id")
                self.session_id = session if isinstance(session, str) else None
            case "message" if event.get("role") == "assistant":
                self._take_text(event, listener)
            case "tool_use":
                self._take_call(event, listener)
            case "tool_result":
                self._take_tool_result(event, listener)
            case "error":
                is_warning = event.get("severity") == "warning"
                kind = Kind.NOTICE if is_warning else Kind.ERROR
                self._own_line(listener, f"gemini: {one_line(event.get('message'))}", kind)
            case "result":
                self._take_result(event, listener)

    def is_progress(self, event: Event) -> bool:
        """See `JsonEventParser`."""
        kind = event.get("type")
        if kind == "message":
            return event.get("role") == "assistant" and bool(event.get("content"))
        return kind in ("tool_use", "tool_result")

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the result together."""
        if self._result is None:
            reason = self.stderr_text or "no result"
        elif end.exit_code == 0 and self._result.get("status") == "success":
            return self.answered("".join(self._answer), end)
        else:
            reason = str(as_dict(self._result.get("error")).get("message", "no reason given"))
        error = f"gemini ended with exit code {end.exit_code}: {reason}"
        hint = _HINTS.get(end.exit_code or 0, "")
        if self._result is None:
            return self.failed(f"{error}\n{hint}".rstrip(), end)
        found = _CODE.search(reason)
        status = int(found[1]) if found else None
        return self.refused_or_failed(error, end, status=status, hint=hint)

    def _take_text(self, event: Event, listener: Listener) -> None:
        text = str(event.get("content", ""))
        self._answer.append(text)
        listener.write(text.encode("utf-8", "replace"), Kind.RESPONSE)
        self._is_line_open = not text.endswith("\n")

    def _take_call(self, event: Event, listener: Listener) -> None:
        # What was said before a tool call is not the final answer.
        self._answer.clear()
        call = f"{event.get('tool_name')} {one_line(event.get('parameters'))}"
        self._tools[str(event.get("tool_id"))] = one_line(call, 160)
        self._own_line(listener, f"-> {call}", Kind.ACTION)

    def _take_tool_result(self, event: Event, listener: Listener) -> None:
        error = as_dict(event.get("error"))
        output = one_line(event.get("output") or error.get("message") or event.get("status"))
        sign = "<-" if event.get("status") == "success" else "<- error:"
        self._own_line(listener, f"{sign} {output}", Kind.ACTION)
        if error.get("type") in _REFUSALS:
            self.denials.append(self._tools.get(str(event.get("tool_id")), output))

    def _take_result(self, event: Event, listener: Listener) -> None:
        self._result = event
        stats = as_dict(event.get("stats"))
        if event.get("status") != "success":
            message = as_dict(event.get("error")).get("message")
            self._own_line(listener, f"gemini: {one_line(message)}", Kind.ERROR)
        self._end_line(listener)
        usage = Usage(
            input_tokens=as_count(stats.get("input_tokens")),
            output_tokens=as_count(stats.get("output_tokens")),
        )
        self.count_tokens(listener, usage, as_count(stats.get("cached")))

    def _own_line(self, listener: Listener, text: str, kind: Kind) -> None:
        self._end_line(listener)
        self.say(listener, text, kind)

    def _end_line(self, listener: Listener) -> None:
        if self._is_line_open:
            listener.write(b"\n", Kind.RESPONSE)
            self._is_line_open = False
