"""Performs steps with Gemini CLI, the ``gemini`` program.

Its approval mode decides what the agent may do; in ``default`` no tool that writes exists.
Verified with 0.61.0. A model is always named: without one, a router asks a model which
model to ask. Not available: limits of turns and cost, tool lists in gemini's own names
(they are in its settings), an added system prompt (a given one replaces gemini's).

Done is exit code 0 and a result event with status success: ended by TERM, gemini exits
with 0 and without a result. It gives no reason, except where it stops the model itself, in an
error event; that the model came to its length limit it does not tell. A tool that the approval
mode does not allow is not offered; a call of it is "not registered" and counts as refused.
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
    larger,
    one_line,
    split_mark,
)
from sequencer.executors.observation import Observation, TurnTable
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import Listener, Objection, Permissions, Piece, StepRequest, words
from sequencer.executors.tool_words import GEMINI, granted, objections, plan_objections, taken
from sequencer.files.textfile import expand_home
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import ModelName, Step

POLICY = "tools-policy.toml"
_PERMISSION_WORDS = ("--allowed-tools", "--policy", "--yolo", "-y")
_HIGHEST, _LOWEST = 999, 1
"""Priorities of rules. A tool that is taken away stays away; one that is granted is still
subject to what the user's own policies say."""


class GeminiOptions(ClientOptions):
    """``agents: {NAME: {kind: gemini, …}}``."""

    program: str = Field(default="gemini", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    model: ModelName = "gemini-2.5-pro"
    approval_mode: Literal["default", "auto_edit", "yolo", "plan"] = "default"
    """gemini's own word for what runs without asking."""


def gemini_argv(options: GeminiOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; the prompt is not among them, it goes to stdin.

    Raises:
        ValueError: the session to continue has an id that no client would give.
    """
    argv = [options.program, "--output-format=stream-json"]
    # The user has trusted the project before any step of it is performed, and nobody could
    # answer gemini's own question; the approval mode still rules.
    argv.append("--skip-trust")
    argv += options.extra_args
    argv.append(f"--model={request.step.model or options.model}")
    argv.append(f"--approval-mode={options.approval_mode}")
    if request.resume_session is not None:
        argv.append(f"--resume={split_mark(request.resume_session)[0]}")
    return argv


def tools_policy(step: Step) -> str | None:
    """Return the policy, as gemini reads one, that the step's ``tools`` make; None without any.

    A tool that a policy denies is not even told to the model; one that needs no leave is.
    """
    rules = [
        f"[[rule]]\ntoolName = {json.dumps(names)}\n"
        # Without that leave it would ask about `>`, and nobody is there to answer.
        f'decision = "{decision}"\npriority = {priority}\nallowRedirection = true\n'
        for names, decision, priority in (
            (taken(step, GEMINI), "deny", _HIGHEST),
            (granted(step, GEMINI), "allow", _LOWEST),
        )
        if names
    ]
    return "\n".join(rules) or None


def policy_arguments(
    options: GeminiOptions, request: StepRequest, environment: Mapping[str, str]
) -> list[str]:
    """Return the arguments by which gemini finds the step's policy beside the user's own.

    Raises:
        ValueError: gemini would take the policy's path for two.
    """
    path = str(request.file(POLICY))
    own = expand_home(environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or "~")
    paths = [path]
    # Any --policy replaces the user's folder; an entry that has one has done so already.
    if not any(argument.startswith("--policy") for argument in options.extra_args):
        paths.append(str(Path(own, ".gemini", "policies")))
    if any("," in each for each in paths):
        message = f"gemini can't read a policy whose path has a comma: {', '.join(paths)}"
        raise ValueError(f"{message}\nmove the project, or leave tools out")
    return [f"--policy={each}" for each in paths]


class GeminiExecutor(ClientExecutor[GeminiOptions]):
    """Runs ``gemini`` under the process core."""

    kind: ClassVar[str] = "gemini"
    install: ClassVar[str] = "npm install -g @google/gemini-cli"
    passed: ClassVar[frozenset[str]] = words(
        "GEMINI_API_KEY GEMINI_CLI_HOME GOOGLE_API_KEY GOOGLE_APPLICATION_CREDENTIALS "
        "GOOGLE_CLOUD_LOCATION GOOGLE_CLOUD_PROJECT GOOGLE_GEMINI_BASE_URL GOOGLE_GENAI_USE_GCA "
        "GOOGLE_GENAI_USE_VERTEXAI"
    )
    providers: ClassVar[frozenset[str] | None] = words("google")
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "provider", "tools", "system_prompt", "idle_timeout_s", "continue_session"}
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return what of the step's tools can't be had."""
        found = objections(step, GEMINI, self.name)
        if self.options.approval_mode == "plan":
            found += plan_objections(step, f"agents.{self.name}.approval_mode")
        return found

    def permissions(self) -> Permissions:
        """Return the entry's approval mode."""
        words = self.options.in_extra_args(_PERMISSION_WORDS)
        mode = self.options.approval_mode
        says = "; ".join([f"approval_mode {mode}", *words])
        can_write = bool(words) or mode not in ("default", "plan")
        if words or "approval_mode" in self.options.model_fields_set:
            return Permissions(says, can_write=can_write)
        lines = ("approval_mode: auto_edit",)
        return Permissions(f"{says}: there is no tool that writes", lines, can_write)

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed; see `gemini_argv` for what it raises."""
        argv = gemini_argv(self.options, request)
        fixed = {}
        if request.system_prompt is not None:
            fixed["GEMINI_SYSTEM_MD"] = str(request.file(SYSTEM_PROMPT))
        # Its launcher would start a second gemini that a TERM does not end.
        defaults = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        environment = self.environment(defaults, fixed)
        policy = tools_policy(request.step)
        if policy is None:
            return Call(argv, environment, GeminiParser(self.rules(request)))
        argv += policy_arguments(self.options, request, environment)
        return Call(argv, environment, GeminiParser(self.rules(request)), {POLICY: policy})


_MAX_TURNS = "raise model.maxSessionTurns in gemini's settings"
TURNS = TurnTable(
    clean=frozenset(),
    cut_off={
        "loop-detected": "the model repeated itself; make the step smaller, or change the prompt",
        "max-session-turns": _MAX_TURNS,
        "error": "try again, or make the step smaller",
    },
)
"""Names for what its error events say; see `_STOPS`."""
_STOPS = (
    ("Loop detected", "loop-detected"),
    ("Maximum session turns exceeded", "max-session-turns"),
    ("Agent execution blocked", "execution-blocked"),
)
"""How the message of an error event begins, and its reason. What a hook has blocked is not in
the table: the agent may have been sent on by it and have finished."""
_STATUSES = {code % 256: code for code in (400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504)}
"""By exit code: gemini makes it of the HTTP status, where it says nothing else."""
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
    gone = re.compile(r"Error resuming session|Invalid session identifier")
    usage_codes = JsonEventParser.usage_codes | _HINTS.keys() | {52, 54, 55}

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.observed = Observation(self.turns, separator="")
        self._has_results = False
        self._result: ClientEvent | None = None
        self._tools: dict[str, str] = {}
        self._charged = Usage()

    def take(self, event: ClientEvent, listener: Listener) -> bool:
        match event.get("type"):
            case "init":
                self.session_id = event.text("session_id") or None
            case "message" if event.get("role") == "assistant":
                text = str(event.get("content", ""))
                self._go_on()
                self.observed.say(text)
                self.stream(listener, text, Piece.RESPONSE)
                return bool(event.get("content"))
            case "tool_use":
                self._take_call(event, listener)
                return True
            case "tool_result":
                self._take_tool_result(event, listener)
                return True
            case "error":
                self.observed.reason = _stop_of(event) or self.observed.reason
                is_warning = event.get("severity") == "warning"
                kind = Piece.NOTICE if is_warning else Piece.ERROR
                self.say(listener, f"gemini: {one_line(event.get('message'))}", kind)
            case "result":
                self._take_result(event, listener)
        return False

    def finish(self, end: ProcessEnd) -> Outcome:
        """Judge by the exit code and the result together."""
        if self._result is None:
            reason = self.stderr_text or "no result"
        elif end.exit_code == 0 and self._result.get("status") == "success":
            return self.answered(self.observed.said_last, end)
        else:
            reason = str(self._result.sub("error").get("message", "no reason given"))
        error = f"gemini ended with exit code {end.exit_code}: {reason}"
        hint, status = _HINTS.get(end.exit_code or 0, ""), None
        is_own = self._result is not None
        if not is_own and not self.has_worked:
            # Its errors go to stderr then; without a tool call they are nobody else's.
            status = _STATUSES.get(end.exit_code or 0)
            is_own = status is not None
        return self.refused_or_failed(error, end, is_own=is_own, status=status, hint=hint)

    def _take_call(self, event: ClientEvent, listener: Listener) -> None:
        # What was said before a tool call is not the final answer.
        self.observed.next_message()
        self._go_on()
        given = [event.get("tool_name"), event.get("parameters")]
        self.observed.call(str(event.get("tool_id")), given)
        call = f"{event.get('tool_name')} {one_line(event.get('parameters'))}"
        self._tools[str(event.get("tool_id"))] = one_line(call, 160)
        self.say(listener, f"-> {call}", Piece.ACTION)

    def _go_on(self) -> None:
        """Take it that the model works, which it does only with the results of all calls."""
        self.observed.reason = None
        if self._has_results:
            self.observed.settle()
        self._has_results = False

    def _take_tool_result(self, event: ClientEvent, listener: Listener) -> None:
        error = event.sub("error")
        self._has_results = True
        given = [event.get("status"), event.get("output"), event.get("error")]
        self.observed.result(str(event.get("tool_id")), given)
        output = one_line(event.get("output") or error.get("message") or event.get("status"))
        sign = "<-" if event.get("status") == "success" else "<- error:"
        self.say(listener, f"{sign} {output}", Piece.ACTION)
        if error.get("type") in _REFUSALS:
            self.denials.append(self._tools.get(str(event.get("tool_id")), output))

    def _take_result(self, event: ClientEvent, listener: Listener) -> None:
        self._result = event
        stats = event.sub("stats")
        if event.get("status") != "success":
            message = event.sub("error").get("message")
            self.say(listener, f"gemini: {one_line(message)}", Piece.ERROR)
        self.end_line(listener)
        usage = Usage(
            input_tokens=stats.count("input_tokens"),
            cache_read_tokens=stats.count("cached"),
            output_tokens=stats.count("output_tokens"),
        )
        self._charged = larger(self._charged, usage)
        self.count_tokens(listener, self._charged)


def _stop_of(event: ClientEvent) -> str | None:
    """Return why gemini has stopped the model, as far as an error *event* says so."""
    message = event.text("message")
    for beginning, reason in _STOPS:
        if message.startswith(beginning):
            return reason
    return None if event.get("severity") == "warning" else "error"
