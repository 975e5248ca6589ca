"""What a team has used, summed up as it goes: always the sums of what each task has used."""

from __future__ import annotations

import random
from typing import Any, Never

import pytest

from sequencer.engine.capacity import BudgetShares
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.graph import Graph
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.tally import Ledger
from sequencer.model.graph.task import Budget
from sequencer.model.limits import RunLimits
from sequencer.plugins.teams.budgets import TeamBudgets
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.options import merge_roles
from sequencer.plugins.teams.team import Task, TeamRules
from tests.contract.store_cases import STRANGER, new_head

ROLES = ["researcher", "implementer", None]


def graph_of(count: int = 9, **budgets: Budget) -> Graph:
    tasks = [
        Task(
            id=f"t{n}",
            subject="T",
            role=ROLES[n % 3],
            budget=budgets.get(f"t{n}", Budget()),
        )
        for n in range(count)
    ]
    graph = build_task_workflow("team", tasks, merge_roles({})).graph
    assert graph is not None
    return graph


def spend(marking: Marking, name: str, usd: float, tokens: int = 0) -> None:
    marking.apply(["team", "spend", name, usd, tokens, 0.5])


def test_sums_cover_all_tasks_whether_counted_or_restored() -> None:
    graph, chance = graph_of(t3=Budget(max_cost_usd=2)), random.Random(5)  # noqa: S311 - no secret
    marking = Marking(graph)
    for _ in range(200):
        spend(marking, f"t{chance.randrange(9)}", chance.randint(1, 100) / 1000, 7)
    spent = marking.ledger.spent
    for made in (marking, flow_record.restore(graph, flow_record.snapshot(marking), "running")):
        tally = made.tally
        assert tally.total.usd == pytest.approx(sum(one[0] for one in spent.values()), abs=1e-9)
        assert tally.total.tokens == 1400
        assert tally.roles.keys() == {"researcher", "implementer"}
        for role, names in graph.by_role.items():
            mine = sum(spent[name][0] for name in names)
            assert tally.roles[role].usd == pytest.approx(mine, abs=1e-9)


def test_a_task_is_used_up_when_all_its_attempts_together_are() -> None:
    marking = Marking(graph_of(t0=Budget(max_tokens=100), t1=Budget(max_cost_usd=1)))
    spend(marking, "t0", 50.0, 99)
    spend(marking, "t1", 0.5, 1000)
    assert marking.tally.used_up == set()
    spend(marking, "t0", 0.0, 1)
    spend(marking, "t1", 0.5)
    spend(marking, "t2", 1000.0)
    assert marking.tally.used_up == {"t0", "t1"}
    assert set(TeamBudgets(TeamRules()).find_closed(marking)) == {"t0", "t1"}


@pytest.mark.parametrize(
    ("budget", "usd", "tokens", "share", "is_used_up"),
    [
        (Budget(), 1e9, 1e9, 1.0, False),
        (Budget(max_cost_usd=2), 1.99, 1e9, 1.0, False),
        (Budget(max_cost_usd=2), 2.0, 0, 1.0, True),
        (Budget(max_cost_usd=2), 1.6, 0, 0.8, True),
        (Budget(max_tokens=10), 99.0, 9, 1.0, False),
        (Budget(max_tokens=10, max_cost_usd=100), 99.0, 10, 1.0, True),
    ],
)
def test_a_budget_is_used_up_at_its_limit_times_the_share(
    budget: Budget, usd: float, tokens: float, share: float, *, is_used_up: bool
) -> None:
    assert budget.is_used_up(usd, tokens, share) is is_used_up
    assert budget.is_limited is (budget != Budget())


# --- what is looked at -------------------------------------------------------------------


def left_of(caps: TeamBudgets, marking: Marking, name: str) -> float | None:
    use = caps.find_task_use(marking, name)
    assert use is not None
    return use.left_usd()


class Counted(dict[str, Any]):
    """Says if somebody goes through all of it."""

    def __iter__(self) -> Never:
        raise AssertionError("each transition would look at every task")

    items = values = keys = __iter__


@pytest.mark.parametrize("budget", [{}, {"max_cost_usd": 1000.0}])
def test_no_transition_reads_the_spending_of_every_task(budget: dict[str, float]) -> None:
    marking = Marking(graph_of(t0=Budget(max_cost_usd=5)))
    spend(marking, "t0", 1.0)
    marking.ledger.spent = Counted(marking.ledger.spent)
    head = new_head()
    caps = TeamBudgets(TeamRules.model_validate({"budget": budget}))
    assert not caps.find_closed(marking)
    assert not caps.find_nodes_to_kill(marking, {})
    assert left_of(caps, marking, "t0") == 4.0
    spend(marking, "t0", 1.0)
    assert left_of(caps, marking, "t0") == 3.0
    assert BudgetShares(RunLimits(), caps, STRANGER).compute_share(
        head, marking, "t0", 4, frozenset()
    ) == {"usd": 3.0}
    with pytest.raises(AssertionError, match="every task"):
        list(marking.ledger.spent)


def team(*operations: tuple[object, ...]) -> Ledger:
    state = Ledger()
    for word, *arguments in operations:
        state.apply(str(word), *arguments)
    return state


@pytest.mark.parametrize("word", ["", "_do_warn", "as_json", "apply", "nothing"])
def test_unknown_ledger_operations_are_refused(word: str) -> None:
    with pytest.raises(KeyError):
        Ledger().apply(word)
