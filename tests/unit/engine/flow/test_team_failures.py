"""A task that fails for good: what it holds back, how the run ends, and how it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.engine.loop import Mode
from sequencer.errors import StepFailed
from sequencer.store.memory import MemoryRun
from tests.unit.engine.flow.labs import Hold, failed, let_go, until
from tests.unit.engine.flow.team_labs import AT_ONCE, TeamLab, fails, task, team

CREW = (task("a"), task("b", "a"), task("c", "b"), task("x"), task("y", "x"), task("z", "c", "y"))
"""Two chains that meet in z."""


@pytest.fixture
def made(tmp_path: Path) -> TeamLab:
    return team(tmp_path, CREW, {"a": fails(1)})


def test_all_that_failed_are_named(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"a": failed("no disk"), "x": failed("no net")})
    message = made.ended()
    assert "task 'a' failed: no disk; task 'x' failed: no net" in message
    assert made.marking.lost.keys() == {"a", "x"}
    # A later look, by another process, says the same.
    assert "task 'a' failed: no disk; task 'x' failed: no net" in made.ended()


def test_retry_begins_the_attempts_anew(tmp_path: Path) -> None:
    made = team(tmp_path, [task("a", **AT_ONCE)], {"a": fails(5)})
    made.ended()
    assert len(made.actor.asked) == 3
    made.retry()
    assert made.work().usage.steps == 1
    assert len(made.actor.asked) == 6


def test_retry_while_others_still_run(tmp_path: Path) -> None:
    hold = Hold("late")
    made = team(tmp_path, CREW, {"a": fails(1), "x": hold})
    with let_go(hold):
        at_work = made.works()
        until(lambda: made.actor.names.count("a") == 1 and made.facts("failed"))
        assert made.status == "running"
        made.retry()
        # The process at work hears of it.
        until(lambda: "c" in made.accepted())
        assert not hold.was_stopped
    at_work.summary()
    assert made.accepted()[-1] == "z"
    assert made.status == "completed"


def test_a_crash_between_a_failure_and_the_end(tmp_path: Path) -> None:
    memory = MemoryRun()
    made = team(tmp_path, CREW, {"a": fails(1)}, memory=memory, size=1)
    # By urgency a is first; it fails, and x is claimed in the same transition.
    with pytest.raises(StepFailed):
        made.work(Mode.TICK)
    assert made.marking.failed.keys() == {"a"}
    assert made.status == "running"
    made.died()
    assert [claim.step for claim in made.head.claims] == ["x"]
    assert "task 'a' failed" in made.ended()
    assert made.accepted() == ["x", "y"]
    assert [fact["step"] for fact in made.facts("taken-over")] == ["x"]
    memory.close()


def test_what_comes_next_is_not_what_has_failed(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"a": fails(1)}, size=1)
    with pytest.raises(StepFailed):
        made.work(Mode.TICK)
    assert made.run().flow.net.startable(made.head) == ["x"]
    assert made.head.status == "waiting-next"
