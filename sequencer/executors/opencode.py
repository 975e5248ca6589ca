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

from sequencer.executors.client import Call, ClientExecutor
from sequencer.executors.client_options import ClientOptions
from sequencer.executors.opencode_events import OpencodeParser
from sequencer.executors.protocol import StepRequest
from sequencer.executors.session_marks import split_mark

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
_CHANGING = ("edit", "write", "patch", "multiedit")
"""The tools behind opencode's one permission to edit."""

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
    if step.single_turn or step.disallow_all_tools:
        allowed = ()
    tools = {} if allowed is None else {"*": False, **dict.fromkeys(allowed, True)}
    tools |= dict.fromkeys((*options.disallowed_tools, *(step.disallowed_tools or ())), False)
    if tools:
        agent["tools"] = tools
    configuration: dict[str, Any] = {}
    if options.permission:
        configuration["permission"] = options.permission
    # A permission of the agent would give a tool back that `tools` takes away.
    left = {key: verdict for key, verdict in options.permission.items() if _is_left(key, tools)}
    if left:
        agent["permission"] = left
    if agent:
        configuration["agent"] = {options.agent or _MAIN_AGENT: agent}
    return configuration


def _is_left(permission: str, tools: dict[str, bool]) -> bool:
    """Return whether all tools that *permission* is about are offered."""
    names = _CHANGING if permission == "edit" else (permission,)
    rest = tools.get("*", True)
    return not any(tools.get(name) is False for name in names) and (
        rest or any(tools.get(name, False) for name in names)
    )


class OpencodeExecutor(ClientExecutor[OpencodeOptions]):
    """Runs ``opencode run`` under the process core."""

    kind: ClassVar[str] = "opencode"
    install: ClassVar[str] = INSTALL
    passed: ClassVar[tuple[str, ...]] = PASSED
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "model",
            "system_prompt",
            "single_turn",
            "max_turns",
            "allowed_tools",
            "disallowed_tools",
            "disallow_all_tools",
            "idle_timeout_s",
            "continue_session",
        }
    )

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed; see `opencode_argv` for what it raises."""
        argv = opencode_argv(self.options, request)
        defaults = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
        fixed = {_INLINE: json.dumps(opencode_configuration(self.options, request))}
        environment = self.environment(request, defaults, fixed)
        return Call(argv, environment, OpencodeParser(self.rules()))
