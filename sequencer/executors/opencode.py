"""Performs steps with opencode, the ``opencode`` program.

Out of the box it runs everything without asking. So that an entry says what its agent may
do, edits, commands and downloads are set to "ask" unless ``permission`` or the step's
``tools`` say otherwise, and in a run without a person to ask that means refused. Verified
with 1.18.33. Not available: a limit of cost (it is counted), an added system prompt.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import Field, field_validator

from sequencer.executors.client import Call, ClientExecutor
from sequencer.executors.client_options import ClientOptions
from sequencer.executors.opencode_events import OpencodeParser
from sequencer.executors.opencode_permissions import (
    Verdict,
    general,
    of_the_agent,
    permission_objections,
)
from sequencer.executors.protocol import Objection, Permits, StepRequest
from sequencer.executors.providers import qualified_model
from sequencer.executors.session_marks import split_mark
from sequencer.executors.tool_words import OPENCODE, granted, objections, taken
from sequencer.model.step import Step

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
_WEB_SEARCH = "OPENCODE_ENABLE_EXA"
"""Without it there is no websearch."""


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
    install: ClassVar[str] = INSTALL
    passed: ClassVar[tuple[str, ...]] = PASSED
    providers: ClassVar[frozenset[str] | None] = None
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "model",
            "provider",
            "temperature",
            "tools",
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

    def objections(self, step: Step) -> list[Objection]:
        """Return what of the step's model, temperature and tools can't be had."""
        found = objections(step, OPENCODE, self.name, self.options.disallowed_tools)
        found += permission_objections(self.options.permission, step, self.name)
        model = _model(self.options, step) or ""
        if step.provider is not None and not model.startswith(f"{step.provider}/"):
            reason = f"provider: {step.provider}, but the step names no model of it"
            found.append(Objection(reason, "add model, or leave provider out"))
        if step.temperature is not None and not all(model.partition("/")):
            reason = "temperature is for a model that is named as provider/model"
            found.append(Objection(reason, f"name it in the step, or in agents.{self.name}.model"))
        return found

    def permits(self) -> Permits:
        """Return the entry's permissions; "ask" is refused where nobody is there to answer."""
        options = self.options
        rules = json.dumps(options.permission)
        if "permission" in options.model_fields_set:
            said = f"permission {rules}" if options.permission else "as its own configuration says"
            return Permits(said)
        lines = ('permission: {edit: allow, bash: {"*": ask, "git *": allow}}',)
        return Permits(f"permission {rules}: what it asks for is refused", lines)

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed; see `opencode_argv` for what it raises."""
        argv = opencode_argv(self.options, request)
        defaults = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
        fixed = {_INLINE: json.dumps(opencode_configuration(self.options, request))}
        if (request.step.tools or {}).get("websearch"):
            fixed[_WEB_SEARCH] = "1"
        environment = self.environment(request, defaults, fixed)
        return Call(argv, environment, OpencodeParser(self.rules(request)))
