from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.executors.protocol import Cancellation
from sequencer.executors.stand_ins import RehearsalExecutor, RehearsalOptions
from sequencer.model.fields import ValidationError
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
    ],
)
def test_an_answer_has_the_form_that_its_step_wants(
    tmp_path: Path, schema: dict[str, object], structured: object
) -> None:
    step = Step.model_validate({"name": "verify", "output": {"schema": schema}})
    request = request_for(tmp_path, step=step)
    executor = RehearsalExecutor("rehearsal", RehearsalOptions())
    outcome = executor.perform(request, Recorder(), Cancellation())
    assert outcome.structured == structured
    assert check_schema(schema, structured) is None
    assert "no agent ran" in outcome.output


def test_every_field_is_accepted_because_none_is_used() -> None:
    assert RehearsalExecutor.supported_fields == set(Step.model_fields)


@pytest.mark.parametrize("options", [{"seconds": -1}, {"second": 1}, {"seconds": "inf"}])
def test_options_without_meaning_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RehearsalOptions.model_validate(options)
