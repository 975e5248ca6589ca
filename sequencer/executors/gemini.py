"""Performs steps with Gemini CLI, the ``gemini`` program.

Its approval mode decides what the agent may do; in ``default`` there is no tool that writes.
Verified with 0.61.0. A model is always named: without one, gemini asks a model which model to
use. Not available: limits of turns and cost, tool lists in gemini's own names (they are in its
settings), an added system prompt (a given one replaces gemini's).

Success is exit code 0 and a result event with status success: after TERM, gemini exits with 0
and without a result. It gives a reason only in an error event, if it stops the model itself; it
does not report that the model reached its length limit. A tool that the approval mode does not
allow is not offered; a call of it is "not registered" and counts as refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from sequencer.executors.client import SYSTEM_PROMPT, Call, ClientExecutor, ClientOptions
from sequencer.executors.client_events import (
    ClientEvent,
    JsonEventParser,
    Rules,
    max_usage,
    one_line,
    split_mark,
)
from sequencer.executors.observation import EndReasons, Observation
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
    GEMINI,
    granted_tools,
    plan_mode_objections,
    removed_tools,
    tool_objections,
)
from sequencer.files.textfile import expand_home
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import ModelName, Step

POLICY = "tools-policy.toml"
_PERMISSION_WORDS = ("--allowed-tools", "--policy", "--yolo", "-y")
_HIGHEST, _LOWEST = 999, 1
"""Priorities of rules. A tool that is taken away stays away; for a tool that is granted, the
user's own policies still apply."""


