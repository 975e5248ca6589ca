"""Forms of answers: what clients are told, and what is made of what comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sequencer.executors.answers import MAX_ANSWER_CHARS, closed, parsed, sample
from sequencer.model.step import Step


def step(output: dict[str, Any] | None) -> Step:
    return Step.model_validate({"name": "main", "output": output})


def test_objects_are_closed_at_every_level_and_nothing_else_is_touched() -> None:
    inner = {"type": "object", "properties": {"type": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {"list": {"type": "array", "items": inner}, "free": {"type": "object"}},
        "$defs": {"one": inner},
        "anyOf": [inner, True],
    }
    before = json.dumps(schema)
    made = closed(schema)
    tight = {**inner, "required": ["type"], "additionalProperties": False}
    assert made["properties"]["list"]["items"] == tight
    assert made["$defs"]["one"] == tight
    assert made["anyOf"] == [tight, True]
    # Closed, a mapping with any keys could hold none.
    assert made["properties"]["free"] == {"type": "object"}
    assert made["required"] == ["list", "free"]
    assert json.dumps(schema) == before


def test_what_fits_the_closed_form_fits_the_schema() -> None:
    schema = {"type": "object", "properties": {"pass": {"type": "boolean"}, "why": {}}}
    value = {"pass": True, "why": "x"}
    assert Draft202012Validator(closed(schema)).is_valid(value)
    assert not Draft202012Validator(closed(schema)).is_valid({"pass": True})
    assert Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), (" [] ", []), ("", None), ("a", None), ("{} {}", None)],
)
def test_an_answer_is_json_as_a_whole_or_not_at_all(text: str, value: object) -> None:
    assert parsed(text) == value


def test_hostile_answers_are_no_json() -> None:
    assert parsed("[" * 200_000) is None
    assert parsed("9" * 10_000) is None
    assert parsed(f'"{"x" * MAX_ANSWER_CHARS}"') is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}},
        {"type": "number"},
        {"type": "string"},
        {"enum": [None]},
        {"type": "object"},
    ],
)
def test_a_sample_fits_plain_schemas(schema: dict[str, Any]) -> None:
    assert Draft202012Validator(schema).is_valid(sample(schema))
