"""A task that judges and says no: the fix, the repetition, and the end of the patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.errors import StepFailed
from sequencer.model.graph.marking import FlowStatus
from sequencer.plugins.teams.expansion import TeamExpander
from tests.unit.engine.flow.labs import failed
from tests.unit.engine.flow.team_labs import JUDGE, YES, TeamLab, no, task, team

CREW = (task("build"), task("check", "build", **JUDGE), task("ship", "check"))


def judging(**more: Any) -> dict[str, Any]:
    return {"validation": {**JUDGE["validation"], **more}}


def behind(**more: Any) -> list[Any]:
    return [task("build"), task("check", "build", **judging(**more)), task("ship", "check")]


def rounds(made: TeamLab) -> list[tuple[str, int]]:
    """Return which "no" of whom the journal has, by number."""
    facts = made.facts("invalid")
    return [(fact["step"], fact["outcome"]["number"]) for fact in facts]


def test_the_rounds_of_a_judge_are_counted_across_processes(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"check": no("never")})
    for number in (1, 2):
        assert made.work(Mode.TICK).usage.steps == 1
        # A no that is mended by itself is nobody's business: a tick has done its work.
        judged = made.work(Mode.TICK)
        assert judged.reason == f"'check' said no, and 'check-fix-{number}' was added"
        assert (judged.usage.steps, judged.failures) == (0, 1)
    assert made.work(Mode.TICK).usage.steps == 1
    with pytest.raises(StepFailed, match="never"):
        made.work(Mode.TICK)
    assert made.actor.names.count("check") == 3
    assert made.accepted() == ["build", "check-fix-1", "check-fix-2"]


def test_a_retry_allows_new_rounds_with_new_fix_names(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"check": [*[no()] * 4, YES]})
    made.ended()
    made.retry()
    made.work()
    fixes = ["check-fix-1", "check-fix-2", "check-fix-1.2"]
    assert [name for name in made.accepted() if "fix" in name] == fixes
    assert made.accepted()[-2:] == ["check", "ship"]


def test_the_run_can_continue_after_the_last_no(tmp_path: Path) -> None:
    made = team(tmp_path, behind(on_exhausted="continue", max_attempts=2), {"check": no("meh")})
    summary = made.work()
    assert made.accepted() == ["build", "check-fix-1", "check", "ship"]
    assert made.status == FlowStatus.COMPLETED
    # Who comes behind reads what the judge has said, and every step is counted.
    assert "meh" in made.actor.prompts_of("ship")[0]
    assert summary.usage.steps == made.head.usage.steps == 4
    assert summary.failures == 1


def test_a_tick_fails_if_its_lead_gives_an_invalid_answer(tmp_path: Path) -> None:
    made = team(tmp_path, [task("lead", adds="tasks")], {"lead": "no JSON"})
    with pytest.raises(StepFailed, match="not JSON"):
        made.work(Mode.TICK)


def test_a_failed_attempt_is_not_a_judgment(tmp_path: Path) -> None:
    check = task("check", retry={"max_attempts": 2, "initial_delay_s": 0}, **judging())
    made = team(tmp_path, [check], {"check": [failed("crashed"), no(), YES]})
    made.work()
    assert rounds(made) == [("check", 1)]
    assert made.accepted() == ["check-fix-1", "check"]


def test_a_judge_without_a_verdict_is_asked_again_and_nothing_is_fixed(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"check": ["It looks fine.", YES]})
    made.work()
    assert made.accepted() == ["build", "check", "ship"]
    assert 'end with the JSON object {"pass": true' in made.actor.prompts_of("check")[1]
    assert rounds(made) == []


def test_a_judge_that_never_gives_a_verdict_fails(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"check": "It looks fine."})
    with pytest.raises(StepFailed, match="no verdict in the answer"):
        made.work()
    assert made.actor.names == ["build", "check", "check"]


def test_a_kill_between_the_no_and_the_fix_loses_nothing(tmp_path: Path) -> None:
    made = team(tmp_path, CREW, {"check": [no("why"), YES]})
    made.work(limits={"max_steps": 1})
    made.work(Mode.TICK)
    made.died()
    assert [claim.step for claim in made.head.claims] == ["check-fix-1"]
    made.work()
    assert made.accepted() == ["build", "check-fix-1", "check", "ship"]
    assert "the answer is no: why" in made.actor.prompts_of("check-fix-1")[0]


def test_names_of_fixes_avoid_those_of_the_authors_tasks(tmp_path: Path) -> None:
    tasks = [*CREW, task("check-fix-1"), task("check-fix-1.2")]
    made = team(tmp_path, tasks, {"check": [no(), YES]})
    made.work()
    assert made.marking.growths[0].nodes[0].id == "check-fix-1.3"
    assert made.accepted()[-1] == "ship"


# --- what mends ------------------------------------------------------------------------------


def test_a_fix_uses_the_agent_of_the_run_unless_it_has_its_own(tmp_path: Path) -> None:
    growth = TeamExpander({}, agent="other").build_fix(team(tmp_path, CREW).workflow, "check", 2)
    assert growth is not None
    assert growth.steps[0].agent == "other"
    own = behind(fixer={"name": "mend", "executor": "mine"})
    growth = TeamExpander({}, agent="other").build_fix(team(tmp_path, own).workflow, "check", 2)
    assert growth is not None
    assert growth.steps[0].agent == "mine"


def test_a_task_that_is_no_judge_gets_no_fix(tmp_path: Path) -> None:
    assert TeamExpander({}).build_fix(team(tmp_path, CREW).workflow, "build", 1) is None
