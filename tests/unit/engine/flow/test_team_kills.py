"""``on_hard: kill``: what runs is stopped while it uses more than there is, not only afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.shares import TeamBudgets
from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.net.marking import Marking
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.team import TeamRules
from tests.unit.engine.flow.labs import Hold, let_go, until
from tests.unit.engine.flow.team_costs import ROLES
from tests.unit.engine.flow.team_labs import TeamLab, task, team

KILL = {"on_hard": "kill"}


class Spending(Hold):
    """An agent that is stopped only from outside, and says then what it has used."""

    def __init__(self, usage: Usage) -> None:
        super().__init__("done")
        self.usage = usage

    def __call__(self, request: StepRequest, cancellation: Cancellation) -> Outcome:
        ended = super().__call__(request, cancellation)
        return ended.replace(usage=self.usage)


def spending(tmp_path: Path, usage: Usage, rules: dict[str, Any], **more: Any) -> Any:
    """Return a team of one task that uses *usage* and goes on, and that task's agent."""
    hold = Spending(usage)
    tasks = [task("long", **more), task("next", "long")]
    made = team(tmp_path, tasks, {"long": hold}, rules=rules, roles=ROLES)
    made.actor.tells["long"] = usage
    return made, hold


def stopped(made: TeamLab, hold: Hold) -> str:
    with let_go(hold):
        at_work = made.works()
        until(lambda: hold.was_stopped)
        return str(at_work.summary().reason)


@pytest.mark.parametrize(
    ("usage", "rules", "told"),
    [
        (Usage(cost_usd=1.5), {"max_cost_usd": 1}, "1.5000 of 1 USD"),
        (Usage(input_tokens=60, output_tokens=40), {"max_tokens": 100}, "100 of 100 tokens"),
    ],
)
def test_an_attempt_that_passes_the_teams_cap_is_stopped_at_once(
    tmp_path: Path, usage: Usage, rules: dict[str, Any], told: str
) -> None:
    made, hold = spending(tmp_path, usage, {"budget": {**KILL, **rules}})
    assert told in stopped(made, hold)
    (released,) = made.facts("released")
    assert released["outcome"]["reason"] == "budget"
    assert made.head.usage.cost_usd == usage.cost_usd
    assert made.actor.names == ["long"]


def test_so_is_one_that_passes_its_roles_or_its_own(tmp_path: Path) -> None:
    dear = Usage(cost_usd=0.5)
    role = {"budget": KILL, "role_budgets": {"cook": {"max_cost_usd": 0.5}}}
    made, hold = spending(tmp_path / "role", dear, role, role="cook")
    assert "role cook has used 0.5000" in stopped(made, hold)
    own = {"max_cost_usd": 0.5}
    made, hold = spending(tmp_path / "task", dear, {"budget": KILL}, budget=own)
    assert "task long has used 0.5000" in stopped(made, hold)


def test_what_was_used_in_an_attempt_that_was_stopped_counts_once(tmp_path: Path) -> None:
    made, hold = spending(tmp_path, Usage(cost_usd=1.5), {"budget": {**KILL, "max_cost_usd": 1}})
    stopped(made, hold)
    assert made.marking.team.spent["long"][0] == 1.5
    hold.go.set()
    made.actor.tells.clear()
    made.under(budget={**KILL, "max_cost_usd": 9}).work()
    assert made.status == "completed"


# --- the figures themselves --------------------------------------------------------------


def test_only_what_is_over_its_cap_is_stopped(tmp_path: Path) -> None:
    tasks = [
        task("soup", role="cook"),
        task("roast", role="cook"),
        task("taste", role="taster", budget={"max_tokens": 10}),
        task("pay"),
    ]
    graph = team(tmp_path, tasks, roles=ROLES).workflow.graph
    assert graph is not None
    rules = {"budget": KILL, "role_budgets": {"cook": {"max_cost_usd": 1}}}
    budgets = TeamBudgets(TeamRules.model_validate(rules))
    marking = Marking(graph)
    half = Usage(cost_usd=0.5)
    assert set(budgets.to_kill(marking, {"soup": half, "pay": half})) == set()
    assert set(budgets.to_kill(marking, {"soup": half, "roast": half})) == {"soup", "roast"}
    assert set(budgets.to_kill(marking, {"taste": Usage(input_tokens=10)})) == {"taste"}


def test_the_outcome_of_a_stopped_attempt_is_no_failure(tmp_path: Path) -> None:
    made, hold = spending(tmp_path, Usage(cost_usd=2), {"budget": {**KILL, "max_cost_usd": 1}})
    stopped(made, hold)
    assert made.marking.team.streak == 0
    assert made.facts("failed") == []
    assert made.facts("released")[0]["outcome"]["status"] == OutcomeStatus.INTERRUPTED
