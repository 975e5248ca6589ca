"""Performs steps with the Anthropic Messages API directly, without a client program.

The agent reads and searches the project's files with our own tools; it writes files and runs
commands only if the entry lists ``write``, ``edit`` or ``bash``. Conversations are not stored,
so a step can't continue an earlier one. Must not be called from a running asyncio loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from sequencer.executors.answers import make_ignored_notifier, with_answer_digest
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.client_limits import Clock, local_clock
from sequencer.executors.launch import agent_environment
from sequencer.executors.messages_loop import LISTENED_TO, Conversation, MessagesOptions
from sequencer.executors.prices import find_price, missing_price_message
from sequencer.executors.process import ProcessCore
from sequencer.executors.project_tools import TOOLS, ToolContext, ToolFolder
from sequencer.executors.protocol import (
    Listener,
    Objection,
    Permissions,
    StepRequest,
    split_words,
)
from sequencer.executors.result_file import apply_result
from sequencer.executors.tool_words import CHANGING, MESSAGES, granted_tools, tool_objections
from sequencer.executors.wall import Wall
from sequencer.model.addresses import may_receive_secrets
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import FileMark, Step

_HOTTEST = 1.0
"""The API's limit for temperature; other providers allow 2."""


class MessagesExecutor:
    """Holds a conversation over the Messages API."""

    kind: ClassVar[str] = "anthropic"
    providers: ClassVar[frozenset[str] | None] = split_words("anthropic")
    supported_fields: ClassVar[frozenset[str]] = split_words(
        "model provider temperature tools system_prompt append_system_prompt single_turn "
        "max_turns allowed_tools disallowed_tools disallow_all_tools idle_timeout_s "
        "max_cost_usd"
    )

    def __init__(
        self,
        name: str,
        options: MessagesOptions,
        core: ProcessCore,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock = local_clock,
    ) -> None:
        self.name = name
        self.options = options
        self._core = core
        self._environ = os.environ if environ is None else environ
        self._clock = clock

    @property
    def wall(self) -> Wall:
        return self.options.wall

    def find_missing(self, _folder: Path | None) -> str | None:
        if self._environ.get(self.options.api_key_env):
            return None
        return f"agents.{self.name}: the variable {self.options.api_key_env} is not set"

    def problems(self) -> list[str]:
        """Return what is missing before a step could run: a key, a price."""
        location = f"agents.{self.name}"
        key = self.find_missing(None)
        key_problems = [] if key is None else [key]
        if find_price(self.options.model, self.options.prices) is None:
            key_problems.append(missing_price_message(self.options.model, location))
        return key_problems

    def permissions(self) -> Permissions:
        """Return the tools of the entry."""
        text = f"tools {', '.join(self.options.tools) or 'none'}"
        can_write = not CHANGING.isdisjoint(self.options.tools)
        if "tools" in self.options.model_fields_set:
            return Permissions(text, can_write=can_write)
        return Permissions(text, ("tools: [read, glob, grep, edit, write]",), can_write)

    def withheld_variables(self, _environ: Mapping[str, str]) -> list[str]:
        """Return nothing: this process itself calls the model, with all of its variables."""
        return []

    def objections(self, step: Step) -> list[Objection]:
        """Return an objection for each tool and temperature of the step that can't work."""
        result = tool_objections(step, MESSAGES, self.name)
        if isinstance(step.complete_when, FileMark):
            reason = "complete_when: {file} ends a program, but this agent starts none"
            result.append(Objection(reason, "leave it out; a step ends with the agent's answer"))
        location = f"agents.{self.name}.tools"
        for name in granted_tools(step, MESSAGES):
            if name not in self.options.tools:
                reason = f"tools: {name}: true, but agent {self.name!r} does not have it"
                result.append(Objection(reason, f"add it to {location}"))
        if step.temperature is not None and step.temperature > _HOTTEST:
            reason = f"temperature {step.temperature:g} is more than the API takes"
            result.append(Objection(reason, f"use at most {_HOTTEST:g}"))
        return result

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Make one attempt."""
        start = time.monotonic()
        if cancellation.reason is not None:
            return Outcome(
                status=OutcomeStatus.INTERRUPTED, error=f"stopped: {cancellation.reason}"
            )
        refusal = self._find_refusal(request)
        if refusal is not None:
            return Outcome(status=OutcomeStatus.FAILED, error=refusal)
        deadline = None if request.timeout_s is None else start + request.timeout_s
        context = ToolContext(
            folder=ToolFolder(request.cwd, _forbidden_folders(request), self.options.secrets),
            core=self._core,
            cancellation=cancellation,
            identity=request.identity,
            environment=self._command_environment(),
            seconds_left=lambda: None if deadline is None else deadline - time.monotonic(),
            lock=request.lock,
            wall=self.options.wall,
        )
        conversation = Conversation(self.options, request, context, listener, self._clock)
        key = self._environ[self.options.api_key_env]
        base_url = self.options.base_url or self._environ.get("ANTHROPIC_BASE_URL")
        outcome = asyncio.run(conversation.run(key, base_url))
        seconds = round(time.monotonic() - start, 6)
        evidence = outcome.evidence or conversation.observed.evidence(is_over=False)
        update = {
            "usage": conversation.usage.replace(seconds=seconds),
            "denials": tuple(conversation.denials),
            "evidence": evidence.replace(ended_processes=context.report_ended_processes(listener)),
        }
        # A command of the agent may have written a result file.
        notify_ignored = make_ignored_notifier(request, listener)
        return with_answer_digest(
            apply_result(request.result_path, outcome.replace(**update), notify_ignored)
        )

    def _command_environment(self) -> dict[str, str]:
        options = self.options
        environment = agent_environment(
            passed=options.pass_env, extra=options.env, base=self._environ
        )
        # Not even if pass_env names it: a command does not need the API's key.
        environment.pop(options.api_key_env, None)
        return environment

    def _find_refusal(self, request: StepRequest) -> str | None:
        """Return why the attempt can't start; None: it can."""
        location, step = f"agents.{self.name}", request.step
        if not self._environ.get(self.options.api_key_env):
            return (
                f"{location}: the variable {self.options.api_key_env} is not set; it holds the key"
            )
        base_url = self.options.base_url or self._environ.get("ANTHROPIC_BASE_URL")
        if base_url and not may_receive_secrets(base_url):
            return f"ANTHROPIC_BASE_URL is {base_url}; {LISTENED_TO}"
        model = step.model or self.options.model
        is_limited = request.max_cost_usd is not None
        if is_limited and find_price(model, self.options.prices) is None:
            return missing_price_message(model, location)
        named_tools = (*(step.allowed_tools or ()), *(step.disallowed_tools or ()))
        unknown_tools = sorted(set(named_tools) - set(TOOLS))
        if unknown_tools:
            return (
                f"step {step.name!r}: unknown tool {unknown_tools[0]!r}; known: {', '.join(TOOLS)}"
            )
        missing_tools = sorted(set(step.allowed_tools or ()) - set(self.options.tools))
        if missing_tools and not (step.single_turn or step.disallow_all_tools):
            return (
                f"step {step.name!r}: allowed_tools names {missing_tools[0]!r}, which agent "
                f"{self.name!r} does not have; add it to {location}.tools"
            )
        return None


def _forbidden_folders(request: StepRequest) -> tuple[Path, ...]:
    """Return the folders of the run's state, except those that contain the project."""
    state = request.identity.state_path
    folders = [request.cwd / "sync", *([] if state is None else [state.parent])]
    root = request.cwd.resolve()
    return tuple(folder for folder in folders if not root.is_relative_to(folder.resolve()))
