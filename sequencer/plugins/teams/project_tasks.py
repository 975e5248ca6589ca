"""The teams of a project: their rules, their roles, and where their tasks run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sequencer.engine.prompt_context.node_values import NodeValues
from sequencer.engine.tasks import TaskExecution
from sequencer.model.graph.ends import TaskExpander
from sequencer.model.graph.marking import Marking
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.briefing import brief_of
from sequencer.plugins.teams.budgets import TeamBudgets
from sequencer.plugins.teams.expansion import TeamExpander
from sequencer.plugins.teams.section import teams_of
from sequencer.plugins.teams.team import Role, TeamRules
from sequencer.project.project import Project
from sequencer.project.settings import Settings
from sequencer.project.task_graphs import TaskGraphs


def execution_of(project: Project, agent: str | None = None) -> TaskExecution:
    """Return how the tasks of a run are worked on; see `TaskGraphs.execution`."""
    settings = project.settings
    options = teams_of(settings)
    rules = options.rules
    expander = TeamExpander(
        options.every_role,
        rules.max_tasks,
        agent,
        redact=project.redaction.hide_text,
        has_fallback=rules.has_fallback,
    )
    return execution(rules, expander)


def execution(rules: TeamRules, expander: TaskExpander) -> TaskExecution:
    """Return how tasks are worked on under *rules*."""
    return TaskExecution(
        capacity_rule=TeamBudgets(rules),
        expander=expander,
        context=_context,
        merge=rules.merge,
        fails_on_write=rules.on_write == "fail",
        fallback_step=_fallback_step(rules),
    )


def _context(values: NodeValues, marking: Marking, **more: Any) -> Callable[[str], str]:
    """Return a function from the text of a task's prompt file to its whole prompt."""
    return brief_of(values, marking, **more).compose


def _fallback_step(rules: TeamRules) -> Callable[[Step], Step] | None:
    return rules.replaced if rules.has_fallback else None


def _grower(settings: Settings) -> TeamExpander:
    options = teams_of(settings)
    return TeamExpander(options.every_role, options.rules.max_tasks)


def _cost_caps(settings: Settings, workflow: Workflow) -> Iterator[str]:
    rules = teams_of(settings).rules
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
    found: dict[str, Any] = {}
    if isinstance(execution.capacity_rule, TeamBudgets):
        rules = execution.capacity_rule.rules
        found["rules"] = rules.model_dump(mode="json", exclude_defaults=True)
    if isinstance(execution.expander, TeamExpander):
        roles = execution.expander.roles.items()
        found["roles"] = {k: one.model_dump(mode="json", exclude_defaults=True) for k, one in roles}
        found["agent"] = execution.expander.agent
    return found


def load(data: Mapping[str, Any]) -> tuple[TeamBudgets, TeamExpander]:
    """Return the limits and the expansion of tasks from what `dump` returned."""
    rules = TeamRules.model_validate(data["rules"])
    roles = {name: Role.model_validate(one) for name, one in data.get("roles", {}).items()}
    agent, more = data.get("agent"), rules.has_fallback
    return TeamBudgets(rules), TeamExpander(roles, rules.max_tasks, agent, has_fallback=more)


TASK_GRAPHS = TaskGraphs(
    execution=execution_of,
    capacity_rule=lambda settings: TeamBudgets(teams_of(settings).rules),
    expander=_grower,
    fallback_step=lambda settings: _fallback_step(teams_of(settings).rules),
    cost_caps=_cost_caps,
    dump=dump,
    load=load,
)
