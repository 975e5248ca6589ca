"""A team that goes on with a list of tasks that was changed under way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.errors import DefinitionChanged
from sequencer.model.team import Task
from sequencer.workflows.teams.graphs import workflow_of
from tests.unit.engine.flow.labs import failed
from tests.unit.engine.flow.team_labs import JUDGE, TeamLab, adds, no, task, team


def adopted(made: TeamLab, tasks: Sequence[Task]) -> TeamLab:
    """Change the list of *made* to *tasks*, adopt it, and return the run under it."""
    after = made.changed(workflow_of("crew", tasks, {}, size=made.graph.max_parallel))
    assert isinstance(after, TeamLab)
    with pytest.raises(DefinitionChanged):
        after.work()
    after.run().control.adopt()
    return after


def sources(made: TeamLab, name: str) -> set[str]:
    """Return what the execution of *name* began with."""
    (fact,) = [one for one in made.facts("claimed") if one["step"] == name]
    return set(fact["outcome"]["from"])


def finish(made: TeamLab) -> None:
    made.work()
    assert made.status == "completed"


def begun(made: TeamLab, tasks: Sequence[Task], steps: int) -> TeamLab:
    made.work(limits={"max_steps": steps})
    return adopted(made, tasks)


def test_a_task_that_waits_for_a_done_one_only_is_done(tmp_path: Path) -> None:
    """It hung on x too, which hangs on it now."""
    made = team(tmp_path, [task("a"), task("x", "a"), task("y", "a", "x")], size=1)
    after = begun(made, [task("a"), task("y", "a"), task("x", "y")], 1)
    finish(after)
    assert after.accepted() == ["a", "y", "x"]
    assert sources(after, "y") == {"a"}


def test_of_a_task_that_is_gone_nothing_is_told(tmp_path: Path) -> None:
    """What waits began with its token; it begins without it."""
    made = team(tmp_path, [task("a"), task("b"), task("y", "a", "b")], size=1)
    after = begun(made, [task("b"), task("y", "b")], 1)
    finish(after)
    assert after.accepted() == ["a", "b", "y"]
    assert sources(after, "y") == {"b"}


def test_behind_a_failure_a_retry_does_what_the_new_list_brings(tmp_path: Path) -> None:
    says = {"x": [failed("boom"), "at last"]}
    made = team(tmp_path, [task("a"), task("x", "a"), task("y", "x")], says, size=1)
    assert "boom" in made.ended()
    after = adopted(made, [task("a"), task("x", "a"), task("y"), task("z", "a", "x")])
    assert after.status == "failed"
    after.retry()
    finish(after)
    assert sorted(after.accepted()) == ["a", "x", "y", "z"]
    assert sources(after, "z") == {"a", "x"}


def test_of_a_run_that_is_complete_nothing_is_begun(tmp_path: Path) -> None:
    made = team(tmp_path, [task("a")])
    made.work()
    after = made.changed(workflow_of("crew", [task("a"), task("b")], {}))
    after.run().control.adopt()
    assert after.accepted() == ["a"]
    assert after.status == "completed"


def test_what_was_added_and_what_mends_are_kept(tmp_path: Path) -> None:
    says = {"lead": adds(("one",), ("two", "one")), "judge": [no(), "{}"]}
    tasks = [task("lead", adds="tasks"), task("judge", "lead", **JUDGE)]
    made = team(tmp_path, tasks, says, size=1)
    made.work(limits={"max_steps": 1})
    after = adopted(made, [*tasks, task("last", "judge")])
    names = set(after.graph.by_id)
    assert {"one", "two", "last"} <= names
    after.actor.says["judge"] = ['{"pass": true, "reason": "fine"}']
    finish(after)
    assert sorted(after.accepted()) == ["judge", "last", "lead", "one", "two"]


@st.composite
def lists(draw: st.DrawFn) -> list[Task]:
    """Return up to six tasks, in any order, each behind some of those before it."""
    names = draw(st.permutations("abcdef"))[: draw(st.integers(1, 6))]
    return [
        task(name, *(other for other in names[:place] if draw(st.booleans())))
        for place, name in enumerate(names)
    ]


@settings(max_examples=25)
@given(before=lists(), after=lists(), steps=st.integers(0, 6))
def test_whatever_is_changed_each_task_is_done_once_behind_its_blockers(
    tmp_path_factory: pytest.TempPathFactory, before: list[Task], after: list[Task], steps: int
) -> None:
    made = team(tmp_path_factory.mktemp("run"), before, size=1)
    made.work(limits={"max_steps": max(steps, 1)})
    done = set(made.accepted())
    everything = [*after]
    known = {one.id for one in after}
    # Where the run stands must be there.
    everything += [task(one.id) for one in before if one.id not in known | done]
    if made.status == "completed":
        return
    changed = made.changed(workflow_of("crew", everything, {}, size=1))
    assert isinstance(changed, TeamLab)
    if everything != before:
        changed.run().control.adopt()
    finish(changed)
    accepted = changed.accepted()
    assert sorted(accepted) == sorted(done | {one.id for one in everything})
    for one in everything:
        if one.id not in done:
            assert all(accepted.index(b) < accepted.index(one.id) for b in one.blocked_by)
