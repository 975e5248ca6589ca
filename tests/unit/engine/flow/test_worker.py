"""One process's part: what it may claim, what it records, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import StepFailed
from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Output, Step
from sequencer.model.workflow import Workflow
from tests.memory_store import MemoryRun
from tests.unit.engine.flow.labs import (
    Hold,
    Lab,
    lab,
    let_go,
    said,
    until,
)

FAN = "s --> a & b & c; a & b & c --> j"


# --- take-over ---------------------------------------------------------------------------


def test_the_claims_of_the_dead_are_taken_over_and_their_word_is_refused(tmp_path: Path) -> None:
    memory = MemoryRun()
    made = lab(tmp_path, FAN, memory=memory)
    made.work(limits={"max_steps": 1})
    made.died()
    dead = [claim.token for claim in made.head.claims]
    assert len(dead) == 3
    assert made.work().usage.steps == 4
    taken = made.facts("taken-over")
    assert sorted(fact["token"] for fact in taken) == dead
    tokens = [fact["token"] for fact in made.facts("succeeded")]
    assert not set(tokens) & set(dead)
    assert sorted(made.accepted()) == ["a", "b", "c", "j", "s"]
    # A second claim, and not a second execution.
    again = [fact for fact in made.facts("claimed") if fact["step"] == "a"]
    assert [fact["attempt"] for fact in again] == [1, 2]
    memory.close()


def test_who_was_away_too_long_is_stopped_and_does_not_count(tmp_path: Path) -> None:
    """Its lease is over by the clock, so another process may take the node."""
    hold = Hold("late")
    now = [0.0]
    memory = MemoryRun(clock=lambda: now[0])
    made = lab(tmp_path, "a --> b", {"a": [hold, "in time"]}, memory=memory)
    with let_go(hold):
        working = made.works()
        hold.wait()
        now[0] = 1_000.0
        assert made.work().usage.steps == 2
        until(lambda: hold.was_stopped, 5)
    assert working.summary().usage.steps == 0
    assert made.facts("succeeded")[0]["outcome"]["output"] == "in time"
    assert made.accepted() == ["a", "b"]
    memory.close()


def test_an_output_that_comes_too_late_changes_nothing(tmp_path: Path) -> None:
    def deaf(request: StepRequest, cancellation: Cancellation) -> Outcome:
        del request, cancellation
        until(lambda: made.status == "completed")
        return said("late")

    now = [0.0]
    memory = MemoryRun(clock=lambda: now[0])
    made = lab(tmp_path, "a --> b", {"a": [deaf, "in time"]}, memory=memory)
    working = made.works()
    until(lambda: made.actor.asked)
    now[0] = 1_000.0
    made.work()
    head = made.head
    working.end()
    assert made.head == head
    flow = made.run().flow
    assert flow.text(flow.marking(head)[1].outputs["a"]) == "in time"
    memory.close()


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


def test_what_is_recorded_of_a_node(tmp_path: Path) -> None:
    used = Usage(cost_usd=0.5, input_tokens=3, output_tokens=4)
    made = lab(tmp_path, "a", {"a": said("short", usage=used, session_id="x")})
    made.work()
    (fact,) = made.facts("succeeded")
    outcome = fact["outcome"]
    assert outcome["output"] == "short"
    assert outcome["output_file"].startswith(f"results/0-{fact['token']}-")
    assert outcome["agent"] == "actor"
    assert outcome["usage"]["cost_usd"] == 0.5
    assert outcome["log"].startswith("logs/")
    assert (tmp_path / outcome["log"]).exists()
    usage = made.head.usage
    assert (usage.steps, usage.cost_usd, usage.input_tokens) == (1, 0.5, 3)


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


def test_the_agents_know_which_node_they_are(tmp_path: Path) -> None:
    made: Lab = lab(tmp_path, "a --> b")
    made.work()
    first, second = (request.environment for request in made.actor.asked)
    assert (first["SEQUENCER_STEP"], second["SEQUENCER_STEP"]) == ("a", "b")
    assert (first["SEQUENCER_STEP_INDEX"], second["SEQUENCER_STEP_INDEX"]) == ("0", "1")
    assert first["SEQUENCER_TOKEN"] != second["SEQUENCER_TOKEN"]
    assert first["SEQUENCER_RUN_ID"] == second["SEQUENCER_RUN_ID"] == made.head.run_id
