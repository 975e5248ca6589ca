"""What all parsers do with lines that are not what they expect."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.executors.claude import ClaudeParser
from sequencer.executors.client import JsonEventParser, is_affordable, sum_of_costs
from sequencer.executors.codex import CodexParser
from sequencer.executors.gemini import GeminiParser
from sequencer.executors.opencode import OpencodeParser
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import OutcomeStatus
from tests.contract.executor_cases import Recorder
from tests.unit.executors.replay import RULES, encoded, feed, recording

PARSERS: list[type[JsonEventParser]] = [ClaudeParser, CodexParser, GeminiParser, OpencodeParser]


@pytest.fixture(params=PARSERS, ids=[parser.client for parser in PARSERS])
def parser(request: pytest.FixtureRequest) -> JsonEventParser:
    made: JsonEventParser = request.param(RULES)
    return made


def test_an_agent_whose_file_is_there_has_answered(parser: JsonEventParser) -> None:
    end = ProcessEnd(exit_code=0, ended_by="done")
    assert parser.finish(end).status is OutcomeStatus.FAILED, "its client said nothing final"
    assert parser.done(end).status is OutcomeStatus.OK
    parser.denials.append("Edit a.py")
    assert parser.done(end).denials == ("Edit a.py",)
    parser.rules = replace(parser.rules, fail_on_denial=True)
    assert parser.done(end).status is OutcomeStatus.FAILED


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("line", "is_read"),
    [
        (b"[" + b"[]," * 80_000 + b"0]", True),
        (b"[" + b"[]," * 2 * MIB + b"0]", False),
        (b"[" + b'"ab",' * MIB + b"0]", False),
        (b'["' + b'","' * 40_000 + b'"]', True),
        (b'["' + rb"\"," * MIB + b'"]', True),
        (b'["' + rb"\\" * MIB + b'"]', True),
        (b'["' + b"x[{,:" * MIB + b'"]', True),
        (b'["' + b"x" * 5 * MIB + "ö".encode() + b'"]', False),
        (b'["' + b"x" * 5 * MIB + rb'\u00f6"]', False),
        (b'["' + "ö".encode() * (MIB - 10) + b'"]', True),
        # No end: looked through once.
        (b'["' + rb"\"" * 2 * MIB + b"\\", True),
        (b'"' * 5 * MIB, False),
    ],
    ids=[
        "lists", "many lists", "words", "empty words", "quotes", "backslashes", "marks",
        "one letter", "escaped letter", "letters", "no end", "ends",
    ],
)  # fmt: skip
def test_what_would_take_many_times_its_size_is_not_read(line: bytes, *, is_read: bool) -> None:
    started = time.process_time()
    assert is_affordable(line) is is_read
    assert time.process_time() - started < 2


def test_what_is_not_read_is_passed_through(parser: JsonEventParser) -> None:
    line = b'{"type": [' + b"[]," * MIB + b"0]}"
    assert feed(parser, [line]).heard.pieces == [(line + b"\n", Piece.OUTPUT)]


ODD_VALUES: list[Any] = [None, 5, -1, "text", [], {}, [None], {"a": None}, True]
RECORDINGS = ["claude-330-edit", "codex-edit", "gemini-edit", "opencode-edit"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_fields_of_another_shape_do_no_harm(name: str) -> None:
    """Every value of every event is replaced by something else, one at a time."""
    kind = next(parser for parser in PARSERS if name.startswith(parser.client))
    _, _, lines = recording(name)
    for place, line in enumerate(lines):
        event = json.loads(line)
        for key in event:
            for odd in ODD_VALUES:
                bent = json.dumps({**event, key: odd}).encode()
                feed(kind(RULES), [*lines[:place], bent, *lines[-1:]])


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_run_that_was_cut_off_anywhere_is_no_success(name: str) -> None:
    kind = next(parser for parser in PARSERS if name.startswith(parser.client))
    _, _, lines = recording(name)
    for length in range(len(lines)):
        outcome = feed(kind(RULES), lines[:length]).outcome
        assert outcome.status is OutcomeStatus.FAILED, lines[:length]
    assert feed(kind(RULES), lines).outcome.status is OutcomeStatus.OK


def test_a_cost_of_nothing_is_known_and_none_is_not() -> None:
    assert (sum_of_costs([0, 0.5]).cost_usd, sum_of_costs([0, 0.5]).unpriced) == (0.5, 0)
    assert (sum_of_costs([0.5, None]).cost_usd, sum_of_costs([0.5, None]).unpriced) == (0.5, 1)


CLAUDE: list[tuple[dict[str, Any], bool]] = [
    ({"type": "system", "subtype": "init"}, False),
    ({"type": "system", "subtype": "status"}, False),
    ({"type": "system", "subtype": "api_retry", "attempt": 1}, False),
    ({"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}}, False),
    ({"type": "assistant", "message": {"content": []}}, False),
    ({"type": "assistant", "message": {"content": [{"type": "text", "text": ""}]}}, False),
    ({"type": "assistant", "message": {"content": [{"type": "text", "text": "ok"}]}}, True),
    ({"type": "assistant", "message": {"content": [{"type": "thinking", "thinking": "so"}]}}, True),
    ({"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "Bash"}]}}, True),
    ({"type": "user", "message": {"content": [{"type": "tool_result", "content": ""}]}}, True),
    ({"type": "user", "message": {"content": "text of a hook"}}, False),
    ({"type": "stream_event", "event": {"type": "ping"}}, False),
    ({"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m"}}}, False),
    ({"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": "o"}}}, True),
    ({"type": "stream_event", "event": {"delta": {"partial_json": '{"a"'}}}, True),
    ({"type": "stream_event", "event": {"delta": {"text": ""}}}, False),
    ({"type": "stream_event", "event": {"content_block": {"type": "tool_use"}}}, True),
    (
        {
            "type": "assistant",
            "is_api_error_message": True,
            "message": {"content": [{"type": "text", "text": "API Error: 529"}]},
        },
        False,
    ),
    ({"type": "of next week"}, False),
]
CODEX: list[tuple[dict[str, Any], bool]] = [
    ({"type": "thread.started", "thread_id": "t"}, False),
    ({"type": "turn.started"}, False),
    ({"type": "error", "message": "Reconnecting... 1/5"}, False),
    ({"type": "item.completed", "item": {"type": "error", "message": "metadata"}}, False),
    ({"type": "item.completed", "item": {"type": "agent_message", "text": ""}}, False),
    ({"type": "item.completed", "item": {"type": "agent_message", "text": "done"}}, True),
    ({"type": "item.completed", "item": {"type": "reasoning", "text": "so"}}, True),
    ({"type": "item.started", "item": {"type": "command_execution", "command": "ls"}}, True),
    ({"type": "item.updated", "item": {"type": "todo_list", "items": []}}, True),
    ({"type": "item.completed", "item": None}, False),
]
GEMINI: list[tuple[dict[str, Any], bool]] = [
    ({"type": "init", "session_id": "s"}, False),
    ({"type": "message", "role": "user", "content": "the prompt"}, False),
    ({"type": "message", "role": "assistant", "content": ""}, False),
    ({"type": "message", "role": "assistant", "content": "o"}, True),
    ({"type": "tool_use", "tool_name": "read"}, True),
    ({"type": "tool_result", "status": "success"}, True),
    ({"type": "error", "severity": "warning", "message": "again"}, False),
]
OPENCODE: list[tuple[dict[str, Any], bool]] = [
    ({"type": "step_start", "sessionID": "s"}, False),
    ({"type": "step_finish", "part": {"reason": "tool-calls"}}, False),
    ({"type": "text", "part": {"text": ""}}, False),
    ({"type": "text", "part": {"text": "done"}}, True),
    ({"type": "reasoning", "part": {"text": "so"}}, True),
    ({"type": "tool_use", "part": {"tool": "bash"}}, True),
    ({"type": "error", "error": {"name": "APIError"}}, False),
]


@pytest.mark.parametrize(
    ("made", "event", "is_progress"),
    [
        pytest.param(made, event, is_progress, id=f"{made.client}-{number}")
        for made, table in zip(PARSERS, (CLAUDE, CODEX, GEMINI, OPENCODE), strict=True)
        for number, (event, is_progress) in enumerate(table)
    ],
)
def test_only_text_tool_calls_and_their_results_are_progress(
    made: type[JsonEventParser], event: dict[str, Any], *, is_progress: bool
) -> None:
    parser, (line,) = made(RULES), encoded(event)
    assert parser.feed_line(line, Recorder()) is is_progress
