"""Understands the events of ``codex exec --json`` and judges how a run ended.

Success is exit code 0 and a turn.completed without a turn.failed behind it; the answer is
the last agent_message. An item of type error may be a mere warning, and an error event
may be a retry: neither decides. Refused commands appear on stderr only.
"""

from __future__ import annotations

import re

from sequencer.executors.client_events import (
    Event,
    JsonEventParser,
    Rules,
    as_count,
    as_dict,
    as_list,
    one_line,
)
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import Kind, Listener
from sequencer.executors.session_marks import marked
from sequencer.executors.structured import parsed
from sequencer.model.outcome import Outcome, Usage

_STATUS = re.compile(r"\bstatus:? (\d{3})\b")
_REFUSED = re.compile(r"codex_core::tools::\w+: error=(?P<what>.*\breject.*)")
_UNAUTHORIZED = 401
_LOGIN = "log in once by hand (codex login), or set the key variable of the model provider"
_SPOKEN_ITEMS = frozenset({"agent_message", "reasoning"})
_QUIET_ITEMS = _SPOKEN_ITEMS | {"error"}
_BOOKKEEPING = frozenset({"id", "type", "status", "aggregated_output", "exit_code"})


class CodexParser(JsonEventParser):
    """Parser of ``codex exec --json``; *before* is what its thread had used already.

    With *is_json* the answer is JSON, because a schema was sent.
    """

    client = "codex"

    def __init__(self, rules: Rules, before: Usage | None = None, *, is_json: bool = False) -> None:
        super().__init__(rules)
        self._is_json = is_json
        self._before = before or Usage()
        self._total = Usage()
        self._answer = ""
        self._failure: str | None = None
        self._is_completed = False

    def feed_stderr(self, line: bytes) -> None:
        """Keep the line; a refused command is reported nowhere else."""
        super().feed_stderr(line)
        match = _REFUSED.search(line.decode("utf-8", "replace"))
        if match:
            self.denials.append(one_line(match["what"], 160))

    def take(self, event: Event, listener: Listener) -> None:
        """Take one event."""
        match event.get("type"):
            case "thread.started":
                thread = event.get("thread_id")
                self.session_id = thread if isinstance(thread, str) else None
            case "turn.started":
                self._is_completed = False
            case "turn.completed":
                self._is_completed = True
                self._failure = None
                self._take_usage(as_dict(event.get("usage")), listener)
            case "turn.failed":
                self._failure = str(as_dict(event.get("error")).get("message"))
            case "error":
                # Shown again by turn.failed if it was final.
                self.say(listener, f"codex: {one_line(event.get('message'))}", Kind.NOTICE)
            case "item.started":
                self._take_started(as_dict(event.get("item")), listener)
            case "item.completed":
                self._take_completed(as_dict(event.get("item")), listener)

    def is_progress(self, event: Event) -> bool:
        """See `JsonEventParser`; each item but an error is one."""
        item = as_dict(event.get("item"))
        kind = item.get("type")
        if kind in _SPOKEN_ITEMS:
            return bool(item.get("text"))
        return isinstance(kind, str) and kind != "error"

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the last turn together."""
        if end.exit_code == 0 and self._is_completed and self._failure is None:
            structured = parsed(self._answer) if self._is_json else None
            return self.answered(self._answer, end, structured)
        reason = self._failure or self.stderr_text or "no answer"
        error = f"codex ended with exit code {end.exit_code}: {reason}"
        found = _STATUS.search(reason)
        status = int(found[1]) if found else None
        hint = _LOGIN if status == _UNAUTHORIZED else ""
        if self._failure is None:
            return self.failed(f"{error}\n{hint}".rstrip(), end)
        return self.refused_or_failed(error, end, status=status, hint=hint)

    def marked_session(self) -> str | None:
        """Return the thread's id with what it has used in all."""
        if self.session_id is None:
            return None
        facts = {
            "input_tokens": max(self._total.input_tokens, self._before.input_tokens),
            "output_tokens": max(self._total.output_tokens, self._before.output_tokens),
        }
        return marked(self.session_id, facts)

    def _take_usage(self, usage: Event, listener: Listener) -> None:
        total = Usage(
            input_tokens=as_count(usage.get("input_tokens")),
            output_tokens=as_count(usage.get("output_tokens")),
        )
        self._total = total
        before = self._before
        # Less than before: a version that counts by run, or a thread that began anew.
        is_by_thread = (
            total.input_tokens >= before.input_tokens
            and total.output_tokens >= before.output_tokens
        )
        base = before if is_by_thread else Usage()
        charged = Usage(
            input_tokens=total.input_tokens - base.input_tokens,
            output_tokens=total.output_tokens - base.output_tokens,
        )
        # How much of a continued thread's input was cached before is not known.
        cached = 0 if base.input_tokens else as_count(usage.get("cached_input_tokens"))
        self.count_tokens(listener, charged, cached)

    def _take_started(self, item: Event, listener: Listener) -> None:
        if item.get("type") not in _QUIET_ITEMS:
            self.say(listener, f"-> {_described(item)}", Kind.ACTION)

    def _take_completed(self, item: Event, listener: Listener) -> None:
        match item.get("type"):
            case "agent_message":
                self._answer = str(item.get("text", ""))
                self.say(listener, self._answer, Kind.RESPONSE)
            case "reasoning":
                self.say(listener, str(item.get("text", "")), Kind.THOUGHT)
            case "error":
                self.say(listener, f"codex: {one_line(item.get('message'))}", Kind.NOTICE)
            case "command_execution":
                sign = "<-" if item.get("exit_code") == 0 else f"<- exit {item.get('exit_code')}:"
                output = one_line(str(item.get("aggregated_output", "")))
                self.say(listener, f"{sign} {output}".rstrip(), Kind.ACTION)
                if item.get("status") == "declined":
                    self.denials.append(one_line(item.get("command"), 160))
            case _:
                status = item.get("status", "done")
                self.say(listener, f"<- {_described(item)}: {status}", Kind.ACTION)


def _described(item: Event) -> str:
    if item.get("type") == "command_execution":
        return f"command {one_line(item.get('command'))}"
    if item.get("type") == "file_change":
        changes = (as_dict(change) for change in as_list(item.get("changes")))
        return "file_change " + ", ".join(f"{c.get('kind')} {c.get('path')}" for c in changes)
    rest = {key: value for key, value in item.items() if key not in _BOOKKEEPING}
    return f"{item.get('type')} {one_line(rest)}"
