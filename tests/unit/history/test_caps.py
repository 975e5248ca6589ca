from __future__ import annotations

import pytest

from sequencer.history.totals import Cap, Spent, caps_of
from sequencer.model.limits import RunLimits
from sequencer.model.net.graph import Graph, Node, NodeKind
from sequencer.model.outcome import Usage
from sequencer.model.team import Budget, TaskTraits, TeamBudget, TeamRules

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
    tasks = graph.nodes if graph and graph.is_team else ()
    return caps_of(limits or RunLimits(), USAGE, tasks, spent or {}, rules)


def test_the_limits_of_a_run() -> None:
    limits = RunLimits(max_cost_usd=2, max_steps=10, max_seconds=100)
    assert caps(limits) == [
        Cap("run", "", "usd", 2, 1.5),
        Cap("run", "", "steps", 10, 4),
        Cap("run", "", "seconds", 100, 60),
    ]
    assert [cap.left for cap in caps(limits)] == [0.5, 6, 40]
    assert [cap.left for cap in caps(RunLimits(max_cost_usd=1))] == [0.0]
    assert caps() == caps(graph=team(a=TaskTraits())) == []


def test_the_budget_of_a_team_is_of_the_whole_run() -> None:
    rules = TeamRules(budget=TeamBudget(max_cost_usd=5, max_tokens=4000))
    assert caps(graph=team(a=TaskTraits()), rules=rules) == [
        Cap("team", "", "usd", 5, 1.5),
        Cap("team", "", "tokens", 4000, 1000),
    ]


def test_a_role_has_what_its_tasks_have_used() -> None:
    tasks = team(a=TaskTraits(role="coder"), b=TaskTraits(role="coder"), c=TaskTraits(role="judge"))
    spent = {"a": [0.5, 100, 9.0], "c": [9.0, 9, 9.0], "gone": [7.0, 7, 7.0]}
    budgets = {"coder": Budget(max_cost_usd=2, max_tokens=500), "nobody": Budget(max_tokens=5)}
    found = caps(graph=tasks, spent=spent, rules=TeamRules(role_budgets=budgets))
    assert found == [
        Cap("role", "coder", "usd", 2, 0.5),
        Cap("role", "coder", "tokens", 500, 100),
        Cap("role", "nobody", "tokens", 5, 0),
    ]


def test_a_task_has_its_own() -> None:
    tasks = team(a=TaskTraits(budget=Budget(max_cost_usd=1)), b=TaskTraits())
    found = caps(graph=tasks, spent={"a": [0.25, 100, 9.0]})
    assert found == [Cap("task", "a", "usd", 1, 0.25)]


def test_sums_of_many_small_costs_stay_short() -> None:
    names = [f"t{number}" for number in range(10)]
    tasks = team(**dict.fromkeys(names, TaskTraits(role="coder")))
    rules = TeamRules(role_budgets={"coder": Budget(max_cost_usd=2)})
    (found,) = caps(graph=tasks, spent={name: [0.1, 1, 1.0] for name in names}, rules=rules)
    assert found.used == 1.0


@pytest.mark.parametrize("is_team", [False, True])
def test_only_teams_have_the_budgets_of_teams(*, is_team: bool) -> None:
    rules = TeamRules(budget=TeamBudget(max_cost_usd=5))
    node = Node(id="a", kind=NodeKind.AGENT)
    graph = Graph(nodes=(node,), entries=("a",), is_team=is_team)
    assert len(caps(graph=graph, rules=rules)) == int(is_team)
