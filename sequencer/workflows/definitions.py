"""Entries of ``workflows:``, and the workflows that they define.

An entry lists its steps, or extends another workflow and changes it. All changes name steps of
the original workflow, so their order in the file does not matter. Pure: the caller passes a
function that returns the place of an entry in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Self

from sequencer import extensions
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import (
    AfterValidator,
    BeforeValidator,
    Field,
    LazySpec,
    Refusal,
    ValidationError,
    describe_value,
    ensure_mapping,
    model_validator,
)
from sequencer.model.step import Name, Purpose, Step
from sequencer.model.workflow import Review, Workflow
from sequencer.workflows.finding import InlineFormat, shorten_links

LINES = ("cycle", "procedure")
"""Kinds of workflows whose steps run one after the other."""
KeyPath = tuple[str | int, ...]


Locate = Callable[[KeyPath], str]
"""Maps the path of a key to the place where it was written."""
LocatedError = tuple[KeyPath, ConfigurationError]
"""The key with the wrong value, and the error."""


def _step_from_name(value: object) -> object:
    if isinstance(value, str):
        return {"name": value}
    return ensure_mapping(value, "the name of a step")


StepEntry = Annotated[Step, BeforeValidator(_step_from_name)]
"""A step; the name alone is enough."""


def _refuse_name(_value: object) -> object:
    raise ValueError("you can't rename a step; remove it and add your own")


class StepChange(Step):
    """Fields of a step that change; fields that are left out stay the same."""

    name: Annotated[Name, BeforeValidator(_refuse_name)] = Field(default="change", exclude=True)

    @model_validator(mode="after")
    def _ensure_approval_gate(self) -> Self:
        """Accept it: the gate may be in the original step. The changed step is checked later."""
        return self

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields that the author wrote, by name."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class WorkflowChanges(Frozen):
    """The changes of one entry of ``workflows:`` to the workflow that it extends."""

    extends: Name | None = None
    """A workflow; the entry's own name means the built-in workflow of that name."""
    replace: dict[Name, StepChange] = Field(default_factory=dict)  # type: ignore[assignment]
    """Step -> other values for some of its fields. Reviews and fixers count as steps."""
    before: dict[Name, tuple[StepEntry, ...]] = Field(default_factory=dict)
    after: dict[Name, tuple[StepEntry, ...]] = Field(default_factory=dict)
    remove: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _ensure_extends(self) -> Self:
        fields = sorted(_CHANGES & self.model_fields_set)
        if self.extends is None and fields:
            names = " and ".join(fields)
            raise Refusal(
                "extends_missing",
                {"names": names},
                "{names} without extends; name the workflow to change",
            )
        return self

    def added_steps(self) -> Iterator[tuple[KeyPath, Step]]:
        """Yield each step that is added, with its path inside the definition."""
        for key, steps_by_neighbor in (("before", self.before), ("after", self.after)):
            for neighbor, steps in steps_by_neighbor.items():
                for index, step in enumerate(steps):
                    yield (key, neighbor, index), step


_CHANGES = frozenset(WorkflowChanges.model_fields) - {"extends"}


