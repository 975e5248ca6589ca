"""Real wordings of clients and services, each with its public source: `data/client_wordings.json`.

``error``: what a client reports in its structured output. ``notice``: the same, where an answer
should be. ``answer`` and ``tool``: what agents and the programs that they run have said about
limits, which is none of ours.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sequencer.executors.claude import ClaudeParser
from sequencer.executors.client_events import JsonEventParser
from sequencer.executors.client_limits import ErrorKind, classify, find_retry_time, is_notice
from sequencer.executors.codex import CodexParser
from sequencer.executors.gemini import GeminiParser
from sequencer.executors.opencode import OpencodeParser
from sequencer.executors.process import ProcessEnd
from sequencer.model.outcome import OutcomeStatus
from tests.unit.executors.replay import RULES, encoded, feed

TABLE = Path(__file__).parents[2] / "data" / "client_wordings.json"
WORDINGS: list[dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
AWAY = {ErrorKind.LIMIT: OutcomeStatus.LIMITED, ErrorKind.OUTAGE: OutcomeStatus.UNAVAILABLE}
ERRORS = [one for one in WORDINGS if one["said"] in ("error", "notice")]
PARSERS: dict[str, type[JsonEventParser]] = {
    "claude": ClaudeParser,
    "codex": CodexParser,
    "gemini": GeminiParser,
    "opencode": OpencodeParser,
}


def answer_events(client: str, text: str) -> list[dict[str, Any]]:
    """Return the events with which *client* tells *text* as its answer, and ends well."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    events: dict[str, list[dict[str, Any]]] = {
        "claude": [
            {"type": "result", "subtype": "success", "is_error": False, "result": text},
        ],
        "codex": [
            {"type": "thread.started", "thread_id": "t"},
            {"type": "item.completed", "item": {"type": "agent_message", "text": text}},
            {"type": "turn.completed", "usage": usage},
        ],
        "gemini": [
            {"type": "message", "role": "assistant", "content": text},
            {"type": "result", "status": "success", "stats": usage},
        ],
        "opencode": [
            {"type": "text", "part": {"text": text}},
            {"type": "step_finish", "part": {"reason": "stop", "tokens": {}}},
        ],
    }
    return events[client]


def error_events(client: str, text: str, status: int | None) -> list[dict[str, Any]]:
    """Return the events with which *client* reports the error *text*."""
    reason = {"terminal_reason": "api_error", "api_error_status": status}
    events: dict[str, list[dict[str, Any]]] = {
        "claude": [{"type": "result", "is_error": True, "result": text, **reason}],
        "codex": [{"type": "turn.failed", "error": {"message": text}}],
        "gemini": [{"type": "result", "status": "error", "error": {"message": text}}],
        "opencode": [{"type": "error", "error": {"data": {"message": text, "statusCode": status}}}],
    }
    return events[client]


def test_the_table_covers_both_kinds_and_each_entry_has_a_public_source() -> None:
    means = Counter(one["means"] in ("limit", "outage") for one in WORDINGS)
    assert means[True] >= 60
    assert means[False] >= 60
    for one in WORDINGS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", one["source"]), one
        assert one["said"] in ("error", "notice", "answer", "tool"), one
        assert one["client"] in (*PARSERS, "any"), one


@pytest.mark.parametrize("one", ERRORS, ids=lambda one: str(one["source"]))
def test_a_wording_means_what_its_source_says(one: dict[str, Any]) -> None:
    assert classify(one["text"], one.get("status")) == one["means"]
    assert one["said"] != "notice" or is_notice(one["text"])


@pytest.mark.parametrize("one", ERRORS, ids=lambda one: str(one["source"]))
@pytest.mark.parametrize("code", [1, 0])
def test_a_reported_wording_decides_the_outcome(one: dict[str, Any], code: int) -> None:
    events = error_events(one["client"], one["text"], one.get("status"))
    end = ProcessEnd(exit_code=code)
    outcome = feed(PARSERS[one["client"]](RULES), encoded(*events), end=end).outcome
    assert outcome.status is AWAY.get(one["means"], OutcomeStatus.FAILED)


NOTICES = [one for one in WORDINGS if one["said"] == "notice"]


@pytest.mark.parametrize("one", NOTICES, ids=lambda one: str(one["source"]))
@pytest.mark.parametrize("client", PARSERS)
def test_a_wording_is_not_accepted_as_an_answer(one: dict[str, Any], client: str) -> None:
    lines = encoded(*answer_events(client, f"{one['text']}\n"))
    outcome = feed(PARSERS[client](RULES), lines).outcome
    assert outcome.status is AWAY.get(one["means"], OutcomeStatus.FAILED)


@pytest.mark.slow(sample=150)
@pytest.mark.parametrize(
    "text",
    [one["text"] for one in WORDINGS if one["said"] == "answer"]
    # Quoted, begun with or followed by more: an agent's own words.
    + [f"I found this in the log: {one['text']}" for one in NOTICES]
    + [f"{one['text']}\n\nThat is what the log says. All is done." for one in NOTICES],
)
@pytest.mark.parametrize("client", PARSERS)
def test_an_answer_about_limits_is_an_answer(text: str, client: str) -> None:
    outcome = feed(PARSERS[client](RULES), encoded(*answer_events(client, text))).outcome
    assert outcome.status is OutcomeStatus.OK
    assert outcome.output == text


@pytest.mark.parametrize("client", PARSERS)
def test_an_error_spanning_several_lines_is_not_an_answer(client: str) -> None:
    text = 'API Error: 529 {"type": "error",\n "error": {"type": "overloaded_error"}}'
    outcome = feed(PARSERS[client](RULES), encoded(*answer_events(client, text))).outcome
    assert outcome.status is OutcomeStatus.UNAVAILABLE


TOLD_BY_TOOLS = [one["text"] for one in WORDINGS if one["said"] == "tool"]


@pytest.mark.parametrize("text", TOLD_BY_TOOLS)
@pytest.mark.parametrize("client", PARSERS)
@pytest.mark.parametrize("code", [0, 1])
def test_a_limit_that_a_tool_hit_is_not_a_limit_of_the_client(
    text: str, client: str, code: int
) -> None:
    end = ProcessEnd(exit_code=code)
    outcome = feed(PARSERS[client](RULES), [text.encode()], stderr=text, end=end).outcome
    assert (outcome.status, outcome.not_before) == (OutcomeStatus.FAILED, None)


CASES = Path(__file__).parents[2] / "acceptance" / "cases"
CASE = json.loads((CASES / "reset-date-with-a-space" / "limits.json").read_text())
NOW = datetime.fromisoformat(CASE["now"]).astimezone(ZoneInfo(CASE["zone"]))
DEFAULT = "2026-11-26T03:05:00Z"


@pytest.mark.parametrize(("text", "status", "expected"), CASE["texts"])
def test_a_reset_date_with_a_space(text: str, status: int | None, expected: str | None) -> None:
    assert classify(text, status) is ErrorKind.LIMIT
    assert find_retry_time(text, NOW) == (expected or DEFAULT)
