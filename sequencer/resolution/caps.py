"""Every cap that a run, its team, its roles and its tasks have, and what is used of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sequencer.model.graph import Graph
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Usage
from sequencer.model.team import Budget, TeamRules

Spent = Mapping[str, Sequence[float]]
"""By task: USD, tokens and seconds of all its attempts."""


class Cap(NamedTuple):
    """One cap."""

    scope: str
    """run, team, role or task."""
    name: str
    """Of the role or the task; empty for a run and a team."""
    unit: str
    """usd, tokens, steps or seconds."""
    limit: float
    used: float

    @property
    def left(self) -> float:
        """Return what may still be used; an attempt may overshoot, and then it is nothing."""
        return max(self.limit - self.used, 0.0)


def caps_of(
    limits: RunLimits, usage: Usage, graph: Graph | None, spent: Spent, rules: TeamRules
) -> list[Cap]:
    """Return the caps that are set; *usage* is the whole run's, *spent* its tasks'."""
    whole = (
        ("usd", limits.max_cost_usd, usage.cost_usd),
        ("steps", limits.max_steps, usage.steps),
        ("seconds", limits.max_seconds, usage.seconds),
    )
    found = [Cap("run", "", unit, cap, used) for unit, cap, used in whole if cap is not None]
    if graph is None or not graph.is_team:
        return found
    tokens = usage.input_tokens + usage.output_tokens
    found += _of_budget("team", "", rules.budget, usage.cost_usd, tokens)
    for role, budget in rules.role_budgets.items():
        tasks = [n.id for n in graph.nodes if n.task is not None and n.task.role == role]
        found += _of_budget("role", role, budget, *_sum(spent, tasks))
    for node in graph.nodes:
        if node.task is not None:
            found += _of_budget("task", node.id, node.task.budget, *_sum(spent, [node.id]))
    return found


def _sum(spent: Spent, tasks: Sequence[str]) -> tuple[float, float]:
    used = [spent[task] for task in tasks if task in spent]
    return round(sum(one[0] for one in used), 9), sum(one[1] for one in used)


def _of_budget(
    scope: str, name: str, budget: Budget, cost_usd: float, tokens: float
) -> Iterator[Cap]:
    if budget.max_cost_usd is not None:
        yield Cap(scope, name, "usd", budget.max_cost_usd, cost_usd)
    if budget.max_tokens is not None:
        yield Cap(scope, name, "tokens", budget.max_tokens, tokens)
