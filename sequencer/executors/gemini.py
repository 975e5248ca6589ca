"""Performs steps with Gemini CLI, the ``gemini`` program.

Its approval mode decides what the agent may do; in ``default`` no tool that writes exists.
Verified with 0.61.0. A model is always named: without one, a router asks a model which
model to ask. Not available: limits of turns and cost, tool lists (they are in gemini's own
settings), an added system prompt (a given one replaces gemini's).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sequencer.executors.client import Call, ClientExecutor
from sequencer.executors.client_options import (
    SYSTEM_PROMPT,
    ClientOptions,
    prompt_path,
)
from sequencer.executors.gemini_events import GeminiParser
from sequencer.executors.protocol import StepRequest
from sequencer.executors.session_marks import split_mark
from sequencer.model.step import ModelName

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
    model: ModelName = "gemini-2.5-pro"
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


class GeminiExecutor(ClientExecutor[GeminiOptions]):
    """Runs ``gemini`` under the process core."""

    kind: ClassVar[str] = "gemini"
    install: ClassVar[str] = INSTALL
    passed: ClassVar[tuple[str, ...]] = PASSED
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "system_prompt", "idle_timeout_s", "continue_session"}
    )

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed; see `gemini_argv` for what it raises."""
        argv = gemini_argv(self.options, request)
        fixed = {}
        if request.system_prompt is not None:
            fixed["GEMINI_SYSTEM_MD"] = str(prompt_path(request, SYSTEM_PROMPT))
        # Its launcher would start a second gemini that a TERM does not end.
        defaults = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        environment = self.environment(request, defaults, fixed)
        return Call(argv, environment, GeminiParser(self.rules()))
