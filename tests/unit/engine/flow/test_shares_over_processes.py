"""Shares of several processes: who finds nothing left waits, and goes on when there is some."""

from __future__ import annotations

from pathlib import Path

from sequencer.store.memory import MemoryRun
from tests.unit.engine.flow.labs import Hold, let_go, said, until
from tests.unit.engine.flow.team_costs import paid
from tests.unit.engine.flow.team_labs import TeamLab, cost, task, team


def two_tasks(tmp_path: Path, memory: MemoryRun, hold: Hold) -> TeamLab:
    tasks = [task("long", weight=2), task("short")]
    rules = {"budget": {"max_cost_usd": 4}}
    return team(tmp_path, tasks, {"long": hold, "short": paid(1)}, rules=rules, memory=memory)


def test_who_finds_nothing_left_goes_on_when_the_other_has_ended(tmp_path: Path) -> None:
    """Without a size the first process shares out everything among its own places."""
    memory, hold = MemoryRun(), Hold(said("ok", **cost(0.5)))
    made = two_tasks(tmp_path, memory, hold)
    with let_go(hold):
        first = made.works(places=1, limits={"max_steps": 1})
        hold.wait()
        second = made.works(places=1)
        until(lambda: second.is_on)
        assert made.actor.names == ["long"]
        hold.go.set()
        first.summary()
        second.summary()
    assert made.status == "completed"
    assert [request.max_cost_usd for request in made.actor.asked] == [4, 3.5]
    memory.close()
