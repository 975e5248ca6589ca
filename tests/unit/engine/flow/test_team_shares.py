"""Attempts that run at once share what is left; none counts on what another one holds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.shares import Shares, TeamBudgets, beside_of
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.limits import RunLimits
from sequencer.model.net.graph import Graph
from sequencer.model.net.marking import Marking
from sequencer.model.team import TeamRules
from tests.contract.store_cases import STRANGER, new_head
from tests.flows import workflow as flow
from tests.unit.engine.flow.labs import Actor, Lab
from tests.unit.engine.flow.team_costs import ROLES, paid
from tests.unit.engine.flow.team_labs import task, team

NOBODY: frozenset[int] = frozenset()


def at_once(count: int) -> list[Any]:
    return [task(f"t{number}") for number in range(count)]


# --- a team ------------------------------------------------------------------------------


def test_a_role_and_a_task_have_shares_of_their_own(tmp_path: Path) -> None:
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
    made = chart(tmp_path, RunLimits(max_cost_usd=100))
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
def test_a_share_that_somebody_has_spoilt_is_none(damaged: Any) -> None:
    found = claim("A", 1, share_usd=damaged).share("usd")
    assert found is None or found == 1


def test_tokens_are_shared_as_money_is() -> None:
    rules = TeamRules.model_validate({"budget": {"max_tokens": 11}})
    shares, marking = Shares(RunLimits(), TeamBudgets(rules), STRANGER), four()
    assert shares.of(head_with(), marking, "A", 4, NOBODY) == {"tokens": 2}
    held = head_with(claim("A", 1, share_tokens=11))
    assert set(shares.closed(held, marking, NOBODY)) == set("ABCDZ")


@pytest.mark.parametrize("order", list(itertools.permutations("ABCD")))
@pytest.mark.parametrize("limit", [10.0, 1.0, 0.1, 0.000003, 7.77])
def test_together_they_are_never_given_more_than_there_is(
    order: tuple[str, ...], limit: float
) -> None:
    shares, marking = Shares(RunLimits(max_cost_usd=limit), None, STRANGER), four()
    claims: list[Claim] = []
    for token, name in enumerate(order, 1):
        given = shares.of(head_with(*claims), marking, name, 5 - token, NOBODY)
        marking.apply(["start", name, token])
        claims.append(claim(name, token, share_usd=given["usd"]))
    sums = [one.share("usd") or 0.0 for one in claims]
    assert sum(sums) <= limit * (1 + 1e-12)
    assert min(sums) > 0


# --- who may run at the same time --------------------------------------------------------


def test_who_waits_for_a_node_does_not_run_beside_it() -> None:
    marking = Marking(graph_of("A --> B --> D", "C --> D", "C --> E"))
    for name in "AC":
        marking.apply(["token", name])
    marking.apply(["start", "A", 1])
    assert set(beside_of(marking, "A", {"A"})) == {"C", "E"}
    assert set(beside_of(marking, "C", {"A"})) == {"B"}
    marking.apply(["start", "C", 2])
    # Who runs has a share already; what comes behind it does not.
    assert set(beside_of(marking, "A", {"A", "C"})) == {"E"}
    marking.apply(["step", "C", ["D", "E"]])
    # D has a token already, and waits for the one that comes through A.
    assert set(beside_of(marking, "A", {"A"})) == {"E"}
