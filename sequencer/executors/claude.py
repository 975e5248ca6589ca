"""Performs steps with Claude Code, the ``claude`` program, and reads its stream-json.

Its own permission rules decide what the agent may do: without ``permission_mode`` and
``allowed_tools`` it reads and refuses to write. Verified with 2.1.197 and 2.1.330; no flag is
passed that the older one does not have, unless the session is from a newer one. A step without
tools gets none from MCP servers either, unless ``extra_args`` names their file.

Success is exit code 0 **and** a last `result` event without is_error. Neither alone is enough:
an API error has subtype "success", and an interrupted tool may exit with 0. A refused edit has
both, and is only a warning. `claude_turns` reads whether the turn ended by itself. Live usage is
an estimate from list prices until the result reports the usage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from sequencer.executors.answers import MAX_ARGUMENT_BYTES, schema_text
from sequencer.executors.claude_providers import SWITCHES
from sequencer.executors.claude_turns import TURNS, ClaudeTurns
from sequencer.executors.claude_usage import ClaudeCalls, read_result_usage, sum_model_usage
from sequencer.executors.client import (
    APPENDED_PROMPT,
    SYSTEM_PROMPT,
    Call,
    ClientExecutor,
    ClientOptions,
)
from sequencer.executors.client_events import (
    ERROR_CHARS,
    ClientEvent,
    JsonEventParser,
    Rules,
    get_number,
    join_mark,
    max_usage,
    one_line,
    parse_amount,
    split_mark,
)
from sequencer.executors.client_limits import format_utc, is_notice
from sequencer.executors.observation import choose_answer
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import (
    Listener,
    Objection,
    Permissions,
    Piece,
    StepRequest,
    split_words,
)
from sequencer.executors.tool_words import (
    CLAUDE,
    granted_tools,
    is_read_only,
    plan_mode_objections,
    removed_tools,
    tool_objections,
)
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Outcome, Quota, Usage
from sequencer.model.step import Step

STARTS_SUBAGENTS = ("Agent", "Task")
"""The tool's current name and its old one."""
_LATEST_S = 2**37
"""The latest time that datetime supports, in seconds since 1970."""
_PERMISSION_WORDS = split_words(
    "--dangerously-skip-permissions --permission-mode --permission-prompt-tool --allowedTools "
    "--allowed-tools --settings"
)
_SNAPSHOT_SINCE = (2, 1, 330)
"""From this version on, a resumed session keeps its first system prompt by default."""


