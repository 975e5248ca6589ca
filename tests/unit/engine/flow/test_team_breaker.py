"""The circuit breaker of a team."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import TooManyFailures, TransitionRefused
from tests.unit.engine.flow.labs import Hold, failed, let_go, until
from tests.unit.engine.flow.team_costs import RETRY, ROLES, paid
from tests.unit.engine.flow.team_labs import TeamLab, task, team


def broken(tmp_path: Path, **step: Any) -> TeamLab:
    tasks = [task("a", **step), task("b", "a")]
    return team(tmp_path, tasks, {"a": failed("boom")}, rules={"max_failures": 3}, size=1)


def test_the_breaker_opens(tmp_path: Path) -> None:
    made = broken(tmp_path, **RETRY)
    error = made.refused()
    assert isinstance(error, TooManyFailures)
    assert error.exit_code == 3
    assert "3 attempts in a row have failed (teams.max_failures: 3)" in str(error)
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
    assert made.facts("resumed")[-1]["outcome"] == {"note": "retry: failures count anew"}
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


def test_what_still_runs_does_not_close_it(tmp_path: Path) -> None:
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
    assert made.marking.team.streak == 0
    assert "2 attempts in a row have failed" in str(made.refused())
    made.actor.says["f"] = ["ok"]
    made.retry()
    made.work()
    assert made.status == "completed"
    assert sorted(made.accepted()) == ["f", "next", "slow"]
