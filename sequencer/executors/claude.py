"""Performs steps with Claude Code, the ``claude`` program.

Its own permission rules decide what the agent may do: without ``permission_mode`` and
``allowed_tools`` it reads and refuses to write. Verified with 2.1.197 and 2.1.330; no
flag is passed that the older one lacks, unless the session says that a newer one wrote it.
Without tools means without those of MCP servers too, unless ``extra_args`` names their file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import ClassVar

from pydantic import Field

from sequencer.executors.claude_events import ClaudeParser
from sequencer.executors.client import Call, ClientExecutor
from sequencer.executors.client_options import (
    APPENDED_PROMPT,
    SYSTEM_PROMPT,
    ClientOptions,
    permission_words,
    prompt_path,
)
from sequencer.executors.protocol import Objection, Permits, StepRequest
from sequencer.executors.providers import ANTHROPIC
from sequencer.executors.session_marks import number, split_mark
from sequencer.executors.structured import MAX_ARGUMENT_BYTES, schema_text
from sequencer.executors.tool_words import CLAUDE, granted, objections, plan_objections, taken
from sequencer.model.step import Step

INSTALL = (
    "npm install -g @anthropic-ai/claude-code, or pip install claude-agent-sdk and name "
    "its claude_agent_sdk/_bundled/claude as program"
)
PASSED = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_MODEL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CONFIG_DIR",
)
"""Without these the program could not find its account."""
STARTS_SUBAGENTS = ("Agent", "Task")
"""The tool's name, now and before."""
_PERMISSION_WORDS = (
    "--dangerously-skip-permissions",
    "--permission-mode",
    "--permission-prompt-tool",
    "--allowedTools",
    "--allowed-tools",
    "--settings",
)
_SNAPSHOT_SINCE = (2, 1, 330)
"""From here on a resumed session keeps its first system prompt unless told otherwise."""


class ClaudeOptions(ClientOptions):
    """``agents: {NAME: {kind: claude, …}}``."""

    program: str = Field(default="claude", min_length=1, pattern=r"^[^\x00-\x1f]+$")
    permission_mode: str | None = Field(default=None, pattern=r"^[A-Za-z]{1,40}$")
    """claude's own word (default, acceptEdits, plan, dontAsk, …); without it, its settings."""
    allowed_tools: tuple[str, ...] | None = None
    """Run without asking, as in ``Bash(git *)``; a step's own list takes its place."""
    disallowed_tools: tuple[str, ...] = ()
    """Taken away; a step's own list is added."""
    tools: tuple[str, ...] | None = None
    """The built-in tools that exist at all; without it, claude's own set."""
    setting_sources: tuple[str, ...] | None = None
    """Which settings claude loads (user, project, local); an empty list: none of them."""
    stream_text: bool = True
    """Show text while it is written."""


def claude_argv(options: ClaudeOptions, request: StepRequest) -> list[str]:
    """Return the program's arguments; the prompt is not among them, it goes to stdin.

    Lists are one ``--opt=value`` each: as words of their own they would swallow what
    follows. A step's ``allowed_tools`` both limits the built-in tools to those named and
    lets them run unasked; its ``tools`` adds to the entry's lists.

    Raises:
        ValueError: the session to continue has an id that no client would give, or the
            schema of the answer or the subagents are too long for an argument.
    """
    step = request.step
    argv = [options.program, "-p", "--output-format=stream-json", "--verbose"]
    if options.stream_text:
        argv.append("--include-partial-messages")
    argv += options.extra_args
    model = step.model or options.model
    argv += [f"--model={model}"] if model else []
    argv += [f"--permission-mode={options.permission_mode}"] if options.permission_mode else []
    if options.setting_sources is not None:
        argv.append(f"--setting-sources={','.join(options.setting_sources)}")
    argv += _tool_arguments(options, request)
    argv += [f"--agents={subagents_text(step)}"] if step.agents else []
    schema = schema_text(step)
    # The answer in its form is a tool call; a model that forgets it is reminded once.
    one_answer = 1 if schema is None else 2
    max_turns = one_answer if step.single_turn else step.max_turns
    argv += [f"--max-turns={max_turns}"] if max_turns else []
    argv += [] if schema is None else [f"--json-schema={schema}"]
    return argv + _session_arguments(request)


def subagents_text(step: Step) -> str:
    """Return the subagents of *step* as one argument.

    Raises:
        ValueError: they are too long for that.
    """
    made = {
        name: each.model_dump(mode="json", exclude_none=True)
        for name, each in (step.agents or {}).items()
    }
    text = json.dumps(made, separators=(",", ":"))
    if len(text) > MAX_ARGUMENT_BYTES:
        message = f"agents are longer than {MAX_ARGUMENT_BYTES} bytes; shorten their prompts"
        raise ValueError(message)
    return text


def subagents_gone(step: Step, options: ClaudeOptions, name: str) -> str | None:
    """Return what takes from agent *name* the tool that starts subagents; None: nothing."""
    taken_by = {
        "single_turn takes all tools away": step.single_turn,
        "disallow_all_tools takes all tools away": step.disallow_all_tools,
        "task: false takes it away": (step.tools or {}).get("task") is False,
        "disallowed_tools takes it away": _has_it(step.disallowed_tools or ()),
        f"agents.{name}.disallowed_tools takes it away": _has_it(options.disallowed_tools),
    }
    if step.allowed_tools is not None:
        kept = [tool.partition("(")[0] for tool in step.allowed_tools]
        taken_by["allowed_tools does not name it"] = not _has_it(kept)
    elif options.tools is not None and not (step.tools or {}).get("task"):
        taken_by[f"agents.{name}.tools does not name it"] = not _has_it(options.tools)
    return next((reason for reason, is_so in taken_by.items() if is_so), None)