class Extension:
    """Applies changes to a workflow and collects every problem, not only the first.

    >>> base = Workflow("base", [Step(name="a"), Step(name="b")])
    >>> changes = WorkflowChanges.model_validate({"extends": "base", "before": {"b": ["x"]}})
    >>> extension = Extension(base, changes, str)
    >>> [step.name for step in extension.build_workflow("own").steps], extension.problems
    (['a', 'x', 'b'], [])
    """

    def __init__(self, base: Workflow, changes: WorkflowChanges, locate: Locate) -> None:
        """Prepare to change *base*; *locate* takes paths inside the definition."""
        self.problems: list[LocatedError] = []
        self._base = base
        self._changes = changes
        self._locate = locate

    def build_workflow(self, name: str) -> Workflow | None:
        """Return the changed workflow under *name*; None if there are `problems`."""
        self._check_references()
        changes, base = self._changes, self._base
        steps: list[Step] = []
        for step in base.steps:
            steps += changes.before.get(step.name, ())
            if step.name not in changes.remove:
                steps.append(self._change_step(step))
            steps += changes.after.get(step.name, ())
        review = base.review
        if review is not None:
            review = Review(every=review.every, step=self._change_step(review.step))
        if not steps:
            self._refuse(("remove",), "removes every step, so nothing is left to run")
        if self.problems:
            return None
        try:
            return Workflow(name, tuple(steps), review, base.kind, description=base.description)
        except ValidationError as error:
            self._refuse((), _first_message(error))
            return None

    def _refuse(self, path: KeyPath, message: str, hint: str | None = None) -> None:
        error = ConfigurationError(message, where=self._locate(path), hint=hint)
        self.problems.append((path, error))

    def _check_references(self) -> None:
        changes = self._changes
        steps = [step.name for step in self._base.steps]
        every_step = [step.name for step in self._base.every_step]
        references: list[tuple[KeyPath, str, list[str]]] = [
            *((("replace", name), name, every_step) for name in changes.replace),
            *((("before", name), name, steps) for name in changes.before),
            *((("after", name), name, steps) for name in changes.after),
            *((("remove", index), name, steps) for index, name in enumerate(changes.remove)),
        ]
        for path, name, known_names in references:
            if name not in known_names:
                kind = f"{self._base.name} step"
                error = UnknownName(kind, name, known_names, where=self._locate(path))
                self.problems.append((path, error))
        for name in changes.replace:
            if name in changes.remove:
                self._refuse(("replace", name), f"step {name!r} is changed here, but also removed")

    def _change_step(self, step: Step) -> Step:
        change = self._changes.replace.get(step.name)
        if change is not None:
            try:
                step = _merge_fields(step, change.fields)
            except ValidationError as error:
                message = f"step {step.name!r} can't be changed like this: {_first_message(error)}"
                hint = "a field that you leave out stays as it was; null removes a field"
                self._refuse(("replace", step.name), message, hint)
        fixer = step.validation.fixer if step.validation is not None else None
        if fixer is not None:
            new_fixer = self._change_step(fixer)
            if new_fixer is not fixer:
                section = {"fixer": new_fixer.model_dump(exclude_unset=True, by_alias=True)}
                step = _merge_fields(step, {"validation": section})
        return step


def _merge_fields(step: Step, fields: Mapping[str, Any]) -> Step:
    """Return *step* with *fields*; a section keeps the keys that *fields* leaves out.

    Only fields that the author wrote are copied, so that step defaults apply to the same fields
    as before.
    """
    merged_fields = step.model_dump(exclude_unset=True, by_alias=True)
    for field, value in fields.items():
        is_section = isinstance(value, Frozen)
        new_value = value.model_dump(exclude_unset=True, by_alias=True) if is_section else value
        old_value = merged_fields.get(field)
        merged_fields[field] = (
            {**old_value, **new_value}
            if isinstance(old_value, dict) and isinstance(new_value, dict)
            else new_value
        )
    return Step.model_validate(merged_fields)


def _first_message(error: ValidationError) -> str:
    return str(error.errors()[0]["msg"])


class ReviewDefinition(Review):
    """``review:`` of a workflow definition."""

    step: StepEntry = Field(default=Step(name="reviewer"))
    agent: Name | None = None
    """The agent that performs it, if its step names none."""

    @property
    def whole(self) -> Review:
        """Return the review with its agent."""
        step = self.step
        if self.agent is not None and step.agent is None:
            step = step.replace(agent=self.agent)
        return Review(every=self.every, step=step)


_NO_STEPS = {"field_type": "Tuple", "min_length": 1, "actual_length": 0}


def _refuse_an_empty_list(value: object) -> object:
    if value == []:
        raise Refusal("too_short", _NO_STEPS)
    return value


def _ensure_known_kind(kind: str) -> str:
    # Search the packages only for an unknown word, because that takes long.
    if kind not in LINES and not extensions.has_provider(extensions.KINDS, kind):
        known_kinds = (*LINES, *extensions.names(extensions.KINDS))
        raise Refusal.from_unknown_name("workflow kind", kind, known_kinds)
    return kind


