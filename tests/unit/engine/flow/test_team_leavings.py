"""What an agent has left where its task was done, and where that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.engine.workplaces import Left
from sequencer.errors import StepFailed, StorageFailed
from tests.unit.engine.flow.labs import failed, said
from tests.unit.engine.flow.team_labs import (
    JUDGE,
    YES,
    cost,
    crash,
    task,
    team,
)
from tests.unit.engine.flow.team_sites import at_site, tree

# --- what an agent has left ----------------------------------------------------------------


def test_a_result_that_can_not_be_merged_is_no_success(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a"), task("b", "a"), task("c")], {"a": "I did it"})
    told = (("branch", "sequencer/a"), ("files", "x.py"))
    at_site(made, a=Left("can't be merged: conflicts in x.py", ("a notice",), told))
    summary = made.works().error()
    assert isinstance(summary, StepFailed)
    assert "task 'a' failed: can't be merged: conflicts in x.py" in str(summary)
    assert made.accepted() == ["c"]
    (fact,) = made.facts("failed")
    outcome = fact["outcome"]
    assert outcome["status"] == "failed"
    assert outcome["error"] == "can't be merged: conflicts in x.py"
    assert outcome["left"] == {"branch": "sequencer/a", "files": "x.py"}
    # What the agent has said is still there to be read.
    assert outcome["output"] == "I did it"
    assert "a" not in made.marking.outputs


def test_a_failed_attempt_says_what_became_of_its_work_too(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")], {"a": failed("compiler crashed")})
    site = at_site(made, a=Left("its work can't be committed"))
    assert "compiler crashed\nits work can't be committed" in made.ended()
    assert site.said == [("open", "a"), ("close", "a", False)]


def test_a_judge_that_writes_is_judged_by_that_first(tmp_path: Path) -> None:
    made = team(tmp_path, [task("check", **JUDGE)], {"check": YES})
    at_site(made, check=Left("it changed x.py, and it only reads"))
    assert "it changed x.py" in made.ended()


def test_work_of_an_attempt_that_raised_is_closed(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a"), task("b")], {"a": crash})
    site = at_site(made)
    assert "a bug" in made.ended()
    assert ("close", "a", False) in site.said


def test_what_closing_raises_does_not_hide_the_bug(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")], {"a": crash})
    at_site(made, a=StorageFailed("git is gone"))
    assert "a bug" in made.ended()


@pytest.mark.parametrize("error", [StorageFailed("disk full: s3cret"), OSError("disk full")])
def test_a_place_that_can_not_be_closed_fails_its_task(tmp_path: Path, error: Exception) -> None:
    made = team(tmp_path, [tree("a"), task("b", "a"), task("c")], {"a": said("x", **cost(0.25))})
    at_site(made, a=error)
    assert "disk full" in made.ended()
    assert made.accepted() == ["c"]
    assert made.marking.team.spent["a"][0] == 0.25
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


def test_an_agent_works_in_its_own_place(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a"), task("b", writes=False)])
    site = at_site(made)
    made.work()
    folders = {one.step.name: one.cwd.name.partition("-")[0] for one in made.actor.asked}
    assert folders == {"a": "a", "b": "b"}
    traits = {(one.worktree, one.writes) for one in site.opened}
    assert traits == {(True, True), (False, False)}


def test_after_a_retry_it_is_not_the_first_attempt(tmp_path: Path) -> None:
    """The work of the one that failed for good may be on a branch."""
    made = team(tmp_path, [tree("a"), task("b")], {"a": [failed(), "ok"]})
    site = at_site(made)
    made.ended()
    made.retry()
    made.work()
    assert [first for name, first in site.firsts if name == "a"] == [True, False]
