"""What all parsers do with lines that are not what they expect."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.engine.evidence import judge_turn
from sequencer.executors.claude import ClaudeParser
from sequencer.executors.client_events import (
    ClientEvent,
    JsonEventParser,
    is_affordable,
    one_line,
    sum_of_costs,
)
from sequencer.executors.client_limits import classify, find_retry_time
from sequencer.executors.codex import CodexParser
from sequencer.executors.gemini import GeminiParser
from sequencer.executors.opencode import OpencodeParser
from sequencer.executors.process import ProcessEnd
from sequencer.executors.protocol import Listener, Piece
from sequencer.model.outcome import OutcomeStatus
from tests.contract.executor_cases import Recorder
from tests.unit.executors.replay import RULES, encoded, feed, recording

PARSERS: list[type[JsonEventParser]] = [ClaudeParser, CodexParser, GeminiParser, OpencodeParser]


@pytest.fixture(params=PARSERS, ids=[parser.client for parser in PARSERS])
def parser(request: pytest.FixtureRequest) -> JsonEventParser:
    made: JsonEventParser = request.param(RULES)
    return made


def test_an_agent_whose_mark_file_appeared_has_answered(parser: JsonEventParser) -> None:
    end = ProcessEnd(exit_code=0, ended_by="done")
    said_nothing_final = judge_turn(parser.finish(end))
    assert said_nothing_final.status is OutcomeStatus.FAILED
    assert judge_turn(parser.build_done_outcome(end)).status is OutcomeStatus.OK
    parser.denials.append("Edit a.py")
    assert parser.build_done_outcome(end).denials == ("Edit a.py",)
    parser.rules = replace(parser.rules, fail_on_denial=True)
    assert parser.build_done_outcome(end).status is OutcomeStatus.FAILED


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
def test_a_line_that_would_expand_many_times_is_not_parsed(line: bytes, *, is_read: bool) -> None:
    started = time.process_time()
    assert is_affordable(line) is is_read
    assert time.process_time() - started < 2


def test_an_unparsed_line_is_passed_through(parser: JsonEventParser) -> None:
    line = b'{"type": [' + b"[]," * MIB + b"0]}"
    assert feed(parser, [line]).heard.pieces == [(line + b"\n", Piece.OUTPUT)]


ODD_VALUES: list[Any] = [None, 5, -1, "text", [], {}, [None], {"a": None}, True]
RECORDINGS = ["claude-330-edit", "codex-edit", "gemini-edit", "opencode-edit"]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", RECORDINGS)
def test_fields_of_an_unexpected_shape_do_no_harm(name: str) -> None:
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
def test_a_run_cut_off_at_any_point_is_not_a_success(name: str) -> None:
    kind = next(parser for parser in PARSERS if name.startswith(parser.client))
    _, _, lines = recording(name)
    for length in range(len(lines)):
        outcome = feed(kind(RULES), lines[:length]).outcome
        assert outcome.status is OutcomeStatus.FAILED, lines[:length]
    assert feed(kind(RULES), lines).outcome.status is OutcomeStatus.OK


def test_zero_cost_is_known_but_none_is_not() -> None:
    assert (sum_of_costs([0, 0.5]).cost_usd, sum_of_costs([0, 0.5]).unpriced) == (0.5, 0)
    for unknown in (-0.0, -1, -0.5, True, "0", float("nan")):
        usage = sum_of_costs([0.5, unknown])
        assert (usage.cost_usd, usage.unpriced) == (0.5, 1), unknown
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


# --- texts of limits, as clients print them, and the moment that each one means ---------------

BERLIN_WINTER = timezone(timedelta(hours=1))
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=BERLIN_WINTER)
FALLBACK = "2026-11-21T11:05:00Z"


@pytest.mark.parametrize(
    ("text", "status", "means"),
    [
        ("anything at all", 429, "limit"),
        ("usage limit reached", 403, "limit"),
        ("Overloaded", 529, "outage"),
        # A busy server may speak of rates; nothing of the account is used up.
        ("rate limit service unavailable", 503, "outage"),
        ("usage limit reached", 500, "outage"),
        ("", 503, "outage"),
        ("", 408, "outage"),
        # A wrong request stays wrong, whatever its text says.
        ("rate limit of the gateway", 400, "refusal"),
        ("overloaded", 400, "refusal"),
        ("Connection error.", 401, "refusal"),
        ("not found", 404, "refusal"),
        ("Reached maximum number of turns (1)", None, "refusal"),
        ("Reached maximum budget ($0.05)", None, "refusal"),
        ("No conversation found", None, "unknown"),
        ("line 4290 of the file", None, "unknown"),
        ("the tests of the connection pool fail", None, "unknown"),
        ("getaddrinfo EAI_AGAIN api.anthropic.com", None, "outage"),
        (
            "UnknownError: Unable to connect. Is the computer able to access the url?",
            None,
            "outage",
        ),
        ("Reconnecting...", None, "outage"),
        # A status that is no error says nothing; the text does.
        ("rate_limit_error", 200, "limit"),
    ],
)
def test_a_status_decides_before_the_text(text: str, status: int | None, means: str) -> None:
    assert classify(text, status) == means


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Claude AI usage limit reached|1795300000", "2026-11-21T22:26:40Z"),
        ("Claude AI usage limit reached|1795300000000", "2026-11-21T22:26:40Z"),
        ('"resets_at":1795300000', "2026-11-21T22:26:40Z"),
        ("hit your limit · resets 3pm (Europe/Berlin)", "2026-11-21T14:00:00Z"),
        ("hit your limit · resets 11:30pm (Europe/Berlin)", "2026-11-21T22:30:00Z"),
        ("5-hour limit reached ∙ resets 3am", "2026-11-22T02:00:00Z"),
        ("Your limit will reset at 10am (America/Lima).", "2026-11-21T15:00:00Z"),
        ("resets 12am (UTC)", "2026-11-22T00:00:00Z"),
        ("resets at 13:05 UTC", "2026-11-21T13:05:00Z"),
        ("weekly limit · resets Nov 24, 3pm (Europe/Berlin)", "2026-11-24T14:00:00Z"),
        ("Try again at Nov 24th, 2026 3:05 PM.", "2026-11-24T14:05:00Z"),
        ("resets Mon 9am", "2026-11-23T08:00:00Z"),
        ("resets Sat 9am", "2026-11-28T08:00:00Z"),
        ("try again in 3 days 4 hours 2 minutes.", "2026-11-24T15:02:00Z"),
        ("limit resets in 2h 5m", "2026-11-21T13:05:00Z"),
        ("Your quota will reset after 2h5m30s.", "2026-11-21T13:05:30Z"),
        ('"retryDelay": "34.074824224s"', "2026-11-21T11:00:35Z"),
        ("Please retry in 1m2.5s", "2026-11-21T11:01:03Z"),
        ("Please try again in 6.5s.", "2026-11-21T11:00:07Z"),
        ("try again in 350ms", "2026-11-21T11:00:01Z"),
        ("Retrying in 2892 seconds…", "2026-11-21T11:48:12Z"),
        ("retry-after: 30", "2026-11-21T11:00:30Z"),
        ('"resets_in_seconds":9568', "2026-11-21T13:39:28Z"),
        ("resets 2026-11-22T00:00:00+02:00", "2026-11-21T22:00:00Z"),
        ("resets on 2026-11-22 00:00", "2026-11-21T23:00:00Z"),
        ("resets at 2026-11-22 00:00:00 UTC", "2026-11-22T00:00:00Z"),
        ("reset at 2026-11-22 00:00:00.123456789Z", "2026-11-22T00:00:01Z"),
        ("[2026-11-21 11:59:59] your limit will reset at 2026-11-21 18:00", "2026-11-21T17:00:00Z"),
        ('{"code":"1308","message":"will reset at 2026-11-22 00:00"}', "2026-11-21T16:00:00Z"),
        ("[1310] Limit Exhausted. It will reset at 2026-11-22 00:00", "2026-11-21T16:00:00Z"),
        ("port 11308: resets at 2026-11-22 00:00", "2026-11-21T23:00:00Z"),
        ("resets tomorrow at 9am", "2026-11-22T08:00:00Z"),
        ("resets at noon tomorrow", "2026-11-21T11:05:00Z"),
        ("resets at midnight", "2026-11-21T23:00:00Z"),
        ("Reset in: 4h 32m", "2026-11-21T15:32:00Z"),
        ("try again after Nov 24, 2026 at 3:05 PM", "2026-11-24T14:05:00Z"),
        # No subscription has a longer window than a week.
        ("weekly limit, try again in 7 days", "2026-11-28T11:00:00Z"),
        ("usage limit reached, resets in 31 days", "2026-11-29T11:00:00Z"),
        ("monthly limit · resets Dec 20, 3pm", "2026-11-29T11:00:00Z"),
    ],
)
def test_the_reset_is_read_from_the_text(text: str, expected: str) -> None:
    assert find_retry_time(text, NOON) == expected


@pytest.mark.parametrize(
    "text",
    [
        "rate limit exceeded",
        "",
        "resets at 25:99",
        "resets Feb 30, 3pm",
        "reset 5 sessions",
        "usage limit reached|1295300000",  # long past
        "usage limit reached|9995300000",  # in 2286
        "try again in 400 days",
        "resets 2020-01-01T00:00:00Z",
        "resets at 2026-13-45 99:99",
        # Said late, or by a clock that is behind: it is over, and not a day or a week away.
        "session limit · resets 12pm (Europe/Berlin)",
        "session limit · resets 11:01am",
        "weekly limit · resets Sat 11:30am",
    ],
)
def test_an_implausible_reset_falls_back_to_the_configured_wait(text: str) -> None:
    assert find_retry_time(text, NOON) == FALLBACK
    assert find_retry_time(text, NOON, default_wait_s=60) == "2026-11-21T11:01:00Z"


def test_an_unknown_zone_is_read_as_local_time() -> None:
    assert find_retry_time("resets 3pm (Mars/Olympus)", NOON) == "2026-11-21T14:00:00Z"


def test_a_date_that_has_passed_means_next_year() -> None:
    december = datetime(2026, 12, 30, 12, 0, tzinfo=UTC)
    assert find_retry_time("resets Jan 2, 9am", december) == "2027-01-02T09:00:00Z"


def test_a_reset_just_before_midnight_is_over_just_after_it() -> None:
    after = datetime(2026, 11, 22, 0, 10, tzinfo=UTC)
    assert find_retry_time("resets 11:50pm", after) == "2026-11-22T00:15:00Z"
    assert find_retry_time("resets 11:05pm", after) == "2026-11-22T23:05:00Z"
    assert find_retry_time("resets Sat 11:50pm", after) == "2026-11-22T00:15:00Z"


# --- ids and versions: what no client would use counts as none ---------------------------------

ID_NAMES = {"claude": "session_id", "codex": "thread_id", "gemini": "session_id"}
ID_TYPES = {"claude": "system", "codex": "thread.started", "gemini": "init"}


def _started(parser: JsonEventParser, session_id: object, **more: object) -> dict[str, object]:
    """Return the event with which a client gives its conversation the id *session_id*."""
    kind = ID_TYPES.get(parser.client, "step_start")
    return {"type": kind, ID_NAMES.get(parser.client, "sessionID"): session_id, **more}


@pytest.mark.parametrize(
    "session_id",
    ["\ud800", "S" * 201, "S1;cost_usd=1000000", "--yolo", "S1\n", "S 1", "", 5, ["S1"], None],
)
def test_an_id_that_no_client_would_use_is_none(parser: JsonEventParser, session_id: Any) -> None:
    assert feed(parser, encoded(_started(parser, session_id))).outcome.session_id is None
    later = feed(parser, encoded(_started(parser, "S1"))).outcome.session_id
    assert later is not None
    assert later.partition(";")[0] == "S1"


def test_an_id_that_is_printed_later_does_not_replace_the_first(parser: JsonEventParser) -> None:
    lines = encoded(_started(parser, "S1"), _started(parser, "forged"))
    session_id = feed(parser, lines).outcome.session_id
    assert session_id is not None
    assert session_id.partition(";")[0] == "S1"


def test_the_session_of_a_hook_is_not_the_conversation_of_claude() -> None:
    """claude runs the hooks for the start before it changes to the session that it resumes."""
    parser = ClaudeParser(RULES)
    hooks = [
        _started(parser, f"ephemeral-{number}", subtype=subtype)
        for number, subtype in enumerate(("hook_started", "hook_response"))
    ]
    real = _started(parser, "real", subtype="init")
    assert feed(parser, encoded(*hooks, real, *hooks)).outcome.session_id == "real"


@pytest.mark.parametrize("version", ["2.1.330;cost_usd=900000", "\ud800", "2" * 201, [], 7])
def test_a_version_that_no_client_would_have_is_not_stored(version: object) -> None:
    parser = ClaudeParser(RULES)
    started = _started(parser, "S1", subtype="init", claude_code_version=version)
    assert feed(parser, encoded(started)).outcome.session_id == "S1"


# --- values of an unexpected type or depth -------------------------------------------------------

_DEEP: list[Any] = []
for _ in range(5_000):
    _DEEP = [_DEEP]
ODD_EVENTS: dict[str, list[dict[str, Any]]] = {
    "claude": [
        {"type": "assistant", "message": {"content": [{"type": []}]}},
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "input": _DEEP}]}},
        {"type": "assistant", "message": {"id": _DEEP, "model": _DEEP, "usage": {"a": 1}}},
        {"type": "system", "subtype": "init", "model": _DEEP, "permissionMode": _DEEP},
        {"type": "system", "subtype": "api_retry", "error": _DEEP, "error_status": _DEEP},
        {"type": "rate_limit_event", "rate_limit_info": {"status": _DEEP}},
        {"type": "result", "permission_denials": [{"tool_name": _DEEP}], "subtype": _DEEP},
    ],
    "codex": [
        {"type": "x", "item": {"type": []}},
        {"type": "item.started", "item": {"type": "mcp_tool_call", "arguments": {"a": _DEEP}}},
        {"type": "item.completed", "item": {"type": "mcp_tool_call", "status": _DEEP}},
        {"type": "item.completed", "item": {"type": "agent_message", "text": _DEEP}},
        {"type": "item.completed", "item": {"type": "command_execution", "exit_code": _DEEP}},
        {"type": "item.completed", "item": {"type": "file_change", "changes": [{"kind": _DEEP}]}},
        {"type": "turn.failed", "error": {"message": _DEEP}},
    ],
    "gemini": [
        {"type": "tool_result", "error": {"type": []}},
        {"type": "tool_use", "tool_name": _DEEP, "tool_id": _DEEP, "parameters": {"a": _DEEP}},
        {"type": "message", "role": "assistant", "content": _DEEP},
        {"type": "result", "status": "error", "error": {"message": _DEEP}},
    ],
    "opencode": [
        {"type": "tool_use", "part": {"tool": _DEEP, "state": {"input": {"a": _DEEP}}}},
        {"type": "tool_use", "part": {"state": {"status": "error", "error": _DEEP}}},
        {"type": "text", "part": {"text": _DEEP}},
        {"type": "error", "error": {"name": _DEEP, "data": {"message": _DEEP}}},
    ],
}


def test_an_event_of_odd_types_is_processed_like_any_other(parser: JsonEventParser) -> None:
    for event in ODD_EVENTS[parser.client]:
        heard = Recorder()
        parser.process_event(ClientEvent(event), heard)
        parser.finish(ProcessEnd(exit_code=0))
        assert all(len(data) < 2_000 for data, _ in heard.pieces)


def test_an_input_that_is_nested_too_deeply_is_shown_as_such() -> None:
    assert one_line({"path": "a", "x": _DEEP}) == 'path="a" x=(nested too deeply)'
    assert one_line(_DEEP) == "(nested too deeply)"


class _Failing(CodexParser):
    def process_event(self, event: ClientEvent, listener: Listener) -> bool:
        listener.write(b"half of it", Piece.ACTION)
        if event.get("type") == "odd":
            raise RuntimeError
        return super().process_event(event, listener)


def test_a_line_at_which_a_parser_fails_is_shown_and_the_next_one_counts() -> None:
    line, heard = b'{"type": "odd"}', Recorder()
    parser = _Failing(RULES)
    assert parser.feed_line(line, heard) is False
    assert heard.pieces == [(line + b"\n", Piece.OUTPUT)]
    feed(parser, encoded(_started(parser, "S1")))
    assert parser.session_id == "S1"


def test_an_error_of_the_listener_is_not_taken_for_one_of_the_line() -> None:
    class Full(Recorder):
        def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
            raise ValueError(data, kind)

    with pytest.raises(ValueError, match="half of it"):
        _Failing(RULES).feed_line(b"{}", Full())


HALF = "half \ud83d"
TEXTS: dict[str, dict[str, Any]] = {
    "claude": {"type": "result", "is_error": True, "result": HALF},
    "codex": {"type": "turn.failed", "error": {"message": HALF}},
    "gemini": {"type": "result", "error": {"message": HALF}},
    "opencode": {"type": "error", "error": {"name": HALF, "data": {"message": HALF}}},
}


def test_half_of_a_letter_in_an_error_is_replaced(parser: JsonEventParser) -> None:
    """A client cuts a text in the middle of an emoji, and JSON has escapes for the half."""
    error = feed(parser, encoded(TEXTS[parser.client])).outcome.error
    assert error is not None
    assert "half ?" in error


def test_half_of_a_letter_in_a_denial_is_replaced() -> None:
    denial = {"tool_name": "\udfff", "tool_input": {HALF: HALF}}
    result = {"type": "result", "is_error": False, "permission_denials": [denial]}
    assert feed(ClaudeParser(RULES), encoded(result)).outcome.denials == ('? half ?="half ?"',)


def test_only_so_many_refused_calls_of_a_bounded_length_are_kept() -> None:
    denials = [{"tool_name": "T" * 500, "tool_input": number} for number in range(3_000)]
    result = {"type": "result", "is_error": False, "permission_denials": denials}
    kept = feed(ClaudeParser(RULES), encoded(result)).outcome.denials
    assert len(kept) == 1_000
    assert max(map(len, kept)) < 200


@pytest.mark.parametrize("value", [10**30, "deep"])
def test_an_answer_that_no_reader_takes_is_only_a_text(value: Any) -> None:
    if value == "deep":
        value = json.loads("[" * 100 + "]" * 100)
    result = {"type": "result", "is_error": False, "structured_output": value}
    outcome = feed(ClaudeParser(RULES), encoded(result)).outcome
    assert (outcome.structured, json.loads(outcome.output)) == (None, value)
