"""Performs steps with Codex, the ``codex`` program.

Its sandbox decides what the agent may do; the default of ``sandbox`` in the agent's entry is
read-only. Verified with 0.169.0. Not available: a limit of turns or cost (it counts only
tokens), a list of allowed tools, a step without tools. It reads, searches and writes with its
shell, so a step's ``tools`` can disable reading only together with the shell, and writing only
as a whole, through the sandbox.

Success is exit code 0 and a turn.completed without a turn.failed after it, because codex gives
no reason; the answer is the last agent_message. An item of type error may be only a warning, and
an error event may be a retry: neither decides. Refused commands appear only on stderr.
"""

from __future__ import annotations

import json
import re
from typing import ClassVar, Literal

from sequencer.executors.answers import build_answer_schema, parse_json, to_strict_schema
from sequencer.executors.client import SYSTEM_PROMPT, Call, ClientExecutor, ClientOptions
from sequencer.executors.client_events import (
    READ_CHARS,
    ClientEvent,
    JsonEventParser,
    Rules,
    get_number,
    join_mark,
    max_usage,
    one_line,
    split_mark,
)
from sequencer.executors.client_limits import ErrorKind, classify
from sequencer.executors.observation import EndReasons
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import (
    Listener,
    Objection,
    Permissions,
    Piece,
    StepRequest,
    split_words,
)
from sequencer.executors.tool_words import CODEX, tool_objections
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Step, ToolName

OUTPUT_SCHEMA = "output-schema.json"
_MAX_APPENDED_BYTES = 100_000
"""The appended prompt is an argument, and the limit for one argument is 128 KiB."""
_READING: tuple[ToolName, ...] = ("read", "glob", "grep", "list")
_WRITING: tuple[ToolName, ...] = ("write", "edit")
_READ_ONLY = "read-only"
_PERMISSION_WORDS = ("--dangerously-bypass-approvals-and-sandbox", "--full-auto")


class CodexOptions(ClientOptions):
    """``agents: {NAME: {kind: codex, …}}``."""

    program: str = Field(default="codex", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] = "read-only"
    """What the agent's commands may write, in codex's terms."""
    profile: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """A profile in codex's configuration."""
    disallowed_tools: tuple[str, ...] = ()
    """Features to disable (shell_tool, unified_exec, …); a step's own list is added."""


def _to_toml(text: str) -> str:
    """Return *text* as a TOML string; JSON has the same escapes, except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def codex_argv(options: CodexOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; ``-`` stands for the prompt on stdin.

    Raises:
        ValueError: the session to continue has an id that no client would use, or the
            appended system prompt is too long for an argument.
    """
    step = request.step
    argv = [options.program, "exec"]
    if request.resume_session is not None:
        argv.append("resume")
    # The check asks whether the user trusts the folder; the user trusted it before this step.
    argv += ["--json", "--skip-git-repo-check", *options.extra_args]
    # As a configuration value, because `exec resume` has no --sandbox.
    argv.append(f"--config=sandbox_mode={_to_toml(_sandbox(options, step))}")
    argv += [f"--profile={options.profile}"] if options.profile else []
    model = step.model or options.model
    argv += [f"--model={model}"] if model else []
    argv += [
        f"--disable={feature}"
        for feature in (*options.disallowed_tools, *(step.disallowed_tools or ()))
    ]
    argv += _tool_arguments(step)
    if request.system_prompt is not None:
        path = str(request.file_path(SYSTEM_PROMPT))
        argv.append(f"--config=model_instructions_file={_to_toml(path)}")
    if request.append_system_prompt is not None:
        if len(request.append_system_prompt.encode()) > _MAX_APPENDED_BYTES:
            message = (
                f"append_system_prompt is longer than {_MAX_APPENDED_BYTES} bytes, more than codex "
                "takes; use system_prompt, or shorten it"
            )
            raise ValueError(message)
        argv.append(f"--config=developer_instructions={_to_toml(request.append_system_prompt)}")
    if build_answer_schema(step) is not None:
        argv.append(f"--output-schema={request.file_path(OUTPUT_SCHEMA)}")
    if request.resume_session is not None:
        # `split_mark` ensures that it isn't an option. After `--`, codex takes "-" as the prompt.
        argv.append(split_mark(request.resume_session)[0])
    return [*argv, "-"]


