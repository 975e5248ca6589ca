"""What is added to a team's graph while it runs: what a lead asks for, and what mends a task.

It implements `model.graph.ends.TaskExpander`. An answer is somebody else's text: it may say
what is to be done, by which role and in which order; who performs it, with which permissions
and limits is not its to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from msgspec import Struct

from sequencer.errors import ConfigurationError, StepFailed, UnknownName
from sequencer.files.keys import problems_of
from sequencer.files.yamlfile import KeyPath, dotted
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, ValidationError, model_validator
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind, TaskExpansion
from sequencer.model.graph.task import MAX_TASKS, TaskTraits
from sequencer.model.step import Name, Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.graphs import (
    ID_CHARS,
    MOST,
    TEXT_CHARS,
    TaskProblem,
    growth_of,
    list_problems,
)
from sequencer.plugins.teams.options import FIXER, UNNAMED
from sequencer.plugins.teams.team import TASK_ID, Role, Task, TaskId
from sequencer.workflows.prompts import parsed
from sequencer.workflows.registry import FOLDER


class TeamExpander(Struct, frozen=True):
    """Makes growths for the teams of one project."""

    roles: Mapping[str, Role]
    max_tasks: int = MAX_TASKS
    agent: str | None = None
    """Performs what is added and names none; None: as everywhere."""
    redact: Callable[[str], str] = str
    """Of what a refusal says, which may quote an answer as it was once parsed."""
    has_fallback: bool = False
    """Whether another agent or model gets one more try after the last failed one."""

    def of_answer(self, workflow: Workflow, name: str, answer: str) -> TaskExpansion | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*.

        Raises:
            AnswerRefused: it is no JSON, has not the form, names what can't be, or its tasks
                can't stand in the graph; says all that whoever answered has to know.
        """
        graph, task = workflow.whole_graph, workflow.task(name) or TaskTraits()
        if task.adds is None:
            return None
        try:
            said = parsed(answer)
        except KeyError:
            raise AnswerRefused("no task is added: the answer is no JSON") from None
        try:
            tasks: Sequence[Task] = tasks_of_answer(task.adds, said, there=graph.by_id)
            if UNNAMED in self.roles:
                # Who wrote a task has no say in who is bound to none of the roles.
                tasks = [o if o.role else o.replace(role=UNNAMED) for o in tasks]
            growth = growth_of(graph, name, tasks, self.roles, max_tasks=self.max_tasks)
        except ConfigurationError as error:
            # The hint too: it has the names that there are.
            raise AnswerRefused(self.redact(f"no task is added: {error}")) from None
        except ValidationError as error:
            # Of what is made of the answer: a sub-issue's text that is just too long, with ours.
            message = f"no task is added: {error.messages(with_values=False)[0]}"
            raise AnswerRefused(self.redact(message)) from None
        return growth.replace(steps=tuple(map(self._performed, growth.steps)))

    def _performed(self, step: Step) -> Step:
        if self.agent is None or step.agent is not None:
            return step
        return step.replace(agent=self.agent)

    def fix(self, workflow: Workflow, name: str, number: int) -> TaskExpansion | None:
        """Return the task that mends what task *name* has refused for the *number*-th time.

        It is told what was done before, as the judge is, and what the judge has said; behind
        it the judge judges again. None: the task judges anew without it.
        """
        graph, task = workflow.whole_graph, workflow.task(name) or TaskTraits()
        validation = workflow.steps_by_name[name].validation
        if validation is None or validation.fixer is None:
            return None
        fixer = self.roles.get(FIXER, Role(writes=True))
        made = _free_id(graph, f"{name}-fix-{number}")
        traits = TaskTraits(
            role=FIXER if FIXER in self.roles else None,
            active_form=f"Mending what {name} has found",
            blocked_by=tuple(dict.fromkeys((*task.blocked_by, *graph.incoming[name]))),
            weight=task.weight,
            writes=fixer.writes,
            worktree=fixer.worktree,
            fixes=name,
            brought=tuple(
                one.removeprefix("fixer.") for one in task.brought if one.startswith("fixer.")
            ),
        )
        node = Node(id=made, kind=NodeKind.AGENT, label=f"Fix what {name} has refused", task=traits)
        step = validation.fixer.replace(name=made)
        if step.prompt is None and step.text is None:
            # Its name is another one now, and so would its prompt's file be.
            step = step.replace(prompt=validation.fixer.prompt_name)
        edge = Edge(source=made, target=name)
        return TaskExpansion(nodes=(node,), edges=(edge,), steps=(self._performed(step),))


def _free_id(graph: Graph, wanted: str) -> str:
    # A task's own id may have dots.
    others = (f"{wanted}.{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([wanted], others) if name not in graph.by_id)


class _Said(Frozen, populate_by_name=True):
    """What an answer holds, in keys of two spellings."""


_SaidT = TypeVar("_SaidT", bound=_Said)


class AddedTask(_Said):
    """One task as a lead may write it."""

    id: TaskId
    subject: str = Field(min_length=1, max_length=500)
    description: str = Field(default="", max_length=TEXT_CHARS)
    active_form: str = Field(default="", max_length=500)
    blocked_by: tuple[TaskId, ...] = ()
    role: Name | None = None
    weight: float = Field(default=1.0, gt=0, le=1e9, allow_inf_nan=False)


class SubIssue(_Said):
    """A part of the work that can be built and checked alone."""

    id: Annotated[str, Field(pattern=TASK_ID, max_length=ID_CHARS)]
    title: str = Field(min_length=1, max_length=400)
    description: str = Field(default="", max_length=TEXT_CHARS)
    depends_on: tuple[TaskId, ...] = Field(default=(), alias="dependsOn")
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
        step={"prompt": f"{FOLDER}/verifications.md"},
    )
    return built, checked


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else f"{text[: TEXT_CHARS - 1]}…"


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
