"""TeamBudgets of a team, its roles and its tasks, and the circuit breaker."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.capacity import BudgetShares, iter_parallel_nodes
from sequencer.errors import StepFailed
from sequencer.model.commands import Reject
from sequencer.model.graph.graph import Graph
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.task import Budget
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.limits import RunLimits
from sequencer.plugins.teams.budgets import BudgetUse, TeamBudgets
from sequencer.plugins.teams.team import TeamRules
from tests.contract.store_cases import STRANGER, new_head
from tests.flows import workflow as flow
from tests.unit.engine.flow.labs import Actor, Hold, Lab, failed, let_go
from tests.unit.engine.flow.team_costs import LATER, RETRY, ROLES, line, paid
from tests.unit.engine.flow.team_labs import TeamLab, cost, fails, task, team

# --- the team's --------------------------------------------------------------------------


def test_tokens_are_capped_as_well(tmp_path: Path) -> None:
    made = line(tmp_path, {"budget": {"max_tokens": 100}})
    assert "100 of 100 tokens" in made.ended()
    assert made.accepted() == ["a"]


def test_a_soft_cap_warns_once(tmp_path: Path) -> None:
    made = line(tmp_path, {"budget": {"max_cost_usd": 1.0, "soft": 0.3}})
    for _ in range(3):
        made.work(limits={"max_steps": 1})
    near = "the team has used 0.4000 of 1 USD (teams.budget)"
    over = "the team has used 1.2000 of 1 USD (teams.budget): nothing more starts"
    assert made.warnings() == [near, over]
    assert made.status == "completed"


def test_a_hard_cap_kills_running_attempts_if_configured(tmp_path: Path) -> None:
    hold = Hold("done")
    tasks = [task("cheap"), task("long"), task("next")]
    rules = {"budget": {"max_cost_usd": 1, "on_hard": "kill"}}
    made = team(tmp_path, tasks, {"cheap": paid(1.0), "long": hold}, rules=rules, size=2)
    with let_go(hold):
        at_work = made.works()
        assert "nothing more starts" in str(at_work.summary().reason)
        assert hold.was_stopped
    (released,) = made.facts("released")
    assert (released["step"], released["outcome"]["reason"]) == ("long", "budget")
    # It is nobody's failure, and goes on when there is money.
    assert made.marking.ledger.streak == 0
    hold.go.set()
    made.under().work()
    assert sorted(made.accepted()) == ["cheap", "long", "next"]


# --- what is counted ---------------------------------------------------------------------


def test_the_cost_of_an_attempt_with_a_lost_claim_is_counted(tmp_path: Path) -> None:
    """And warned of: what it has used may be the last of the budget."""
    hold = Hold(paid(0.9))
    made = team(
        tmp_path,
        [task("a"), task("b", "a")],
        {"a": hold},
        rules={"budget": {"max_cost_usd": 1}},
    )

    def stubborn(*_: object) -> Any:
        hold.began.set()
        hold.go.wait(10)
        return paid(0.9)

    made.actor.says["a"] = [stubborn]
    with let_go(hold):
        at_work = made.works()
        hold.wait()
        made.run().do(Reject("enough"), by="ann")
    at_work.end()
    assert made.marking.ledger.spent == {"a": [0.9, 0, made.marking.ledger.spent["a"][2]]}
    assert made.warnings() == ["the team has used 0.9000 of 1 USD (teams.budget)"]


def test_a_killed_process_loses_no_spending(tmp_path: Path) -> None:
    made = line(tmp_path, {"budget": {"max_cost_usd": 0.8}})
    made.work(limits={"max_steps": 1})
    made.died()
    made.ended()
    assert made.accepted() == ["a", "b"]
    assert made.marking.ledger.spent.keys() == {"a", "b"}


# --- roles and tasks ---------------------------------------------------------------------


def kitchen(tmp_path: Path, rules: dict[str, Any]) -> TeamLab:
    tasks = [
        task("soup", role="cook", weight=9),
        task("roast", role="cook"),
        task("taste", role="taster"),
        task("more", "taste", role="taster"),
        task("end", "roast", "more"),
    ]
    says = {t.id: paid(0.5) for t in tasks}
    return team(tmp_path, tasks, says, roles=ROLES, rules=rules, size=1)


def test_only_the_role_that_has_used_its_budget_is_closed(tmp_path: Path) -> None:
    made = kitchen(tmp_path, {"role_budgets": {"cook": {"max_cost_usd": 0.5}}})
    reason = made.ended()
    assert made.accepted() == ["soup", "taste", "more"]
    assert reason == (
        "role cook has used 0.5000 of 0.5 USD (teams.roles.cook.budget): nothing more starts"
    )
    made.under().work()
    assert made.status == "completed"


def test_a_role_with_another_budget_is_not_charged(tmp_path: Path) -> None:
    made = kitchen(tmp_path, {"role_budgets": {"cook": {"max_cost_usd": 1.1}}})
    made.work()
    # cook: soup and roast; near its cap, and not at it.
    assert made.warnings() == ["role cook has used 1.0000 of 1.1 USD (teams.roles.cook.budget)"]


def test_a_task_budget_stops_only_its_own_attempts(tmp_path: Path) -> None:
    tasks = [task("dear", budget={"max_tokens": 50}, **RETRY), task("b", "dear"), task("c")]
    says = {"dear": [failed(**cost(0, 30))] * 5, "c": paid(1.0)}
    made = team(tmp_path, tasks, says)
    reason = made.ended()
    assert reason == ("task dear has used 60 of 50 tokens (the task's budget): nothing more starts")
    assert made.actor.names.count("dear") == 2
    assert made.accepted() == ["c"]
    assert made.status == "running"


def test_the_exceeded_budget_of_a_done_task_blocks_no_one(tmp_path: Path) -> None:
    tasks = [task("dear", budget={"max_tokens": 50}), task("b", **LATER)]
    made = team(tmp_path, tasks, {"dear": paid(0, 60), "b": fails(1)}, size=1)
    made.work(limits={"max_steps": 1})
    assert made.accepted() == ["dear"]
    # It has used more than it should have, and nothing follows from that.
    assert made.warnings() == ["task dear has used 60 of 50 tokens (the task's budget)"]
    assert made.run().describe_blockers(made.head) == []
    assert TeamBudgets(made.rules).find_stop_reason(made.marking) is None
    made.work()
    assert made.accepted() == ["dear", "b"]


# --- what one attempt may cost -----------------------------------------------------------


def test_the_lowest_of_all_caps_applies(tmp_path: Path) -> None:
    tasks = [
        task("a", role="cook", budget={"max_cost_usd": 0.3}),
        task("b", "a", role="cook"),
        task("c", "b"),
    ]
    rules = {"budget": {"max_cost_usd": 2.0}, "role_budgets": {"cook": {"max_cost_usd": 1.0}}}
    says = {name: paid(0.25) for name in "abc"}
    made = team(tmp_path, tasks, says, roles=ROLES, rules=rules)
    made.work()
    assert [request.max_cost_usd for request in made.actor.asked] == [0.3, 0.75, 1.5]


# --- the figures themselves --------------------------------------------------------------


def cap(usd: float = 0.0, tokens: float = 0, **budget: Any) -> BudgetUse:
    return BudgetUse("x", "key", Budget.model_validate(budget), usd, tokens)


@pytest.mark.parametrize(
    ("one", "near", "reached", "left"),
    [
        (cap(), False, False, None),
        (cap(9e9, 9e9), False, False, None),
        (cap(0.79, max_cost_usd=1), False, False, 0.21),
        (cap(0.8, max_cost_usd=1), True, False, 0.2),
        (cap(1.0, max_cost_usd=1), True, True, 0.0),
        (cap(5.0, max_cost_usd=1), True, True, 0.0),
        (cap(0.0, 79, max_tokens=100), False, False, None),
        (cap(0.0, 80, max_tokens=100), True, False, None),
        (cap(0.0, 100, max_tokens=100, max_cost_usd=1), True, True, 1.0),
    ],
)
def test_a_cap_is_near_or_reached_depending_on_its_use(
    one: BudgetUse, near: bool, reached: bool, left: float | None
) -> None:
    assert (one.is_near(0.8), one.is_reached) == (near, reached)
    assert one.left_usd() == (None if left is None else pytest.approx(left))


def test_a_reached_cap_does_not_hide_a_failed_task(tmp_path: Path) -> None:
    tasks = [task("bad"), task("dear"), task("next", blocked_by=("dear",))]
    says = {"bad": failed("no way"), "dear": paid(1.0)}
    made = team(tmp_path, tasks, says, rules={"budget": {"max_cost_usd": 1}}, size=2)
    told = r"task 'bad' failed: no way; the team has used 1\.0000 of 1 USD .*nothing more starts"
    for _ in range(2):
        # Nor is it one for a later process.
        with pytest.raises(StepFailed, match=told) as ended:
            made.work()
        assert "retry" in str(ended.value.hint)
    assert made.accepted() == ["dear"]


def test_a_reached_run_limit_does_not_hide_a_failed_task(tmp_path: Path) -> None:
    tasks = [task("bad"), task("good"), task("next", blocked_by=("good",))]
    made = team(tmp_path, tasks, {"bad": failed("no way"), "good": paid(1.0)}, size=2)
    made.limits = RunLimits(cost_usd=1)
    with pytest.raises(StepFailed, match=r"task 'bad' failed: no way; the run's limit of 1"):
        made.work()
    assert made.accepted() == ["good"]


# --- attempts that run at once share what is left; none counts on what another one holds ------

NOBODY: frozenset[int] = frozenset()


def at_once(count: int) -> list[Any]:
    return [task(f"t{number}") for number in range(count)]


# --- a team ------------------------------------------------------------------------------


def test_a_role_and_a_task_have_their_own_shares(tmp_path: Path) -> None:
    rules = {"budget": {"max_cost_usd": 12}, "role_budgets": {"cook": {"max_cost_usd": 2}}}
    tasks = [
        task("soup", role="cook"),
        task("roast", role="cook"),
        task("taste", role="taster"),
        task("pay", budget={"max_cost_usd": 0.25}),
    ]
    made = team(tmp_path, tasks, roles=ROLES, rules=rules)
    made.work()
    given = {request.step.name: request.max_cost_usd for request in made.actor.asked}
    # The cooks hold less than a fourth each, so that more is left for those behind them.
    assert given == {"soup": 1, "roast": 1, "taste": 5, "pay": 0.25}


def test_a_step_holds_no_more_than_its_own_limit(tmp_path: Path) -> None:
    tasks = [task("small", max_cost_usd=1), task("large")]
    made = team(tmp_path, tasks, rules={"budget": {"max_cost_usd": 10}}, size=2)
    made.work()
    given = {request.step.name: request.max_cost_usd for request in made.actor.asked}
    assert given == {"small": 1, "large": 9}


def test_the_share_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    made = team(tmp_path, at_once(2), rules={"budget": {"max_cost_usd": 8}})
    made.died()
    assert {claim.share("usd") for claim in made.head.claims} == {4.0}
    made.work(places=1)
    assert made.status == "completed"


# --- the run's own limit, and the invocation's -------------------------------------------

CHART = "A[Start] --> B[Left]\nA --> C[Right]\nB --> D[Both]\nC --> D"


def chart(tmp_path: Path, limits: RunLimits | None = None) -> Lab:
    made = flow(CHART)
    says: dict[str, list[Any]] = {name: [paid(0.5)] for name in "ABCD"}
    return Lab(tmp_path, made, Actor(says), limits=limits or RunLimits())


def test_the_smaller_of_the_two_limits_counts(tmp_path: Path) -> None:
    made = chart(tmp_path, RunLimits(cost_usd=100))
    made.work(limits={"max_cost_usd": 4.5})
    assert [one.max_cost_usd for one in made.actor.asked] == [4.5, 2, 2, 3]


# --- the figures themselves --------------------------------------------------------------


def graph_of(*edges: str) -> Graph:
    made = flow("\n".join(edges)).graph
    assert made is not None
    return made


def claim(step: str, token: int, owner: Owner = STRANGER, **more: Any) -> Claim:
    return Claim(
        token=token,
        step=step,
        step_index=0,
        attempt=1,
        owner=owner,
        claimed_at="2026-01-01T00:00:00Z",
        ttl_s=60,
        **more,
    )


def head_with(*claims: Claim) -> Head:
    return new_head().replace(claims=claims)


def four() -> Marking:
    marking = Marking(graph_of("A --> Z", "B --> Z", "C --> Z", "D --> Z"))
    for name in "ABCD":
        marking.apply(["token", name])
    return marking


@pytest.mark.parametrize("damaged", ["1", None, True, [], float("nan"), float("inf"), -1, 2**70])
def test_a_damaged_share_is_ignored(damaged: Any) -> None:
    found = claim("A", 1, share_usd=damaged).share("usd")
    assert found is None or found == 1


def test_tokens_are_shared_like_money() -> None:
    rules = TeamRules.model_validate({"budget": {"max_tokens": 11}})
    shares, marking = BudgetShares(RunLimits(), TeamBudgets(rules), STRANGER), four()
    assert shares.compute_share(head_with(), marking, "A", 4, NOBODY) == {"tokens": 2}
    held = head_with(claim("A", 1, share_tokens=11))
    assert set(shares.find_closed(held, marking, NOBODY)) == set("ABCDZ")


@pytest.mark.parametrize("order", list(itertools.permutations("ABCD")))
@pytest.mark.parametrize("limit", [10.0, 1.0, 0.1, 0.000003, 7.77])
def test_the_shares_never_exceed_the_limit_in_total(order: tuple[str, ...], limit: float) -> None:
    shares, marking = BudgetShares(RunLimits(cost_usd=limit), None, STRANGER), four()
    claims: list[Claim] = []
    for token, name in enumerate(order, 1):
        given = shares.compute_share(head_with(*claims), marking, name, 5 - token, NOBODY)
        marking.apply(["start", name, token])
        claims.append(claim(name, token, share_usd=given["usd"]))
    sums = [one.share("usd") or 0.0 for one in claims]
    assert sum(sums) <= limit * (1 + 1e-12)
    assert min(sums) > 0


# --- who may run at the same time --------------------------------------------------------


def test_a_node_waiting_for_another_does_not_run_beside_it() -> None:
    marking = Marking(graph_of("A --> B --> D", "C --> D", "C --> E"))
    for name in "AC":
        marking.apply(["token", name])
    marking.apply(["start", "A", 1])
    assert set(iter_parallel_nodes(marking, "A", {"A"})) == {"C", "E"}
    assert set(iter_parallel_nodes(marking, "C", {"A"})) == {"B"}
    marking.apply(["start", "C", 2])
    # Who runs has a share already; what comes behind it does not.
    assert set(iter_parallel_nodes(marking, "A", {"A", "C"})) == {"E"}
    marking.apply(["step", "C", ["D", "E"]])
    # D has a token already, and waits for the one that comes through A.
    assert set(iter_parallel_nodes(marking, "A", {"A"})) == {"E"}
