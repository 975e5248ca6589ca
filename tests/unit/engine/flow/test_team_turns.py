"""In which order tasks are begun, and the results of those that run at once are merged."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.merge_order import ActiveClaims, MergeQueue, MergeTurn
from sequencer.errors import TooManyFailures, TransitionRefused
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import StepRequest
from sequencer.model.commands import Reject
from sequencer.model.graph.graph import Graph
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Claim
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.plugins.teams.budgets import TeamBudgets
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.team import TeamRules
from sequencer.store.identity import this_process
from tests.unit.engine.flow.labs import Hold, failed, let_go, said, until
from tests.unit.engine.flow.team_costs import RETRY, ROLES, paid
from tests.unit.engine.flow.team_labs import TeamLab, cost, task, team
from tests.unit.engine.flow.team_sites import at_site, tree

# --- the order of merges -----------------------------------------------------------------


def test_a_later_task_merges_after_an_earlier_running_one(tmp_path: Path) -> None:
    hold = Hold("one")
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        assert not hold.go.wait(0.15)
        assert site.merged_tasks == []
        assert made.accepted() == []
    at_work.summary()
    assert site.merged_tasks == ["a", "b"]
    # It was merged before who waits for it in the journal either.
    assert made.accepted() == ["a", "b"]


def test_the_first_task_to_finish_merges_first_if_configured(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold}, rules={"merge": "finished"})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: made.accepted() == ["b"])
    at_work.summary()
    assert site.merged_tasks == ["b", "a"]


def test_a_merge_does_not_wait_for_tasks_that_are_not_running(tmp_path: Path) -> None:
    """One has failed, one waits for its next try, one has not begun."""
    later = {"retry": {"max_attempts": 2, "initial_delay_s": 60}}
    tasks = [tree("a"), tree("c", **later), tree("d", "a"), tree("b")]
    hold = Hold()
    made = team(tmp_path, tasks, {"a": failed(), "c": failed(), "b": hold})
    site = at_site(made, merges="abcd")
    with let_go(hold):
        at_work = made.works(limits={"max_steps": 1})
        until(lambda: len(made.facts("failed")) == 2)
        hold.go.set()
        assert at_work.summary().usage.steps == 1
    assert site.merged_tasks == ["b"]


def test_a_merge_waits_for_the_claim_of_another_process(tmp_path: Path) -> None:
    first, second = Hold("one"), Hold("two")
    made = team(tmp_path, [tree("a"), tree("b")], {"a": first, "b": second})
    site = at_site(made, merges="ab")
    with let_go(first, second):
        one = made.works(places=1)
        first.wait()
        other = made.works(places=1)
        second.wait()
        second.go.set()
        until(lambda: site.times("asks", "b"))
        assert not first.go.wait(0.15)
        assert site.merged_tasks == []
    one.end()
    other.end()
    assert site.merged_tasks == ["a", "b"]


def test_a_merge_does_not_wait_for_a_dead_process(tmp_path: Path) -> None:
    """Nor for ever for one that is taken over: it holds the turn only while it runs."""
    made = team(tmp_path, [tree("a"), tree("b")])
    site = at_site(made, merges="ab")
    store = made.claimed(slots=1)
    assert [claim.step for claim in made.head.claims] == ["a"]
    at_work = made.works(places=1)
    until(lambda: site.times("asks", "b"))
    assert site.merged_tasks == []
    store.leave()
    at_work.summary()
    assert site.merged_tasks == ["b", "a"]


def test_a_waiting_task_is_merged_when_the_process_is_interrupted(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold, "b": said("two", **cost(0.5))})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        at_work.ready()
        at_work.interrupt()
        at_work.error()
    # It is done and paid for: it does not wait any longer, and is not thrown away.
    assert site.merged_tasks == ["b"]
    assert [fact["step"] for fact in made.facts("released")] == ["a"]
    assert [fact["step"] for fact in made.facts("succeeded")] == ["b"]
    assert made.marking.ledger.spent["b"][0] == 0.5
    made.actor.says["a"] = ["one"]
    made.work()
    assert site.merged_tasks == ["b", "a"]


def test_waiting_ends_when_the_run_is_cancelled(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        made.run().do(Reject("enough"), by="ann")
        at_work.end()
    assert site.merged_tasks == []
    assert made.status == "cancelled"


# --- what waiting costs ------------------------------------------------------------------


def held(
    graph: Graph, name: str, by: str, *, is_strict: bool = False, is_crowded: bool = False
) -> bool:
    me = this_process()
    claim = Claim(token=1, step=by, step_index=0, attempt=1, owner=me, claimed_at="", ttl_s=60.0)
    return MergeTurn(MergeQueue(is_strict=is_strict), graph, name).is_held_by(
        ActiveClaims((claim,), is_crowded)
    )


def test_merge_order_is_kept_only_if_no_one_has_to_wait_for_it() -> None:
    tasks = [tree("a"), tree("b"), tree("c"), task("after-b", "b"), task("sum", "a", "c")]
    graph = build_task_workflow("w", tasks, {}, size=3).graph
    assert graph is not None
    assert held(graph, "c", "a"), "what waits for c waits for a as well"
    assert not held(graph, "b", "a"), "after-b could begin"
    assert held(graph, "b", "a", is_strict=True)
    assert not held(graph, "a", "c"), "it stands behind"
    assert not held(graph, "c", "a", is_crowded=True), "c keeps a place that somebody wants"
    assert held(graph, "c", "a", is_strict=True, is_crowded=True)
    assert not held(graph, "c", "nobody"), "added since"


def test_the_team_size_limits_attempts_across_processes(tmp_path: Path) -> None:
    counted = threading.Condition()
    now, most = 0, 0

    def work(request: StepRequest, cancellation: Cancellation) -> Outcome:
        nonlocal now, most
        del request
        with counted:
            now += 1
            most = max(most, now)
            counted.notify_all()
            # Three at once are waited for, so that fewer would be seen too.
            counted.wait_for(lambda: most >= 3, timeout=10)
        cancellation.wait(0.005)
        with counted:
            now -= 1
        return said("ok")

    tasks = [task(f"t{number}") for number in range(12)]
    made = team(tmp_path, tasks, {t.id: work for t in tasks}, size=3)
    processes = [made.works(places=2) for _ in range(3)]
    for process in processes:
        process.summary()
    assert most == 3
    assert sorted(made.accepted()) == sorted(t.id for t in tasks)


# --- ``on_hard: kill``: what runs is stopped while it uses more than there is, not only afterward

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


def test_an_attempt_that_passes_the_cap_of_its_role_or_task_is_stopped(tmp_path: Path) -> None:
    dear = Usage(cost_usd=0.5)
    role = {"budget": KILL, "role_budgets": {"cook": {"max_cost_usd": 0.5}}}
    made, hold = spending(tmp_path / "role", dear, role, role="cook")
    assert "role cook has used 0.5000" in stopped(made, hold)
    own = {"max_cost_usd": 0.5}
    made, hold = spending(tmp_path / "task", dear, {"budget": KILL}, budget=own)
    assert "task long has used 0.5000" in stopped(made, hold)


def test_the_usage_of_a_stopped_attempt_counts_once(tmp_path: Path) -> None:
    made, hold = spending(tmp_path, Usage(cost_usd=1.5), {"budget": {**KILL, "max_cost_usd": 1}})
    stopped(made, hold)
    assert made.marking.ledger.spent["long"][0] == 1.5
    hold.go.set()
    made.actor.tells.clear()
    made.under(budget={**KILL, "max_cost_usd": 9}).work()
    assert made.status == "completed"


# --- the figures themselves --------------------------------------------------------------


def test_only_attempts_over_a_cap_are_stopped(tmp_path: Path) -> None:
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
    assert set(budgets.find_nodes_to_kill(marking, {"soup": half, "pay": half})) == set()
    assert set(budgets.find_nodes_to_kill(marking, {"soup": half, "roast": half})) == {
        "soup",
        "roast",
    }
    assert set(budgets.find_nodes_to_kill(marking, {"taste": Usage(input_tokens=10)})) == {"taste"}


def test_a_stopped_attempt_is_not_a_failure(tmp_path: Path) -> None:
    made, hold = spending(tmp_path, Usage(cost_usd=2), {"budget": {**KILL, "max_cost_usd": 1}})
    stopped(made, hold)
    assert made.marking.ledger.streak == 0
    assert made.facts("failed") == []
    assert made.facts("released")[0]["outcome"]["status"] == OutcomeStatus.INTERRUPTED


# --- the circuit breaker of a team ------------------------------------------------------------


def broken(tmp_path: Path, **step: Any) -> TeamLab:
    tasks = [task("a", **step), task("b", "a")]
    return team(tmp_path, tasks, {"a": failed("boom")}, rules={"max_failures": 3}, size=1)


def test_the_breaker_opens(tmp_path: Path) -> None:
    made = broken(tmp_path, **RETRY)
    error = made.refused()
    assert isinstance(error, TooManyFailures)
    assert error.exit_code == 3
    assert "3 attempts in a row failed (teams.max_failures: 3)" in str(error)
    assert "retry" in (error.hint or "")
    assert made.actor.names == ["a", "a", "a"]
    assert made.status == "running"
    assert sum("attempts in a row" in text for text in made.warnings()) == 1


def test_retry_closes_a_breaker_that_the_settings_have_opened(tmp_path: Path) -> None:
    """Nothing waits or has failed then; but a streak is there."""
    hold = Hold()
    made = team(tmp_path, [task("a", **RETRY)], {"a": [failed(), hold, "ok"]})
    with let_go(hold):
        at_work = made.works()
        hold.wait()
        at_work.ready()
        at_work.interrupt()
        at_work.error()
    lower = made.under(max_failures=1)
    assert isinstance(lower.refused(), TooManyFailures)
    lower.retry()
    assert made.facts("resumed")[-1]["outcome"] == {"note": "retry: failures count from 0 again"}
    lower.work()
    assert made.status == "completed"
    with pytest.raises(TransitionRefused):
        lower.retry()


def test_the_breaker_kills_nothing(tmp_path: Path) -> None:
    """Whatever a budget says beside it."""
    hold = Hold("ok")
    rules = {
        "budget": {"on_hard": "kill"},
        "role_budgets": {"cook": {"max_cost_usd": 0.5}},
        "max_failures": 1,
    }
    tasks = [task("soup", role="cook"), task("bad", "soup"), task("long")]
    says = {"soup": paid(0.5), "bad": failed(), "long": hold}
    made = team(tmp_path, tasks, says, roles=ROLES, rules=rules)
    with let_go(hold):
        at_work = made.works()
        until(lambda: made.facts("failed"))
        hold.wait()
        assert not hold.go.wait(0.05)
        assert not hold.was_stopped
    at_work.end()
    assert "long" in made.accepted()


def test_a_task_still_running_does_not_close_the_breaker(tmp_path: Path) -> None:
    """Else the task that has opened it would be begun again, and nobody be told."""
    hold = Hold("ok")
    tasks = [task("f", **RETRY), task("slow"), task("next", "slow")]
    says = {"f": failed("boom"), "slow": hold}
    made = team(tmp_path, tasks, says, rules={"max_failures": 2}, size=2)
    with let_go(hold):
        at_work = made.works()
        hold.wait()
        until(lambda: len(made.warnings()) == 1)
    assert isinstance(at_work.error(), TooManyFailures)
    assert made.accepted() == ["slow"]
    assert sorted(made.actor.names) == ["f", "f", "slow"]
    assert made.marking.ledger.streak == 0
    assert "2 attempts in a row failed" in str(made.refused())
    made.actor.says["f"] = ["ok"]
    made.retry()
    made.work()
    assert made.status == "completed"
    assert sorted(made.accepted()) == ["f", "next", "slow"]
