"""What a lead answers: tasks that are added to a run, or sub-issues, and what becomes of them.

An answer is somebody else's text. It may say what is to be done, by which role and in which
order; who performs it, with which permissions and limits is not its to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from sequencer.documents.keys import dotted
from sequencer.documents.problems import problems_of
from sequencer.documents.reader import KeyPath
from sequencer.errors import ConfigurationError, StepFailed, UnknownName
from sequencer.model.step import Name
from sequencer.model.team import TASK_ID, Task, TaskId
from sequencer.resolution.procedures import builtin_step
from sequencer.resolution.teams.problems import TaskProblem, list_problems
from sequencer.resolution.teams.roles import UNNAMED

MOST = 200
"""Tasks, or sub-issues, of one answer."""
_TEXT_CHARS = 1_048_576
"""Of a description."""
_ID_CHARS = 70
"""Of a sub-issue's id, so that the tasks that it becomes have ids too."""

_ID = {"type": "string", "pattern": TASK_ID, "maxLength": 80}
_IDS = {"type": "array", "items": _ID}
_SAME_AS = "the same as depends_on; of the two one is left out, empty, or equal to the other"


def _object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def _list_of(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    listed = {"type": "array", "minItems": 1, "maxItems": MOST, "items": item}
    return _object({name: listed}, [name])


SCHEMAS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "tasks": _list_of(
            "tasks",
            _object(
                {
                    "id": _ID,
                    "subject": {"type": "string", "minLength": 1, "maxLength": 500},
                    "description": {"type": "string"},
                    "active_form": {"type": "string", "maxLength": 500},
                    "blocked_by": _IDS,
                    "role": {"type": "string", "minLength": 1, "maxLength": 100},
                    "weight": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e9},
                },
                ["id", "subject", "description"],
            ),
        ),
        "sub-issues": _list_of(
            "sub_issues",
            _object(
                {
                    "id": {**_ID, "maxLength": _ID_CHARS},
                    "title": {"type": "string", "minLength": 1, "maxLength": 400},
                    "description": {"type": "string"},
                    "depends_on": _IDS,
                    "dependsOn": {**_IDS, "description": _SAME_AS},
                },
                ["id", "title", "description"],
            ),
        ),
    }
)
"""What `Task.adds` says -> JSON Schema of the answer, whatever roles there are."""

_EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "tasks": """{"tasks": [{"id": "api", "subject": "Add the route", "description": "…",
            "role": "…", "blocked_by": []}]}

`id`, `subject` and `description` have to be there; `blocked_by` names ids of this answer or of
tasks of the run.""",
        "sub-issues": """{"sub_issues": [{"id": "api", "title": "The API", "description": "…",
                 "depends_on": []}]}

`id`, `title` and `description` have to be there; `depends_on` names ids of this answer.""",
    }
)


def schema_for(adds: Literal["tasks", "sub-issues"], roles: Collection[str]) -> dict[str, Any]:
    """Return the schema of an answer of a project that has *roles*; nobody else can be named."""
    schema = deepcopy(SCHEMAS[adds])
    if adds == "tasks" and roles:
        fields = schema["properties"]["tasks"]["items"]["properties"]
        fields["role"] = {"type": "string", "enum": sorted(roles)}
    return schema


def form_for(adds: Literal["tasks", "sub-issues"], roles: Collection[str]) -> str:
    """Return in words what `schema_for` says: not every client tells its agent of a schema.

    >>> print(form_for("tasks", ["verifier", "implementer"]).splitlines()[-1])
    A role is one of: implementer, verifier. Without one it is implementer.
    """
    text = f"Answer with one JSON object, and nothing else, in this form:\n\n{_EXAMPLES[adds]}"
    if adds == "sub-issues" or not roles:
        return text
    usual = f" Without one it is {UNNAMED}." if UNNAMED in roles else ""
    return f"{text}\nA role is one of: {', '.join(sorted(roles))}.{usual}"


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


_SaidT = TypeVar("_SaidT", bound=_Said)


class AddedTask(_Said):
    """One task as a lead may write it."""

    id: TaskId
    subject: str = Field(min_length=1, max_length=500)
    description: str = Field(default="", max_length=_TEXT_CHARS)
    active_form: str = Field(default="", max_length=500)
    blocked_by: tuple[TaskId, ...] = ()
    role: Name | None = None
    weight: float = Field(default=1.0, gt=0, le=1e9, allow_inf_nan=False)