class WorkflowDefinition(WorkflowChanges):
    """One entry of ``workflows:``; for a step, its name alone is enough.

    >>> raw = {"steps": ["plan", {"name": "build", "timeout_s": 60}]}
    >>> definition = WorkflowDefinition.model_validate(raw)
    >>> [step.prompt_name for step in definition.build_workflow("demo").steps]
    ['plan.md', 'build.md']
    """

    steps: Annotated[
        tuple[StepEntry, ...], Field(max_length=10_000), BeforeValidator(_refuse_an_empty_list)
    ]
    """At least one, unless the definition extends another one, whose steps it gets."""
    review: ReviewDefinition | None = None
    kind: Annotated[Name, AfterValidator(_ensure_known_kind)] = "cycle"
    description: Purpose = ""
    """The purpose in one line; default: the description of the workflow that it extends."""
    file: str | None = Field(default=None, min_length=1, max_length=4096)
    """The file of a flowchart or a task list, relative to the project's folder; the file has
    everything else."""

    @model_validator(mode="before")
    @classmethod
    def _accept_a_file_name(cls, value: object) -> object:
        if isinstance(value, str):
            return {"file": value, "steps": ()}
        if not isinstance(value, (Mapping, WorkflowDefinition)):
            kind = describe_value(value)
            raise ValueError(f"a workflow is a mapping with 'steps', or a file, not {kind}")  # noqa: TRY004 - pydantic collects ValueErrors
        other_keys = {*WorkflowChanges.model_fields, "file", *_INLINE_KEYS}
        if isinstance(value, Mapping) and "steps" not in value and other_keys & value.keys():
            return {**value, "steps": ()}
        return value

    @model_validator(mode="after")
    def _ensure_buildable(self) -> WorkflowDefinition:
        written_keys = self.model_fields_set - (set() if self.steps else {"steps"})
        if self.file is not None:
            _refuse_combination("file, which has the whole workflow", written_keys - {"file"})
            return self
        if (inline := self.inline) is not None:
            _refuse_combination(inline.key, written_keys - inline.kinds.keys())
            if not getattr(self, inline.key):
                raise ValueError(f"it has no {inline.key}; list at least one below {inline.key!r}")
            return self
        if self.extends is not None:
            _refuse_combination("extends, which brings its own", written_keys & {"steps", "kind"})
            return self
        if not self.steps:
            raise Refusal("too_short", _NO_STEPS)
        try:
            self.build_workflow("checked")
        except ValidationError as error:
            raise ValueError(str(error.errors()[0]["ctx"]["error"])) from error
        return self

    @property
    def inline(self) -> InlineFormat | None:
        """Return the format of the graph in this entry; None: it has steps, or a file."""
        inline_key = next((key for key in _INLINE_KEYS if key in self.model_fields_set), None)
        return None if inline_key is None else inline_format(inline_key)

    def inline_steps(self) -> Iterator[tuple[KeyPath, Step]]:
        """Yield the steps of its graph, each with the path inside the definition."""
        if (inline := self.inline) is not None:
            parts = enumerate(getattr(self, inline.key) or ())
            yield from (((inline.key, index), part) for index, part in parts)

    def build_workflow(self, name: str) -> Workflow:
        """Return this workflow under *name*; only for a definition that extends no other one.

        Raises:
            ValueError: see `Workflow`; pydantic's ``ValidationError`` is a ValueError.
        """
        review = self.review.whole if self.review else None
        return Workflow(name, self.steps, review, self.kind, description=self.description)


_INLINE_KEYS = tuple(extensions.OURS[extensions.WORKFLOW_KEYS])


def inline_format(key: str) -> InlineFormat:
    """Return the format that has *key* in an entry of ``workflows:``.

    Its plug-in may be disabled: all keys need a type, and the reader of the file checks the rest.

    Raises:
        PluginUnavailable: the plug-in is not installed.
    """
    file_format = extensions.find(extensions.WORKFLOW_KEYS, key, even_disabled=True)
    file_format = file_format or extensions.require(extensions.WORKFLOW_KEYS, key, "the key")
    inline: InlineFormat = file_format.inline
    return inline


