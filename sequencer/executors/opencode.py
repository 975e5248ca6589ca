"""Performs steps with opencode, the ``opencode`` program.

Out of the box it runs everything without asking. So that an entry says what its agent may
do, edits, commands and downloads are set to "ask" unless ``permission`` says otherwise,
and in a run without a person to ask that means refused. Verified with 1.18.33. Not
available: a limit of cost (it is counted), an added system prompt.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from sequencer.executors.client_events import Rules
from sequencer.executors.client_options import ClientOptions, missing_program
from sequencer.executors.environment import agent_environment
from sequencer.executors.opencode_events import OpencodeParser
from sequencer.executors.process import ProcessCore, perform_process
from sequencer.executors.protocol import Cancellation, Listener, StepRequest
from sequencer.executors.session_marks import split_mark
from sequencer.model.outcome import Outcome, OutcomeStatus

INSTALL = "npm install -g opencode-ai"
PASSED = (
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENERATIVE_AI_API_KEY",
    "OPENAI_API_KEY",
    "OPENCODE_API_KEY",
    "OPENCODE_CONFIG",
    "OPENCODE_CONFIG_DIR",
    "OPENROUTER_API_KEY",
)
_INLINE = "OPENCODE_CONFIG_CONTENT"
_MAIN_AGENT = "build"
"""The agent that opencode uses if none is named."""

Verdict = Literal["allow", "ask", "deny"]


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

    @field_validator("env")
    @classmethod
    def _keeps_the_inline_configuration(cls, env: dict[str, str]) -> dict[str, str]:
        if _INLINE in env:
            message = f"{_INLINE} is how the step's fields reach opencode; use opencode.json"
            raise ValueError(message)
        return env


def opencode_argv(options: OpencodeOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; the prompt goes to stdin, as arguments mangle it.

    Raises:
        ValueError: the session to continue has an id that no client would give.
    """
    argv = [options.program, "run", "--format=json", *options.extra_args]
    model = request.step.model or options.model
    argv += [f"--model={model}"] if model else []
    argv += [f"--agent={options.agent}"] if options.agent else []
    if request.resume_session is not None:
        argv.append(f"--session={split_mark(request.resume_session)[0]}")
    return argv


def opencode_configuration(options: OpencodeOptions, request: StepRequest) -> dict[str, Any]:
    """Return what is laid over opencode's configuration for this attempt."""
    step = request.step
    agent: dict[str, Any] = {}
    if request.system_prompt is not None:
        agent["prompt"] = request.system_prompt
    max_steps = 1 if step.single_turn else step.max_turns
    if max_steps is not None:
        agent["steps"] = max_steps
    allowed = options.allowed_tools if step.allowed_tools is None else step.allowed_tools
    if step.single_turn:
        allowed = ()
    tools = {} if allowed is None else {"*": False, **dict.fromkeys(allowed, True)}
    tools |= dict.fromkeys((*options.disallowed_tools, *(step.disallowed_tools or ())), False)
    if tools:
        agent["tools"] = tools
    configuration: dict[str, Any] = {}
    if options.permission:
        configuration["permission"] = options.permission
        agent["permission"] = options.permission
    if agent:
        configuration["agent"] = {options.agent or _MAIN_AGENT: agent}
    return configuration


class OpencodeExecutor:
    """Runs ``opencode run`` under the process core."""

    kind: ClassVar[str] = "opencode"
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "model",
            "system_prompt",
            "single_turn",
            "max_turns",
            "allowed_tools",
            "disallowed_tools",
            "idle_timeout_s",
            "continue_session",
        }
    )

    def __init__(self, name: str, options: OpencodeOptions, core: ProcessCore) -> None:
        self.name = name
        self.options = options
        self._core = core

    def problems(self) -> list[str]:
        """Return what is missing before a step could run."""
        return missing_program(self.name, self.options, INSTALL)

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Make one attempt."""
        options = self.options
        try:
            argv = opencode_argv(options, request)
        except ValueError as error:
            return Outcome(status=OutcomeStatus.FAILED, error=f"agents.{self.name}: {error}")
        rules = Rules(fail_on_denial=options.fail_on_denial, limit_wait_s=options.limit_wait_s)
        configuration = json.dumps(opencode_configuration(options, request))
        own = {"OPENCODE_DISABLE_AUTOUPDATE": "1", **options.env, _INLINE: configuration}
        environment = agent_environment(
            request.environment, extra=own, passed=(*PASSED, *options.pass_env)
        )
        return perform_process(
            self._core,
            argv,
            environment,
            request,
            listener,
            cancellation,
            OpencodeParser(rules),
            install_hint=INSTALL,
        )
