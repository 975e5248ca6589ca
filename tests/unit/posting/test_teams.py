"""What a team's run tells: each task for itself, and few words at a time."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.net.graph import Node, NodeKind
from sequencer.model.team import TaskTraits
from sequencer.store.file import FileStore
from tests.unit.posting.crews import GRAPH, named
from tests.unit.posting.invocations import invoked
from tests.unit.posting.runs import Box, HandClock
from tests.unit.saying import Saying

# --- what teammates say ------------------------------------------------------------------


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