class SubIssue(_Said):
    """A part of the work that can be built and checked alone."""

    id: Annotated[str, StringConstraints(pattern=TASK_ID, max_length=_ID_CHARS)]
    title: str = Field(min_length=1, max_length=400)
    description: str = Field(default="", max_length=_TEXT_CHARS)
    depends_on: tuple[TaskId, ...] = Field(
        default=(), validation_alias=AliasChoices("depends_on", "dependsOn")
    )
    """Ids of the sub-issues that have to be built and checked before it."""

    @model_validator(mode="before")
    @classmethod
    def _is_said_once(cls, value: object) -> object:
        # A client that has to fill every key of the schema answers both.
        if not isinstance(value, Mapping) or not {"depends_on", "dependsOn"} <= value.keys():
            return value
        rest = {key: given for key, given in value.items() if key != "dependsOn"}
        one, other = value["depends_on"], value["dependsOn"]
        if one and other and one != other:
            raise ValueError("'depends_on' and 'dependsOn' differ; keep one of them")
        return {**rest, "depends_on": one or other}


class _Tasks(_Said):
    tasks: tuple[AddedTask, ...] = Field(min_length=1, max_length=MOST)


class _SubIssues(_Said):
    sub_issues: tuple[SubIssue, ...] = Field(min_length=1, max_length=MOST)


class AnswerRefused(StepFailed):
    """A lead's answer can't become tasks; nothing was added."""


def tasks_of_answer(
    adds: Literal["tasks", "sub-issues"], answer: object, *, there: Collection[str] = ()
) -> tuple[Task, ...]:
    """Return the tasks that a lead's structured *answer* adds to a run.

    *there* are the ids of the run's tasks: an earlier sub-issue may be depended on.
    What these tasks are to the run's graph is `graphs.growth_of`'s to say.

    Raises:
        AnswerRefused: it has not the form, or sub-issues depend on what is not there or on
            each other in a circle; everything that is wrong with it.
    """
    if adds == "tasks":
        said = _checked(_Tasks, answer)
        return tuple(
            Task.model_validate({name: getattr(one, name) for name in one.model_fields_set})
            for one in said.tasks
        )
    return sub_issue_tasks(_checked(_SubIssues, answer).sub_issues, there=there)


def sub_issue_tasks(
    sub_issues: Sequence[SubIssue], *, there: Collection[str] = ()
) -> tuple[Task, ...]:
    """Return the tasks of *sub_issues*: each is built, then checked, behind what it depends on.

    >>> api = SubIssue(id="api", title="API")
    >>> ui = SubIssue(id="ui", title="Page", dependsOn=["api"])
    >>> [(task.id, task.blocked_by) for task in sub_issue_tasks([api, ui])][1:3]
    [('verify-api', ('impl-api',)), ('impl-ui', ('verify-api',))]

    Raises:
        AnswerRefused: see `tasks_of_answer`.
    """
    earlier = [name.removeprefix("verify-") for name in there if name.startswith("verify-")]
    named = [Task(id=one.id, subject=one.title, blocked_by=one.depends_on) for one in sub_issues]
    problems = list_problems(named, {}, most=MOST + len(earlier), there=dict.fromkeys(earlier, ()))
    if problems:
        raise _refused([_as_sub_issue(problem) for problem in problems])
    return tuple(task for one in sub_issues for task in _pair(one))


def _pair(one: SubIssue) -> tuple[Task, Task]:
    judging = builtin_step("verifications")
    built = Task(
        id=f"impl-{one.id}",
        subject=f"Implement: {one.title}",
        description=one.description,
        active_form=f"Implementing {one.title}",
        blocked_by=tuple(f"verify-{name}" for name in one.depends_on),
        role="implementer",
    )
    checked = Task(
        id=f"verify-{one.id}",
        subject=f"Verify: {one.title}",
        description=_cut(
            f"Judge whether this was built and nothing is broken:\n\n{one.description}"
        ),
        active_form=f"Verifying {one.title}",
        blocked_by=(built.id,),
        role="verifier",
        step={"prompt": judging.prompt_name},
    )
    return built, checked


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…"


def _checked(model: type[_SaidT], answer: object) -> _SaidT:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        found = problems_of(error, model, lambda _: "the answer")
    raise _refused([_said(one.error) for one in found])


def _said(error: ConfigurationError) -> str:
    if isinstance(error, UnknownName):
        return f"{error.where}: {error.name!r} is not for a lead to say ({error.hint})"
    return f"{error.where}: {error.message}"


def _as_sub_issue(problem: TaskProblem) -> str:
    names = {"blocked_by": "depends_on"}
    path: KeyPath = tuple(names.get(str(part), part) for part in problem.path)
    message = problem.message.replace("there is no task", "there is no sub-issue")
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"the answer: {dotted(('sub_issues', *path))}: {message}{hint}"


def _refused(problems: Sequence[str]) -> AnswerRefused:
    text = problems[0] if len(problems) == 1 else "".join(f"\n- {one}" for one in problems)
    return AnswerRefused(f"no task is added: {text}")
