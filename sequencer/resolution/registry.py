"""Which workflows there are: the built-in ones and those of orchestration.yaml.

A workflow comes out as its author wrote it, because the digest that a run keeps is
computed on that; step defaults are laid over one step at a time, just before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from sequencer.errors import UnknownName
from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow


@dataclass(frozen=True, slots=True)
class BuiltinPrompts:
    """Prompt files of the built-in workflows' steps."""

    supervisor: str = "supervisor.md"
    main: str = "main.md"
    reviewer: str = "reviewer.md"


def builtin_workflows(prompts: BuiltinPrompts) -> dict[str, Workflow]:
    """Return the workflows that exist without a line of configuration.

    ``standard2`` and ``review_cadence2`` keep their own supervisor and main prompts; of
    *prompts* only the reviewer's reaches them.

    >>> sorted(builtin_workflows(BuiltinPrompts()))
    ['review_cadence', 'review_cadence2', 'standard', 'standard2']
    """
    first = (
        Step(name="supervisor", prompt=prompts.supervisor),
        Step(name="main", prompt=prompts.main),
    )
    second = (
        Step(name="supervisor", prompt="supervisor2.md"),
        Step(name="main", prompt="main2.md"),
    )
    review = Review(every=0, step=Step(name="reviewer", prompt=prompts.reviewer))
    found = (
        Workflow("standard", first),
        Workflow("review_cadence", first, review),
        Workflow("standard2", second),
        Workflow("review_cadence2", second, review),
    )
    return {workflow.name: workflow for workflow in found}


def _step_from_name(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class ReviewDefinition(BaseModel):
    """``review:`` of a workflow definition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Cycles; 0 or less means never."""
    step: Step

    @field_validator("step", mode="before")
    @classmethod
    def _accept_a_name(cls, value: object) -> object:
        return _step_from_name(value)


class WorkflowDefinition(BaseModel):
    """One entry of ``workflows:``; a step may be written as its name alone.

    >>> raw = {"steps": ["plan", {"name": "build", "timeout_s": 60}]}
    >>> [step.prompt_name for step in WorkflowDefinition.model_validate(raw).named("demo").steps]
    ['plan.md', 'build.md']
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[Step, ...] = Field(min_length=1, max_length=10_000)
    review: ReviewDefinition | None = None
    kind: Literal["cycle", "procedure"] = "cycle"

    @model_validator(mode="before")
    @classmethod
    def _refuse_a_file_name(cls, value: object) -> object:
        if not isinstance(value, (Mapping, WorkflowDefinition)):
            raise ValueError(f"a workflow is a mapping with 'steps', not {value!r}")  # noqa: TRY004 - pydantic collects ValueErrors
        return value

    @model_validator(mode="after")
    def _makes_a_workflow(self) -> WorkflowDefinition:
        try:
            self.named("checked")
        except ValidationError as error:
            raise ValueError(str(error.errors()[0]["ctx"]["error"])) from error
        return self

    @field_validator("steps", mode="before")
    @classmethod
    def _accept_names(cls, value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [_step_from_name(item) for item in value]
        return value

    def named(self, name: str) -> Workflow:
        """Return the workflow that this defines under *name*.

        Raises:
            ValueError: see `Workflow`; pydantic's ``ValidationError`` is one.
        """
        review = Review(every=self.review.every, step=self.review.step) if self.review else None
        return Workflow(name, self.steps, review, self.kind)


class Registry:
    """The workflows that a project can run, by name; never changes after it is built."""

    def __init__(
        self,
        configured: Mapping[str, Workflow] | None = None,
        prompts: BuiltinPrompts | None = None,
    ) -> None:
        """Hold the built-in workflows and *configured*, which replace those of the same name."""
        known = builtin_workflows(prompts or BuiltinPrompts())
        self._workflows = MappingProxyType(known | dict(configured or {}))

    @property
    def names(self) -> tuple[str, ...]:
        """Return every known name, in order."""
        return tuple(sorted(self._workflows))

    def get(self, name: str, *, where: str | None = None) -> Workflow:
        """Return the workflow called *name*, as it was written, without step defaults.

        Raises:
            UnknownName: nobody defined it; *where* says who asked.
        """
        found = self._workflows.get(name)
        if found is None:
            raise UnknownName("workflow", name, self._workflows, where=where)
        return found


def with_defaults(step: Step, defaults: Mapping[str, Any]) -> Step:
    """Return *step* with *defaults* for the fields that its author left out.

    A field that was written down stays, even if it holds the value that it would have
    anyway: ``timeout_s: null`` is how a step says that it has no time limit.

    >>> with_defaults(Step(name="a", model="x"), {"model": "y", "max_turns": 3}).model
    'x'
    """
    missing = {field: defaults[field] for field in defaults if field not in step.model_fields_set}
    return step.model_copy(update=missing) if missing else step
