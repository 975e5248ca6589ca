from __future__ import annotations

import pytest

from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.model.graph.task import Budget, TaskTraits
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Usage
from sequencer.plugins.metrics.facts import Cap, Spent, list_caps
from sequencer.plugins.teams.team import TeamBudget, TeamRules

USAGE = Usage(steps=4, cost_usd=1.5, input_tokens=900, output_tokens=100, seconds=60)
NO_RULES = TeamRules()


def team(**tasks: TaskTraits) -> Graph:
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT, task=task) for name, task in tasks.items())
    return Graph(nodes=nodes, entries=(nodes[0].id,), is_team=True)


def caps(
    limits: RunLimits | None = None,
    graph: Graph | None = None,
    spent: Spent | None = None,
    rules: TeamRules = NO_RULES,
) -> list[Cap]:
    tasks = graph.nodes if graph and graph.has_tasks else ()
    return list_caps(limits or RunLimits(), USAGE, tasks, spent or {}, rules)


def test_the_budget_of_a_team_covers_the_whole_run() -> None:
    rules = TeamRules(budget=TeamBudget(max_cost_usd=5, max_tokens=4000))
    assert caps(graph=team(a=TaskTraits()), rules=rules) == [
        Cap("team", "", "usd", 5, 1.5),
        Cap("team", "", "tokens", 4000, 1000),
    ]


def test_sums_of_many_small_costs_stay_short() -> None:
    names = [f"t{number}" for number in range(10)]
    tasks = team(**dict.fromkeys(names, TaskTraits(role="coder")))
    rules = TeamRules(role_budgets={"coder": Budget(max_cost_usd=2)})
    (found,) = caps(graph=tasks, spent={name: [0.1, 1, 1.0] for name in names}, rules=rules)
    assert found.used == 1.0


@pytest.mark.parametrize("has_tasks", [False, True])
def test_only_teams_have_the_budgets_of_teams(*, has_tasks: bool) -> None:
    rules = TeamRules(budget=TeamBudget(max_cost_usd=5))
    node = Node(id="a", kind=NodeKind.AGENT)
    graph = Graph(nodes=(node,), entries=("a",), is_team=has_tasks)
    assert len(caps(graph=graph, rules=rules)) == int(has_tasks)
