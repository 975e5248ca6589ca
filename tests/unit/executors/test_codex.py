"""The arguments that codex gets, and what is made of what it printed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.cancellation import Cancellation
from sequencer.executors.codex import (
    CodexExecutor,
    CodexOptions,
    CodexParser,
    codex_argv,
    read_session_usage,
)
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import Piece
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import OutcomeStatus, Usage
from sequencer.model.step import Step
from tests.contract.executor_cases import Recorder, request_for
from tests.unit.executors.replay import RULES, STRICT, encoded, feed, replay

THREAD = "01a20016-5ed9-7c62-840c-85ea48846dc6"
READ_ONLY = '--config=sandbox_mode="read-only"'


def argv(
    folder: Path,
    entry: dict[str, Any] | None = None,
    step: dict[str, Any] | None = None,
    **request: Any,
) -> list[str]:
    options = CodexOptions.model_validate(entry or {})
    made = codex_argv(options, request_for(folder, step=Step(name="main", **step or {}), **request))
    assert made[:2] == ["codex", "exec"]
    assert made[-1] == "-"
    return made[2:-1]


@pytest.mark.parametrize(
    ("entry", "step", "expected"),
    [
        ({}, {}, [READ_ONLY]),
        ({"sandbox": "workspace-write"}, {}, ['--config=sandbox_mode="workspace-write"']),
        ({"model": "gpt-6"}, {}, [READ_ONLY, "--model=gpt-6"]),
        ({"model": "gpt-6"}, {"model": "o9"}, [READ_ONLY, "--model=o9"]),
        ({"profile": "work"}, {}, [READ_ONLY, "--profile=work"]),
        (
            {"disallowed_tools": ["shell_tool"]},
            {"disallowed_tools": ["goals"]},
            [READ_ONLY, "--disable=shell_tool", "--disable=goals"],
        ),
        ({"extra_args": ["--ephemeral"]}, {}, ["--ephemeral", READ_ONLY]),
        ({}, {"provider": "openai", "model": "o9"}, [READ_ONLY, "--model=o9"]),
        ({}, {"tools": {"bash": True}}, [READ_ONLY, "--enable=shell_tool"]),
        (
            {"disallowed_tools": ["goals"]},
            {"tools": {"bash": False, "read": False, "todoread": False}},
            [READ_ONLY, "--disable=goals", "--disable=shell_tool", "--disable=unified_exec"],
        ),
        (
            {},
            {"tools": {"websearch": True, "todowrite": False, "task": True}},
            [
                READ_ONLY,
                '--config=web_search="live"',
                "--config=tools.update_plan.enabled=false",
                "--enable=multi_agent",
            ],
        ),
        (
            {},
            {"tools": {"websearch": False, "todowrite": True, "task": False}},
            [
                READ_ONLY,
                '--config=web_search="disabled"',
                "--config=tools.update_plan.enabled=true",
                "--disable=multi_agent",
                "--disable=multi_agent_v2",
            ],
        ),
        ({"sandbox": "danger-full-access"}, {"tools": {"edit": False}}, [READ_ONLY]),
        (
            {"sandbox": "workspace-write"},
            {"tools": {"write": False, "bash": True}},
            [
                READ_ONLY,
                "--enable=shell_tool",
            ],
        ),
        (
            {"sandbox": "workspace-write"},
            {"tools": {"write": True, "edit": True, "read": True}},
            ['--config=sandbox_mode="workspace-write"'],
        ),
    ],
)
def test_options_and_step_become_arguments(
    tmp_path: Path, entry: dict[str, Any], step: dict[str, Any], expected: list[str]
) -> None:
    common = ["--json", "--skip-git-repo-check"]
    assert argv(tmp_path, entry, step) == [*common, *expected]


@pytest.mark.parametrize(
    "text", ["be brief", 'say "hi"\nand\tgo', "ümlaut 🎉", "\x7f\x01\\", "]'''\"\"\"", "= #"]
)
def test_an_appended_prompt_is_one_toml_string(tmp_path: Path, text: str) -> None:
    made = argv(tmp_path, append_system_prompt=text)
    value = made[-1].removeprefix("--config=")
    assert tomllib.loads(value) == {"developer_instructions": text}


def test_a_system_prompt_is_passed_in_a_file(tmp_path: Path) -> None:
    made = argv(tmp_path, system_prompt="SECRET")
    value = tomllib.loads(made[-1].removeprefix("--config="))
    assert value == {"model_instructions_file": str(tmp_path / "results" / "system-prompt.md")}


OUTPUT = {"schema": {"type": "object", "properties": {"pass": {"type": "boolean"}}}}


def test_the_schema_of_the_answer_is_passed_in_a_file(tmp_path: Path) -> None:
    schema = f"--output-schema={tmp_path / 'results' / 'output-schema.json'}"
    assert argv(tmp_path, {}, {"output": OUTPUT})[-1] == schema
    made = argv(tmp_path, {}, {"output": OUTPUT}, resume_session=THREAD)
    assert made[-2:] == [schema, THREAD]
    assert argv(tmp_path, {}, {"output": {"format": "json"}})[-1] == READ_ONLY


def test_codex_gets_a_strict_schema_and_its_answer_is_read(tmp_path: Path) -> None:
    """A real program in codex' place copies the file that it was given."""
    program = tmp_path / "codex"
    item = {"type": "agent_message", "text": '{"a":1}'}
    events = [{"type": "item.completed", "item": item}, {"type": "turn.completed"}]
    said = "".join(f"echo '{json.dumps(event)}'\n" for event in events)
    copy = 'for word; do case $word in --output-schema=*) cp "${word#*=}" seen.json;; esac; done'
    program.write_text(f"#!/bin/sh\n{copy}\n{said}".replace("\\", "\\\\"))
    program.chmod(0o755)
    options = CodexOptions(program=str(program))
    request = request_for(tmp_path, step=Step.model_validate({"name": "main", "output": OUTPUT}))
    with ProcessCore() as core:
        executor = CodexExecutor("codex", options, core)
        outcome = executor.perform(request, Recorder(), Cancellation())
    assert (outcome.status, outcome.structured, outcome.output) == ("ok", {"a": 1}, '{"a":1}')
    assert json.loads((tmp_path / "seen.json").read_text()) == {
        **OUTPUT["schema"],
        "required": ["pass"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("answer", "is_json", "structured"),
    [
        ('{"pass": true}', True, {"pass": True}),
        ('{"pass": true}', False, None),
        ("It passes.", True, None),
        ('```\n{"pass": true}\n```', True, None),
    ],
)
def test_an_answer_is_read_as_json_only_if_json_was_requested(
    answer: str, is_json: bool, structured: object
) -> None:
    item = {"type": "agent_message", "text": answer}
    lines = encoded({"type": "item.completed", "item": item}, {"type": "turn.completed"})
    outcome = feed(CodexParser(RULES, is_json=is_json), lines).outcome
    assert (outcome.output, outcome.structured) == (answer, structured)


def test_an_appended_prompt_too_long_for_an_argument_is_refused(tmp_path: Path) -> None:
    with ProcessCore() as core:
        cancellation = Cancellation()
        executor = CodexExecutor("codex", CodexOptions(program="no-such"), core)
        request = request_for(tmp_path, append_system_prompt="ü" * 60_000)
        outcome = executor.perform(request, Recorder(), cancellation)
        cancellation.close()
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "append_system_prompt" in outcome.error


@pytest.mark.parametrize("mark", ["--dangerously-bypass-approvals-and-sandbox", "-c", "a b"])
def test_a_session_id_that_is_an_option_is_refused(tmp_path: Path, mark: str) -> None:
    with pytest.raises(ValueError, match="not a session id"):
        argv(tmp_path, resume_session=mark)


def test_sandbox_modes_are_those_of_codex() -> None:
    with pytest.raises(ValidationError, match="read-only"):
        CodexOptions.model_validate({"sandbox": "off"})


def test_a_continued_thread_is_charged_the_difference(tmp_path: Path) -> None:
    first = replay("codex-edit", CodexParser(RULES)).outcome
    before = read_session_usage(request_for(tmp_path, resume_session=first.session_id))
    assert before == Usage(input_tokens=10976, output_tokens=95)
    second = replay("codex-resumed", CodexParser(RULES, before)).outcome
    assert (second.usage.input_tokens, second.usage.output_tokens) == (16857 - 10976, 139 - 95)
    assert second.session_id is not None
    assert second.session_id.endswith(";input_tokens=16857;output_tokens=139;cached_input_tokens=0")


@pytest.mark.parametrize(
    ("mark", "cached"),
    [
        (";input_tokens=900;output_tokens=10;cached_input_tokens=700", 1300),
        # Of an earlier version, which did not say: never more than what is certainly new.
        (";input_tokens=900;output_tokens=10", 1100),
    ],
)
def test_a_continued_thread_is_charged_only_for_new_cache_reads(
    tmp_path: Path, mark: str, cached: int
) -> None:
    before = read_session_usage(request_for(tmp_path, resume_session=f"one{mark}"))
    usage = {"input_tokens": 3000, "cached_input_tokens": 2000, "output_tokens": 20}
    event = {"type": "turn.completed", "usage": usage}
    charged = feed(CodexParser(RULES, before), encoded(event)).outcome.usage
    assert (charged.input_tokens, charged.cache_read_tokens) == (2100, cached)


def test_a_total_that_dropped_belongs_to_this_run() -> None:
    before = Usage(input_tokens=10**9, output_tokens=1)
    outcome = replay("codex-edit", CodexParser(RULES, before)).outcome
    assert outcome.usage.input_tokens == 10976


def test_refused_commands_are_found_on_stderr() -> None:
    outcome = replay("codex-refused", CodexParser(RULES)).outcome
    assert outcome.status is OutcomeStatus.OK
    assert len(outcome.denials) == 1
    assert "reject command" in outcome.denials[0]
    assert replay("codex-refused", CodexParser(STRICT)).outcome.status is OutcomeStatus.FAILED


@pytest.mark.parametrize("denied", [False, True])
def test_the_time_for_a_long_line_of_stderr_grows_with_its_length(denied: bool) -> None:
    # If it grew with the square of the length, this line would take hours.
    line = "codex_core::tools::router: error= " * 120_000 + "reject" * denied
    end = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}
    denials = feed(CodexParser(RULES), encoded(end), stderr=line).outcome.denials
    assert len(denials) == denied