class GeminiOptions(ClientOptions):
    """``agents: {NAME: {kind: gemini, …}}``."""

    program: str = Field(default="gemini", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    model: ModelName = "gemini-2.5-pro"
    approval_mode: Literal["default", "auto_edit", "yolo", "plan"] = "default"
    """gemini's name for what runs without asking."""


def gemini_argv(options: GeminiOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments without the prompt, which goes to stdin.

    Raises:
        ValueError: the session to continue has an id that no client would use.
    """
    argv = [options.program, "--output-format=stream-json"]
    # The user trusted the project before this step, and no person is there to answer gemini's
    # question; the approval mode still applies.
    argv.append("--skip-trust")
    argv += options.extra_args
    argv.append(f"--model={request.step.model or options.model}")
    argv.append(f"--approval-mode={options.approval_mode}")
    if request.resume_session is not None:
        argv.append(f"--resume={split_mark(request.resume_session)[0]}")
    return argv


def tools_policy(step: Step) -> str | None:
    """Return the step's ``tools`` as a policy file of gemini; None: the step has no ``tools``.

    gemini does not offer denied tools to the model, and offers tools that need no approval.
    """
    rules = [
        f"[[rule]]\ntoolName = {json.dumps(names)}\n"
        # Without allowRedirection it would ask about `>`, and no person is there to answer.
        f'decision = "{decision}"\npriority = {priority}\nallowRedirection = true\n'
        for names, decision, priority in (
            (removed_tools(step, GEMINI), "deny", _HIGHEST),
            (granted_tools(step, GEMINI), "allow", _LOWEST),
        )
        if names
    ]
    return "\n".join(rules) or None


def policy_arguments(
    options: GeminiOptions, request: StepRequest, environment: Mapping[str, str]
) -> list[str]:
    """Return the arguments with which gemini reads the step's policy and the user's policies.

    Raises:
        ValueError: a path has a comma, at which gemini would split it.
    """
    home = expand_home(environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or "~")
    paths = [str(request.file_path(POLICY))]
    # Any --policy replaces the user's folder. If the entry has one, that has happened already.
    if not any(argument.startswith("--policy") for argument in options.extra_args):
        paths.append(str(Path(home, ".gemini", "policies")))
    if any("," in path for path in paths):
        message = f"gemini can't read a policy whose path has a comma: {', '.join(paths)}"
        raise ValueError(f"{message}\nmove the project, or leave tools out")
    return [f"--policy={path}" for path in paths]


class GeminiExecutor(ClientExecutor[GeminiOptions]):
    """Runs ``gemini`` with the process core."""

    kind: ClassVar[str] = "gemini"
    install: ClassVar[str] = "npm install -g @google/gemini-cli"
    passed: ClassVar[frozenset[str]] = split_words(
        "GEMINI_API_KEY GEMINI_CLI_HOME GOOGLE_API_KEY GOOGLE_APPLICATION_CREDENTIALS "
        "GOOGLE_CLOUD_LOCATION GOOGLE_CLOUD_PROJECT GOOGLE_GEMINI_BASE_URL GOOGLE_GENAI_USE_GCA "
        "GOOGLE_GENAI_USE_VERTEXAI"
    )
    providers: ClassVar[frozenset[str] | None] = split_words("google")
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "provider", "tools", "system_prompt", "idle_timeout_s", "continue_session"}
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return an objection for each of the step's tools that can't work as asked."""
        result = tool_objections(step, GEMINI, self.name)
        if self.options.approval_mode == "plan":
            result += plan_mode_objections(step, f"agents.{self.name}.approval_mode")
        return result

    def permissions(self) -> Permissions:
        """Return the entry's approval mode."""
        words = self.options.find_in_extra_args(_PERMISSION_WORDS)
        mode = self.options.approval_mode
        text = "; ".join([f"approval_mode {mode}", *words])
        can_write = bool(words) or mode not in ("default", "plan")
        if words or "approval_mode" in self.options.model_fields_set:
            return Permissions(text, can_write=can_write)
        lines = ("approval_mode: auto_edit",)
        return Permissions(f"{text}: there is no tool that writes", lines, can_write)

    def build_call(self, request: StepRequest) -> Call:
        """Return the call that performs *request*; see `gemini_argv` for what it raises."""
        argv = gemini_argv(self.options, request)
        variables = {}
        if request.system_prompt is not None:
            variables["GEMINI_SYSTEM_MD"] = str(request.file_path(SYSTEM_PROMPT))
        # Without this, its launcher starts a second gemini that TERM does not end.
        defaults = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        environment = self.environment(defaults, variables)
        policy = tools_policy(request.step)
        if policy is None:
            return Call(argv, environment, GeminiParser(self.rules(request)))
        argv += policy_arguments(self.options, request, environment)
        return Call(argv, environment, GeminiParser(self.rules(request)), {POLICY: policy})


_MAX_TURNS = "raise model.maxSessionTurns in gemini's settings"
TURNS = EndReasons(
    clean=frozenset(),
    cut_off={
        "loop-detected": "the model repeated itself; make the step smaller, or change the prompt",
        "max-session-turns": _MAX_TURNS,
        "error": "try again, or make the step smaller",
    },
)
"""Our names for the messages of its error events; see `_STOPS`."""
_STOPS = (
    ("Loop detected", "loop-detected"),
    ("Maximum session turns exceeded", "max-session-turns"),
    ("Agent execution blocked", "execution-blocked"),
)
"""The start of an error event's message, and our name. A block by a hook is not in `TURNS`: the
agent may have continued after it and have finished."""
_STATUSES = {code % 256: code for code in (400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504)}
"""Exit code -> HTTP status from which gemini made it, if it reports nothing else."""
_REFUSALS = frozenset({"tool_not_registered", "policy_violation", "permission_denied"})
_HINTS = {
    41: "choose how to log in once by hand (gemini), or set GEMINI_API_KEY",
    42: "the prompt was empty",
    53: _MAX_TURNS,
}
"""By exit code."""


class GeminiParser(JsonEventParser):
    """Parser of ``gemini --output-format=stream-json``."""

    client = "gemini"
    turns = TURNS
    lost_session = re.compile(r"Error resuming session|Invalid session identifier")
    usage_codes = JsonEventParser.usage_codes | _HINTS.keys() | {52, 54, 55}

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.observed = Observation(self.turns, separator="")
        self._has_results = False
        self._result: ClientEvent | None = None
        self._tools: dict[str, str] = {}
        self._charged = Usage()

    def process_event(self, event: ClientEvent, listener: Listener) -> bool:
        match event.get("type"):
            case "init":
                self.store_session_id(event, "session_id")
            case "message" if event.get("role") == "assistant":
                text = event.get_text("content")
                self._continue_turn()
                self.observed.add_text(text)
                self.stream(listener, text, Piece.RESPONSE)
                return bool(text)
            case "tool_use":
                self._process_call(event, listener)
                return True
            case "tool_result":
                self._process_tool_result(event, listener)
                return True
            case "error":
                self.observed.reason = _find_stop_reason(event) or self.observed.reason
                is_warning = event.get("severity") == "warning"
                kind = Piece.NOTICE if is_warning else Piece.ERROR
                self.write_line(listener, f"gemini: {event.describe('message')}", kind)
            case "result":
                self._process_result(event, listener)
        return False

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the result together."""
        if self._result is None:
            reason = self.stderr_text or "no result"
        elif end.exit_code == 0 and self._result.get("status") == "success":
            return self.build_success(self.observed.said_last, end)
        else:
            reason = self._result.get_object("error").get_text("message") or "no reason given"
        error = f"gemini ended with exit code {end.exit_code}: {reason}"
        hint, status = _HINTS.get(end.exit_code or 0, ""), None
        is_own = self._result is not None
        if not is_own and not self.has_worked:
            # Then its errors are on stderr; without a tool call they are not from a tool.
            status = _STATUSES.get(end.exit_code or 0)
            is_own = status is not None
        return self.classify_failure(error, end, is_own=is_own, status=status, hint=hint)

    def _process_call(self, event: ClientEvent, listener: Listener) -> None:
        # Text before a tool call is not the final answer.
        self.observed.start_message()
        self._continue_turn()
        request = [event.get("tool_name"), event.get("parameters")]
        self.observed.record_call(event.get_text("tool_id"), request)
        call = f"{event.describe('tool_name')} {event.describe('parameters')}"
        self._tools[event.get_text("tool_id")] = call
        self.write_line(listener, f"-> {call}", Piece.ACTION)

    def _continue_turn(self) -> None:
        """Record that the model continues, which it does only with the results of all calls."""
        self.observed.reason = None
        if self._has_results:
            self.observed.close_calls()
        self._has_results = False

    def _process_tool_result(self, event: ClientEvent, listener: Listener) -> None:
        error = event.get_object("error")
        self._has_results = True
        result = [event.get("status"), event.get("output"), event.get("error")]
        self.observed.record_result(event.get_text("tool_id"), result)
        output = one_line(event.get("output") or error.get("message") or event.get("status"))
        sign = "<-" if event.get("status") == "success" else "<- error:"
        self.write_line(listener, f"{sign} {output}", Piece.ACTION)
        if error.get_text("type") in _REFUSALS:
            self.record_denial(self._tools.get(event.get_text("tool_id"), output))

    def _process_result(self, event: ClientEvent, listener: Listener) -> None:
        self._result = event
        stats = event.get_object("stats")
        if event.get("status") != "success":
            message = event.get_object("error").describe("message")
            self.write_line(listener, f"gemini: {message}", Piece.ERROR)
        self.end_line(listener)
        usage = Usage(
            input_tokens=stats.sum_counts("input_tokens"),
            cache_read_tokens=stats.sum_counts("cached"),
            output_tokens=stats.sum_counts("output_tokens"),
        )
        self._charged = max_usage(self._charged, usage)
        self.report_tokens(listener, self._charged)


def _find_stop_reason(event: ClientEvent) -> str | None:
    """Return why gemini stopped the model, according to an error *event*; None: it did not."""
    message = event.get_text("message")
    for prefix, reason in _STOPS:
        if message.startswith(prefix):
            return reason
    return None if event.get("severity") == "warning" else "error"
