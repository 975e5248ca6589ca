"""What a team of agents is: its tasks, the roles that do them, and what it may use.

Plain data. A task that stands in a graph keeps its traits at its node, see `model.graph.task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from sequencer.engine.tasks import MergeOrder
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, model_validator
from sequencer.model.graph.task import MAX_TASKS, Adds, Budget, Needs
from sequencer.model.step import FORMER_AGENT, ModelName, Name, Step, with_agent

TASK_ID = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$"
TaskId = Annotated[str, Field(pattern=TASK_ID, max_length=80)]
"""A task's name; it is also part of branch names and stands in templates."""
STEP_FIELDS = frozenset(Step.model_fields) - {
    *("name", "requires_approval", "approval"),
    # A task's own is longer, and its agent reads it.
    "description",
}
"""Fields of a step that a task or a role may set."""


class _WithStepFields(Frozen):
    """Fields of its own, and those of a step beside them."""

    BESIDE: ClassVar[frozenset[str]] = STEP_FIELDS
    """Which fields of a step may stand in a file beside the model's own."""
    step: dict[str, Any] = Field(default_factory=dict)
    """Step fields; in a file they stand beside the others."""

    @model_validator(mode="before")
    @classmethod
    def _gather_step_fields(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        known = STEP_FIELDS | {FORMER_AGENT}
        own = {name: value[name] for name in value if name not in known}
        given = {name: value[name] for name in value if name in known}
        step = own.get("step")
        whole = {**(step if isinstance(step, Mapping) else {}), **given}
        return {**own, "step": with_agent(whole)}

    @model_validator(mode="after")
    def _makes_a_step(self) -> _WithStepFields:
        if unknown := sorted(self.step.keys() - STEP_FIELDS):
            raise ValueError(f"{unknown[0]!r} is not a field that a task may set")
        Step.model_validate({"name": "checked", **self.step})
        return self


class Role(_WithStepFields):
    """What the tasks of one kind have in common: a set of step fields, and what they may touch."""

    writes: bool = False
    """Its tasks change files of the checkout; a change by any other is reported."""
    worktree: bool = False
    """Its tasks get a git worktree and a branch of their own, where there is a repository."""
    budget: Budget = Budget()
    """Of all tasks of the role together."""


class Task(_WithStepFields):
    """One piece of work for one agent, and what has to be done before it."""

    id: TaskId
    subject: str = Field(min_length=1, max_length=500)
    description: str = Field(default="", max_length=1_048_576)
    """What the agent is told to do; no templates are looked for in it."""
    active_form: str = Field(default="", max_length=500)
    """What is going on while it runs: "Running the tests"."""
    blocked_by: tuple[TaskId, ...] = ()
    """Ids of the tasks that have to end before it."""
    needs: Needs = "all"
    """How many of those, and of what they add, have to be done; the others may have failed."""
    role: Name | None = None
    weight: float = Field(default=1.0, gt=0, le=1e9, allow_inf_nan=False)
    """How long it takes, compared with the others: for the critical path."""
    writes: bool | None = None
    """None: as its role has it."""
    worktree: bool | None = None
    adds: Adds | None = None
    """Its answer names tasks that are added to the run, or sub-issues, each of which becomes
    a task that implements it and one that verifies it."""
    budget: Budget = Budget()


class TeamBudget(Budget):
    """``teams.budget:``, of the whole team."""

    soft: float = Field(default=0.8, gt=0, le=1)
    """The part of a cap at which a warning is given."""
    on_hard: Literal["finish", "kill"] = "finish"
    """What becomes of tasks that run when a cap is reached; none is started in either case."""


class SharedRules(Frozen):
    """What ``teams:`` says of how a team works."""

    budget: TeamBudget = TeamBudget()
    max_failures: int = Field(default=5, ge=1, le=10_000)
    """Failed attempts in a row, over all tasks, after which no task is started."""
    max_tasks: int = Field(default=200, ge=1, le=MAX_TASKS)
    """Of a run, those that were added under way included."""
    merge: MergeOrder = "auto"
    """The order in which the results of worktrees that run at once are merged: as the tasks
    stand in the list, as they are finished, or as listed wherever nothing has to wait for it."""
    on_write: Literal["warn", "fail"] = "warn"
    """What a change of the checkout by a task that only reads is."""
    fallback_agent: Name | None = None
    """Tries a task once more when all its attempts have failed."""
    fallback_model: ModelName | None = None
    """The model of that attempt."""


class TeamRules(SharedRules):
    """How a team works; read from the settings at each start, so that a cap can be raised."""

    role_budgets: dict[Name, Budget] = Field(default_factory=dict)

    @property
    def has_fallback(self) -> bool:
        """Return whether a task is tried once more, by somebody else."""
        return self.fallback_agent is not None or self.fallback_model is not None

    def replaced(self, step: Step) -> Step:
        """Return *step* as it is tried once more."""
        fields: dict[str, Any] = {"model": self.fallback_model}
        if self.fallback_agent is not None:
            # A model of another vendor would be no model to it.
            fields |= {"agent": self.fallback_agent, "provider": None}
        return step.replace(**fields)