def _sandbox(options: CodexOptions, step: Step) -> str:
    words = step.tools or {}
    return _READ_ONLY if any(words.get(word) is False for word in _WRITING) else options.sandbox


def _tool_arguments(step: Step) -> list[str]:
    """Return the arguments for the step's ``tools``."""
    argv: list[str] = []
    for word, is_on in (step.tools or {}).items():
        tools = CODEX[word]
        if word in {"bash", "task"}:
            argv += [f"--enable={feature}" for feature in tools.granted if is_on]
            argv += [f"--disable={feature}" for feature in tools.taken if not is_on]
        elif word == "websearch":
            argv.append(f"--config=web_search={_to_toml('live' if is_on else 'disabled')}")
        elif word == "todowrite":
            argv.append(f"--config=tools.update_plan.enabled={json.dumps(is_on)}")
    return argv


def read_session_usage(request: StepRequest) -> Usage:
    """Return the session's usage before this attempt; codex counts by session."""
    if request.resume_session is None:
        return Usage()
    facts = split_mark(request.resume_session)[1]
    sent_tokens = int(get_number(facts, "input_tokens"))
    # A mark may have no number of cached tokens. Assume all: then too few tokens of this attempt
    # count as cached, rather than too many.
    cached_tokens = (
        int(get_number(facts, "cached_input_tokens"))
        if "cached_input_tokens" in facts
        else sent_tokens
    )
    return Usage(
        input_tokens=sent_tokens,
        cache_read_tokens=cached_tokens,
        output_tokens=int(get_number(facts, "output_tokens")),
    )


