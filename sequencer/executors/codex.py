"""Performs steps with Codex, the ``codex`` program.

Its sandbox decides what the agent may do; without ``sandbox`` in the agent's entry that is
read-only. Verified with 0.169.0. Not available: a limit of turns or cost (it counts tokens
only), a list of allowed tools, a step without tools. It reads, searches and writes with its
shell, so a step's ``tools`` can take reading away only together with the shell, and writing
only as a whole, by the sandbox.
"""

from __future__ import annotations

import json
from typing import ClassVar, Literal

from pydantic import Field

from sequencer.executors.client import Call, ClientExecutor
from sequencer.executors.client_options import (
    SYSTEM_PROMPT,
    ClientOptions,
    permission_words,
    prompt_path,
)
from sequencer.executors.codex_events import CodexParser
from sequencer.executors.protocol import Objection, Permits, StepRequest
from sequencer.executors.providers import OPENAI
from sequencer.executors.session_marks import number, split_mark
from sequencer.executors.structured import closed, schema_of
from sequencer.executors.tool_words import CODEX, objections
from sequencer.model.outcome import Usage
from sequencer.model.step import Step, ToolName

INSTALL = "npm install -g @openai/codex"
PASSED = ("CODEX_API_KEY", "CODEX_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL")
OUTPUT_SCHEMA = "output-schema.json"
_MAX_APPENDED_BYTES = 100_000
"""The appended prompt is an argument, and one argument ends at 128 KiB."""
_READING: tuple[ToolName, ...] = ("read", "glob", "grep", "list")
_WRITING: tuple[ToolName, ...] = ("write", "edit")
_READ_ONLY = "read-only"
_PERMISSION_WORDS = ("--dangerously-bypass-approvals-and-sandbox", "--full-auto")


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
    # The check is about trust in a folder, which the user has said before any step of it.
    argv += ["--json", "--skip-git-repo-check", *options.extra_args]
    # As a configuration value, because `exec resume` has no --sandbox.
    argv.append(f"--config=sandbox_mode={_toml(_sandbox(options, step))}")
    argv += [f"--profile={options.profile}"] if options.profile else []
    model = step.model or options.model
    argv += [f"--model={model}"] if model else []
    argv += [
        f"--disable={feature}"
        for feature in (*options.disallowed_tools, *(step.disallowed_tools or ()))
    ]
    argv += _switches(step)
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


def _sandbox(options: CodexOptions, step: Step) -> str:
    words = step.tools or {}
    return _READ_ONLY if any(words.get(word) is False for word in _WRITING) else options.sandbox


def _switches(step: Step) -> list[str]:
    """Return the arguments that switch tools on and off as the step's words say."""
    argv: list[str] = []
    for word, is_on in (step.tools or {}).items():
        behind = CODEX[word]
        if word in {"bash", "task"}:
            argv += [f"--enable={feature}" for feature in behind.granted if is_on]
            argv += [f"--disable={feature}" for feature in behind.taken if not is_on]
        elif word == "websearch":
            argv.append(f"--config=web_search={_toml('live' if is_on else 'disabled')}")
        elif word == "todowrite":
            argv.append(f"--config=tools.update_plan.enabled={json.dumps(is_on)}")
    return argv


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
    providers: ClassVar[frozenset[str] | None] = OPENAI
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "model",
            "provider",
            "tools",
            "system_prompt",
            "append_system_prompt",
            "disallowed_tools",
            "idle_timeout_s",
            "continue_session",
        }
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return what of the step's tools can't be had."""
        found = objections(step, CODEX, self.name, self.options.disallowed_tools)
        words = step.tools or {}
        for word in _READING:
            if words.get(word) is False and words.get("bash") is not False:
                reason = f"tools: {word}: false, but it does that with its shell, which stays"
                found.append(Objection(reason, f"add bash: false, or leave {word} out"))
        given = {word: words[word] for word in _WRITING if word in words}
        if len(set(given.values())) > 1:
            reason = "tools: write and edit differ, and its sandbox is one switch for both"
            found.append(Objection(reason, "give write and edit the same value"))
        elif any(given.values()) and self.options.sandbox == _READ_ONLY:
            where, word = f"agents.{self.name}.sandbox", next(iter(given))
            reason = f"tools: {word}: true, but {where} is {_READ_ONLY}"
            found.append(Objection(reason, f"set {where} to workspace-write"))
        return found

    def permits(self) -> Permits:
        """Return the entry's sandbox."""
        words = permission_words(self.options, _PERMISSION_WORDS)
        says = "; ".join([f"sandbox {self.options.sandbox}", *words])
        is_said = bool(words) or "sandbox" in self.options.model_fields_set
        return Permits(says) if is_said else Permits(says, ("sandbox: workspace-write",))

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed; see `codex_argv` for what it raises."""
        argv = codex_argv(self.options, request)
        schema = schema_of(request.step)
        parser = CodexParser(self.rules(request), usage_before(request), is_json=schema is not None)
        files = {} if schema is None else {OUTPUT_SCHEMA: json.dumps(closed(schema))}
        return Call(argv, self.environment(request), parser, files)
