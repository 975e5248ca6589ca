"""Tasks that are added to a team's graph while it runs: a lead's tasks, and fixes.

It implements `model.graph.ends.TaskExpander`. An answer is untrusted text: it may choose the
tasks, their roles and their order. It can't choose agents, permissions or limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from msgspec import Struct

from sequencer.errors import ConfigurationError, StepFailed, UnknownName
from sequencer.files.keys import find_problems
from sequencer.files.yamlfile import KeyPath, format_key_path
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
    expand_by_tasks,
    list_problems,
)
from sequencer.plugins.teams.options import FIXER, UNNAMED
from sequencer.plugins.teams.team import TASK_ID, Role, Task, TaskId
from sequencer.workflows.prompts import parse_loose_json
from sequencer.workflows.registry import FOLDER


class TeamExpander(Struct, frozen=True):
    """Creates task expansions for the teams of one project."""

    roles: Mapping[str, Role]
    max_tasks: int = MAX_TASKS
    agent: str | None = None
    """Performs added tasks that don't name an agent; None: the usual choice."""
    redact: Callable[[str], str] = str
    """Removes secrets from an error, which may quote the parsed answer."""
    has_fallback: bool = False
    """Whether another agent or model gets one more try after the last failed attempt."""

    def expand_answer(self, workflow: Workflow, name: str, answer: str) -> TaskExpansion | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*.

        Raises:
            AnswerRefused: it is not JSON, has the wrong form or a forbidden key, or its tasks
                don't fit into the graph; the message has all that the agent needs to fix it.
        """
        graph, task = workflow.whole_graph, workflow.find_task(name) or TaskTraits()
        if task.adds is None:
            return None
        try:
            value = parse_loose_json(answer)
        except KeyError:
            raise AnswerRefused("no task is added: the answer is not JSON") from None
        try:
            tasks: Sequence[Task] = tasks_of_answer(task.adds, value, existing=graph.by_id)
            if UNNAMED in self.roles:
                # Leaving a role out must not avoid the limits that roles set.
                tasks = [added if added.role else added.replace(role=UNNAMED) for added in tasks]
            growth = expand_by_tasks(graph, name, tasks, self.roles, max_tasks=self.max_tasks)
        except ConfigurationError as error:
            # The whole error, because its hint lists the valid names.
            raise AnswerRefused(self.redact(f"no task is added: {error}")) from None
        except ValidationError as error:
            # A value built from the answer is invalid: a text plus our own words is too long.
            message = f"no task is added: {error.messages(with_values=False)[0]}"
            raise AnswerRefused(self.redact(message)) from None
        return growth.replace(steps=tuple(map(self._assign_agent, growth.steps)))

    def _assign_agent(self, step: Step) -> Step:
        """Return *step* with the agent for added tasks, unless it has an agent."""
        if self.agent is None or step.agent is not None:
            return step
        return step.replace(agent=self.agent)

    def build_fix(self, workflow: Workflow, name: str, number: int) -> TaskExpansion | None:
        """Return a new task that fixes what *name*, a judge, has refused the *number*-th time.

        The task's prompt has the outputs that the judge had, and the judge's reason. The judge
        judges again after the task. None: the judge has no fixer, so it judges again directly.
        """
        graph, task = workflow.whole_graph, workflow.find_task(name) or TaskTraits()
        validation = workflow.steps_by_name[name].validation
        if validation is None or validation.fixer is None:
            return None
        fixer = self.roles.get(FIXER, Role(writes=True))
        fix_id = _find_free_id(graph, f"{name}-fix-{number}")
        traits = TaskTraits(
            role=FIXER if FIXER in self.roles else None,
            active_form=f"Mending what {name} has found",
            blocked_by=tuple(dict.fromkeys((*task.blocked_by, *graph.incoming[name]))),
            weight=task.weight,
            writes=fixer.writes,
            worktree=fixer.worktree,
            fixes=name,
            brought=tuple(
                field.removeprefix("fixer.") for field in task.brought if field.startswith("fixer.")
            ),
        )
        label = f"Fix what {name} has refused"
        node = Node(id=fix_id, kind=NodeKind.AGENT, label=label, task=traits)
        step = validation.fixer.replace(name=fix_id)
        if step.prompt is None and step.text is None:
            # The default prompt file depends on the step's name, which has changed.
            step = step.replace(prompt=validation.fixer.prompt_name)
        edge = Edge(source=fix_id, target=name)
        return TaskExpansion(nodes=(node,), edges=(edge,), steps=(self._assign_agent(step),))


def _find_free_id(graph: Graph, task_id: str) -> str:
    """Return *task_id*, with a number after it if the graph has a node of that name."""
    # A person's task id may have dots too, so check each candidate.
    variants = (f"{task_id}.{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([task_id], variants) if name not in graph.by_id)


class _AnswerPart(Frozen, populate_by_name=True):
    """A part of an answer; its keys have two spellings."""


_AnswerPartT = TypeVar("_AnswerPartT", bound=_AnswerPart)


class AddedTask(_AnswerPart):
    """One task, with the fields that a lead may set."""

    id: TaskId
    subject: str = Field(min_length=1, max_length=500)
    description: str = Field(default="", max_length=TEXT_CHARS)
    active_form: str = Field(default="", max_length=500)
    blocked_by: tuple[TaskId, ...] = ()
    role: Name | None = None
    weight: float = Field(default=1.0, gt=0, le=1e9, allow_inf_nan=False)


class SubIssue(_AnswerPart):
    """A part of the work that can be built and checked alone."""

    id: Annotated[str, Field(pattern=TASK_ID, max_length=ID_CHARS)]
    title: str = Field(min_length=1, max_length=400)
    description: str = Field(default="", max_length=TEXT_CHARS)
    depends_on: tuple[TaskId, ...] = Field(default=(), alias="dependsOn")
    """Ids of the sub-issues that have to be built and checked before it."""

    @model_validator(mode="before")
    @classmethod
    def _merge_spellings(cls, value: object) -> object:
        # A client that must fill every key of the schema sends both spellings.
        if not isinstance(value, Mapping) or not {"depends_on", "dependsOn"} <= value.keys():
            return value
        rest = {key: field for key, field in value.items() if key != "dependsOn"}
        snake, camel = value["depends_on"], value["dependsOn"]
        if snake and camel and snake != camel:
            raise ValueError("'depends_on' and 'dependsOn' differ; keep one of them")
        return {**rest, "depends_on": snake or camel}


class _Tasks(_AnswerPart):
    tasks: tuple[AddedTask, ...] = Field(min_length=1, max_length=MOST)


class _SubIssues(_AnswerPart):
    sub_issues: tuple[SubIssue, ...] = Field(min_length=1, max_length=MOST)


class AnswerRefused(StepFailed):
    """A lead's answer can't become tasks; nothing was added."""


def tasks_of_answer(
    adds: Literal["tasks", "sub-issues"], answer: object, *, existing: Collection[str] = ()
) -> tuple[Task, ...]:
    """Return the tasks that a lead's structured *answer* adds to a run.

    *existing* are the ids of the run's tasks: a sub-issue may depend on an earlier one.
    `graphs.expand_by_tasks` decides how these tasks join the run's graph.

    Raises:
        AnswerRefused: the answer has the wrong form, or sub-issues depend on unknown ones or on
            each other in a circle; with all problems.
    """
    if adds == "tasks":
        parts = _validate(_Tasks, answer)
        return tuple(
            Task.model_validate({name: getattr(added, name) for name in added.model_fields_set})
            for added in parts.tasks
        )
    return sub_issue_tasks(_validate(_SubIssues, answer).sub_issues, existing=existing)


def sub_issue_tasks(
    sub_issues: Sequence[SubIssue], *, existing: Collection[str] = ()
) -> tuple[Task, ...]:
    """Return two tasks for each of *sub_issues*, build and check, after those it depends on.

    >>> api = SubIssue(id="api", title="API")
    >>> ui = SubIssue(id="ui", title="Page", dependsOn=["api"])
    >>> [(task.id, task.blocked_by) for task in sub_issue_tasks([api, ui])][1:3]
    [('verify-api', ('impl-api',)), ('impl-ui', ('verify-api',))]

    Raises:
        AnswerRefused: see `tasks_of_answer`.
    """
    earlier_names = [
        name.removeprefix("verify-") for name in existing if name.startswith("verify-")
    ]
    # Check the sub-issues as tasks of the same ids, so that errors use the lead's own names.
    entries = [
        Task(id=issue.id, subject=issue.title, blocked_by=issue.depends_on) for issue in sub_issues
    ]
    problems = list_problems(
        entries, {}, most=MOST + len(earlier_names), existing=dict.fromkeys(earlier_names, ())
    )
    if problems:
        raise _make_refusal([_format_problem(problem) for problem in problems])
    return tuple(task for issue in sub_issues for task in _make_task_pair(issue))


def _make_task_pair(issue: SubIssue) -> tuple[Task, Task]:
    build = Task(
        id=f"impl-{issue.id}",
        subject=f"Implement: {issue.title}",
        description=issue.description,
        active_form=f"Implementing {issue.title}",
        blocked_by=tuple(f"verify-{name}" for name in issue.depends_on),
        role="implementer",
    )
    check = Task(
        id=f"verify-{issue.id}",
        subject=f"Verify: {issue.title}",
        description=_truncate(
            f"Judge whether this was built and nothing is broken:\n\n{issue.description}"
        ),
        active_form=f"Verifying {issue.title}",
        blocked_by=(build.id,),
        role="verifier",
        step={"prompt": f"{FOLDER}/verifications.md"},
    )
    return build, check


def _truncate(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else f"{text[: TEXT_CHARS - 1]}…"


def _validate(model: type[_AnswerPartT], answer: object) -> _AnswerPartT:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        problems = find_problems(error, model, lambda _: "the answer")
    raise _make_refusal([_format_error(problem.error) for problem in problems])


def _format_error(error: ConfigurationError) -> str:
    if isinstance(error, UnknownName):
        return f"{error.where}: {error.name!r} is not a key that a lead can set ({error.hint})"
    return f"{error.where}: {error.message}"


def _format_problem(problem: TaskProblem) -> str:
    names = {"blocked_by": "depends_on"}
    path: KeyPath = tuple(names.get(str(part), part) for part in problem.path)
    message = problem.message.replace("there is no task", "there is no sub-issue")
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"the answer: {format_key_path(('sub_issues', *path))}: {message}{hint}"


def _make_refusal(problems: Sequence[str]) -> AnswerRefused:
    text = problems[0] if len(problems) == 1 else "".join(f"\n- {line}" for line in problems)
    return AnswerRefused(f"no task is added: {text}")
