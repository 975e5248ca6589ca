"""What a team's run tells: each task for itself, and few words at a time."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.executors.protocol import Piece
from sequencer.model.net.graph import Node, NodeKind
from sequencer.model.team import TaskTraits
from sequencer.posting.protocol import ActivityType
from sequencer.store.file import FileStore
from tests.unit.posting.crews import GRAPH, named, thoughts
from tests.unit.posting.invocations import invoked
from tests.unit.posting.runs import OK, Box, HandClock
from tests.unit.saying import Saying

# --- what teammates say ------------------------------------------------------------------


def test_the_beginning_of_a_task_is_an_action(store: FileStore) -> None:
    box = Box()
    with invoked(store, box, nodes=GRAPH.nodes) as now:
        Saying(now.activities).started(named("plan"))
        now.rounds.wake_and_wait()
    (told,) = thoughts(box)
    assert (told.type, told.action) == (ActivityType.ACTION, "plan: started")
    assert told.parameter == "Read and plan (researcher)"
    assert told.is_ephemeral
    assert box.posts[0].run_id == "run-1"


def test_words_of_a_task_begin_with_its_name(store: FileStore) -> None:
    box = Box()
    with invoked(store, box, nodes=GRAPH.nodes) as now:
        plan, build = Saying(now.activities), Saying(now.activities)
        plan.started(named("plan"))
        build.started(named("build"))
        plan.write(b"-> Read {}\n", Piece.ACTION)
        now.rounds.wake_and_wait()
        assert thoughts(box)[-1].action == "plan: Read"
        now.clock.now += 2.1
        build.write(b"I think", Piece.THOUGHT)
        now.rounds.wake_and_wait()
        now.clock.now += 2.1
        # What the other has said meanwhile is no part of it.
        plan.write(b"<- 7 lines\n", Piece.ACTION)
        build.write(b" it over", Piece.THOUGHT)
        now.rounds.wake_and_wait()
    told = thoughts(box)
    assert [one.body for one in told[-2:]] == ["build: I think", "build: I think it over"]
    assert [one.step for one in told[-2:]] == ["build", "build"]


def test_another_process_of_the_run_counts(store: FileStore) -> None:
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


def test_nothing_of_a_task_comes_behind_its_end(store: FileStore) -> None:
    box = Box()
    with invoked(store, box, nodes=GRAPH.nodes) as now:
        plan, build = Saying(now.activities), Saying(now.activities)
        plan.started(named("plan"))
        now.rounds.wake_and_wait()
        build.started(named("build"))
        plan.write(b"last words\n", Piece.THOUGHT)
        plan.ended(named("plan"), OK)
        now.clock.now += 2.1
        now.rounds.wake_and_wait()
        assert not any("last words" in one.body for one in thoughts(box))
        assert thoughts(box)[-1].action == "build: started"
        # A thousand tasks must not leave a thousand of them.
        assert set(now.activities._gists) == {named("build").token}


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
def test_what_a_task_is_about(fields: dict[str, Any], expected: str | None) -> None:
    assert Node(id="x", kind=NodeKind.AGENT, **fields).subject == expected
