"""Performs steps with opencode, the ``opencode`` program.

Out of the box it runs everything without asking. So that an entry says what its agent may
do, edits, commands and downloads are set to "ask" unless ``permission`` or the step's
``tools`` say otherwise, and in a run without a person to ask that means refused. Verified
with 1.18.33. Not available: a limit of cost (it is counted), an added system prompt.

Success is exit code 0, no error event, and a last step that ended with reason "stop". At a
refused tool call opencode ends at once, with exit code 0 and without an answer: that is a
failure whatever fail_on_denial says, because the step was broken off.
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
from sequencer.executors.observation import TurnTable, reason_of
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import (
    Listener,
    Objection,
    Permissions,
    Piece,
    StepRequest,
    qualified_model,
    words,
)
from sequencer.executors.tool_words import OPENCODE, granted, objections, taken
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

# Three places count, the last that matches wins: the general permissions, those of the agent,
# and those of a subagent, which knows the general ones only. So what a step takes away is
# denied in general, and what it grants is allowed to its agent alone.
_CHANGING = ("edit", "write", "patch", "multiedit")
"""The tools behind opencode's one permission to edit."""
_ALLOWED: Mapping[str, dict[str, Verdict]] = {
    "read": {"*": "allow", "*.env": "ask", "*.env.*": "ask", "*.env.example": "allow"}
}
"""Where opencode's own idea of "allow" has exceptions, which stay."""


def permission_of(tool: str) -> str:
    """Return the permission that *tool* needs.

    >>> permission_of("write"), permission_of("bash")
    ('edit', 'bash')
    """
    return "edit" if tool in _CHANGING else tool


def general(permission: Permission, gone: Iterable[str]) -> PermissionRules:
    """Return the permissions for every agent: *permission*, and none for the tools in *gone*."""
    denied: PermissionRules = {permission_of(tool): "deny" for tool in gone}
    return _last(permission, denied)


def of_the_agent(permission: Permission, tools: Mapping[str, bool], step: Step) -> PermissionRules:
    """Return the permissions of the step's own agent, to which *tools* are offered."""
    # A permission of the agent would give a tool back that `tools` takes away.
    left = {key: verdict for key, verdict in permission.items() if _is_left(key, tools)}
    lifted: PermissionRules = {}
    for tool in granted(step, OPENCODE):
        key = permission_of(tool)
        lifted[key] = dict(_ALLOWED[key]) if key in _ALLOWED else "allow"
    return _last(left, lifted)


def _last(permission: Permission, stronger: Permission) -> PermissionRules:
    """Return both with *stronger* behind, also where the other has the key: the last wins."""
    return {**{key: rule for key, rule in permission.items() if key not in stronger}, **stronger}


def permission_objections(permission: Permission, step: Step, name: str) -> list[Objection]:
    """Return where the rules of agent *name* are against the tools of *step*."""
    words = step.tools or {}
    found = []
    if "write" in words and "edit" in words and words["write"] != words["edit"]:
        reason = "tools: write and edit differ, but opencode has one permission for both"
        found.append(Objection(reason, "give write and edit the same value"))
    for word in (word for word, is_on in words.items() if is_on):
        key = permission_of(word)
        rules = permission.get(key, permission.get("*", "ask"))
        if rules in ("allow", "ask"):
            continue
        where = f"agents.{name}.permission"
        says = (
            "denies it" if rules == "deny" else "has rules for it, and a step can't override them"
        )
        reason = f"tools: {word}: true, but {where} {says}"
        found.append(Objection(reason, f"write allow for {key} there, or leave {word} out"))
    return found


def _is_left(permission: str, tools: Mapping[str, bool]) -> bool:
    """Return whether all tools that *permission* is about are offered."""
    names: tuple[str, ...] = _CHANGING if permission == "edit" else (permission,)
    rest = tools.get("*", True)
    return not any(tools.get(name) is False for name in names) and (
        rest or any(tools.get(name, False) for name in names)
    )


def _without_ours(env: dict[str, str]) -> dict[str, str]:
    if _INLINE in env:
        message = f"sequencer passes the step's fields to opencode in {_INLINE}; use opencode.json"
        raise ValueError(message)
    return env


