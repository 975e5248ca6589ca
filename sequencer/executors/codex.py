"""Performs steps with Codex, the ``codex`` program.

Its sandbox decides what the agent may do; without ``sandbox`` in the agent's entry that is
read-only. Verified with 0.169.0. Not available: a limit of turns or cost (it counts tokens
only), a list of allowed tools, a step without tools.
"""

from __future__ import annotations

import json
from typing import ClassVar, Literal

from pydantic import Field

from sequencer.executors.client import Call, ClientExecutor
from sequencer.executors.client_options import (
    SYSTEM_PROMPT,
    ClientOptions,
    prompt_path,
)
from sequencer.executors.codex_events import CodexParser
from sequencer.executors.protocol import StepRequest
from sequencer.executors.session_marks import number, split_mark
from sequencer.executors.structured import closed, schema_of
from sequencer.model.outcome import Usage

INSTALL = "npm install -g @openai/codex"
PASSED = ("CODEX_API_KEY", "CODEX_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL")
OUTPUT_SCHEMA = "output-schema.json"
_MAX_APPENDED_BYTES = 100_000
"""The appended prompt is an argument, and one argument ends at 128 KiB."""


class CodexOptions(ClientOptions):
    """``agents: {NAME: {kind: codex, …}}``."""

    program: str = Field(default="codex", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] = "read-only"
    """What commands of the agent may write; codex's own words."""
    profile: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """A profile of codex's own configuration."""
    disallowed_tools: tuple[str, ...] = ()
    """Features to disable (shell_tool, unified_exec, …); a step's own list is added."""


def _toml(text: str) -> str:
    """Return *text* as a TOML string; JSON's escapes are TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def codex_argv(options: CodexOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; ``-`` stands for the prompt on stdin.

    Raises:
        ValueError: the session to continue has an id that no client would give, or the
            appended system prompt is too long for an argument.
    """
    step = request.step
    argv = [options.program, "exec"]
    if request.resume_session is not None:
        argv.append("resume")
    argv += ["--json", "--skip-git-repo-check", *options.extra_args]
    # As a configuration value, because `exec resume` has no --sandbox.
    argv.append(f"--config=sandbox_mode={_toml(options.sandbox)}")
    argv += [f"--profile={options.profile}"] if options.profile else []
    model = step.model or options.model
    argv += [f"--model={model}"] if model else []
    argv += [
        f"--disable={feature}"
        for feature in (*options.disallowed_tools, *(step.disallowed_tools or ()))
    ]
    if request.system_prompt is not None:
        path = str(prompt_path(request, SYSTEM_PROMPT))
        argv.append(f"--config=model_instructions_file={_toml(path)}")
    if request.append_system_prompt is not None:
        if len(request.append_system_prompt.encode()) > _MAX_APPENDED_BYTES:
            message = (
                f"append_system_prompt is longer than {_MAX_APPENDED_BYTES} bytes, which codex "
                "can't take; use system_prompt, or shorten it"
            )
            raise ValueError(message)
        argv.append(f"--config=developer_instructions={_toml(request.append_system_prompt)}")
    if schema_of(step) is not None:
        argv.append(f"--output-schema={prompt_path(request, OUTPUT_SCHEMA)}")
    if request.resume_session is not None:
        # Checked to be no option: it can't follow `--`, which would make "-" a prompt.
        argv.append(split_mark(request.resume_session)[0])
    return [*argv, "-"]


def usage_before(request: StepRequest) -> Usage:
    """Return what the session had used before this attempt; codex counts by session."""
    if request.resume_session is None:
        return Usage()
    facts = split_mark(request.resume_session)[1]
    return Usage(
        input_tokens=int(number(facts, "input_tokens")),
        output_tokens=int(number(facts, "output_tokens")),
    )


class CodexExecutor(ClientExecutor[CodexOptions]):
    """Runs ``codex exec`` under the process core."""

    kind: ClassVar[str] = "codex"
    install: ClassVar[str] = INSTALL
    passed: ClassVar[tuple[str, ...]] = PASSED
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "model",
            "system_prompt",
            "append_system_prompt",
            "disallowed_tools",
            "idle_timeout_s",
            "continue_session",
        }
    )

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed; see `codex_argv` for what it raises."""
        argv = codex_argv(self.options, request)
        schema = schema_of(request.step)
        parser = CodexParser(self.rules(), usage_before(request), is_json=schema is not None)
        files = {} if schema is None else {OUTPUT_SCHEMA: json.dumps(closed(schema))}
        return Call(argv, self.environment(request), parser, files)
