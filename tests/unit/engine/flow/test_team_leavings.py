"""What an agent has left where its task was done, and where that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.engine.perform import Left
from sequencer.errors import StorageFailed
from tests.unit.engine.flow.labs import failed, said
from tests.unit.engine.flow.team_labs import cost, crash, task, team
from tests.unit.engine.flow.team_sites import at_site, tree

# --- what an agent has left ----------------------------------------------------------------


def test_a_failed_attempt_says_what_became_of_its_work_too(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")], {"a": failed("compiler crashed")})
    site = at_site(made, a=Left("its work can't be committed"))
    assert "compiler crashed\nits work can't be committed" in made.ended()
    assert site.said == [("open", "a"), ("close", "a", False)]


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
