"""The arguments and variables that gemini gets, and what is made of what it printed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.client import Call
from sequencer.executors.gemini import (
    POLICY,
    GeminiExecutor,
    GeminiOptions,
    GeminiParser,
    gemini_argv,
)
from sequencer.executors.process import ProcessCore, ProcessEnd
from sequencer.executors.protocol import StepRequest
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.step import Step
from tests.contract.executor_cases import request_for
from tests.unit.executors.replay import RULES, STRICT, encoded, feed, replay


def gemini_environment(options: GeminiOptions, request: StepRequest) -> dict[str, str]:
    return GeminiExecutor("gemini", options, ProcessCore()).build_call(request).environment


def called(folder: Path, tools: dict[str, bool], **entry: Any) -> Call:
    options = GeminiOptions.model_validate({"env": {"HOME": "/home/me"}, **entry})
    step = Step.model_validate({"name": "main", "tools": tools})
    executor = GeminiExecutor("gemini", options, ProcessCore())
    return executor.build_call(request_for(folder, step=step))


@pytest.mark.parametrize(("tools", "rules"), [({"glob": True}, 1), ({"glob": False}, 1)])
def test_a_policy_has_no_more_rules_than_needed(
    tmp_path: Path, tools: dict[str, bool], rules: int
) -> None:
    assert len(tomllib.loads(called(tmp_path, tools).files[POLICY])["rule"]) == rules


@pytest.mark.parametrize("tools", [{}, {"todoread": False}])
def test_there_is_no_policy_without_a_meaningful_tool_word(
    tmp_path: Path, tools: dict[str, bool]
) -> None:
    call = called(tmp_path, tools)
    assert call.files == {}
    assert not any("policy" in argument for argument in call.argv)


def test_the_users_policies_are_passed_from_where_gemini_looks_for_them(tmp_path: Path) -> None:
    moved = {"HOME": "/home/me", "GEMINI_CLI_HOME": "/srv/g"}
    assert (
        called(tmp_path, {"bash": True}, env=moved).argv[-1] == "--policy=/srv/g/.gemini/policies"
    )
    # An entry that names its own has replaced the user's already.
    own = called(tmp_path, {"bash": True}, extra_args=["--policy=own.toml"]).argv
    assert [word for word in own if word.startswith("--policy")] == [
        "--policy=own.toml",
        f"--policy={tmp_path / 'results' / POLICY}",
    ]


def test_a_policy_gemini_could_not_find_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    folder.mkdir()
    with pytest.raises(ValueError, match="has a comma"):
        called(folder, {"bash": False})
    assert called(folder, {}).files == {}


def test_a_session_is_continued_by_its_id(tmp_path: Path) -> None:
    session = "11111111-2222-4333-8444-555555555555"
    request = request_for(tmp_path, resume_session=session)
    assert gemini_argv(GeminiOptions(), request)[-1] == f"--resume={session}"
    with pytest.raises(ValueError, match="not a session id"):
        gemini_argv(GeminiOptions(), request_for(tmp_path, resume_session="--yolo"))


def test_the_system_prompt_is_passed_in_a_file(tmp_path: Path) -> None:
    request = request_for(tmp_path, system_prompt="SECRET")
    environment = gemini_environment(GeminiOptions(), request)
    assert environment["GEMINI_SYSTEM_MD"] == str(tmp_path / "results" / "system-prompt.md")
    assert environment["GEMINI_CLI_NO_RELAUNCH"] == "true"
    assert "SECRET" not in " ".join(gemini_argv(GeminiOptions(), request))
    assert "GEMINI_SYSTEM_MD" not in gemini_environment(GeminiOptions(), request_for(tmp_path))


def test_approval_modes_are_those_of_gemini() -> None:
    with pytest.raises(ValidationError, match="auto_edit"):
        GeminiOptions.model_validate({"approval_mode": "all"})


def test_a_tool_that_the_mode_does_not_offer_counts_as_refused() -> None:
    outcome = replay("gemini-refused", GeminiParser(RULES)).outcome
    assert outcome.status is OutcomeStatus.OK
    assert outcome.denials == ('write_file file_path="/project/b.txt" content="x"',)
    assert replay("gemini-refused", GeminiParser(STRICT)).outcome.status is OutcomeStatus.FAILED


@pytest.mark.parametrize(
    ("message", "status", "reset"),
    [
        (
            (
                '[API Error: {"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED",'
                '"details":[{"retryDelay":"34.07s"}]}}]'
            ),
            OutcomeStatus.LIMITED,
            "2026-11-21T12:00:35Z",
        ),
        (
            "You have exhausted your capacity on this model. Your quota will reset after 2h5m30s.",
            OutcomeStatus.LIMITED,
            "2026-11-21T14:05:30Z",
        ),
        ('[API Error: {"error":{"code":503,"message":"rate"}}]', OutcomeStatus.UNAVAILABLE, None),
    ],
)
def test_a_quota_limit_is_not_a_failure(
    message: str, status: OutcomeStatus, reset: str | None
) -> None:
    result = {"type": "result", "status": "error", "error": {"message": message}}
    outcome = feed(GeminiParser(RULES), encoded(result), end=ProcessEnd(exit_code=1)).outcome
    assert (outcome.status, outcome.not_before) == (status, reset)
