"""One process's part: what it may claim, what it records, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import StepFailed
from sequencer.model.limits import RunLimits
from sequencer.model.step import Output, Step
from sequencer.model.workflow import Workflow
from tests.unit.engine.flow.labs import lab

# --- take-over ---------------------------------------------------------------------------


# --- rooms -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "left", "limits", "slots"),
    [
        (8, None, {}, 8),
        (3, None, {}, 3),
        (8, 2, {}, 2),
        (8, 0, {}, 0),
        (8, -1, {}, 0),
        (8, None, {"max_steps": 5}, 5),
        (8, 2, {"max_steps": 1}, 1),
    ],
)
def test_how_many_it_may_claim(
    tmp_path: Path, places: int, left: int | None, limits: dict[str, Any], slots: int
) -> None:
    made = lab(tmp_path, "a", limits=RunLimits(**limits))
    worker = made.worker(places=places)
    room = worker.room(made.begun(), left)
    assert room is not None
    assert room.slots == slots
    worker.interrupt()
    stopped = worker.room(made.head, left)
    assert stopped is not None
    assert stopped.slots == 0
    worker.attempts.close()


@pytest.mark.parametrize("verb", ["pause", "stop"])
def test_a_held_run_has_no_room(tmp_path: Path, verb: str) -> None:
    made = lab(tmp_path, "a")
    made.begun()
    getattr(made.run().control, verb)()
    worker = made.worker()
    room = worker.room(made.head, None)
    assert room is not None
    assert room.slots == 0
    # Entries whose tokens can't start yet are no transition.
    revision = made.head.revision
    assert made.work().usage.steps == 0
    assert made.head.revision == revision
    worker.attempts.close()


# --- preparing ---------------------------------------------------------------------------


# --- records -----------------------------------------------------------------------------


def test_the_state_of_a_node_with_json_is_what_its_json_means(tmp_path: Path) -> None:
    made = lab(
        tmp_path,
        "a --> b",
        {"a": '{"k": [1]}'},
        prompts={"b": "{{state.x.k.0}} {{state.x}}"},
        nodes={"a": {"output_key": "x"}},
    )
    steps = (Step(name="a", output=Output(format="json")), Step(name="b"))
    made = made.changed(Workflow("flow", steps, kind="graph", graph=made.workflow.graph))
    made.work()
    assert made.actor.prompts_of("b") == ['1 {"k":[1]}']


def test_what_should_be_json_and_is_none_fails_who_asks_for_it(tmp_path: Path) -> None:
    nodes = {"a": {"output_key": "x"}}
    made = lab(tmp_path, "a --> b", {"a": "no json"}, prompts={"b": "{{state.x}}"}, nodes=nodes)
    steps = (Step(name="a", output=Output(format="json")), Step(name="b"))
    made = made.changed(Workflow("flow", steps, kind="graph", graph=made.workflow.graph))
    with pytest.raises(StepFailed):
        made.work()
    assert made.actor.names == ["a"]
    assert "no JSON" in made.facts("failed")[0]["outcome"]["error"]


# --- what is heard -------------------------------------------------------------------------
