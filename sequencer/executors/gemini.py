"""Performs steps with Gemini CLI, the ``gemini`` program.

Its approval mode decides what the agent may do; in ``default`` no tool that writes exists.
Verified with 0.61.0. A model is always named: without one, a router asks a model which
model to ask. Not available: limits of turns and cost, tool lists (they are in gemini's own
settings), an added system prompt (a given one replaces gemini's).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sequencer.executors.client_events import Rules
from sequencer.executors.client_options import (
    SYSTEM_PROMPT,
    ClientOptions,
    missing_program,
    prompt_path,
    write_prompts,
)
from sequencer.executors.environment import agent_environment
from sequencer.executors.gemini_events import GeminiParser
from sequencer.executors.process import ProcessCore, perform_process
from sequencer.executors.protocol import Cancellation, Listener, StepRequest
from sequencer.executors.session_marks import split_mark
from sequencer.model.outcome import Outcome, OutcomeStatus

INSTALL = "npm install -g @google/gemini-cli"
PASSED = (
    "GEMINI_API_KEY",
    "GEMINI_CLI_HOME",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_GENAI_USE_GCA",
    "GOOGLE_GENAI_USE_VERTEXAI",
)


class GeminiOptions(ClientOptions):
    """``agents: {NAME: {kind: gemini, …}}``."""

    program: str = Field(default="gemini", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    model: str = Field(default="gemini-2.5-pro", min_length=1, max_length=200)
    approval_mode: Literal["default", "auto_edit", "yolo", "plan"] = "default"
    """gemini's own word for what runs without asking."""


def gemini_argv(options: GeminiOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; the prompt is not among them, it goes to stdin.

    Raises:
        ValueError: the session to continue has an id that no client would give.
    """
    argv = [options.program, "--output-format=stream-json"]
    # Trust of the folder is a question that nobody could answer; the approval mode still rules.
    argv.append("--skip-trust")
    argv += options.extra_args
    argv.append(f"--model={request.step.model or options.model}")
    argv.append(f"--approval-mode={options.approval_mode}")
    if request.resume_session is not None:
        argv.append(f"--resume={split_mark(request.resume_session)[0]}")
    return argv


def gemini_environment(options: GeminiOptions, request: StepRequest) -> dict[str, str]:
    """Return the agent's environment."""
    # Its launcher would start a second gemini that a TERM does not end.
    own = {"GEMINI_CLI_NO_RELAUNCH": "true", **options.env}
    if request.system_prompt is not None:
        own["GEMINI_SYSTEM_MD"] = str(prompt_path(request, SYSTEM_PROMPT))
    return agent_environment(request.environment, extra=own, passed=(*PASSED, *options.pass_env))


class GeminiExecutor:
    """Runs ``gemini`` under the process core."""

    kind: ClassVar[str] = "gemini"
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "system_prompt", "idle_timeout_s", "continue_session"}
    )

    def __init__(self, name: str, options: GeminiOptions, core: ProcessCore) -> None:
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
            argv = gemini_argv(options, request)
        except ValueError as error:
            return Outcome(status=OutcomeStatus.FAILED, error=f"agents.{self.name}: {error}")
        write_prompts(request)
        rules = Rules(fail_on_denial=options.fail_on_denial, limit_wait_s=options.limit_wait_s)
        return perform_process(
            self._core,
            argv,
            gemini_environment(options, request),
            request,
            listener,
            cancellation,
            GeminiParser(rules),
            install_hint=INSTALL,
        )
