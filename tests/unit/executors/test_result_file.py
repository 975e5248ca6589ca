from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sequencer.executors.answers import MAX_ANSWER_CHARS, parse_json, to_strict_schema
from sequencer.executors.result_file import ResultRefused, apply_result, read_result
from sequencer.executors.samples import sample
from sequencer.model.evidence import Evidence
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Step

SUCCESS = Outcome(
    status=OutcomeStatus.OK, output="seen", usage=Usage(input_tokens=5, seconds=2), exit_code=0
)
FAILURE = Outcome(status=OutcomeStatus.FAILED, error="exit code 3", exit_code=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("said", ["ok", "complete", "failed"])
@pytest.mark.parametrize(
    "status", [OutcomeStatus.FAILED, OutcomeStatus.INTERRUPTED, OutcomeStatus.LIMITED]
)
def test_a_result_file_does_not_rescue_an_unsuccessful_process(
    path: Path, said: str, status: OutcomeStatus
) -> None:
    write(path, {"status": said, "output": "so far", "usage": {"cost_usd": 2.0}})
    outcome = apply_result(path, FAILURE.replace(status=status))
    assert (outcome.status, outcome.error) == (status, "exit code 3")
    assert (outcome.output, outcome.usage.cost_usd) == ("so far", 2.0)


def test_nothing_to_do_is_an_answer_with_a_reason(path: Path) -> None:
    write(path, {"status": "nothing", "output": "no issue is open"})
    outcome = apply_result(path, SUCCESS)
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "no issue is open")
    assert outcome.evidence == Evidence(is_idle=True, is_stated=True)
    assert apply_result(path, FAILURE).status is OutcomeStatus.FAILED
    for reason in ({}, {"output": ""}, {"output": "  "}):
        write(path, {"status": "nothing", **reason})
        refused = apply_result(path, SUCCESS)
        assert not refused.is_accepted
        assert "needs the reason in output" in (refused.error or "")


def test_a_stated_status_is_recorded_as_evidence(path: Path) -> None:
    write(path, {"status": "ok"})
    shown = apply_result(path, SUCCESS.replace(evidence=Evidence())).evidence
    assert shown == Evidence(is_stated=True)
    write(path, {"output": "x"})
    assert apply_result(path, SUCCESS.replace(evidence=Evidence())).evidence == Evidence()
    write(path, {"status": "nothing", "output": "x"})
    ignored = apply_result(path, SUCCESS.replace(evidence=Evidence()), lambda: None)
    assert ignored.evidence == Evidence(), "where the answer decides, the file does not"


@pytest.mark.parametrize(
    ("output", "structured"),
    [
        ({"pass": True, "reason": "a"}, {"pass": True, "reason": "a"}),
        ([1, "b"], [1, "b"]),
        (False, False),
        ("text", None),
        ('{"pass": true}', None),
        (None, "as it was"),
    ],
)
def test_only_non_text_output_is_a_structured_answer(
    path: Path, output: Any, structured: Any
) -> None:
    write(path, {"output": output})
    before = SUCCESS.replace(structured="as it was")
    assert apply_result(path, before).structured == structured


def test_a_structured_answer_holds_only_what_a_file_can(path: Path) -> None:
    path.write_text('{"output": {"reason": "a\\ud800b"}}')
    assert apply_result(path, SUCCESS).structured == {"reason": "a?b"}
    path.write_text('{"output": {"amount": 1e999}}')
    assert apply_result(path, SUCCESS).structured is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "strict JSON"),
        ("{", "strict JSON"),
        ("null", "the whole file"),
        ("[]", "the whole file"),
        ('{"status": "fine"}', "status"),
        ('{"status": "ok", "colour": "red"}', "colour"),
        ('{"status": "ok", "status": "failed"}', "twice"),
        ('{"usage": {"cost_usd": NaN}}', "NaN"),
        ('{"usage": {"cost_usd": -1}}', "usage.cost_usd"),
        ('{"usage": {"cost_usd": "1"}}', "usage.cost_usd"),
        ('{"usage": {"input_tokens": 1.5}}', "usage.input_tokens"),
        ('{"usage": {"input_tokens": 1e400}}', "usage.input_tokens"),
        ('{"usage": {"input_tokens": true}}', "usage.input_tokens"),
        ('{"usage": {"steps": 5}}', "usage.steps"),
        (f'{{"usage": {{"input_tokens": {"9" * 400}}}}}', "usage.input_tokens"),
        (f'{{"usage": {{"input_tokens": {"9" * 5000}}}}}', "strict JSON"),
        ('{"output": ' + "[" * 100_000 + "]" * 100_000 + "}", "strict JSON"),
        ('{"status": "ok"} trailing', "strict JSON"),
    ],
)
def test_an_invalid_file_fails_the_step(path: Path, content: str, said: str) -> None:
    path.write_text(content)
    outcome = apply_result(path, SUCCESS)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert said in outcome.error
    assert str(path) in outcome.error


