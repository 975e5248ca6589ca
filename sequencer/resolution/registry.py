"""Which workflows there are: the built-in ones and those of orchestration.yaml.

A workflow comes out as its author wrote it, because the digest that a run keeps is
computed on that; step defaults are laid over one step at a time, just before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from sequencer.errors import UnknownName
from sequencer.model.step import Purpose, Step
from sequencer.model.workflow import Review, Workflow
from sequencer.resolution.extension import Changes, step_from_name
from sequencer.resolution.procedures import PROCEDURES, builtin_procedure
from sequencer.resolution.teams.entries import Entries, Size

if TYPE_CHECKING:
    from sequencer.model.team import Role, Task
    from sequencer.resolution.teams.lists import TaskList
    from sequencer.workflows.flowfile.reader import Flow


@dataclass(frozen=True, slots=True)
class BuiltinPrompts:
    """Prompt files of the built-in workflows' steps."""

    supervisor: str = "supervisor.md"
    main: str = "main.md"
    reviewer: str = "reviewer.md"


class BuiltinWorkflows(Mapping[str, Workflow]):
    """The workflows that exist without a line of configuration; each is built when asked for.

    ``standard2`` and ``review_cadence2`` keep their own supervisor and main prompts; of
    *prompts* only the reviewer's reaches them.

    >>> [step.prompt for step in BuiltinWorkflows(BuiltinPrompts())["standard2"].steps]
    ['supervisor2.md', 'main2.md']
    """

    def __init__(self, prompts: BuiltinPrompts) -> None:
        """Use *prompts* for the steps of the cycles."""
        first, second = (prompts.supervisor, prompts.main), ("supervisor2.md", "main2.md")
        self._cycles = {
            "standard": (*first, None),
            "review_cadence": (*first, prompts.reviewer),
            "standard2": (*second, None),
            "review_cadence2": (*second, prompts.reviewer),
        }
        self._built: dict[str, Workflow] = {}

    def __getitem__(self, name: str) -> Workflow:
        """Return the workflow called *name*."""
        if name in PROCEDURES:
            return builtin_procedure(name)
        if name not in self._built:
            supervisor, main, reviewer = self._cycles[name]
            steps = (
                Step(name="supervisor", prompt=supervisor, description="Chooses what is done next"),
                Step(name="main", prompt=main, description="Does it"),
            )
            looks = "Looks at what the last cycles have done"
            step = Step(name="reviewer", prompt=reviewer, description=looks)
            about = "A supervisor and a worker take turns, without end"
            self._built[name] = Workflow(
                name, steps, Review(step=step) if reviewer else None, description=about
            )
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a workflow called *name*, without building it."""
        return name in self._cycles or name in PROCEDURES

    def __iter__(self) -> Iterator[str]:
        """Yield the names, cycles first."""
        yield from self._cycles
        yield from PROCEDURES

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._cycles) + len(PROCEDURES)


class ReviewDefinition(BaseModel):
    """``review:`` of a workflow definition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Cycles; 0 or less means never."""
    step: Step

    @field_validator("step", mode="before")
    @classmethod
    def _accept_a_name(cls, value: object) -> object:
        return step_from_name(value)


_NO_STEPS = {"field_type": "Tuple", "min_length": 1, "actual_length": 0}


class WorkflowDefinition(Changes):
    """One entry of ``workflows:``; a step may be written as its name alone.

    >>> raw = {"steps": ["plan", {"name": "build", "timeout_s": 60}]}
    >>> [step.prompt_name for step in WorkflowDefinition.model_validate(raw).named("demo").steps]
    ['plan.md', 'build.md']
    """

    steps: tuple[Step, ...] = Field(max_length=10_000)
    """At least one, unless the definition extends another one, which brings its own."""
    review: ReviewDefinition | None = None
    kind: Literal["cycle", "procedure"] = "cycle"
    description: Purpose = ""
    """What it is for, in a line; of one that extends another, the other's if it has none."""
    file: str | None = Field(default=None, min_length=1, max_length=4096)
    """The file of a flowchart or of a list of tasks, relative to the project's folder; all
    else is in there."""
    tasks: Entries = ()
    """Of a team: a graph whose nodes they are."""
    size: Size | None = None
    """Of a team: tasks at once."""

    @model_validator(mode="before")
    @classmethod
    def _accept_a_file_name(cls, value: object) -> object:
        if isinstance(value, str):
            return {"file": value, "steps": ()}
        if not isinstance(value, (Mapping, WorkflowDefinition)):
            raise ValueError(f"a workflow is a mapping with 'steps', or a file, not {value!r}")  # noqa: TRY004 - pydantic collects ValueErrors
        own = {*Changes.model_fields, "file", "tasks", "size"}
        if isinstance(value, Mapping) and "steps" not in value and own & value.keys():
            return {**value, "steps": ()}
        return value

    @model_validator(mode="after")
    def _makes_a_workflow(self) -> WorkflowDefinition:
        if self.file is not None:
            if others := sorted(self.model_fields_set - {"file", "steps"}) or self.steps:
                names = ", ".join(map(str, others)) if isinstance(others, list) else "steps"
                raise ValueError(f"{names} can't stand beside file, which has all of it")
            return self
        if {"tasks", "size"} & self.model_fields_set:
            return self._is_a_team()
        if self.extends is not None:
            own = ["steps"] * bool(self.steps) + ["kind"] * ("kind" in self.model_fields_set)
            if own:
                names = " and ".join(own)
                raise ValueError(f"{names} can't stand beside extends, which brings its own")
            return self
        if not self.steps:
            raise PydanticKnownError("too_short", _NO_STEPS)
        try:
            self.named("checked")
        except ValidationError as error:
            raise ValueError(str(error.errors()[0]["ctx"]["error"])) from error
        return self

    def _is_a_team(self) -> WorkflowDefinition:
        others = sorted(self.model_fields_set - {"tasks", "size", "steps"}) + ["steps"] * bool(
            self.steps
        )
        if others:
            raise ValueError(f"{' and '.join(others)} can't stand beside tasks")
        if not self.tasks:
            raise ValueError("there is no task in it; list at least one below 'tasks'")
        return self

    def as_tasks(self) -> tuple[Task, ...]:
        """Return the tasks of a team, in order; none: it is another kind of workflow."""
        return tuple(entry.as_task() for entry in self.tasks)

    @field_validator("steps", mode="before")
    @classmethod
    def _accept_names(cls, value: object) -> object:
        if value == []:
            raise PydanticKnownError("too_short", _NO_STEPS)
        if isinstance(value, (list, tuple)):
            return [step_from_name(item) for item in value]
        return value

    def named(self, name: str) -> Workflow:
        """Return the workflow that this defines under *name*, if it extends no other.

        Raises:
            ValueError: see `Workflow`; pydantic's ``ValidationError`` is one.
        """
        review = Review(every=self.review.every, step=self.review.step) if self.review else None
        return Workflow(name, self.steps, review, self.kind, description=self.description)


