"""Performs steps with opencode, the ``opencode`` program.

By default opencode runs everything without asking. Here the entry decides what its agent may do:
edits, commands and downloads are "ask" unless ``permission`` or the step's ``tools`` say
otherwise, and without a person to ask that means refused. Verified with 1.18.33. Not available:
a limit of cost (it is counted), an added system prompt.

Success is exit code 0, no error event, and a last step that ended with reason "stop". After a
refused tool call opencode ends at once, with exit code 0 and without an answer. That is a
failure even without fail_on_denial, because the step was cut short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from sequencer.executors.client import Call, ClientExecutor, ClientOptions
from sequencer.executors.client_events import (
    ClientEvent,
    JsonEventParser,
    Rules,
    one_line,
    split_mark,
    sum_of_costs,
)
from sequencer.executors.observation import EndReasons, normalize_reason
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import (
    Listener,
    Objection,
    Permissions,
    Piece,
    StepRequest,
    qualified_model,
    split_words,
)
from sequencer.executors.tool_words import OPENCODE, granted_tools, removed_tools, tool_objections
from sequencer.frozen.fields import AfterValidator, Field
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Step

_INLINE = "OPENCODE_CONFIG_CONTENT"
_MAIN_AGENT = "build"
"""The agent that opencode uses if none is named."""
_WEB_SEARCH = "OPENCODE_ENABLE_EXA"
"""Without it there is no websearch."""


Verdict = Literal["allow", "ask", "deny"]
PermissionRules = dict[str, Verdict | dict[str, Verdict]]
Permission = Mapping[str, Verdict | dict[str, Verdict]]

# opencode has general permissions, permissions of the agent, and permissions of a subagent, which
# gets only the general ones; the last match wins. So a step's denials go into the general
# permissions, and its grants only to its agent.
_CHANGING = ("edit", "write", "patch", "multiedit")
"""The tools that need opencode's permission ``edit``."""
_ALLOWED: Mapping[str, dict[str, Verdict]] = {
    "read": {"*": "allow", "*.env": "ask", "*.env.*": "ask", "*.env.example": "allow"}
}
"""Permissions for which opencode's default of "allow" has exceptions, which we keep."""


def get_permission(tool: str) -> str:
    """Return the permission that *tool* needs.

    >>> get_permission("write"), get_permission("bash")
    ('edit', 'bash')
    """
    return "edit" if tool in _CHANGING else tool


def build_general_rules(permission: Permission, removed: Iterable[str]) -> PermissionRules:
    """Return the permissions for every agent: *permission*, with all *removed* tools denied."""
    denials: PermissionRules = {get_permission(tool): "deny" for tool in removed}
    return _merge_rules(permission, denials)


def build_agent_rules(
    permission: Permission, tools: Mapping[str, bool], step: Step
) -> PermissionRules:
    """Return the permissions of the step's own agent, to which *tools* are offered."""
    # A permission of the agent would override a tool that `tools` takes away.
    offered_rules = {key: verdict for key, verdict in permission.items() if _is_offered(key, tools)}
    granted_rules: PermissionRules = {}
    for tool in granted_tools(step, OPENCODE):
        key = get_permission(tool)
        granted_rules[key] = dict(_ALLOWED[key]) if key in _ALLOWED else "allow"
    return _merge_rules(offered_rules, granted_rules)


def _merge_rules(permission: Permission, stronger_rules: Permission) -> PermissionRules:
    """Return both, with *stronger_rules* at the end: for opencode the last match wins."""
    return {
        **{key: rule for key, rule in permission.items() if key not in stronger_rules},
        **stronger_rules,
    }


def permission_objections(permission: Permission, step: Step, name: str) -> list[Objection]:
    """Return an objection for each tool of *step* that the rules of agent *name* do not allow."""
    words = step.tools or {}
    result = []
    if "write" in words and "edit" in words and words["write"] != words["edit"]:
        reason = "tools: write and edit differ, but opencode has one permission for both"
        result.append(Objection(reason, "give write and edit the same value"))
    for word in (word for word, is_on in words.items() if is_on):
        key = get_permission(word)
        rules = permission.get(key, permission.get("*", "ask"))
        if rules in ("allow", "ask"):
            continue
        location = f"agents.{name}.permission"
        effect = (
            "denies it" if rules == "deny" else "has rules for it, and a step can't override them"
        )
        reason = f"tools: {word}: true, but {location} {effect}"
        result.append(Objection(reason, f"write allow for {key} there, or leave {word} out"))
    return result