def test_only_the_beginning_of_a_long_complaint_is_searched() -> None:
    said = "stream closed before " * 200_000 + "incomplete response"
    end = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}
    item = {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": said}}
    for told in ({"type": "error", "message": said}, item):
        outcome = feed(CodexParser(RULES), encoded(told, end)).outcome
        assert outcome.status is OutcomeStatus.UNAVAILABLE


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "turn.started"}],
        [{"type": "turn.completed"}, {"type": "turn.started"}],
        [{"type": "turn.completed"}, {"type": "turn.failed", "error": {"message": "x"}}],
        [{"type": "item.completed", "item": {"type": "agent_message", "text": "done"}}],
    ],
)
def test_exit_code_0_means_nothing_without_a_completed_turn(
    events: list[dict[str, Any]],
) -> None:
    assert feed(CodexParser(RULES), encoded(*events)).outcome.status is OutcomeStatus.FAILED


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("You've hit your usage limit. Try again in 3 hours.", OutcomeStatus.LIMITED),
        ("Selected model is at capacity.", OutcomeStatus.UNAVAILABLE),
        ("Model metadata for 'm' not found.", OutcomeStatus.OK),
        ("Reconnecting... 1/5 (stream disconnected before completion)", OutcomeStatus.OK),
    ],
)
def test_a_turn_with_nothing_but_a_limit_is_not_an_answer(said: str, status: OutcomeStatus) -> None:
    end = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}
    item = {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": said}}
    told_as = ({"type": "error", "message": said}, item)
    for told in told_as[: 1 if said.startswith("Reconnecting") else 2]:
        assert feed(CodexParser(RULES), encoded(told, end)).outcome.status is status
        answer = {"id": "item_1", "type": "agent_message", "text": "Done."}
        events = encoded(told, {"type": "item.completed", "item": answer}, end)
        assert feed(CodexParser(RULES), events).outcome.output == "Done."


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_answer_cut_off_by_its_provider_is_not_an_outage(reason: str) -> None:
    lead = "stream disconnected before completion: "
    said = f"{lead}Incomplete response returned, reason: {reason}"
    failed = feed(CodexParser(RULES), encoded(_failed(said))).outcome
    assert (failed.status, failed.is_unexplained) == (OutcomeStatus.FAILED, False)
    broken = f"{lead}error decoding response body"
    away = feed(CodexParser(RULES), encoded(_failed(broken))).outcome
    assert away.status is OutcomeStatus.UNAVAILABLE


def _failed(said: str) -> dict[str, Any]:
    return {"type": "turn.failed", "error": {"message": said}}


def test_changes_of_files_and_other_tools_are_shown() -> None:
    change = {"type": "file_change", "changes": [{"path": "a.py", "kind": "update"}]}
    search = {"type": "web_search", "id": "item_3", "query": "python"}
    thought = {"type": "reasoning", "text": "hm"}
    declined = {"type": "command_execution", "command": "rm x", "status": "declined"}
    events = [{"type": "item.completed", "item": i} for i in (change, search, thought, declined)]
    started = {"type": "item.started", "item": search}
    replayed = feed(CodexParser(RULES), [json.dumps(e).encode() for e in (started, *events)])
    actions = replayed.heard.text(Piece.ACTION)
    assert "file_change update a.py" in actions
    assert '-> web_search query="python"' in actions
    assert replayed.heard.text(Piece.THOUGHT) == "hm\n"
    assert replayed.outcome.denials == ("rm x",)
