from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.process import ResultRefused, apply_result, read_result
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage

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
def test_a_process_that_did_not_succeed_stays_so(
    path: Path, said: str, status: OutcomeStatus
) -> None:
    write(path, {"status": said, "output": "so far", "usage": {"cost_usd": 2.0}})
    outcome = apply_result(path, FAILURE.replace(status=status))
    assert (outcome.status, outcome.error) == (status, "exit code 3")
    assert (outcome.output, outcome.usage.cost_usd) == ("so far", 2.0)


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
def test_only_what_is_no_text_is_an_answer_in_a_form(
    path: Path, output: Any, structured: Any
) -> None:
    write(path, {"output": output})
    before = SUCCESS.replace(structured="as it was")
    assert apply_result(path, before).structured == structured


def test_an_answer_in_a_form_holds_nothing_that_no_file_could(path: Path) -> None:
    path.write_text('{"output": {"reason": "a\\ud800b"}}')
    assert apply_result(path, SUCCESS).structured == {"reason": "a?b"}
    path.write_text('{"output": {"amount": 1e999}}')
    assert apply_result(path, SUCCESS).structured is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "strict JSON"),
        ("{", "strict JSON"),
        ("null", "the whole"),
        ("[]", "the whole"),
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
def test_a_file_without_meaning_fails_the_step(path: Path, content: str, said: str) -> None:
    path.write_text(content)
    outcome = apply_result(path, SUCCESS)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert said in outcome.error
    assert str(path) in outcome.error


def test_bytes_that_are_no_utf8_are_refused(path: Path) -> None:
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


def test_a_torn_file_of_an_interrupted_agent_is_nobodys_failure(path: Path) -> None:
    path.write_text('{"status": ')
    interrupted = Outcome(status=OutcomeStatus.INTERRUPTED)
    assert apply_result(path, interrupted) == interrupted