def test_bytes_that_are_not_utf8_are_refused(path: Path) -> None:
    path.write_bytes(b'{"output": "\xff"}')
    with pytest.raises(ResultRefused, match="strict JSON"):
        read_result(path)


def test_the_size_is_limited_to_the_byte(path: Path) -> None:
    empty = len(b'{"output": ""}')
    path.write_text('{"output": "' + "a" * (1024**2 - empty) + '"}')
    assert read_result(path) is not None
    path.write_text('{"output": "' + "a" * (1024**2 - empty + 1) + '"}')
    with pytest.raises(ResultRefused, match="1 MiB"):
        read_result(path)


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write(secret, {"status": "ok", "output": "canary"})
    path.symlink_to(secret)
    outcome = apply_result(path, SUCCESS)
    assert outcome.status is OutcomeStatus.FAILED
    assert "canary" not in outcome.output


@pytest.mark.timeout(5)
def test_a_fifo_or_a_folder_is_refused_at_once(path: Path) -> None:
    os.mkfifo(path)
    assert apply_result(path, SUCCESS).status is OutcomeStatus.FAILED
    path.unlink()
    path.mkdir()
    assert apply_result(path, SUCCESS).status is OutcomeStatus.FAILED


def test_a_failure_keeps_its_own_reason_beside_the_files(path: Path) -> None:
    path.write_text("{")
    error = apply_result(path, FAILURE).error
    assert error is not None
    assert error.startswith("exit code 3\n")
    assert "strict JSON" in error


def test_a_torn_file_of_an_interrupted_agent_is_not_a_failure(path: Path) -> None:
    path.write_text('{"status": ')
    interrupted = Outcome(status=OutcomeStatus.INTERRUPTED)
    assert apply_result(path, interrupted) == interrupted


# --- forms of answers: what clients are told, and what is made of what comes back -------------


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
    made = to_strict_schema(schema)
    tight = {**inner, "required": ["type"], "additionalProperties": False}
    assert made["properties"]["list"]["items"] == tight
    assert made["$defs"]["one"] == tight
    assert made["anyOf"] == [tight, True]
    # Closed, a mapping with any keys could hold none.
    assert made["properties"]["free"] == {"type": "object"}
    assert made["required"] == ["list", "free"]
    assert json.dumps(schema) == before


def test_an_answer_valid_for_the_strict_schema_is_valid_for_the_original() -> None:
    schema = {"type": "object", "properties": {"pass": {"type": "boolean"}, "why": {}}}
    value = {"pass": True, "why": "x"}
    assert Draft202012Validator(to_strict_schema(schema)).is_valid(value)
    assert not Draft202012Validator(to_strict_schema(schema)).is_valid({"pass": True})
    assert Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), (" [] ", []), ("", None), ("a", None), ("{} {}", None)],
)
def test_an_answer_is_json_as_a_whole_or_not_at_all(text: str, value: object) -> None:
    assert parse_json(text) == value


def test_hostile_answers_are_not_json() -> None:
    assert parse_json("[" * 200_000) is None
    assert parse_json("9" * 10_000) is None
    assert parse_json(f'"{"x" * MAX_ANSWER_CHARS}"') is None


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
