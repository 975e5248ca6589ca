"""The pure part of the router: its input, and which answers are valid.

A router is a prompt that an executor runs before a step; its answer names the prompt
that the step runs. The answer comes from a model, so the whole name is compared with a
list of allowed names, and never repaired: case is not ignored, and paths are not shortened.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from msgspec.structs import asdict

from sequencer.errors import StepFailed
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import BeforeValidator, Field
from sequencer.model.answers import find_decision
from sequencer.model.head import Head
from sequencer.model.sequence.order import Description
from sequencer.model.workflow import Workflow
from sequencer.workflows.prompts import add_default_suffix

MAX_ANSWER_CHARS = 4096
SHOWN_CHARS = 200


class RouterMode(StrEnum):
    """Whether the workflow or the router chooses a step's prompt."""

    DEFAULT = "router_default"
    """The workflow chooses, then the router overrides."""
    FIRST = "router_first"
    """The router chooses; if it gives no answer or is not set, the workflow chooses."""
    ONLY = "router_only"
    """The router chooses; without an answer, or without a router prompt, nothing runs."""


_ALIASES = {
    "default": RouterMode.DEFAULT,
    "router": RouterMode.DEFAULT,
    "first": RouterMode.FIRST,
    "only": RouterMode.ONLY,
}


def _resolve_alias(value: object) -> object:
    if not isinstance(value, str):
        return value
    word = value.strip().lower().replace("-", "_")
    return _ALIASES.get(word, word)


class RouterSettings(Frozen):
    """``router:`` of orchestration.yaml."""

    enabled: bool = False
    mode: Annotated[RouterMode, BeforeValidator(_resolve_alias)] = RouterMode.DEFAULT
    """Also ``default``, ``first``, ``only``, and hyphens for underscores."""
    prompt: str | None = Field(default=None, min_length=1, max_length=300)
    """The router's prompt, a file under prompts_dir."""
    allowlist: tuple[str, ...] = ()
    """Prompts that an answer may name; empty: only the workflow's own prompts."""
    timeout_s: float = Field(default=600.0, gt=0, le=86_400, allow_inf_nan=False)
    """Limit for one run of the router; limits of steps do not apply to it."""
    review_every_n: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    """Used if ``workflow.review_every_n`` is not set, as in hoidn/orchestration."""

    @cached_property
    def is_active(self) -> bool:
        """Return whether a router runs before a step."""
        return self.enabled and self.prompt is not None

    @property
    def needs_selection(self) -> bool:
        """Return whether a step needs the workflow's own prompt too."""
        return not self.is_active or self.mode is RouterMode.DEFAULT

    @property
    def may_be_silent(self) -> bool:
        """Return whether a step runs with the workflow's prompt if the router gives no answer."""
        return self.mode is not RouterMode.ONLY


class RouterRefused(StepFailed):
    """The router's answer names no allowed prompt; the step failed and no agent was run."""

    def __init__(self, problem: str, answer: str, allowed: Collection[str]) -> None:
        """Say what is wrong with *answer*, show its start, and list the *allowed* prompts."""
        self.answer = format_answer(answer)
        self.allowed = tuple(sorted(allowed))
        super().__init__(
            f"the router's answer {problem}: {self.answer}",
            where="router",
            hint=f"it has to be one line with one of: {', '.join(self.allowed) or 'none'}; "
            'or to end with JSON such as {"decision": "NAME"}',
        )


def allowed_prompts(workflow: Workflow, router: RouterSettings) -> frozenset[str]:
    """Return the prompts that a router may choose for *workflow*.

    Without an allowlist these are only the prompts that the workflow runs anyway.
    """
    if router.allowlist:
        return frozenset(add_default_suffix(name) for name in router.allowlist)
    # A text in the workflow itself has no name, so no answer can choose it.
    file_steps = (step for step in workflow.own_steps if step.text is None)
    return frozenset(add_default_suffix(step.prompt_name) for step in file_steps)


def parse_answer(text: str, allowed: Collection[str]) -> str:
    r"""Return the prompt that a router's answer names, in a JSON object or as its only line.

    >>> parse_answer("\n  reviewer \n", {"main.md", "reviewer.md"})
    'reviewer.md'
    >>> parse_answer('Time for a review: {"decision": "reviewer"}', {"main.md", "reviewer.md"})
    'reviewer.md'

    Raises:
        RouterRefused: the answer has another form, or names no allowed prompt.
    """
    if (decision := find_decision(text)) is not None:
        return _ensure_allowed(decision.strip(), text, allowed)
    # The size first: megabytes of a model's chatter need not be split into lines.
    if len(text) > MAX_ANSWER_CHARS:
        raise RouterRefused(f"has {len(text)} characters instead of one line", text, allowed)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise RouterRefused("is empty", text, allowed)
    if len(lines) > 1:
        raise RouterRefused(f"has {len(lines)} lines instead of one", text, allowed)
    return _ensure_allowed(lines[0], text, allowed)


def _ensure_allowed(prompt_name: str, text: str, allowed_names: Collection[str]) -> str:
    name = add_default_suffix(prompt_name)
    if name not in allowed_names:
        raise RouterRefused("is not an allowed prompt", text, allowed_names)
    return name


def router_input(head: Head, upcoming: Description, allowed: Collection[str]) -> str:
    """Return the router's standard input: the run's state as one JSON object.

    It is the head plus ``next`` (the workflow's own choice) and ``allowed_prompts``, but without
    the claims and the session, which say nothing about what to do next.
    """
    state = head.model_dump(mode="json", exclude={"claims", "session"})
    facts = {**state, "next": asdict(upcoming), "allowed_prompts": sorted(allowed)}
    return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


def format_answer(answer: str) -> str:
    r"""Return the start of *answer* on one line, safe for a terminal.

    >>> print(format_answer("a\x1b[31mb"))
    'a\x1b[31mb'
    """
    if len(answer) > SHOWN_CHARS:
        return f"{answer[:SHOWN_CHARS]!a}… ({len(answer)} characters)"
    return ascii(answer)
