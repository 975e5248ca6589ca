"""Results of a team's run: all of them, in order, and behind no limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.model.graph.task import TaskTraits
from sequencer.model.step import Step
from sequencer.model.transitions import Event
from sequencer.model.workflow import Workflow
from sequencer.plugins.posting.poster import Poster
from sequencer.store.file import FileStore
from tests.unit.engine.flow.labs import Actor, Lab
from tests.unit.posting.crews import GRAPH, named, node, team, tell
from tests.unit.posting.invocations import invoked
from tests.unit.posting.runs import REDACTION, Box, HandClock, Told, lane_for, new_store
from tests.unit.saying import Saying


def knowing(store: FileStore, **subjects: str) -> Told:
    """Return a sink queue that knows what tasks are about."""
    told = lane_for(store)
    told.queue._context = replace(told.queue._context, subjects=subjects)
    return told


@pytest.mark.parametrize("status", ["failed", "cancelled", "timed_out", "completed_after_error"])
def test_a_bad_end_does_not_repeat_the_output_of_another_task(
    store: FileStore, status: str
) -> None:
    told = knowing(store, sum="Sum it up")
    tell(store, Event.SUCCEEDED, "a", output="fine")
    tell(store, Event.COMPLETED, "", status=status)
    told.deliver()
    assert told.box.bodies == ["fine", ""]


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


def test_the_results_of_a_whole_team_are_posted(tmp_path: Path) -> None:
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


# --- what a team's run tells: each task for itself, and few words at a time -------------------

# --- what teammates say ------------------------------------------------------------------


def test_the_pace_is_shared_with_other_processes_of_the_run(store: FileStore) -> None:
    first, second = Box(), Box()
    clock = HandClock()
    with invoked(store, first, nodes=GRAPH.nodes, clock=clock) as one:
        Saying(one.activities).started(named("plan"))
        one.rounds.wake_and_wait()
        assert len(first.posts) == 1
        with invoked(store, second, nodes=GRAPH.nodes, clock=clock) as two:
            Saying(two.activities).started(named("build"))
            two.rounds.wake_and_wait()
            assert second.posts == []
            clock.now += 2.1
            two.rounds.wake_and_wait()
            assert (len(first.posts), len(second.posts)) == (1, 1)


# --- the run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"label": "Do x", "task": TaskTraits(role="lead")}, "Do x (lead)"),
        ({"label": "Do x", "task": TaskTraits()}, "Do x"),
        ({"task": TaskTraits(role="lead")}, "x (lead)"),
        ({}, None),
    ],
)
def test_a_task_has_a_subject(fields: dict[str, Any], expected: str | None) -> None:
    assert Node(id="x", kind=NodeKind.AGENT, **fields).subject == expected