def _is_offered(permission: str, tools: Mapping[str, bool]) -> bool:
    """Return whether *tools* offers all tools that need *permission*."""
    names: tuple[str, ...] = _CHANGING if permission == "edit" else (permission,)
    is_rest_on = tools.get("*", True)
    return not any(tools.get(name) is False for name in names) and (
        is_rest_on or any(tools.get(name, False) for name in names)
    )


def _reject_inline_config(env: dict[str, str]) -> dict[str, str]:
    if _INLINE in env:
        message = f"{_INLINE} is reserved: a step's fields are passed in it; use opencode.json"
        raise ValueError(message)
    return env


class OpencodeOptions(ClientOptions):
    """``agents: {NAME: {kind: opencode, …}}``."""

    program: str = Field(default="opencode", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    agent: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """One of opencode's own agents; None: its main agent."""
    permission: dict[str, Verdict | dict[str, Verdict]] = Field(
        default={"edit": "ask", "bash": "ask", "webfetch": "ask"}
    )
    """Rules in opencode's format that override its configuration; ``{}`` overrides nothing."""
    allowed_tools: tuple[str, ...] | None = None
    """The tools that exist; a step's own list replaces it."""
    disallowed_tools: tuple[str, ...] = ()
    """Tools that are taken away; a step's own list is added."""
    env: Annotated[dict[str, str], AfterValidator(_reject_inline_config)] = Field(
        default_factory=dict
    )


def opencode_argv(options: OpencodeOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; the prompt goes to stdin, because arguments mangle it.

    Raises:
        ValueError: the session to continue has an id that no client would use.
    """
    argv = [options.program, "run", "--format=json", *options.extra_args]
    model = _model(options, request.step)
    argv += [f"--model={model}"] if model else []
    argv += [f"--agent={options.agent}"] if options.agent else []
    if request.resume_session is not None:
        argv.append(f"--session={split_mark(request.resume_session)[0]}")
    return argv


def _model(options: OpencodeOptions, step: Step) -> str | None:
    return qualified_model(step) or options.model


def opencode_configuration(options: OpencodeOptions, request: StepRequest) -> dict[str, Any]:
    """Return the settings that override opencode's configuration for this attempt."""
    step = request.step
    agent: dict[str, Any] = {}
    if request.system_prompt is not None:
        agent["prompt"] = request.system_prompt
    max_steps = 1 if step.single_turn else step.max_turns
    if max_steps is not None:
        agent["steps"] = max_steps
    denied_tools = dict.fromkeys(
        (*options.disallowed_tools, *(step.disallowed_tools or ()), *removed_tools(step, OPENCODE))
    )
    tools = {**_offered_tools(options, step), **dict.fromkeys(denied_tools, False)}
    if tools:
        agent["tools"] = tools
    configuration: dict[str, Any] = {}
    if general_rules := build_general_rules(options.permission, denied_tools):
        configuration["permission"] = general_rules
    if agent_rules := build_agent_rules(options.permission, tools, step):
        agent["permission"] = agent_rules
    if step.temperature is not None:
        agent["temperature"] = step.temperature
        # Otherwise opencode silently drops the temperature for a model that it does not know.
        provider, _, model = (_model(options, step) or "").partition("/")
        configuration["provider"] = {provider: {"models": {model: {"temperature": True}}}}
    if agent:
        configuration["agent"] = {options.agent or _MAIN_AGENT: agent}
    return configuration


def _offered_tools(options: OpencodeOptions, step: Step) -> dict[str, bool]:
    """Return the tools that exist; an empty result means all of them."""
    if step.single_turn or step.disallow_all_tools:
        return {"*": False}
    if step.allowed_tools is not None:
        return {"*": False, **dict.fromkeys(step.allowed_tools, True)}
    if options.allowed_tools is not None:
        names = (*options.allowed_tools, *granted_tools(step, OPENCODE))
        return {"*": False, **dict.fromkeys(names, True)}
    return {}


class OpencodeExecutor(ClientExecutor[OpencodeOptions]):
    """Runs ``opencode run`` with the process core."""

    kind: ClassVar[str] = "opencode"
    install: ClassVar[str] = "npm install -g opencode-ai"
    passed: ClassVar[frozenset[str]] = split_words(
        "ANTHROPIC_API_KEY GEMINI_API_KEY GOOGLE_GENERATIVE_AI_API_KEY OPENAI_API_KEY "
        "OPENCODE_API_KEY OPENCODE_CONFIG OPENCODE_CONFIG_DIR OPENROUTER_API_KEY"
    )
    plain: ClassVar[Mapping[str, Any]] = {
        "agent": None,
        "permission": {"edit": "deny", "bash": "deny", "webfetch": "deny"},
        "allowed_tools": None,
    }
    providers: ClassVar[frozenset[str] | None] = None
    supported_fields: ClassVar[frozenset[str]] = split_words(
        "model provider temperature tools system_prompt single_turn max_turns allowed_tools "
        "disallowed_tools disallow_all_tools idle_timeout_s continue_session"
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return an objection for each model, temperature and tool of the step that can't work."""
        result = tool_objections(step, OPENCODE, self.name, self.options.disallowed_tools)
        result += permission_objections(self.options.permission, step, self.name)
        model = _model(self.options, step) or ""
        if step.provider is not None and not model.startswith(f"{step.provider}/"):
            reason = f"provider: {step.provider}, but the step names no model of that provider"
            result.append(Objection(reason, "add model, or leave provider out"))
        if step.temperature is not None and not all(model.partition("/")):
            reason = "temperature needs a model in the form provider/model"
            hint = f"name one in the step, or in agents.{self.name}.model"
            result.append(Objection(reason, hint))
        return result

    def permissions(self) -> Permissions:
        """Return the entry's permissions; "ask" means refused, because no person is there."""
        options = self.options
        rules = json.dumps(options.permission)
        if "permission" in options.model_fields_set:
            text = f"permission {rules}" if options.permission else "as its own configuration says"
            return Permissions(text, can_write=self._can_write)
        lines = ('permission: {edit: allow, bash: {"*": ask, "git *": allow}}',)
        text = f"permission {rules}: whatever it asks about is refused"
        return Permissions(text, lines, self._can_write)

    @property
    def _can_write(self) -> bool:
        """Return whether a rule of the entry, or its own configuration, may let it write."""
        permission = self.options.permission
        rules = (permission.get(name, permission.get("*", "allow")) for name in ("edit", "bash"))
        return any(rule not in ("ask", "deny") for rule in rules)

    def build_call(self, request: StepRequest) -> Call:
        """Return the call that performs *request*; see `opencode_argv` for what it raises."""
        argv = opencode_argv(self.options, request)
        defaults = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
        variables = {_INLINE: json.dumps(opencode_configuration(self.options, request))}
        if (request.step.tools or {}).get("websearch"):
            variables[_WEB_SEARCH] = "1"
        environment = self.environment(defaults, variables)
        return Call(argv, environment, OpencodeParser(self.rules(request)))


_REFUSED = re.compile(
    r"rejected permission|prevents you from using|unavailable tool", re.IGNORECASE
)
TURNS = EndReasons(
    clean=split_words("stop"),
    cut_off={
        "content-filter": "the model's provider withheld the answer; change the prompt",
        "error": "try again, or make the step smaller",
        "length": "raise the model's output limit, or make the step smaller",
        "tool-calls": "allow what was refused under permission: in the agent's entry, or try again",
    },
)
"""Values of ``reason`` in a step_finish, which come from its AI SDK. The SDK's ``unknown`` and
``other`` are not in the table: some providers give complete answers with them."""
_DONE = ("completed", "error")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class OpencodeParser(JsonEventParser):
    """Parser of ``opencode run --format=json``."""

    client = "opencode"
    turns = TURNS
    lost_session = re.compile(r"Session not found")
    login = "log in: opencode auth login"

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._is_over = False
        """The last step has ended."""
        self._error: ClientEvent | None = None
        self._sum = Usage()

    def process_event(self, event: ClientEvent, listener: Listener) -> bool:
        self.store_session_id(event, "sessionID")
        part = event.get_object("part")
        text = part.get_text("text")
        match event.get("type"):
            case "text":
                self.observed.add_text(text)
                self.write_line(listener, text, Piece.RESPONSE)
                return bool(text)
            case "reasoning":
                self.write_line(listener, text, Piece.THOUGHT)
                return bool(text)
            case "tool_use":
                self._process_tool(part, listener)
                return True
            case "step_start":
                self.observed.close_calls()
                self._is_over, self.observed.reason = False, None
            case "step_finish":
                self._process_step(part, listener)
            case "error":
                self._error = event.get_object("error")
                self.write_line(listener, f"opencode: {self._error_text()}", Piece.ERROR)
        return False

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the errors together."""
        if self._error is not None:
            data = self._error.get_object("data")
            status = data.sum_counts("statusCode") or None
            # The headers may have a reset time that is not in the message.
            headers = one_line(data.get_object("responseHeaders"), 600)
            wait = re.search(r"retry-after\S*|resets?_at\S*", headers)
            text = f"opencode: {self._error_text()}" + (f" ({wait[0]})" if wait else "")
            return self.classify_failure(text, end, is_own=True, status=status)
        if end.exit_code != 0:
            reason = _ANSI.sub("", self.stderr_text) or "no reason given"
            text = f"opencode ended with exit code {end.exit_code}: {reason}"
            return self.classify_failure(text, end, is_own=False)
        if not (self._is_over or self.has_worked):
            reason = f": {_ANSI.sub('', self.stderr_text)}" if self._stderr else ""
            return self.classify_failure(f"opencode did nothing{reason}", end, is_own=False)
        return self.build_success(self.observed.said_last, end, is_over=self._is_over)

    def _process_tool(self, part: ClientEvent, listener: Listener) -> None:
        self.observed.start_message()  # text before a tool call is not the final answer
        state = part.get_object("state")
        tool_input = state.get_object("input")
        self._observe(part, state)
        call = f"{part.describe('tool')} {one_line(tool_input)}"
        self.write_line(listener, f"-> {call}", Piece.ACTION)
        # opencode reports a call of a tool that was taken away as a call of "invalid".
        is_invalid = part.get("tool") == "invalid"
        error = tool_input.get("error") if is_invalid else state.get("error")
        if state.get("status") != "error" and not is_invalid:
            self.write_line(listener, f"<- {state.describe('output')}", Piece.ACTION)
            return
        self.write_line(listener, f"<- error: {one_line(error)}", Piece.ACTION)
        if isinstance(error, str) and _REFUSED.search(error):
            self.record_denial(call)

    def _observe(self, part: ClientEvent, state: ClientEvent) -> None:
        """Record a tool call; opencode reports it only when it is done."""
        key = part.get_text("callID") or part.get_text("id")
        self.observed.record_call(key, [part.get("tool"), state.get("input")])
        if state.get("status") in _DONE:
            self.observed.record_result(
                key, [state.get(name) for name in ("status", "output", "error")]
            )

    def _process_step(self, part: ClientEvent, listener: Listener) -> None:
        self._is_over, self.observed.reason = True, normalize_reason(part.get("reason"))
        tokens = part.get_object("tokens")
        cache = tokens.get_object("cache")
        step = sum_of_costs([part.get("cost")]).replace(
            input_tokens=tokens.sum_counts("input") + cache.sum_counts("read", "write"),
            cache_read_tokens=cache.sum_counts("read"),
            output_tokens=tokens.sum_counts("output", "reasoning"),
        )
        self._sum = self._sum.plus(step)
        self.last_sent = step.input_tokens
        self.report_usage(listener, self._sum.replace(unpriced=min(self._sum.unpriced, 1)))

    def _error_text(self) -> str:
        error = self._error or ClientEvent()
        message = error.get_object("data").get("message") or error.get("message")
        return one_line(f"{error.describe('name')}: {one_line(message)}")