class CodexExecutor(ClientExecutor[CodexOptions]):
    """Runs ``codex exec`` with the process core."""

    kind: ClassVar[str] = "codex"
    install: ClassVar[str] = "npm install -g @openai/codex"
    passed: ClassVar[frozenset[str]] = split_words(
        "CODEX_API_KEY CODEX_CA_CERTIFICATE CODEX_HOME OPENAI_API_KEY OPENAI_BASE_URL "
        "OPENAI_ORGANIZATION OPENAI_PROJECT"
    )
    providers: ClassVar[frozenset[str] | None] = split_words("openai")
    supported_fields: ClassVar[frozenset[str]] = split_words(
        "model provider tools system_prompt append_system_prompt disallowed_tools "
        "idle_timeout_s continue_session"
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return an objection for each of the step's tools that can't work as asked."""
        result = tool_objections(step, CODEX, self.name, self.options.disallowed_tools)
        words = step.tools or {}
        for word in _READING:
            if words.get(word) is False and words.get("bash") is not False:
                reason = (
                    f"tools: {word}: false, but it does that with its shell, which it still has"
                )
                result.append(Objection(reason, f"add bash: false, or leave {word} out"))
        writing_words = {word: words[word] for word in _WRITING if word in words}
        if len(set(writing_words.values())) > 1:
            reason = "tools: write and edit differ, but its sandbox has one switch for both"
            result.append(Objection(reason, "give write and edit the same value"))
        elif False in writing_words.values() and step.expects == "change":
            reason = "expects: change, but tools: write: false takes all writing from its sandbox"
            result.append(Objection(reason, "leave write and edit out"))
        elif any(writing_words.values()) and self.options.sandbox == _READ_ONLY:
            location, word = f"agents.{self.name}.sandbox", next(iter(writing_words))
            reason = f"tools: {word}: true, but {location} is {_READ_ONLY}"
            result.append(Objection(reason, f"set {location} to workspace-write"))
        return result

    def permissions(self) -> Permissions:
        """Return the entry's sandbox."""
        words = self.options.find_in_extra_args(_PERMISSION_WORDS)
        text = "; ".join([f"sandbox {self.options.sandbox}", *words])
        is_decided = bool(words) or "sandbox" in self.options.model_fields_set
        can_write = bool(words) or self.options.sandbox != "read-only"
        lines = () if is_decided else ("sandbox: workspace-write",)
        return Permissions(text, lines, can_write)

    def build_call(self, request: StepRequest) -> Call:
        """Return the call that performs *request*; see `codex_argv` for what it raises."""
        argv = codex_argv(self.options, request)
        schema = build_answer_schema(request.step)
        parser = CodexParser(
            self.rules(request), read_session_usage(request), is_json=schema is not None
        )
        files = {} if schema is None else {OUTPUT_SCHEMA: json.dumps(to_strict_schema(schema))}
        return Call(argv, self.environment(), parser, files)


# Two patterns: one for both would read the rest of a long line again after each "error=".
_TOOL_ERROR = re.compile(r"codex_core::tools::\w+: error=(?P<what>.*)")
_REJECTION = re.compile(r"\breject")
_SPOKEN_ITEMS = frozenset({"agent_message", "reasoning"})
_QUIET_ITEMS = _SPOKEN_ITEMS | {"error"}
_BOOKKEEPING = frozenset({"id", "type", "status", "aggregated_output", "exit_code"})
_NO_CALLS = _QUIET_ITEMS | {"todo_list", "plan"}
_MAY_CONTINUE = frozenset({"command_execution"})
"""The model knows that these run in the background, and may end its turn before they end."""
_AWAY = frozenset({ErrorKind.LIMIT, ErrorKind.OUTAGE})
TURNS = EndReasons(clean=frozenset())
"""It gives no reasons: a length limit and a refusal are a turn.failed, and an interrupted turn
has no end event."""


class CodexParser(JsonEventParser):
    """Parser of ``codex exec --json``; *before* is the earlier usage of its thread.

    With *is_json* the answer is JSON, because the request has a schema.
    """

    client = "codex"
    turns = TURNS
    lost_session = re.compile(r"thread/(?:resume|read)\b.*(?:failed|not)|no rollout found for")
    login = "log in once by hand (codex login), or set the key variable of the model provider"

    def __init__(self, rules: Rules, before: Usage | None = None, *, is_json: bool = False) -> None:
        super().__init__(rules)
        self._is_json = is_json
        self._before = before or Usage()
        self._total = self._charged = Usage()
        self._failure: str | None = None
        self._complaint = ""
        """The text of the last error event."""
        self._is_completed = False

    def feed_stderr(self, line: bytes) -> None:
        """Store the line; a refused command is reported only here."""
        super().feed_stderr(line)
        match = _TOOL_ERROR.search(line.decode("utf-8", "replace"))
        if match and _REJECTION.search(match["what"]):
            self.record_denial(match["what"])

    def process_event(self, event: ClientEvent, listener: Listener) -> bool:
        """Process one event; return whether it shows progress, as each item but an error does."""
        item = event.get_object("item")
        kind = item.get_text("type")
        if kind and kind not in _NO_CALLS:
            self._observe(event.get_text("type"), item, may_wait=kind in _MAY_CONTINUE)
        match event.get("type"):
            case "thread.started":
                self.store_session_id(event, "thread_id")
            case "turn.started":
                self._is_completed = False
            case "turn.completed":
                self._is_completed = True
                self._failure = None
                self._process_usage(event.get_object("usage"), listener)
            case "turn.failed":
                self._failure = event.get_object("error").get_text("message") or "no reason given"
            case "error":
                # If it was final, turn.failed repeats it.
                text = event.get_text("message")
                # codex retries these by itself, and a completed turn says that it worked.
                self._complaint = "" if text.startswith("Reconnecting") else text[:READ_CHARS]
                self.write_line(listener, f"codex: {event.describe('message')}", Piece.NOTICE)
            case "item.started" if kind not in _QUIET_ITEMS:
                self.write_line(listener, f"-> {_describe_item(item)}", Piece.ACTION)
            case "item.completed":
                self._process_completed_item(item, listener)
        if kind in _SPOKEN_ITEMS:
            return bool(item.get_text("text"))
        return bool(kind) and kind != "error"

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the last turn together."""
        if end.exit_code == 0 and self._is_completed and self._failure is None:
            answer = self.observed.said_last
            if not self.has_worked and classify(self._complaint) in _AWAY:
                # codex calls a turn completed even if it ended with only a limit or an outage.
                error = f"codex ended with exit code 0: {self._complaint}"
                return self.classify_failure(error, end, is_own=True)
            structured_output = parse_json(answer) if self._is_json else None
            return self.build_success(answer, end, structured_output)
        reason = self._failure or self.stderr_text or "no answer"
        error = f"codex ended with exit code {end.exit_code}: {reason}"
        return self.classify_failure(error, end, is_own=self._failure is not None)

    def session_mark(self) -> str | None:
        """Return the thread's id with its total usage."""
        if self.session_id is None:
            return None
        newest_usage = max(self._total, self._before, key=lambda usage: usage.input_tokens)
        facts = {
            "input_tokens": max(self._total.input_tokens, self._before.input_tokens),
            "output_tokens": max(self._total.output_tokens, self._before.output_tokens),
            "cached_input_tokens": newest_usage.cache_read_tokens,
        }
        return join_mark(self.session_id, facts)

    def _process_usage(self, usage: ClientEvent, listener: Listener) -> None:
        total = Usage(
            input_tokens=usage.sum_counts("input_tokens"),
            cache_read_tokens=usage.sum_counts("cached_input_tokens"),
            output_tokens=usage.sum_counts("output_tokens"),
        )
        self._total = max_usage(self._total, total)
        old_usage = self._before
        # Less than before: this version counts by call, or the thread started again.
        is_by_thread = (
            total.input_tokens >= old_usage.input_tokens
            and total.output_tokens >= old_usage.output_tokens
        )
        base = old_usage if is_by_thread else Usage()
        cached_tokens = total.cache_read_tokens - base.cache_read_tokens
        charged = Usage(
            input_tokens=total.input_tokens - base.input_tokens,
            cache_read_tokens=max(cached_tokens, 0),
            output_tokens=total.output_tokens - base.output_tokens,
        )
        self._charged = max_usage(self._charged, charged)
        self.report_tokens(listener, self._charged)

    def _observe(self, event: str, item: ClientEvent, *, may_wait: bool) -> None:
        """Record a tool call and its result; codex reports some items only when they are done."""
        key, content = item.get_text("id"), {**item, "id": None}
        self.observed.record_call(key, content, may_wait=may_wait)
        if event == "item.completed":
            # The whole item: a search, for example, names its query only with the result.
            self.observed.record_result(key, content)

    def _process_completed_item(self, item: ClientEvent, listener: Listener) -> None:
        match item.get("type"):
            case "agent_message":
                self.observed.start_message()
                self.observed.add_text(item.get_text("text"))
                self.write_line(listener, item.get_text("text"), Piece.RESPONSE)
            case "reasoning":
                self.write_line(listener, item.get_text("text"), Piece.THOUGHT)
            case "error":
                self._complaint = item.get_text("message")[:READ_CHARS]
                self.write_line(listener, f"codex: {item.describe('message')}", Piece.NOTICE)
            case "command_execution":
                code = item.describe("exit_code")
                sign = "<-" if item.get("exit_code") == 0 else f"<- exit {code}:"
                output = one_line(item.get_text("aggregated_output"))
                self.write_line(listener, f"{sign} {output}".rstrip(), Piece.ACTION)
                if item.get("status") == "declined":
                    self.record_denial(item.describe("command"))
            case _:
                status = item.describe("status") if "status" in item else "done"
                self.write_line(listener, f"<- {_describe_item(item)}: {status}", Piece.ACTION)


def _describe_item(item: ClientEvent) -> str:
    if item.get("type") == "command_execution":
        return f"command {item.describe('command')}"
    if item.get("type") == "file_change":
        changes = (
            f"{change.describe('kind')} {change.describe('path')}"
            for change in item.get_objects("changes")
        )
        return f"file_change {', '.join(changes)}"
    fields = {key: value for key, value in item.items() if key not in _BOOKKEEPING}
    return f"{item.describe('type')} {one_line(fields)}"
