from __future__ import annotations

from typing import Any

from sequencer.documents.keys import (
    annotation_at,
    known_keys,
    leaves,
)
from sequencer.model.step import Step
from sequencer.settings.schema import JournalOptions, Schema, StepDefaults


def test_types_along_a_path() -> None:
    assert annotation_at(Schema, ()) is Schema
    assert annotation_at(Schema, ("store", "journal")) is JournalOptions
    assert annotation_at(Schema, ("workflows", "w", "steps", 3)) is Step
    assert annotation_at(Schema, ("workflows", "w", "review", "step", "model")) is str
    assert annotation_at(Schema, ("agents", "a", "anything", "below")) is Any
    assert annotation_at(Schema, ("colour",)) is None
    assert annotation_at(Schema, ("logs_dir", "x")) is None


def test_a_key_is_called_as_it_is_written_in_the_file() -> None:
    steps = ("workflows", "w", "steps", 0)
    assert annotation_at(Schema, (*steps, "output", "schema", "properties", "a")) is Any
    assert annotation_at(Schema, (*steps, "output", "json_schema")) is None
    assert "schema" in known_keys(Schema, (*steps, "output"))
    assert ("step_defaults", "output", "schema") in dict(leaves(Schema))


def test_a_step_inside_of_a_step_is_one_value() -> None:
    below = {path[1:] for path, _ in leaves(Step) if path[0] == "validation"}
    assert below == {("fixer",), ("max_attempts",), ("on_exhausted",)}
    fixer = ("workflows", "w", "steps", 0, "validation", "fixer")
    assert annotation_at(Schema, (*fixer, "validation", "fixer", "model")) is str


def test_types_along_the_changes_of_a_workflow() -> None:
    workflow = ("workflows", "w")
    assert annotation_at(Schema, (*workflow, "replace", "a", "single_turn")) is bool
    assert annotation_at(Schema, (*workflow, "before", "a", 1)) is Step
    assert "name" not in known_keys(Schema, (*workflow, "replace", "a"))
    assert known_keys(Schema, (*workflow, "replace", "a")) == tuple(
        key for key in known_keys(Schema, (*workflow, "steps", 0)) if key != "name"
    )


def test_what_holds_the_fields_beside_others_is_no_key() -> None:
    of_role = known_keys(Schema, ("teams", "roles", "tester"))
    assert {"writes", "budget", "model", "tools"} <= set(of_role)
    assert "step" not in of_role


def test_known_keys() -> None:
    assert known_keys(Schema, ("workflow",)) == ("name", "review_every_n")
    assert set(known_keys(Schema, ())) == set(Schema.model_fields)
    assert known_keys(Schema, ("agent", "roles")) == ()
    assert known_keys(Schema, ("nowhere",)) == ()
    hidden = set(StepDefaults.model_fields) - set(known_keys(Schema, ("step_defaults",)))
    of_one_step = {
        "name",
        "description",
        "prompt",
        "text",
        "executor",
        "requires_approval",
        "approval",
        "validation",
    }
    assert hidden == of_one_step


def test_leaves_are_the_keys_that_hold_values() -> None:
    found = dict(leaves(Schema))
    assert found["store", "journal", "keep"] == 8
    assert found["run", "max_steps"] == 20
    assert found["agents",] == {}
    assert ("store",) not in found
    assert ("step_defaults", "name") not in found
