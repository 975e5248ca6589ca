"""A workflow that is another one with changes: steps altered, added, taken out.

The changes name the steps of the workflow that is extended, as it is before any of them is
made, so that their order in the file has no meaning. Pure: where a definition stands in
a file is told by a function that the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.model.step import Name, Step
from sequencer.model.workflow import Review, Workflow

KeyPath = tuple[str | int, ...]


Locate = Callable[[KeyPath], str]
"""From a key's path to the place where it was written."""
Found = tuple[KeyPath, ConfigurationError]


def step_from_name(value: object) -> object:
    """Return what *value* means where a step may be written as its name alone."""
    return {"name": value} if isinstance(value, str) else value


def _refuse_name(_value: object) -> object:
    raise ValueError("a step keeps its name; to have another one there, remove it and add yours")


class StepChange(Step):
    """Fields of a step that are to be different; those left out stay as they are."""

    name: Annotated[Name, BeforeValidator(_refuse_name)] = Field(default="change", exclude=True)

    @model_validator(mode="after")
    def _approval_has_a_gate(self) -> Self:
        """Leave the question to the changed step: its gate may be the old one's."""
        return self

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields that were written down, by name."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Changes(BaseModel):
    """What one entry of ``workflows:`` changes in the workflow that it extends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    extends: Name | None = None
    """A workflow; the own name means the built-in one."""
    replace: dict[Name, StepChange] = {}
    """By step: other values for some of its fields. Reaches reviews and fixers too."""
    before: dict[Name, tuple[Step, ...]] = {}
    after: dict[Name, tuple[Step, ...]] = {}
    remove: tuple[Name, ...] = ()

    @field_validator("before", "after", mode="before")
    @classmethod
    def _accept_names_of_steps(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {
            place: [step_from_name(item) for item in steps]
            if isinstance(steps, (list, tuple))
            else steps
            for place, steps in value.items()
        }

    @model_validator(mode="after")
    def _changes_change_something(self) -> Self:
        written = sorted(_CHANGES & self.model_fields_set)
        if self.extends is None and written:
            names = " and ".join(written)
            raise PydanticCustomError(
                "extends_missing", "{names} without extends: which workflow?", {"names": names}
            )
        return self

    def added_steps(self) -> Iterator[tuple[KeyPath, Step]]:
        """Yield each step that is added, with its path below the definition."""
        for key, added in (("before", self.before), ("after", self.after)):
            for place, steps in added.items():
                for index, step in enumerate(steps):
                    yield (key, place, index), step


_CHANGES = frozenset(Changes.model_fields) - {"extends"}


class Extension:
    """One look at a workflow and the changes to it; every problem is kept, not the first.

    >>> base = Workflow("base", [Step(name="a"), Step(name="b")])
    >>> changes = Changes.model_validate({"extends": "base", "before": {"b": ["x"]}})
    >>> extension = Extension(base, changes, str)
    >>> [step.name for step in extension.workflow("own").steps], extension.problems
    (['a', 'x', 'b'], [])
    """

    def __init__(self, base: Workflow, changes: Changes, locate: Locate) -> None:
        """Prepare to change *base*; *locate* takes paths below the definition."""
        self.problems: list[Found] = []
        self._base = base
        self._changes = changes
        self._locate = locate

    def workflow(self, name: str) -> Workflow | None:
        """Return the changed workflow as *name*; None where `problems` say why there is none."""
        self._ensure_known()
        changes, base = self._changes, self._base
        steps: list[Step] = []
        for step in base.steps:
            steps += changes.before.get(step.name, ())
            if step.name not in changes.remove:
                steps.append(self._changed(step))
            steps += changes.after.get(step.name, ())
        review = base.review
        if review is not None:
            review = Review(every=review.every, step=self._changed(review.step))
        if not steps:
            self._refuse(("remove",), "takes every step out, so that nothing is left to run")
        if self.problems:
            return None
        try:
            return Workflow(name, tuple(steps), review, base.kind, description=base.description)
        except ValidationError as refused:
            self._refuse((), _first(refused))
            return None

    def _refuse(self, path: KeyPath, message: str, hint: str | None = None) -> None:
        error = ConfigurationError(message, where=self._locate(path), hint=hint)
        self.problems.append((path, error))

    def _ensure_known(self) -> None:
        changes = self._changes
        places = [step.name for step in self._base.steps]
        fields = [step.name for step in with_fields(self._base)]
        asked: list[tuple[KeyPath, str, list[str]]] = [
            *((("replace", name), name, fields) for name in changes.replace),
            *((("before", name), name, places) for name in changes.before),
            *((("after", name), name, places) for name in changes.after),
            *((("remove", index), name, places) for index, name in enumerate(changes.remove)),
        ]
        for path, name, known in asked:
            if name not in known:
                kind = f"{self._base.name} step"
                error = UnknownName(kind, name, known, where=self._locate(path))
                self.problems.append((path, error))
        for name in changes.replace:
            if name in changes.remove:
                self._refuse(("replace", name), f"step {name!r} is changed here and removed too")

    def _changed(self, step: Step) -> Step:
        change = self._changes.replace.get(step.name)
        if change is not None:
            try:
                step = _merged(step, change.fields)
            except ValidationError as refused:
                message = f"step {step.name!r} can't be changed so: {_first(refused)}"
                hint = "what is not written here stays as it was; null takes a field away"
                self._refuse(("replace", step.name), message, hint)
        fixer = step.validation.fixer if step.validation is not None else None
        if fixer is not None:
            changed = self._changed(fixer)
            if changed is not fixer:
                written = {"fixer": changed.model_dump(exclude_unset=True, by_alias=True)}
                step = _merged(step, {"validation": written})
        return step


def with_fields(workflow: Workflow) -> Iterator[Step]:
    """Yield every step of *workflow*, its review and the fixers of both included."""
    review = () if workflow.review is None else (workflow.review.step,)
    for step in (*workflow.steps, *review):
        yield step
        if step.validation is not None and step.validation.fixer is not None:
            yield step.validation.fixer


def _merged(step: Step, fields: Mapping[str, Any]) -> Step:
    """Return *step* with *fields* laid over it, those of its sections one by one.

    Only what was written down is carried over, so that step defaults fill the same gaps.
    """
    written = step.model_dump(exclude_unset=True, by_alias=True)
    for field, value in fields.items():
        is_section = isinstance(value, BaseModel)
        new = value.model_dump(exclude_unset=True, by_alias=True) if is_section else value
        old = written.get(field)
        written[field] = {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
    return Step.model_validate(written)


def _first(refused: ValidationError) -> str:
    return str(refused.errors()[0]["msg"]).removeprefix("Value error, ")