class ClaudeOptions(ClientOptions):
    """``agents: {NAME: {kind: claude, …}}``."""

    program: str = Field(default="claude", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    permission_mode: str | None = Field(default=None, pattern=r"^[A-Za-z]{1,40}$")
    """claude's name for it (default, acceptEdits, plan, dontAsk, …); None: claude's settings."""
    allowed_tools: tuple[str, ...] | None = None
    """Tools that run without asking, as in ``Bash(git *)``; a step's own list replaces it."""
    disallowed_tools: tuple[str, ...] = ()
    """Tools that are taken away; a step's own list is added."""
    tools: tuple[str, ...] | None = None
    """The built-in tools that exist; None: claude's default set."""
    setting_sources: tuple[str, ...] | None = None
    """Which settings claude loads (user, project, local); an empty list: none."""
    stream_text: bool = True
    """Show text while it is written."""


def claude_argv(options: ClaudeOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments without the prompt, which goes to stdin.

    Each list is one ``--opt=value``: as separate arguments, a list would swallow the arguments
    after it. A step's ``allowed_tools`` both limits the built-in tools to that list and lets
    them run without asking; its ``tools`` adds to the entry's lists.

    Raises:
        ValueError: the session to continue has an id that no client would use, or the
            schema of the answer or the subagents are too long for an argument.
    """
    step = request.step
    argv = [options.program, "-p", "--output-format=stream-json", "--verbose"]
    if options.stream_text:
        argv.append("--include-partial-messages")
    argv += options.extra_args
    model = step.model or options.model
    argv += [f"--model={model}"] if model else []
    argv += [f"--permission-mode={options.permission_mode}"] if options.permission_mode else []
    if options.setting_sources is not None:
        argv.append(f"--setting-sources={','.join(options.setting_sources)}")
    argv += _tool_arguments(options, request)
    argv += [f"--agents={subagents_text(step)}"] if step.agents else []
    schema = schema_text(step)
    # An answer with a schema is a tool call; if the model forgets it, claude reminds it once.
    one_answer = 1 if schema is None else 2
    max_turns = one_answer if step.single_turn else step.max_turns
    argv += [f"--max-turns={max_turns}"] if max_turns else []
    argv += [] if schema is None else [f"--json-schema={schema}"]
    return argv + _session_arguments(request)


def subagents_text(step: Step) -> str:
    """Return the subagents of *step* as one argument.

    Raises:
        ValueError: they are too long for an argument.
    """
    agents = {
        name: agent.model_dump(mode="json", exclude_none=True)
        for name, agent in (step.agents or {}).items()
    }
    text = json.dumps(agents, separators=(",", ":"))
    if len(text) > MAX_ARGUMENT_BYTES:
        message = f"agents are longer than {MAX_ARGUMENT_BYTES} bytes; shorten their prompts"
        raise ValueError(message)
    return text


def explain_no_subagents(step: Step, options: ClaudeOptions, name: str) -> str | None:
    """Return why agent *name* does not have the tool that starts subagents; None: it has it."""
    reasons = {
        "single_turn takes all tools away": step.single_turn,
        "disallow_all_tools takes all tools away": step.disallow_all_tools,
        "task: false takes it away": (step.tools or {}).get("task") is False,
        "disallowed_tools takes it away": _can_start_subagents(step.disallowed_tools or ()),
        f"agents.{name}.disallowed_tools takes it away": _can_start_subagents(
            options.disallowed_tools
        ),
    }
    if step.allowed_tools is not None:
        allowed_names = [tool.partition("(")[0] for tool in step.allowed_tools]
        reasons["allowed_tools does not name it"] = not _can_start_subagents(allowed_names)
    elif options.tools is not None and not (step.tools or {}).get("task"):
        reasons[f"agents.{name}.tools does not name it"] = not _can_start_subagents(options.tools)
    return next((reason for reason, is_true in reasons.items() if is_true), None)


def _can_start_subagents(tools: Iterable[str]) -> bool:
    return any(fnmatchcase(name, entry) for entry in tools for name in STARTS_SUBAGENTS)


def _tool_arguments(options: ClaudeOptions, request: StepRequest) -> list[str]:
    step = request.step
    tools, allowed_tools = options.tools, options.allowed_tools or ()
    granted_names = granted_tools(step, CLAUDE)
    has_none = step.single_turn or step.disallow_all_tools
    if step.allowed_tools is not None:
        allowed_tools = step.allowed_tools
        tools = tuple(dict.fromkeys(name.partition("(")[0] for name in allowed_tools))
    else:
        allowed_tools = _merge_names(allowed_tools, granted_names)
        tools = None if tools is None else _merge_names(tools, granted_names)
    if has_none:
        tools = ()
    disallowed_names = (*options.disallowed_tools, *(step.disallowed_tools or ()))
    disallowed_names = _merge_names(disallowed_names, removed_tools(step, CLAUDE))
    argv = [] if tools is None else [f"--tools={','.join(tools)}"]
    # --tools covers only built-in tools; without MCP servers there are no others.
    argv += ["--strict-mcp-config"] if has_none else []
    argv += [f"--allowedTools={','.join(allowed_tools)}"] if allowed_tools else []
    return argv + ([f"--disallowedTools={','.join(disallowed_names)}"] if disallowed_names else [])


def _merge_names(names: tuple[str, ...], other_names: tuple[str, ...]) -> tuple[str, ...]:
    return names + tuple(name for name in other_names if name not in names)


def _session_arguments(request: StepRequest) -> list[str]:
    argv: list[str] = []
    cost_usd = 0.0
    is_prompted = request.system_prompt is not None or request.append_system_prompt is not None
    if request.resume_session is not None:
        session_id, facts = split_mark(request.resume_session)
        argv.append(f"--resume={session_id}")
        cost_usd = get_number(facts, "cost_usd")
        if is_prompted and _parse_version(facts.get("version", "")) >= _SNAPSHOT_SINCE:
            argv.append("--system-prompt-snapshot=off")
    if request.max_cost_usd is not None:
        # Some versions compare the budget with the total of the session, not of this call.
        argv.append(f"--max-budget-usd={cost_usd + request.max_cost_usd:.6f}")
    if request.system_prompt is not None:
        argv.append(f"--system-prompt-file={request.file_path(SYSTEM_PROMPT)}")
    if request.append_system_prompt is not None:
        argv.append(f"--append-system-prompt-file={request.file_path(APPENDED_PROMPT)}")
    return argv


def _read_session_cost(request: StepRequest) -> float | None:
    if request.resume_session is None:
        return 0.0
    facts = split_mark(request.resume_session)[1]
    return get_number(facts, "cost_usd") if "cost_usd" in facts else None


def _parse_version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


class ClaudeExecutor(ClientExecutor[ClaudeOptions]):
    """Runs ``claude -p`` with the process core."""

    kind: ClassVar[str] = "claude"
    install: ClassVar[str] = (
        "npm install -g @anthropic-ai/claude-code, or pip install claude-agent-sdk and name "
        "its claude_agent_sdk/_bundled/claude as program"
    )
    passed: ClassVar[frozenset[str]] = split_words(
        "ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL ANTHROPIC_DEFAULT_* "
        "ANTHROPIC_MODEL ANTHROPIC_SMALL_FAST_MODEL CLAUDE_CODE_CERT_STORE CLAUDE_CODE_CLIENT_CERT "
        "CLAUDE_CODE_CLIENT_KEY CLAUDE_CODE_CLIENT_KEY_PASSPHRASE CLAUDE_CODE_OAUTH_TOKEN "
        "CLAUDE_CONFIG_DIR"
    )
    switches: ClassVar[Mapping[str, frozenset[str]]] = SWITCHES
    # Set explicitly: if they were left out, the user's settings would apply.
    plain: ClassVar[Mapping[str, Any]] = {
        "permission_mode": "default",
        "allowed_tools": None,
        "tools": None,
    }
    providers: ClassVar[frozenset[str] | None] = split_words("anthropic")
    supported_fields: ClassVar[frozenset[str]] = split_words(
        "model provider tools system_prompt append_system_prompt single_turn max_turns "
        "allowed_tools disallowed_tools disallow_all_tools agents idle_timeout_s max_cost_usd "
        "continue_session"
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return an objection for each tool and subagent of the step that can't work."""
        result = tool_objections(step, CLAUDE, self.name, self.options.disallowed_tools)
        if self.options.permission_mode == "plan":
            result += plan_mode_objections(step, f"agents.{self.name}.permission_mode")
        reason = explain_no_subagents(step, self.options, self.name) if step.agents else None
        if reason is not None:
            hint = f"give the agent the tool {STARTS_SUBAGENTS[0]}, or leave agents out"
            result.append(Objection(f"agents, but nothing could start them: {reason}", hint))
        return result

    def permissions(self) -> Permissions:
        """Return the entry's mode and lists; claude's own settings may add to them."""
        options = self.options
        parts = [f"permission_mode {options.permission_mode}"] if options.permission_mode else []
        for key in ("allowed_tools", "tools"):
            names = getattr(options, key)
            if names is not None:
                parts.append(f"{key} {', '.join(names) or 'none'}")
        parts += options.find_in_extra_args(_PERMISSION_WORDS)
        has_permissions = bool(parts)
        if options.disallowed_tools:
            parts.append(f"disallowed_tools {', '.join(options.disallowed_tools)}")
        if has_permissions:
            reads_only = options.tools is not None and is_read_only(options.tools, CLAUDE)
            can_write = options.permission_mode != "plan" and not reads_only
            return Permissions("; ".join(parts), can_write=can_write)
        ending = "".join(f"; {part}" for part in parts)
        text = (
            f"no permission_mode: edits are refused unless claude's own settings allow them{ending}"
        )
        lines = ("permission_mode: acceptEdits", 'allowed_tools: ["Bash(git *)"]')
        return Permissions(text, lines)

    def build_call(self, request: StepRequest) -> Call:
        """Return the call that performs *request*.

        Raises:
            ValueError: no budget is left, or see `claude_argv`.
        """
        if request.max_cost_usd is not None and request.max_cost_usd <= 0:
            raise ValueError("no budget is left for this step")
        argv = claude_argv(self.options, request)
        # A step ends with its answer, and a background subagent would outlive it.
        defaults = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}
        parser = ClaudeParser(self.rules(request), _read_session_cost(request))
        return Call(argv, self.environment(defaults), parser)


_SINCE = "model_usage_since_last_result"
_OVER_BUDGET = "error_max_budget_usd"
_HINTS: Mapping[str, str] = {
    "error_max_turns": "raise max_turns, or make the step smaller",
    _OVER_BUDGET: "raise max_cost_usd, or make the step smaller",
}
_OWN_WORDS = re.compile(
    r"API Error\b|Claude (?:AI |Code )?usage limit|You(?:'|\u2019)ve (?:hit|reached) (?:your|the) "
    r"|You(?:'|\u2019)re out of |(?:\d+-hour|daily|weekly|monthly|session|usage) limit reached",
    re.IGNORECASE,
)
"""How claude's messages about a limit start, in versions that give no separate reason."""
_HOOK_PREFIX = "hook_"
"""System events with such a subtype may name a session that never exists: a hook for the start of
a session runs before claude changes to the session that it resumes (seen with 2.1.139)."""
_TOOL_BLOCKS = frozenset({"tool_use", "server_tool_use", "tool_result", "web_search_tool_result"})


class ClaudeParser(JsonEventParser):
    """Parser of ``claude -p --output-format=stream-json --verbose``.

    *before* is the earlier cost of its session in USD; None: unknown.
    """

    client = "claude"
    turns = TURNS
    lost_session = re.compile(r"No conversation found|Session ID \S+ is already in use")
    login = "log in once by hand (claude, then /login), or set ANTHROPIC_API_KEY"

    def __init__(self, rules: Rules, before: float | None = None) -> None:
        super().__init__(rules)
        self._before = before
        self._turns = ClaudeTurns(self.observed)
        self._results: list[ClientEvent] = []
        self._charged = self._shares = Usage()
        self._version: str | None = None
        self._calls = ClaudeCalls()
        self._streamed: set[str] = set()
        self._current: str | None = None
        self._reset_epoch_s: float | None = None

    def process_event(self, event: ClientEvent, listener: Listener) -> bool:
        """Process one event; return whether it has text, a tool call or its result.

        Streamed pieces of a text or of a call count too.
        """
        if not event.get_text("subtype").startswith(_HOOK_PREFIX):
            self.store_session_id(event, "session_id")
        self._turns.process_event(event)
        self.refused = self._turns.refused
        content = event.get_object("message").get_objects("content")
        match event.get("type"):
            case "system":
                self._process_system(event, listener)
            case "assistant":
                self._process_assistant(event, content, listener)
                return not event.get("is_api_error_message") and any(map(_is_progress, content))
            case "user":
                self._process_tool_results(content, listener)
                return any(map(_is_progress, content))
            case "stream_event":
                raw = event.get_object("event")
                self._process_delta(raw, listener)
                parts = raw.get_object("delta"), raw.get_object("content_block")
                return any(map(_is_progress, parts))
            case "rate_limit_event":
                self._process_rate_limit(event.get_object("rate_limit_info"), listener)
            case "result":
                self._process_result(event, listener)
        return False

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the last result together."""
        if not self._results:
            reason = self.stderr_text or f"claude ended with exit code {end.exit_code}"
            text, epoch_s = f"no result from claude: {reason}", self._reset_epoch_s
            return self.classify_failure(text, end, is_own=False, epoch_s=epoch_s)
        result = self._results[-1]
        if end.exit_code == 0 and result.get("is_error") is False:
            # claude sets it only if there is a schema, after it has checked the answer.
            structured_output = result.get("structured_output")
            self._turns.set_final_reason(result)
            text, placeholder = result.get_text("result"), self._turns.placeholder
            if placeholder and not self.has_worked:
                # The conversation may be the cause, so the next attempt may start a new one.
                text = f"claude has no answer of its model: {placeholder}"
                return self.classify_failure(text, end, is_own=True)
            text = "" if text == placeholder else text
            if structured_output is None:
                # The result is empty if the last message has only a tool call, for example.
                text = choose_answer(text, self.observed.said_last)
            return self.build_success(text, end, structured_output, is_over=self._turns.is_over)
        return self._judge_error(result, end)

    def session_mark(self) -> str | None:
        """Return the session id, with the cost so far if the client counts by session."""
        if self.session_id is None:
            return None
        facts: dict[str, float | str] = {}
        if self._results and _SINCE in self._results[-1]:
            # Only a client that reports the usage *since* the last result counts its total by
            # session; its budget is then compared with that total too.
            total = self._results[-1].get_amount("total_cost_usd")
            # A larger number would raise the budget of the next step.
            known_total = total if self._before is None else self._before + self._charged.cost_usd
            facts["cost_usd"] = round(min(total, known_total), 6)
        if self._version:
            facts["version"] = self._version
        return join_mark(self.session_id, facts)

    def _process_system(self, event: ClientEvent, listener: Listener) -> None:
        match event.get("subtype"):
            case "init":
                self._version = event.get_id("claude_code_version")
                version, model = event.describe("claude_code_version"), event.describe("model")
                mode = event.describe("permissionMode")
                text = f"claude {version}, model {model}, permission mode {mode}"
                self.write_line(listener, text, Piece.NOTICE)
            case "api_retry":
                delay_s = event.get_amount("retry_delay_ms") / 1000
                attempt = f"{event.describe('attempt')} of {event.describe('max_retries')}"
                reason = event.describe("error")
                if event.get("error_status"):
                    reason += f" (HTTP {event.describe('error_status')})"
                text = f"claude retries in {delay_s:.1f} s, {attempt}: {reason}"
                self.write_line(listener, text, Piece.NOTICE)
            case "permission_denied":
                text = f"refused: {event.describe('tool_name')}: {event.describe('message')}"
                self.write_line(listener, text, Piece.ERROR)
            case "model_fallback":
                self.write_line(listener, f"claude: {one_line(event)}", Piece.NOTICE)

    def _process_assistant(
        self, event: ClientEvent, content: list[ClientEvent], listener: Listener
    ) -> None:
        message = event.get_object("message")
        key = message.get_text("id")
        self._count_call(key, message, listener)
        if not event.get("parent_tool_use_id"):
            # Only for the conversation itself, not for a subagent.
            self.last_sent = self._calls.sent_tokens(key) or self.last_sent
        for block in content:
            match block.get("type"):
                case "text" if event.get("is_api_error_message"):
                    self.write_line(listener, block.get_text("text"), Piece.ERROR)
                case "text" if key not in self._streamed:
                    self.write_line(listener, block.get_text("text"), Piece.RESPONSE)
                case "thinking" if key not in self._streamed:
                    self.write_line(listener, block.get_text("thinking"), Piece.THOUGHT)
                case "tool_use":
                    text = f"-> {block.describe('name')} {block.describe('input')}"
                    self.write_line(listener, text, Piece.ACTION)

    def _process_tool_results(self, content: list[ClientEvent], listener: Listener) -> None:
        for block in content:
            if block.get("type") != "tool_result":
                continue
            parts = (part.get_text("text") for part in block.get_objects("content"))
            text = block.get_text("content") or " ".join(parts)
            sign = "<- error:" if block.get("is_error") else "<-"
            self.write_line(listener, f"{sign} {one_line(text)}", Piece.ACTION)

    def _process_delta(self, raw: ClientEvent, listener: Listener) -> None:
        """Show text as it is written; only present with --include-partial-messages."""
        match raw.get("type"):
            case "message_start":
                message = raw.get_object("message")
                self._current = message.get_text("id")
                self._streamed.add(self._current)
                self._count_call(self._current, message, listener)
            case "content_block_delta":
                delta = raw.get_object("delta")
                for name, kind in (("text", Piece.RESPONSE), ("thinking", Piece.THOUGHT)):
                    self.stream(listener, delta.get_text(name), kind)
            case "content_block_stop":
                self.end_line(listener)
            case "message_delta" if self._current is not None:
                self._count_call(self._current, raw, listener)

    def _process_rate_limit(self, info: ClientEvent, listener: Listener) -> None:
        """Store the quota; claude reports the used share only near the limit."""
        resets, window = parse_amount(info.get("resetsAt")), info.get_text("rateLimitType")
        if resets is not None and resets < _LATEST_S and re.fullmatch(r"[a-z0-9_]{1,40}", window):
            utilization = parse_amount(info.get("utilization"))
            reset_text = format_utc(datetime.fromtimestamp(resets, UTC))
            self.quota = Quota(
                window=window, resets_at=reset_text, used=utilization and min(utilization, 1.0)
            )
        is_rejected = info.get("status") == "rejected"
        # "allowed" and "allowed_warning" cancel an earlier rejection.
        self._reset_epoch_s = parse_amount(info.get("resetsAt")) if is_rejected else None
        if info.get("status") not in (None, "allowed"):
            text = f"claude: limit {info.describe('rateLimitType')}: {info.describe('status')}"
            self.write_line(listener, text, Piece.NOTICE)

    def _process_result(self, event: ClientEvent, listener: Listener) -> None:
        self._results.append(event)
        self._turns.is_over = True
        for denial in event.get_objects("permission_denials"):
            line = f"{denial.describe('tool_name', 30)} {denial.describe('tool_input', 120)}"
            if line not in self.denials:
                self.record_denial(line)
        if event.get("is_error"):
            self.write_line(listener, _find_error_text(event), Piece.ERROR)
        if _SINCE in event:
            self._shares = self._shares.plus(sum_model_usage(event.get_object(_SINCE)))
            charged = self._shares.replace(unpriced=min(self._shares.unpriced, 1))
        else:
            # Older clients count by call: the last total is the largest and includes everything.
            models = event.get_object("modelUsage")
            charged = sum_model_usage(models) if models else read_result_usage(event)
        self._charged = max_usage(self._charged, charged)
        self.report_usage(listener, self._charged)

    def _count_call(self, key: str, message: ClientEvent, listener: Listener) -> None:
        if self._calls.count(key, message):
            self.seen = self._calls.usage(self.rules.prices)
            if not self._results:
                self.report_usage(listener, self.seen)

    def _judge_error(self, result: ClientEvent, end: ProcessEnd) -> Outcome:
        status = result.sum_counts("api_error_status") or None
        subtype = result.get_text("subtype")
        text = f"claude: {_find_error_text(result)}"
        if subtype in _HINTS:
            failure = self.build_failure(f"{text}\n{_HINTS[subtype]}", end)
            return failure.replace(is_over_budget=subtype == _OVER_BUDGET)
        if result.get("is_error") is False and not is_notice(result.get_text("result")):
            text = f"claude ended with exit code {end.exit_code} after it gave a result: {text}"
            return self.build_failure(text, end)
        is_own = status is not None or _is_from_client(result)
        if not is_own:
            # The text is not from claude but from its agent, so the agent has worked.
            self.observed.add_text(result.get_text("result"))
        return self.classify_failure(
            text, end, is_own=is_own, status=status, epoch_s=self._reset_epoch_s
        )


def _is_progress(block: ClientEvent) -> bool:
    """Return whether *block*, or a piece of one, is text, a tool call or its result."""
    if block.get_text("type") in _TOOL_BLOCKS:
        return True
    return any(block.get_text(name) for name in ("text", "thinking", "partial_json"))


def _is_from_client(result: ClientEvent) -> bool:
    """Return whether the text of a result without a status is from claude, not from its agent."""
    reason = result.get("terminal_reason")
    if isinstance(reason, str):
        return reason == "api_error"
    return _OWN_WORDS.match(_find_error_text(result)) is not None


def _find_error_text(result: ClientEvent) -> str:
    """Return the most helpful text of a result with an error."""
    texts = result.get("errors")
    errors = "; ".join(
        filter(lambda text: isinstance(text, str), texts if isinstance(texts, list) else ())
    )
    text = result.get_text("result") or errors or result.get_text("terminal_reason")
    return one_line(text or result.get_text("subtype") or "no reason given", ERROR_CHARS)
