from __future__ import annotations

from typing import Any

from sequencer.model.step import Step
from sequencer.settings.keys import (
    annotation_at,
    dotted,
    is_list,
    is_mapping,
    known_keys,
    leaves,
)
from sequencer.settings.schema import JournalOptions, Schema, StepDefaults


def test_key_paths_as_people_write_them() -> None:
    assert dotted(()) == ""
    assert dotted(("a", 0, "b")) == "a[0].b"
    assert dotted((0, "b")) == "[0].b"


def test_types_along_a_path() -> None:
    assert annotation_at(Schema, ()) is Schema
    assert annotation_at(Schema, ("store", "journal")) is JournalOptions
    assert annotation_at(Schema, ("workflows", "w", "steps", 3)) is Step
    assert annotation_at(Schema, ("workflows", "w", "review", "step", "model")) is str
    assert annotation_at(Schema, ("agents", "a", "anything", "below")) is Any
    assert annotation_at(Schema, ("colour",)) is None
    assert annotation_at(Schema, ("logs_dir", "x")) is None


def test_known_keys() -> None:
    assert known_keys(Schema, ("workflow",)) == ("name", "review_every_n")
    assert set(known_keys(Schema, ())) == set(Schema.model_fields)
    assert known_keys(Schema, ("agent", "roles")) == ()
    assert known_keys(Schema, ("nowhere",)) == ()
    hidden = set(StepDefaults.model_fields) - set(known_keys(Schema, ("step_defaults",)))
    assert hidden == {"name", "prompt", "executor"}


def test_shapes() -> None:
    assert is_list(annotation_at(Schema, ("router", "allowlist")))
    assert not is_list(annotation_at(Schema, ("router", "prompt")))
    assert is_mapping(annotation_at(Schema, ("agent", "roles")))
    assert is_mapping(annotation_at(Schema, ("router",)))
    assert not is_mapping(annotation_at(Schema, ("router", "allowlist")))


def test_leaves_are_the_keys_that_hold_values() -> None:
    found = dict(leaves(Schema))
    assert found["store", "journal", "keep"] == 8
    assert found["run", "max_steps"] == 20
    assert found["agents",] == {}
    assert ("store",) not in found
    assert ("step_defaults", "name") not in found
