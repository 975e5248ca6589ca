"""Results of a team's run: all of them, in order, and behind no limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.model.net.graph import Graph
from sequencer.model.step import Step
from sequencer.model.transitions import Event
from sequencer.model.workflow import Workflow
from sequencer.posting.poster import Poster
from sequencer.posting.protocol import ActivityType
from sequencer.store.file import FileStore
from tests.unit.engine.flow.labs import Actor, Lab, failed
from tests.unit.engine.flow.team_labs import task
from tests.unit.engine.flow.team_labs import team as crew
from tests.unit.posting.crews import GRAPH, named, node, team, tell
from tests.unit.posting.invocations import invoked
from tests.unit.posting.runs import REDACTION, Box, Told, lane_for, new_store


def knowing(store: FileStore, **subjects: str) -> Told:
    """Return a lane that knows what tasks are about."""
    told = lane_for(store)
    told.lane._around = replace(told.lane._around, subjects=subjects)
    return told


def test_results_say_what_the_task_is_about_and_come_at_once(store: FileStore) -> None:
    box = Box()
    with invoked(store, box, nodes=GRAPH.nodes) as now:
        now.said.started(named("build"))
        now.rounds.wake_and_wait()
        for number in range(5):
            tell(store, Event.SUCCEEDED, "plan", output=f"result {number}")
            tell(store, Event.FAILED, "build", error="conflict in a.py, b.py")
            now.said.waiting("")
            now.rounds.wake_and_wait()
        # No clock has moved: the limit is for words, not for results.
        results = [post.activity for post in box.posts if post.key is not None]
        assert len(results) == 10
    assert results[0].title == "succeeded: Read and plan (researcher)"
    assert results[1].title == "failed: Build it (implementer)"
    assert results[1].type is ActivityType.ERROR
    assert "a.py, b.py" in results[1].body


def test_the_end_has_what_the_last_task_said(store: FileStore) -> None:
    told = knowing(store, sum="Sum it up")
    tell(store, Event.SUCCEEDED, "plan", output="a plan")
    tell(store, Event.SUCCEEDED, "sum", output="All is done.")
    tell(store, Event.COMPLETED, "", status="completed")
    told.deliver()
    assert [post.activity.title for post in told.box.posts] == [
        "succeeded",
        "succeeded: Sum it up",
        "the run is complete",
    ]
    assert told.box.bodies[-1] == "All is done."
    assert told.box.posts[-1].activity.type is ActivityType.RESPONSE


def test_a_process_that_only_posts_the_end_knows_it_too(store: FileStore) -> None:
    first = knowing(store, sum="Sum it up")
    tell(store, Event.SUCCEEDED, "sum", output="All is done.")
    first.deliver()
    tell(store, Event.COMPLETED, "", status="completed")
    later = knowing(store, sum="Sum it up")
    later.deliver()
    assert later.box.bodies == ["All is done."]


@pytest.mark.parametrize("status", ["failed", "cancelled", "timed_out", "completed_after_error"])
def test_a_bad_end_does_not_say_what_some_other_task_has(store: FileStore, status: str) -> None:
    told = knowing(store, sum="Sum it up")
    tell(store, Event.SUCCEEDED, "a", output="fine")
    tell(store, Event.COMPLETED, "", status=status)
    told.deliver()
    assert told.box.bodies == ["fine", ""]


def test_a_failed_end_says_what_has_failed(tmp_path: Path) -> None:
    tasks = [task("a"), task("b"), task("c", "b")]
    made = crew(tmp_path, tasks, {"a": "fine", "b": failed("no disk")}, size=1)
    made.begun()
    store = FileStore(tmp_path / "sync" / "state.json")
    told = knowing(store)
    made.refused()
    told.deliver()
    end = told.box.posts[-1].activity
    assert (end.title, end.body) == ("the run has ended: failed", "task 'b' failed: no disk")
    store.close()


def test_a_teams_news_are_thoughts_that_are_not_dropped(store: FileStore) -> None:
    told = lane_for(store)
    tell(store, Event.GROWN, "plan", tasks=["a", "b"])
    tell(store, Event.WARNED, "", note="80 % of the budget is used")
    tell(store, Event.TOLD, "a", by="ann", output="mind the tabs")
    tell(store, Event.TAKEN_OVER, "a", note="process 7 is gone")
    told.deliver()
    assert [post.activity.type for post in told.box.posts] == ["thought"] * 4
    assert len(set(told.box.keys) - {None}) == 4
    assert not any(post.activity.is_ephemeral for post in told.box.posts)
    assert told.box.bodies == [
        *("", "80 % of the budget is used", "mind the tabs", "process 7 is gone"),
    ]


# --- with the engine ---------------------------------------------------------------------


def lab_of(folder: Path, graph: Graph, says: dict[str, Any]) -> Lab:
    steps = [Step(name=one.id) for one in graph.nodes]
    given = {name: [one] for name, one in says.items()}
    return Lab(folder, Workflow("team", steps, kind="graph", graph=graph), Actor(given))


def posted(folder: Path, made: Lab) -> Box:
    """Let the team work to its end; return what was posted."""
    box = Box()
    with Poster(new_store(folder), [box], REDACTION, lambda _: None) as activities:
        made.works(on_event=activities).end()
    return box


def until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1500):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def test_a_whole_team(tmp_path: Path) -> None:
    graph = team(
        node("plan"), node("build", "plan"), node("log", "plan"), node("sum", "build", "log")
    )
    says = {"plan": "the plan", "build": "built", "sum": "All is done."}
    box = posted(tmp_path, lab_of(tmp_path, graph, says))
    results = [(post.activity.step, post.activity.body) for post in box.posts if post.key]
    assert results[0] == ("plan", "the plan")
    assert sorted(results[1:3]) == [("build", "built"), ("log", "")]
    assert results[3:] == [("sum", "All is done."), ("", "All is done.")]
    assert box.posts[-1].activity.title.endswith("the run is complete")
