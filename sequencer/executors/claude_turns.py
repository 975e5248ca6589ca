"""Reads the messages, the tool calls and the end of a turn from claude's stream-json."""

from __future__ import annotations

from sequencer.executors.client_events import ClientEvent
from sequencer.executors.observation import EndReasons, Observation, normalize_reason
from sequencer.executors.protocol import split_words

_AGAIN = "try again, or make the step smaller"
TURNS = EndReasons(
    clean=split_words("completed end_turn stop_hook_prevented stop_sequence"),
    cut_off={
        "aborted_streaming": _AGAIN,
        "aborted_tools": _AGAIN,
        "background_requested": _AGAIN,
        "compaction": _AGAIN,
        "hook_stopped": "a hook of claude's own settings stopped it; look at these hooks",
        "max_tokens": "raise CLAUDE_CODE_MAX_OUTPUT_TOKENS, or make the step smaller",
        "max_turns": "raise max_turns, or make the step smaller",
        "model_context_window_exceeded": "the conversation outgrew the context; make the step "
        "smaller",
        "pause_turn": _AGAIN,
        "refusal": "the model refused to answer; change the prompt",
        "tool_deferred": _AGAIN,
        "tool_deferred_unavailable": _AGAIN,
        "tool_use": _AGAIN,
    },
)
"""Values of ``stop_reason`` (from the Messages API, and two from claude) and of
``terminal_reason`` in 2.1.332. With ``stop_hook_prevented`` the agent has finished. What claude
itself calls an error (api_error, prompt_too_long, …) is a failure without this table."""
_VAGUE_REASONS = frozenset({"completed", "stop_hook_prevented"})
"""With these values of ``terminal_reason``, ``stop_reason`` says more."""
_CALL_REASONS = frozenset({"tool_use", "tool_calls"})
"""The reason after a tool call, from claude or from a gateway."""
_CALL_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Types of blocks in a message that call a tool."""


def _is_from_client(event: ClientEvent) -> bool:
    """Return whether a message is from claude and not from its model: mostly an API error."""
    is_error = bool(event.get("is_api_error_message") or event.get("error"))
    return is_error or event.get_object("message").get("model") == "<synthetic>"


_UNAUTHORIZED, _MAX_UNAUTHORIZED = 401, 2
"""claude retries ten times, for minutes, which does not fix a wrong key."""
_LOG_IN = (
    "claude can't log in: the service has refused its key or login twice (HTTP 401)\n"
    "log in: run 'claude' once, as the user that runs this; or set a valid ANTHROPIC_API_KEY"
)
_NO_ANSWER = "No response requested."
"""What claude writes instead of an answer if it did not call its model, or got no answer."""


class ClaudeTurns:
    """Collects facts from claude's messages."""

    def __init__(self, observed: Observation) -> None:
        """Store the facts in *observed*."""
        self._observed = observed
        self._message = ""
        self.is_over = False
        """There is a result, and no message after it."""
        self.placeholder = ""
        """The text that claude wrote instead of a last message, if it did."""
        self.refused: str | None = None
        """Why the service refuses every request of claude, and what to do."""
        self._unauthorized = 0
        """How many times in a row the service refused the credentials."""

    def process_event(self, event: ClientEvent) -> None:
        """Collect the facts of one event.

        A subagent's text is not the agent's answer, and the turn waits for the call that started
        the subagent, not for the subagent's calls.
        """
        is_own = not event.get("parent_tool_use_id")
        if event.get("type") == "assistant" and not _is_from_client(event):
            self._unauthorized = 0
        match event.get("type"):
            case "assistant" if not _is_from_client(event):
                self._process_message(event.get_object("message"), is_own=is_own)
            case "assistant" if is_own:
                message = event.get_object("message")
                text = message.get_text("content") or [
                    block.get_text("text") for block in message.get_objects("content")
                ]
                self.placeholder = _NO_ANSWER if text in (_NO_ANSWER, [_NO_ANSWER]) else ""
            case "user":
                self._process_blocks(event.get_object("message"), is_own=is_own)
                if is_own:
                    # Needed if a gateway gives all messages the same id.
                    self._observed.start_message()
            case "system" if event.get("subtype") == "api_retry":
                is_unauthorized = event.get("error_status") == _UNAUTHORIZED
                self._unauthorized = self._unauthorized + 1 if is_unauthorized else 0
                if self._unauthorized >= _MAX_UNAUTHORIZED:
                    self.refused = _LOG_IN
            case "system" if event.get("is_backgrounded"):
                self._observed.mark_background(event.get_text("tool_use_id"))
            case "stream_event" if is_own:
                self._process_delta(event.get_object("event"))

    def set_final_reason(self, result: ClientEvent) -> None:
        """Store why the turn ended: the most exact reason in *result* or the last message.

        ``terminal_reason`` comes first, unless it is vague; then ``stop_reason`` of *result*, then
        ``stop_reason`` of the last message.
        """
        observation = self._observed
        terminal_reason = normalize_reason(result.get("terminal_reason"))
        if terminal_reason is not None and terminal_reason not in _VAGUE_REASONS:
            observation.reason = terminal_reason
            return
        observation.reason = (
            normalize_reason(result.get("stop_reason")) or observation.reason or terminal_reason
        )
        if observation.reason in _CALL_REASONS and result.get("structured_output") is not None:
            # An answer with a schema is a tool call, and claude ends the turn after it.
            observation.reason = terminal_reason

    def _process_message(self, message: ClientEvent, *, is_own: bool) -> None:
        if is_own:
            self._start_message(message)
            self._update_reason(message)
            for block in message.get_objects("content"):
                self._observed.add_text(
                    block.get_text("text") if block.get("type") == "text" else ""
                )
        self._process_blocks(message, is_own=is_own)

    def _process_blocks(self, message: ClientEvent, *, is_own: bool) -> None:
        for block in message.get_objects("content"):
            kind = block.get_text("type")
            if kind in _CALL_BLOCKS:
                content = [block.get("name"), block.get("input")]
                self._observed.record_call(block.get_text("id"), content, may_wait=not is_own)
            elif kind.endswith("_result"):
                content = [block.get("content"), bool(block.get("is_error"))]
                self._observed.record_result(block.get_text("tool_use_id"), content)

    def _process_delta(self, raw: ClientEvent) -> None:
        """Process one part of a streamed message; the whole message comes again later."""
        match raw.get("type"):
            case "message_start":
                self._start_message(raw.get_object("message"))
            case "content_block_delta":
                text = raw.get_object("delta").get_text("text")
                self._observed.has_text = self._observed.has_text or bool(text.strip())
            case "message_delta":
                self._update_reason(raw.get_object("delta"))

    def _start_message(self, message: ClientEvent) -> None:
        """Start another message: claude requests one only after all calls have results."""
        self.is_over, self.placeholder = False, ""
        key = message.get_text("id")
        if not key or key != self._message:
            self._message = key
            self._observed.start_message()
            self._observed.close_calls()
            self._observed.reason = None

    def _update_reason(self, message: ClientEvent) -> None:
        self._observed.reason = (
            normalize_reason(message.get("stop_reason")) or self._observed.reason
        )
