"""What is added to a team's graph while it runs: what a lead asks for, and what mends a task.

See `engine.flow.team.Grower`, which this is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from sequencer.errors import ConfigurationError
from sequencer.model.net.graph import Edge, Graph, Growth, Node, NodeKind
from sequencer.model.step import Step
from sequencer.model.team import MAX_TASKS, Role, Task, TaskTraits
from sequencer.model.workflow import Workflow
from sequencer.resolution.teams.answers import AnswerRefused, tasks_of_answer
from sequencer.resolution.teams.graphs import growth_of
from sequencer.resolution.teams.roles import FIXER, UNNAMED
from sequencer.resolution.templates import parsed


@dataclass(frozen=True, slots=True)
class TeamGrower:
    """Makes growths for the teams of one project."""

    roles: Mapping[str, Role]
    max_tasks: int = MAX_TASKS
    agent: str | None = None
    """Performs what is added and names none; None: as everywhere."""

    def of_answer(self, workflow: Workflow, name: str, answer: str) -> Growth | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*.

        Raises:
            AnswerRefused: it is no JSON, has not the form, names what can't be, or its tasks
                can't stand in the graph; says all that whoever answered has to know.
        """
        graph, task = _task_of(workflow, name)
        if task.adds is None:
            return None
        try:
            said = parsed(answer)
        except KeyError:
            raise AnswerRefused("no task is added: the answer is no JSON") from None
        try:
            tasks = [
                self._in_a_role(one) for one in tasks_of_answer(task.adds, said, there=graph.by_id)
            ]
            growth = growth_of(graph, name, tasks, self.roles, max_tasks=self.max_tasks)
        except ConfigurationError as error:
            # The hint too: it has the names that there are.
            raise AnswerRefused(f"no task is added: {error}") from None
        except ValidationError as error:
            # Of what is made of the answer: a sub-issue's text that is just too long, with ours.
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise AnswerRefused(f"no task is added: {place}: {first['msg']}") from None
        return growth.model_copy(update={"steps": tuple(map(self._performed, growth.steps))})

    def _in_a_role(self, task: Task) -> Task:
        """Return *task* with a role: who wrote it has no say in who is bound to none."""
        if task.role is not None or UNNAMED not in self.roles:
            return task
        return task.model_copy(update={"role": UNNAMED})

    def _performed(self, step: Step) -> Step:
        if self.agent is None or step.executor is not None:
            return step
        return step.model_copy(update={"executor": self.agent})

    def fix(self, workflow: Workflow, name: str, number: int) -> Growth | None:
        """Return the task that mends what task *name* has refused for the *number*-th time.

        It is told what was done before, as the judge is, and what the judge has said; behind
        it the judge judges again. None: the task judges anew without it.
        """
        graph, task = _task_of(workflow, name)
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
        step = validation.fixer.model_copy(update={"name": made})
        if step.prompt is None and step.text is None:
            # Its name is another one now, and so would its prompt's file be.
            step = step.model_copy(update={"prompt": validation.fixer.prompt_name})
        edge = Edge(source=made, target=name)
        return Growth(nodes=(node,), edges=(edge,), steps=(self._performed(step),))


def _task_of(workflow: Workflow, name: str) -> tuple[Graph, TaskTraits]:
    if workflow.graph is None:
        raise ValueError(f"workflow {workflow.name!r} is no graph")
    return workflow.graph, workflow.graph.by_id[name].task or TaskTraits()


def _free_id(graph: Graph, wanted: str) -> str:
    # A task's own id may have dots.
    others = (f"{wanted}.{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([wanted], others) if name not in graph.by_id)