class Registry:
    """The workflows that a project can run, by name; the same names always mean the same."""

    def __init__(
        self,
        configured: Mapping[str, Workflow] | None = None,
        prompts: BuiltinPrompts | None = None,
        flows: Mapping[str, Path] | None = None,
        *,
        lists: Mapping[str, TaskList] | None = None,
        roles: Callable[[], Mapping[str, Role]] | None = None,
    ) -> None:
        """Hold the built-in workflows and *configured*, which replace those of the same name.

        *flows* are the files of flowcharts and lists of tasks; each is read when its workflow
        is first asked for. *lists* are configured lists of tasks. *roles* is called when
        the first task needs its role; None: the roles are the built-in ones.
        """
        self.lists = dict(lists or {})
        self._configured = {
            **(configured or {}),
            **{name: made.workflow for name, made in self.lists.items()},
        }
        self.flows = dict(flows or {})
        self._builtin = BuiltinWorkflows(prompts or BuiltinPrompts())
        self._make_roles = roles
        self._read: dict[tuple[Path, str | None], tuple[object, Flow | TaskList]] = {}

    @cached_property
    def roles(self) -> Mapping[str, Role]:
        """Return the roles that tasks may have."""
        from sequencer.resolution.teams.roles import builtin_roles  # noqa: PLC0415 - teams only

        return builtin_roles() if self._make_roles is None else self._make_roles()

    @property
    def names(self) -> tuple[str, ...]:
        """Return every known name, in order."""
        return tuple(sorted({*self._builtin, *self._configured, *self.flows}))

    @property
    def procedure_names(self) -> tuple[str, ...]:
        """Return the names of the procedures, in order; none is built for it."""
        found = set(PROCEDURES) - self._configured.keys() - self.flows.keys()
        found |= {name for name, made in self._configured.items() if made.kind == "procedure"}
        return tuple(sorted(found))

    def get(self, name: str, *, where: str | None = None) -> Workflow:
        """Return the workflow called *name*, as it was written, without step defaults.

        Raises:
            UnknownName: nobody defined it; *where* says who asked.
            ConfigurationError: its file can't be read, or is no workflow.
        """
        found = self._configured.get(name)
        if found is not None:
            return found
        if name in self.flows:
            self._configured[name] = self.load(self.flows[name], name=name).workflow
            return self._configured[name]
        if name not in self._builtin:
            raise UnknownName("workflow", name, self.names, where=where)
        return self._builtin[name]

    def load(self, path: Path, *, name: str | None = None) -> Flow | TaskList:
        """Return the graph of the file *path*, a flowchart or a list of tasks, called *name*.

        A file that looks as it did the last time is not read again.

        Raises:
            ConfigurationError: it can't be read, or has something that can't be run.
        """
        # Before it is read: what is written meanwhile is seen the next time.
        looks = _looks(path)
        kept = self._read.get((path, name))
        if kept is None or looks is None or kept[0] != looks:
            kept = looks, self._load(path, name)
            # Asked for by the name that it gives itself, it is the same.
            self._read[path, name] = self._read[path, kept[1].workflow.name] = kept
        return kept[1]

    def is_as_read(self, path: Path, *, name: str | None = None) -> bool:
        """Return whether the file *path* is as it was when it was loaded as *name*."""
        kept = self._read.get((path, name))
        return kept is not None and kept[0] == _looks(path)

    def _load(self, path: Path, name: str | None) -> Flow | TaskList:
        from sequencer.resolution.teams.reading import (  # noqa: PLC0415 - graphs only
            has_tasks,
            load_tasks,
            page_of,
        )

        text = page_of(path)
        if has_tasks(path, text):
            return load_tasks(path, self.roles, name=name, text=text)
        from sequencer.workflows.flowfile.reader import load_flow  # noqa: PLC0415 - few need it

        return load_flow(path, name=name, text=text)


def _looks(path: Path) -> tuple[int, ...] | None:
    """Return what tells the file *path* from what it was before; None: it is not there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def with_defaults(step: Step, defaults: Mapping[str, Any]) -> Step:
    """Return *step* with *defaults* for the fields that its author left out.

    A field that was written down stays, even if it holds the value that it would have
    anyway: ``timeout_s: null`` is how a step says that it has no time limit.

    >>> with_defaults(Step(name="a", model="x"), {"model": "y", "max_turns": 3}).model
    'x'
    """
    missing = {field: defaults[field] for field in defaults if field not in step.model_fields_set}
    return step.model_copy(update=missing) if missing else step