for _key in _INLINE_KEYS:
    WorkflowDefinition.add_field(
        LazySpec(_key, partial(lambda key: inline_format(key).kinds[key], _key))
    )


def _refuse_combination(key: str, other_keys: Collection[str]) -> None:
    if other_keys:
        raise ValueError(f"{' and '.join(sorted(other_keys))} can't be combined with {key}")


class Composition:
    """The workflows of *definitions*, which may extend each other and the built-in ones."""

    def __init__(
        self,
        definitions: Mapping[str, WorkflowDefinition],
        builtin: Mapping[str, Workflow],
        locate: Locate,
    ) -> None:
        """Build all *definitions*; *locate* takes paths that start with a definition's name."""
        self.problems: list[LocatedError] = []
        self._definitions = definitions
        self._builtin = builtin
        self._locate = locate
        workflows: dict[str, Workflow] = {}
        visited: set[str] = set()
        for name in definitions:
            for ancestor in reversed(self._find_chain(name, visited)):
                self._build(ancestor, workflows)
        self.workflows = {name: workflows[name] for name in definitions if name in workflows}
        """In the order of the definitions."""

    def _find_chain(self, name: str, visited_names: set[str]) -> list[str]:
        """Return *name* and all that it extends, without *visited_names*; empty for a circle."""
        chain: list[str] = []
        ancestor: str | None = name
        while ancestor is not None and ancestor not in visited_names:
            visited_names.add(ancestor)
            chain.append(ancestor)
            ancestor = self._find_extended(ancestor)
        if ancestor not in chain:
            return chain
        circle = chain[chain.index(ancestor) :]
        path = (circle[0], "extends")
        links = [f"{first!r} extends {second!r}" for first, second in pairwise([*circle, ancestor])]
        links_text = ", ".join(shorten_links(links))
        hint = "let one of them extend another workflow, or list its steps"
        location = self._locate(path)
        error = ConfigurationError(f"extends in a circle: {links_text}", where=location, hint=hint)
        self.problems.append((path, error))
        return []

    def _find_extended(self, name: str) -> str | None:
        """Return the definition that *name* extends; None: it extends none of them."""
        base = self._definitions[name].extends
        # A definition that extends its own name changes the built-in workflow.
        return base if base in self._definitions and base != name else None

    def _build(self, name: str, workflows: dict[str, Workflow]) -> None:
        definition = self._definitions[name]
        if definition.extends is None:
            workflows[name] = definition.build_workflow(name)
            return
        base = self._find_base(name, definition.extends, workflows)
        if base is None:
            return

        def locate(path: KeyPath) -> str:
            return self._locate((name, *path))

        extension = Extension(base, definition, locate)
        workflow = extension.build_workflow(name)
        self.problems += [((name, *path), error) for path, error in extension.problems]
        if workflow is not None:
            description = definition.description or workflow.description
            workflows[name] = workflow.replace(description=description)

    def _find_base(
        self, name: str, extends: str, workflows: dict[str, Workflow]
    ) -> Workflow | None:
        """Return the workflow that *name* changes, with the review of *name* if it has one."""
        if extends in self._definitions and extends != name:
            base = workflows.get(extends)
        else:
            base = self._builtin.get(extends)
            if base is None:
                known_names = {*self._builtin, *self._definitions} - {name}
                path = (name, "extends")
                error = UnknownName("workflow", extends, known_names, where=self._locate(path))
                self.problems.append((path, error))
        review = self._definitions[name].review
        if base is None or review is None:
            return base
        try:
            return Workflow(
                base.name,
                base.steps,
                Review(every=review.every, step=review.step),
                base.kind,
                description=base.description,
            )
        except ValidationError as review_error:
            path = (name, "review")
            text = str(review_error.errors()[0]["msg"])
            self.problems.append((path, ConfigurationError(text, where=self._locate(path))))
            return None
