"""The format of a task in a file: its own fields and a step's fields, side by side.

An entry is a step without a name and a gate. So an error in a step's field names that field, and
an unknown field gets the nearest name of both kinds as a hint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import AfterValidator, BeforeValidator, Field, model_validator
from sequencer.model.graph.task import MAX_TASKS, Budget, Needs
from sequencer.model.step import Approval, Name, Step, Validation
from sequencer.plugins.teams.team import STEP_FIELDS, TASK_ID, Task

MAX_SIZE = 1000
"""Maximum size of a team: the number of parallel tasks."""
FIX = "fix"
"""The name of a fixer without a name."""


def _number_to_text(value: object) -> object:
    """Return an id as text if YAML has read it as a number."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else value


def _ensure_id_form(name: str) -> str:
    if re.fullmatch(TASK_ID, name) is None:
        raise ValueError(
            "an id has letters, digits, '.', '_' and '-', and a letter or digit at both ends"
        )
    return name


def _split_ids(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # A single id that YAML has read as a number.
        return [value]
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _refuse_name(_value: object) -> object:
    raise ValueError("a task has an id instead of a name")


def _refuse_gate(_value: object) -> object:
    raise ValueError("a task can't wait for a person; a flowchart can")


def _with_fixer_name(value: object) -> object:
    """Return a validation whose fixer has a name; the task made from it gets another name."""
    fixer = value.get("fixer") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(fixer, Mapping):
        return value
    return {**value, "fixer": {"name": FIX, **fixer}}


_Id = Annotated[
    str,
    Field(max_length=80),
    AfterValidator(_ensure_id_form),
    BeforeValidator(_number_to_text),
]
"""A `TaskId` whose error explains the form."""


class TaskEntry(Step):
    """One task of a list; see `plugins.teams.team.Task` for the fields."""

    name: Annotated[Name, BeforeValidator(_refuse_name)] = Field(default="task", exclude=True)
    requires_approval: Annotated[bool, BeforeValidator(_refuse_gate)] = Field(
        default=False, exclude=True
    )
    approval: Annotated[Approval | None, BeforeValidator(_refuse_gate)] = Field(
        default=None, exclude=True
    )
    validation: Annotated[Validation | None, BeforeValidator(_with_fixer_name)] = None
    id: _Id
    subject: str = Field(min_length=1, max_length=500)
    description: str = Field(default="", max_length=1_048_576)
    active_form: str = Field(default="", max_length=500)
    blocked_by: Annotated[tuple[_Id, ...], BeforeValidator(_split_ids)] = ()
    """A list, or ids separated by commas."""
    needs: Needs = "all"
    role: Name | None = None
    weight: float = Field(default=1.0, gt=0, le=1e9)
    writes: bool | None = None
    worktree: bool | None = None
    adds: Literal["tasks", "sub-issues"] | None = None
    budget: Budget = Budget()

    def as_task(self) -> Task:
        """Return the task; it sets only the step fields that are in the file."""
        field_names = self.model_fields_set
        task_fields = {name: getattr(self, name) for name in field_names - STEP_FIELDS}
        step_fields = set(field_names & STEP_FIELDS)
        step = self.model_dump(include=step_fields, exclude_unset=True, by_alias=True)
        return Task.model_validate({**task_fields, "step": step})


Size = Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)]
Entries = Annotated[tuple[TaskEntry, ...], Field(max_length=MAX_TASKS)]


class ListFile(Frozen):
    """The keys of a file that is a list of tasks."""

    kind: Literal["team"] = "team"
    """Marks a Markdown file as a task list even if it contains a chart."""
    name: Name | None = None
    """Name of the workflow; absent: the file's name."""
    title: str = Field(default="", max_length=500)
    description: str = Field(default="", max_length=1_048_576)
    size: Size | None = None
    """Number of parallel tasks."""
    tasks: Annotated[Entries, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _tasks_are_there(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("tasks") is None:
            raise ValueError("it has no tasks; list at least one below 'tasks'")
        return value

    def as_tasks(self) -> tuple[Task, ...]:
        """Return the tasks, in order."""
        return tuple(entry.as_task() for entry in self.tasks)
