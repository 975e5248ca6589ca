"""Which conversation a node continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.engine.perform import FILE
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from tests.unit.engine.flow.labs import Lab, Said, lab, said


def talking(folder: Path, text: str, says: dict[str, Said | list[Said]], *primary: str) -> Lab:
    """Return a flow whose *primary* nodes go on in the conversation that reaches them."""
    made = lab(folder, text, says)
    steps = [
        Step(name=step.name, continue_session=step.name in primary) for step in made.workflow.steps
    ]
    return made.changed(Workflow("flow", steps, kind="graph", graph=made.workflow.graph))


def resumed(made: Lab, name: str) -> list[str | None]:
    return [one.resume_session for one in made.actor.asked if one.step.name == name]


def test_a_node_goes_on_in_the_conversation_that_reached_it(tmp_path: Path) -> None:
    says: dict[str, Said | list[Said]] = {
        "a": said("x", session_id="of-a"),
        "b": said("y", session_id="of-b"),
    }
    made = talking(tmp_path, "a --> b --> c --> d", says, "b", "d")
    made.work()
    assert [resumed(made, name) for name in "abcd"] == [[None], ["of-a"], [None], [None]]


def test_a_marker_and_a_person_between(tmp_path: Path) -> None:
    """A marker hands on what reached it; a person's answer is no conversation."""
    says: dict[str, Said | list[Said]] = {"a": said("x", session_id="of-a")}
    made = talking(tmp_path, "a --> m((M)) --> b; a --> h{{H}} --> c", says, "b", "c")
    made.refused()
    made.answer("h", "yes")
    made.work()
    assert (resumed(made, "b"), resumed(made, "c")) == (["of-a"], [None])


def test_of_several_there_is_none_to_go_on_in(tmp_path: Path) -> None:
    says: dict[str, Said | list[Said]] = {n: said("x", session_id=n) for n in "sab"}
    made = talking(tmp_path, "s --> a & b; a & b --> j", says, "j", "a", "b")
    made.work()
    assert [resumed(made, name) for name in "abj"] == [["s"], ["s"], [None]]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"executor": 1}', "x" * 20_000])
def test_one_that_can_not_be_read_is_not_gone_on_in(tmp_path: Path, text: str) -> None:
    says: dict[str, Said | list[Said]] = {"a": said("x", session_id="of-a")}
    made = talking(tmp_path, "a --> b", says, "b")
    made.work(limits={"max_steps": 1})
    (path,) = (tmp_path / "sync" / "results").glob(f"*/{FILE}")
    path.write_text(text)
    made.work()
    assert resumed(made, "b") == [None]