class OpencodeOptions(ClientOptions):
    """``agents: {NAME: {kind: opencode, …}}``."""

    program: str = Field(default="opencode", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    agent: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """One of opencode's own agents; without it, its main one."""
    permission: dict[str, Verdict | dict[str, Verdict]] = Field(
        default={"edit": "ask", "bash": "ask", "webfetch": "ask"}
    )
    """opencode's own words, laid over its configuration; ``{}`` leaves that as it is."""
    allowed_tools: tuple[str, ...] | None = None
    """The tools that exist; a step's own list takes its place."""
    disallowed_tools: tuple[str, ...] = ()
    """Taken away; a step's own list is added."""
    env: Annotated[dict[str, str], AfterValidator(_without_ours)] = Field(default_factory=dict)


def opencode_argv(options: OpencodeOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; the prompt goes to stdin, as arguments mangle it.

    Raises:
        ValueError: the session to continue has an id that no client would give.
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
    """Return what is laid over opencode's configuration for this attempt."""
    step = request.step
    agent: dict[str, Any] = {}
    if request.system_prompt is not None:
        agent["prompt"] = request.system_prompt
    max_steps = 1 if step.single_turn else step.max_turns
    if max_steps is not None:
        agent["steps"] = max_steps
    gone = dict.fromkeys(
        (*options.disallowed_tools, *(step.disallowed_tools or ()), *taken(step, OPENCODE))
    )
    tools = {**_offered(options, step), **dict.fromkeys(gone, False)}
    if tools:
        agent["tools"] = tools
    configuration: dict[str, Any] = {}
    if everybodys := general(options.permission, gone):
        configuration["permission"] = everybodys
    if own := of_the_agent(options.permission, tools, step):
        agent["permission"] = own
    if step.temperature is not None:
        agent["temperature"] = step.temperature
        # Of a model that it does not know to take one, opencode would drop it in silence.
        provider, _, model = (_model(options, step) or "").partition("/")
        configuration["provider"] = {provider: {"models": {model: {"temperature": True}}}}
    if agent:
        configuration["agent"] = {options.agent or _MAIN_AGENT: agent}
    return configuration


def _offered(options: OpencodeOptions, step: Step) -> dict[str, bool]:
    """Return which tools exist, where only some do."""
    if step.single_turn or step.disallow_all_tools:
        return {"*": False}
    if step.allowed_tools is not None:
        return {"*": False, **dict.fromkeys(step.allowed_tools, True)}
    if options.allowed_tools is not None:
        names = (*options.allowed_tools, *granted(step, OPENCODE))
        return {"*": False, **dict.fromkeys(names, True)}
    return {}


class OpencodeExecutor(ClientExecutor[OpencodeOptions]):
    """Runs ``opencode run`` under the process core."""

    kind: ClassVar[str] = "opencode"
    install: ClassVar[str] = "npm install -g opencode-ai"
    passed: ClassVar[frozenset[str]] = words(
        "ANTHROPIC_API_KEY GEMINI_API_KEY GOOGLE_GENERATIVE_AI_API_KEY OPENAI_API_KEY "
        "OPENCODE_API_KEY OPENCODE_CONFIG OPENCODE_CONFIG_DIR OPENROUTER_API_KEY"
    )
    plain: ClassVar[Mapping[str, Any]] = {
        "agent": None,
        "permission": {"edit": "deny", "bash": "deny", "webfetch": "deny"},
        "allowed_tools": None,
    }
    providers: ClassVar[frozenset[str] | None] = None
    supported_fields: ClassVar[frozenset[str]] = words(
        "model provider temperature tools system_prompt single_turn max_turns allowed_tools "
        "disallowed_tools disallow_all_tools idle_timeout_s continue_session"
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return what of the step's model, temperature and tools can't be had."""
        found = objections(step, OPENCODE, self.name, self.options.disallowed_tools)
        found += permission_objections(self.options.permission, step, self.name)
        model = _model(self.options, step) or ""
        if step.provider is not None and not model.startswith(f"{step.provider}/"):
            reason = f"provider: {step.provider}, but the step names no model of that provider"
            found.append(Objection(reason, "add model, or leave provider out"))
        if step.temperature is not None and not all(model.partition("/")):
            reason = "temperature needs a model in the form provider/model"
            found.append(Objection(reason, f"name one in the step, or in agents.{self.name}.model"))
        return found

    def permissions(self) -> Permissions:
        """Return the entry's permissions; "ask" is refused where nobody is there to answer."""
        options = self.options
        rules = json.dumps(options.permission)
        if "permission" in options.model_fields_set:
            said = f"permission {rules}" if options.permission else "as its own configuration says"
            return Permissions(said, can_write=self._can_write)
        lines = ('permission: {edit: allow, bash: {"*": ask, "git *": allow}}',)
        said = f"permission {rules}: whatever it asks about is refused"
        return Permissions(said, lines, self._can_write)

    @property
    def _can_write(self) -> bool:
        """Return whether a rule of the entry, or its own configuration, may let it write."""
        given = self.options.permission
        rules = (given.get(name, given.get("*", "allow")) for name in ("edit", "bash"))
        return any(rule not in ("ask", "deny") for rule in rules)

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed; see `opencode_argv` for what it raises."""
        argv = opencode_argv(self.options, request)
        defaults = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
        fixed = {_INLINE: json.dumps(opencode_configuration(self.options, request))}
        if (request.step.tools or {}).get("websearch"):
            fixed[_WEB_SEARCH] = "1"
        environment = self.environment(defaults, fixed)
        return Call(argv, environment, OpencodeParser(self.rules(request)))


_REFUSED = re.compile(
    r"rejected permission|prevents you from using|unavailable tool", re.IGNORECASE
)
TURNS = TurnTable(
    clean=words("stop"),
    cut_off={
        "content-filter": "the model's provider withheld the answer; change the prompt",
        "error": "try again, or make the step smaller",
        "length": "raise the model's output limit, or make the step smaller",
        "tool-calls": "allow what was refused under permission: in the agent's entry, or try again",
    },
)
"""Values of a step_finish's ``reason``, which are those of its AI SDK. The SDK's ``unknown`` and
``other`` are not in the table: some providers have complete answers with them."""
_DONE = ("completed", "error")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class OpencodeParser(JsonEventParser):
    """Parser of ``opencode run --format=json``."""

    client = "opencode"
    turns = TURNS
    gone = re.compile(r"Session not found")
    login = "log in: opencode auth login"

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._is_over = False
        """The last step has ended."""
        self._error: ClientEvent | None = None
        self._sum = Usage()

    def take(self, event: ClientEvent, listener: Listener) -> bool:
        self.session_id = event.text("sessionID") or self.session_id
        part = event.sub("part")
        text = str(part.get("text", ""))
        match event.get("type"):
            case "text":
                self.observed.say(text)
                self.say(listener, text, Piece.RESPONSE)
                return bool(part.get("text"))
            case "reasoning":
                self.say(listener, text, Piece.THOUGHT)
                return bool(part.get("text"))
            case "tool_use":
                self._take_tool(part, listener)
                return True
            case "step_start":
                self.observed.settle()
                self._is_over, self.observed.reason = False, None
            case "step_finish":
                self._take_step(part, listener)
            case "error":
                self._error = event.sub("error")
                self.say(listener, f"opencode: {self._error_text()}", Piece.ERROR)
        return False

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the errors together."""
        if self._error is not None:
            data = self._error.sub("data")
            status = data.count("statusCode") or None
            # The headers come along for a reset time that the message lacks.
            headers = one_line(data.sub("responseHeaders"), 600)
            wait = re.search(r"retry-after\S*|resets?_at\S*", headers)
            text = f"opencode: {self._error_text()}" + (f" ({wait[0]})" if wait else "")
            return self.refused_or_failed(text, end, is_own=True, status=status)
        if end.exit_code != 0:
            reason = _ANSI.sub("", self.stderr_text) or "no reason given"
            text = f"opencode ended with exit code {end.exit_code}: {reason}"
            return self.refused_or_failed(text, end, is_own=False)
        if not (self._is_over or self.has_worked):
            told = f": {_ANSI.sub('', self.stderr_text)}" if self._stderr else ""
            return self.refused_or_failed(f"opencode did nothing{told}", end, is_own=False)
        return self.answered(self.observed.said_last, end, is_over=self._is_over)

    def _take_tool(self, part: ClientEvent, listener: Listener) -> None:
        self.observed.next_message()  # said before a tool call, so not the final answer
        state = part.sub("state")
        given = state.sub("input")
        self._observe(part, state)
        call = f"{part.get('tool')} {one_line(given)}"
        self.say(listener, f"-> {call}", Piece.ACTION)
        # A tool that was taken away is called by way of one that is named so.
        is_invalid = part.get("tool") == "invalid"
        error = given.get("error") if is_invalid else state.get("error")
        if state.get("status") != "error" and not is_invalid:
            self.say(listener, f"<- {one_line(state.get('output'))}", Piece.ACTION)
            return
        self.say(listener, f"<- error: {one_line(error)}", Piece.ACTION)
        if _REFUSED.search(str(error)):
            self.denials.append(one_line(call, 160))

    def _observe(self, part: ClientEvent, state: ClientEvent) -> None:
        """Take a tool call; opencode tells of one when it is done."""
        key = part.text("callID") or part.text("id")
        self.observed.call(key, [part.get("tool"), state.get("input")])
        if state.get("status") in _DONE:
            self.observed.result(key, [state.get(name) for name in ("status", "output", "error")])

    def _take_step(self, part: ClientEvent, listener: Listener) -> None:
        self._is_over, self.observed.reason = True, reason_of(part.get("reason"))
        tokens = part.sub("tokens")
        cache = tokens.sub("cache")
        step = sum_of_costs([part.get("cost")]).replace(
            input_tokens=tokens.count("input") + cache.count("read", "write"),
            cache_read_tokens=cache.count("read"),
            output_tokens=tokens.count("output", "reasoning"),
        )
        self._sum = self._sum.plus(step)
        self.last_sent = step.input_tokens
        self.count(listener, self._sum.replace(unpriced=min(self._sum.unpriced, 1)))

    def _error_text(self) -> str:
        error = self._error or ClientEvent()
        message = error.sub("data").get("message") or error.get("message")
        return one_line(f"{error.get('name')}: {message}")
