"""The teams of a project: their rules, their roles, and how their tasks are executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sequencer.engine.prompt_context.node_values import NodeValues
from sequencer.engine.tasks import TaskExecution
from sequencer.model.graph.ends import TaskExpander
from sequencer.model.graph.marking import Marking
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.budgets import TeamBudgets
from sequencer.plugins.teams.expansion import TeamExpander
from sequencer.plugins.teams.prompt_context import build_task_context
from sequencer.plugins.teams.section import get_team_options
from sequencer.plugins.teams.team import Role, TeamRules
from sequencer.project.project import Project
from sequencer.project.settings import Settings
from sequencer.project.task_graphs import TaskGraphs


def make_project_execution(project: Project, agent: str | None = None) -> TaskExecution:
    """Return the rules for executing the tasks of a run; see `TaskGraphs.execution`."""
    settings = project.settings
    options = get_team_options(settings)
    rules = options.rules
    expander = TeamExpander(
        options.every_role,
        rules.max_tasks,
        agent,
        redact=project.redaction.hide_text,
        has_fallback=rules.has_fallback,
    )
    return make_execution(rules, expander)


def make_execution(rules: TeamRules, expander: TaskExpander) -> TaskExecution:
    """Return the task execution for *rules* and *expander*."""
    return TaskExecution(
        capacity_rule=TeamBudgets(rules),
        expander=expander,
        context=_make_prompt_composer,
        merge=rules.merge,
        fails_on_write=rules.on_write == "fail",
        fallback_step=_fallback_step(rules),
    )


def _make_prompt_composer(
    values: NodeValues, marking: Marking, **options: Any
) -> Callable[[str], str]:
    """Return a function that composes a task's prompt from the text of its prompt file."""
    return build_task_context(values, marking, **options).compose


def _fallback_step(rules: TeamRules) -> Callable[[Step], Step] | None:
    return rules.apply_fallback if rules.has_fallback else None


def _expander(settings: Settings) -> TeamExpander:
    options = get_team_options(settings)
    return TeamExpander(options.every_role, options.rules.max_tasks)


def _cost_caps(settings: Settings, workflow: Workflow) -> Iterator[str]:
    rules = get_team_options(settings).rules
    if rules.budget.max_cost_usd is not None:
        yield "teams.budget"
    for role, budget in rules.role_budgets.items():
        if budget.max_cost_usd is not None:
            yield f"teams.roles.{role}.budget"
    for node in workflow.tasks:
        if node.task is not None and node.task.budget.max_cost_usd is not None:
            yield f"the budget of task {node.id!r}"


def dump(execution: TaskExecution) -> dict[str, Any]:
    """Return the rules of *execution* as JSON data, for a process that runs no tasks itself."""
    data: dict[str, Any] = {}
    if isinstance(execution.capacity_rule, TeamBudgets):
        rules = execution.capacity_rule.rules
        data["rules"] = rules.model_dump(mode="json", exclude_defaults=True)
    if isinstance(execution.expander, TeamExpander):
        data["roles"] = {
            name: role.model_dump(mode="json", exclude_defaults=True)
            for name, role in execution.expander.roles.items()
        }
        data["agent"] = execution.expander.agent
    return data


def load(data: Mapping[str, Any]) -> tuple[TeamBudgets, TeamExpander]:
    """Return the team's limits and its expander from the data that `dump` returned."""
    rules = TeamRules.model_validate(data["rules"])
    roles = {name: Role.model_validate(role) for name, role in data.get("roles", {}).items()}
    expander = TeamExpander(
        roles, rules.max_tasks, data.get("agent"), has_fallback=rules.has_fallback
    )
    return TeamBudgets(rules), expander


TASK_GRAPHS = TaskGraphs(
    execution=make_project_execution,
    capacity_rule=lambda settings: TeamBudgets(get_team_options(settings).rules),
    expander=_expander,
    fallback_step=lambda settings: _fallback_step(get_team_options(settings).rules),
    cost_caps=_cost_caps,
    dump=dump,
    load=load,
)