def _has_it(tools: Iterable[str]) -> bool:
    return any(fnmatchcase(name, entry) for entry in tools for name in STARTS_SUBAGENTS)


def _tool_arguments(options: ClaudeOptions, request: StepRequest) -> list[str]:
    step = request.step
    tools, allowed = options.tools, options.allowed_tools or ()
    wanted = granted(step, CLAUDE)
    has_none = step.single_turn or step.disallow_all_tools
    if step.allowed_tools is not None:
        allowed = step.allowed_tools
        tools = tuple(dict.fromkeys(name.partition("(")[0] for name in allowed))
    else:
        allowed = _joined(allowed, wanted)
        tools = None if tools is None else _joined(tools, wanted)
    if has_none:
        tools = ()
    disallowed = (*options.disallowed_tools, *(step.disallowed_tools or ()))
    disallowed = _joined(disallowed, taken(step, CLAUDE))
    argv = [] if tools is None else [f"--tools={','.join(tools)}"]
    # --tools is about the built-in ones; without servers there are no others.
    argv += ["--strict-mcp-config"] if has_none else []
    argv += [f"--allowedTools={','.join(allowed)}"] if allowed else []
    return argv + ([f"--disallowedTools={','.join(disallowed)}"] if disallowed else [])


def _joined(names: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return names + tuple(name for name in more if name not in names)


def _session_arguments(request: StepRequest) -> list[str]:
    argv: list[str] = []
    spent = 0.0
    is_prompted = request.system_prompt is not None or request.append_system_prompt is not None
    if request.resume_session is not None:
        session_id, facts = split_mark(request.resume_session)
        argv.append(f"--resume={session_id}")
        spent = number(facts, "cost_usd")
        if is_prompted and _version(facts.get("version", "")) >= _SNAPSHOT_SINCE:
            argv.append("--system-prompt-snapshot=off")
    if request.max_cost_usd is not None:
        # Versions that carry the total over compare it, not this run's share, with the budget.
        argv.append(f"--max-budget-usd={spent + request.max_cost_usd:.6f}")
    if request.system_prompt is not None:
        argv.append(f"--system-prompt-file={prompt_path(request, SYSTEM_PROMPT)}")
    if request.append_system_prompt is not None:
        argv.append(f"--append-system-prompt-file={prompt_path(request, APPENDED_PROMPT)}")
    return argv


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(p.isdecimal() for p in parts) else ()


class ClaudeExecutor(ClientExecutor[ClaudeOptions]):
    """Runs ``claude -p`` under the process core."""

    kind: ClassVar[str] = "claude"
    install: ClassVar[str] = INSTALL
    passed: ClassVar[tuple[str, ...]] = PASSED
    providers: ClassVar[frozenset[str] | None] = ANTHROPIC
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "model",
            "provider",
            "tools",
            "system_prompt",
            "append_system_prompt",
            "single_turn",
            "max_turns",
            "allowed_tools",
            "disallowed_tools",
            "disallow_all_tools",
            "agents",
            "idle_timeout_s",
            "max_cost_usd",
            "continue_session",
        }
    )

    def objections(self, step: Step) -> list[Objection]:
        """Return what of the step's tools and subagents can't be had."""
        found = objections(step, CLAUDE, self.name, self.options.disallowed_tools)
        if self.options.permission_mode == "plan":
            found += plan_objections(step, f"agents.{self.name}.permission_mode")
        gone = subagents_gone(step, self.options, self.name) if step.agents else None
        if gone is not None:
            hint = f"leave the tool {STARTS_SUBAGENTS[0]} to the agent, or leave agents out"
            found.append(Objection(f"agents, which nobody could start: {gone}", hint))
        return found

    def permits(self) -> Permits:
        """Return the entry's mode and lists; claude's own settings may add to them."""
        options = self.options
        said = [f"permission_mode {options.permission_mode}"] if options.permission_mode else []
        for key in ("allowed_tools", "tools"):
            names = getattr(options, key)
            said += [] if names is None else [f"{key} {', '.join(names) or 'none'}"]
        said += permission_words(options, _PERMISSION_WORDS)
        has_said = bool(said)
        if options.disallowed_tools:
            said.append(f"disallowed_tools {', '.join(options.disallowed_tools)}")
        if has_said:
            return Permits("; ".join(said))
        more = "".join(f"; {part}" for part in said)
        says = (
            f"no permission_mode: edits are refused unless claude's own settings allow them{more}"
        )
        lines = ("permission_mode: acceptEdits", 'allowed_tools: ["Bash(git *)"]')
        return Permits(says, lines)

    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed.

        Raises:
            ValueError: no budget is left, the session's id is none, or the schema too long.
        """
        if request.max_cost_usd is not None and request.max_cost_usd <= 0:
            message = "no budget is left for this step"
            raise ValueError(message)
        argv = claude_argv(self.options, request)
        # One step is one answer: a subagent in the background would outlive it.
        defaults = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}
        return Call(argv, self.environment(request, defaults), ClaudeParser(self.rules(request)))
