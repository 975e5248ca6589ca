from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from sequencer.executors.cancellation import Cancellation
from sequencer.executors.fake_agents import RehearsalExecutor, RehearsalOptions
from sequencer.executors.samples import sample
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import Step
from sequencer.workflows.verdicts import check_schema
from tests.contract.executor_cases import Recorder, request_for


@pytest.mark.parametrize(
    ("schema", "structured"),
    [
        (
            {
                "type": "object",
                "properties": {"pass": {"type": "boolean"}, "reason": {"type": "string"}},
                "required": ["pass", "reason"],
            },
            {"pass": True, "reason": ""},
        ),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 3}, 3),
        ({"type": "array"}, []),
        ({"type": "integer", "minimum": 4}, 4),
        ({"type": "null"}, None),
        ({}, ""),
        ({"type": ["null", "string"], "minLength": 3}, "aaa"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, 0.5),
        ({"type": "integer", "multipleOf": 4, "minimum": 5}, 8),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"type": "string", "pattern": "^[A-Z]+-[0-9]+$"}, "A-1"),
        ({"type": "string", "pattern": "(", "minLength": 1}, "a"),
        ({"type": "array", "minItems": 2, "items": {"type": "integer", "minimum": 1}}, [1, 1]),
        ({"required": ["why"]}, {"why": ""}),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, True),
        (
            {
                "allOf": [{"$ref": "#/$defs/named"}, {"required": ["n"]}],
                "properties": {"n": {"type": "integer"}},
                "$defs": {"named": {"required": ["id"], "properties": {"id": {"minLength": 2}}}},
            },
            {"id": "aa", "n": 0},
        ),
    ],
)
def test_an_answer_matches_the_schema_of_its_step(
    tmp_path: Path, schema: dict[str, object], structured: object
) -> None:
    step = Step.model_validate({"name": "verify", "output": {"schema": schema}})
    request = request_for(tmp_path, step=step)
    executor = RehearsalExecutor("rehearsal", RehearsalOptions())
    outcome = executor.perform(request, Recorder(), Cancellation())
    assert outcome.structured == structured
    if schema.get("pattern") != "(":
        assert check_schema(schema, structured) is None
    assert "no agent ran" in outcome.output


TREE: dict[str, object] = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "all": {"type": "array", "items": {"$ref": "#"}}},
}


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {**TREE, "required": ["left"]},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
        {"type": "string", "minLength": 10**9},
    ],
)
def test_an_endless_schema_still_has_a_sample(schema: dict[str, object]) -> None:
    assert len(str(sample(schema))) < 100_000


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"decision": {"enum": ["no", "Send back."]}}}, {"decision": "Send back."}),
        ({"properties": {"branch": {"type": "string"}}}, {"branch": "send_back"}),
        ({"type": "object"}, {"decision": "send_back"}),
        ({"type": "object", "additionalProperties": False}, {}),
        ({"enum": ["x"]}, "x"),
    ],
)
def test_a_sample_answer_that_chooses_a_path_goes_forward(
    schema: dict[str, object], said: object
) -> None:
    assert sample(schema, "send_back") == said


def test_the_last_line_is_the_label_if_no_schema_is_requested(tmp_path: Path) -> None:
    request = structs.replace(request_for(tmp_path), label="send back")
    executor = RehearsalExecutor("rehearsal", RehearsalOptions())
    outcome = executor.perform(request, Recorder(), Cancellation())
    assert outcome.output.splitlines()[-1] == "send back"


def test_every_field_is_accepted_because_none_is_used() -> None:
    assert RehearsalExecutor.supported_fields == set(Step.model_fields)


@pytest.mark.parametrize("options", [{"seconds": -1}, {"second": 1}, {"seconds": "inf"}])
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RehearsalOptions.model_validate(options)
