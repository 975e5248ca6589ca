"""A task that fails for good: what it holds back, how the run ends, and how it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from sequencer.engine.attempt import Leftovers
from sequencer.engine.decide_graph import GraphSeen
from sequencer.engine.events import Emit
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.performing import Performer
from sequencer.engine.threads import ThreadedLoop
from sequencer.errors import ConfigurationError, StepFailed, StorageFailed
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step
from sequencer.plugins.teams.team import Role
from tests.unit.engine.flow.labs import Hold, Texts, failed, let_go, said, until
from tests.unit.engine.flow.team_labs import TeamLab, adds, cost, crash, fails, task, team
from tests.unit.engine.flow.team_sites import at_site, tree

CREW = (task("a"), task("b", "a"), task("c", "b"), task("x"), task("y", "x"), task("z", "c", "y"))
"""Two chains that meet in z."""


@pytest.fixture
def made(tmp_path: Path) -> TeamLab:
    return team(tmp_path, CREW, {"a": fails(1)})


def test_a_retry_takes_effect_while_other_tasks_run(tmp_path: Path) -> None:
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


def test_a_change_just_before_the_sleep_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold("late")
    made, sleep = team(tmp_path, CREW, {"a": fails(1), "x": hold}), ThreadedLoop._sleep

    def retried_then_asleep(loop: ThreadedLoop, seen: GraphSeen, *more: Any) -> bool:
        if made.marking.failed:
            made.retry()
        return sleep(loop, seen, *more)

    monkeypatch.setattr(ThreadedLoop, "_sleep", retried_then_asleep)
    with let_go(hold):
        at_work = made.works()
        until(lambda: "c" in made.accepted())
        assert not hold.was_stopped
    at_work.summary()
    assert made.status == "completed"


def test_a_crash_after_a_failure_does_not_lose_the_failure(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"a": fails(1)}, size=1)
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


def test_a_failed_task_is_not_listed_next(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"a": fails(1)}, size=1)
    with pytest.raises(StepFailed):
        made.work(Mode.TICK)
    assert made.run().flow.graph_kind.list_startable(made.head) == ["x"]
    assert made.head.status == "waiting-next"


class Missing(Texts):
    """Prompts, some of which are not there."""

    missing: frozenset[str] = frozenset()

    def read_for(self, step: Step, executor: Executor) -> str:
        if step.prompt in self.missing:
            raise ConfigurationError(f"there is no prompt {step.prompt!r} (s3cret)")
        return super().read_for(step, executor)


@dataclass
class BadLab(TeamLab):
    """A team whose prompt ``gone.md`` is not there."""

    missing: frozenset[str] = frozenset({"gone.md"})

    def performer(self, made: Any, emit: Emit) -> Performer:
        performer = super().performer(made, emit)
        prompts = Missing(self.prompts)
        prompts.missing = self.missing
        structs.force_setattr(performer, "prompts", prompts)
        return performer


def bad(tmp_path: Path, *, role: str = "odd") -> BadLab:
    roles = {"odd": Role.model_validate({"prompt": "gone.md"})}
    says = {"lead": adds(("broken",), role=role)}
    made = team(tmp_path, [task("lead", adds="tasks"), task("sum", "lead")], says, roles=roles)
    return BadLab(**{name: getattr(made, name) for name in made.__dataclass_fields__})


def test_an_added_task_that_cannot_start_fails_with_a_reason(tmp_path: Path) -> None:
    made = bad(tmp_path)
    assert "task 'broken' failed: there is no prompt 'gone.md' (***)" in made.ended()
    assert made.accepted() == ["lead"]
    (fact,) = made.facts("failed")
    assert fact["step"] == "broken"
    assert made.head.claims == ()


def test_an_added_task_runs_after_a_retry_once_it_can_start(tmp_path: Path) -> None:
    made = bad(tmp_path)
    made.ended()
    made.missing = frozenset()
    made.retry()
    made.work()
    assert made.accepted() == ["lead", "broken", "sum"]


def test_a_later_process_prepares_what_was_added(tmp_path: Path) -> None:
    """It knows of the addition by the run's files only."""
    made = bad(tmp_path)
    made.work(limits={"max_steps": 1})
    assert "there is no prompt 'gone.md'" in made.ended()
    assert made.marking.lost.keys() == {"broken"}


# --- what an agent has left where its task was done, and where that is ------------------------

# --- what an agent has left ----------------------------------------------------------------


def test_a_failed_attempt_also_reports_what_became_of_its_work(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")], {"a": failed("compiler crashed")})
    site = at_site(made, a=Leftovers("its work can't be committed"))
    assert "compiler crashed\nits work can't be committed" in made.ended()
    assert site.said == [("open", "a"), ("close", "a", False)]


def test_work_of_an_attempt_that_raised_is_closed(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a"), task("b")], {"a": crash})
    site = at_site(made)
    assert "a bug" in made.ended()
    assert ("close", "a", False) in site.said


def test_an_error_while_closing_does_not_hide_the_bug(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")], {"a": crash})
    at_site(made, a=StorageFailed("git is gone"))
    assert "a bug" in made.ended()


@pytest.mark.parametrize("error", [StorageFailed("disk full: s3cret"), OSError("disk full")])
def test_a_place_that_cannot_be_closed_fails_its_task(tmp_path: Path, error: Exception) -> None:
    made = team(tmp_path, [tree("a"), task("b", "a"), task("c")], {"a": said("x", **cost(0.25))})
    at_site(made, a=error)
    assert "disk full" in made.ended()
    assert made.accepted() == ["c"]
    assert made.marking.ledger.spent["a"][0] == 0.25
    (fact,) = made.facts("failed")
    assert "s3cret" not in str(fact)


def test_a_task_without_a_place_stops_the_process_and_not_the_run(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")])
    site = at_site(made)
    site.refuses = "a"
    error = made.refused()
    assert isinstance(error, StorageFailed)
    assert [fact["step"] for fact in made.facts("released")] == ["a"]
    site.refuses = ""
    made.work()
    assert made.status == "completed"


# --- where it works --------------------------------------------------------------------------
