"""A team of agents as plain data: its tasks, their roles, and its limits.

In a graph, the traits of a task are at its node; see `model.graph.task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from sequencer.engine.tasks import MergeOrder
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, model_validator
from sequencer.model.graph.task import MAX_TASKS, Adds, Budget, Needs
from sequencer.model.step import FORMER_AGENT, ModelName, Name, Step, rename_agent_key

TASK_ID = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$"
TaskId = Annotated[str, Field(pattern=TASK_ID, max_length=80)]
"""A task's name; it is also used in branch names and templates."""
STEP_FIELDS = frozenset(Step.model_fields) - {
    *("name", "requires_approval", "approval"),
    # A task has its own description: it is longer, and its agent reads it.
    "description",
}
"""Fields of a step that a task or a role may set."""


class _WithStepFields(Frozen):
    """A model whose file format also has the fields of a step."""

    BESIDE: ClassVar[frozenset[str]] = STEP_FIELDS
    """The step fields that a file may have next to the model's own fields."""
    step: dict[str, Any] = Field(default_factory=dict)
    """Step fields; in a file they are next to the other fields."""

    @model_validator(mode="before")
    @classmethod
    def _gather_step_fields(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        step_names = STEP_FIELDS | {FORMER_AGENT}
        model_fields = {name: value[name] for name in value if name not in step_names}
        step_fields = {name: value[name] for name in value if name in step_names}
        step = model_fields.get("step")
        merged_step = {**(step if isinstance(step, Mapping) else {}), **step_fields}
        return {**model_fields, "step": rename_agent_key(merged_step)}

    @model_validator(mode="after")
    def _makes_a_step(self) -> _WithStepFields:
        if unknown_names := sorted(self.step.keys() - STEP_FIELDS):
            raise ValueError(f"{unknown_names[0]!r} is not a field that a task may set")
        Step.model_validate({"name": "checked", **self.step})
        return self


class Role(_WithStepFields):
    """The step fields and the rights that all tasks of one kind share."""

    writes: bool = False
    """Its tasks may change files of the checkout; a change by any other task is reported."""
    worktree: bool = False
    """In a repository, each of its tasks gets its own git worktree and branch."""
    budget: Budget = Budget()
    """For all tasks of the role together."""


class Task(_WithStepFields):
    """One piece of work for one agent, and the tasks that must end before it."""

    id: TaskId
    subject: str = Field(min_length=1, max_length=500)
    description: str = Field(default="", max_length=1_048_576)
    """The instructions for the agent; templates in it are not filled in."""
    active_form: str = Field(default="", max_length=500)
    """Text to show while it runs: "Running the tests"."""
    blocked_by: tuple[TaskId, ...] = ()
    """Ids of the tasks that must end before it."""
    needs: Needs = "all"
    """How many of these tasks, and of the tasks that they add, must be done; others may fail."""
    role: Name | None = None
    weight: float = Field(default=1.0, gt=0, le=1e9, allow_inf_nan=False)
    """Its duration relative to other tasks, for the critical path."""
    writes: bool | None = None
    """None: the role decides."""
    worktree: bool | None = None
    adds: Adds | None = None
    """Its answer lists tasks to add to the run, or sub-issues. Each sub-issue becomes a task that
    implements it and a task that verifies it."""
    budget: Budget = Budget()


class TeamBudget(Budget):
    """``teams.budget:``, for the whole team."""

    soft: float = Field(default=0.8, gt=0, le=1)
    """The fraction of a cap at which a warning is given."""
    on_hard: Literal["finish", "kill"] = "finish"
    """Whether running tasks finish or are stopped at a cap; in both cases no more tasks start."""


class SharedRules(Frozen):
    """The keys of ``teams:`` that a running team uses."""

    budget: TeamBudget = TeamBudget()
    max_failures: int = Field(default=5, ge=1, le=10_000)
    """After this many failed attempts in a row, over all tasks, no task starts."""
    max_tasks: int = Field(default=200, ge=1, le=MAX_TASKS)
    """Maximum number of tasks in a run, including added ones."""
    merge: MergeOrder = "auto"
    """The order in which results of parallel worktrees are merged: as the tasks are listed, as they
    finish, or as listed unless a result would have to wait."""
    on_write: Literal["warn", "fail"] = "warn"
    """Whether a change of the checkout by a read-only task is a warning or a failure."""
    fallback_agent: Name | None = None
    """The agent of one more attempt after all attempts at a task have failed."""
    fallback_model: ModelName | None = None
    """The model of this attempt."""


class TeamRules(SharedRules):
    """The rules of a team; read from the settings at each start, so that a cap can be raised."""

    role_budgets: dict[Name, Budget] = Field(default_factory=dict)

    @property
    def has_fallback(self) -> bool:
        """Return whether another agent or model gets one more attempt at a failed task."""
        return self.fallback_agent is not None or self.fallback_model is not None

    def apply_fallback(self, step: Step) -> Step:
        """Return *step* for the attempt of the fallback agent or model."""
        fields: dict[str, Any] = {"model": self.fallback_model}
        if self.fallback_agent is not None:
            # The step's provider may have no models for the other agent.
            fields |= {"agent": self.fallback_agent, "provider": None}
        return step.replace(**fields)
