"""The traits of a node that represents a task.

A graph of tasks is an ordinary graph. A plug-in creates it from a list, defines roles, and runs the
tasks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.step import Name

MAX_TASKS = 1000
"""Limit for one list."""
Needs = Literal["all", "any"] | Annotated[int, Field(strict=True, ge=1, le=MAX_TASKS)]
Adds = Literal["tasks", "sub-issues"]


class Budget(Frozen, allow_inf_nan=False):
    """Limits for the total usage of several attempts in one run; None: no limit."""

    max_cost_usd: float | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    """Input and output tokens together."""

    @property
    def is_limited(self) -> bool:
        """Return whether it sets any limit."""
        return self.max_cost_usd is not None or self.max_tokens is not None

    def is_used_up(self, usd: float, tokens: float, share: float = 1.0) -> bool:
        """Return whether *usd* or *tokens* reach this *share* of the limits."""
        cost_limit, token_limit = self.max_cost_usd, self.max_tokens
        return (cost_limit is not None and usd >= share * cost_limit) or (
            token_limit is not None and tokens >= share * token_limit
        )


class TaskTraits(Frozen):
    """What a node keeps of the task that it represents."""

    role: Name | None = None
    description: str = ""
    active_form: str = ""
    blocked_by: tuple[Name, ...] = ()
    needs: Needs = "all"
    weight: float = Field(default=1.0, gt=0)
    writes: bool = True
    worktree: bool = False
    adds: Adds | None = None
    fixes: Name | None = None
    """The judging task, if this task fixes work that it refused."""
    budget: Budget = Budget()
    brought: tuple[str, ...] = ()
    """Step fields that come from the role, not from the task's author: an agent that does not
    support one works without it. Fields of a fixer are ``fixer.FIELD``."""
