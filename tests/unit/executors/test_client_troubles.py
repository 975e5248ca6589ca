"""What a client's failure says beside its status: the conversation is lost, or nobody knows why."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sequencer.executors.claude import ClaudeParser
from sequencer.executors.client_events import JsonEventParser
from sequencer.executors.codex import CodexParser
from sequencer.executors.gemini import GeminiParser
from sequencer.executors.opencode import OpencodeParser
from sequencer.executors.process import ProcessEnd
from sequencer.model.outcome import OutcomeStatus, SessionFault
from tests.unit.executors.replay import RULES, encoded, feed, replay

PARSERS: dict[str, type[JsonEventParser]] = {
    "claude": ClaudeParser,
    "codex": CodexParser,
    "gemini": GeminiParser,
    "opencode": OpencodeParser,
}
CALLS: dict[str, dict[str, Any]] = {
    "claude": {
        "type": "assistant",
        "message": {"content": [{"type": "tool_use", "name": "Bash", "input": {}}]},
    },
    "codex": {"type": "item.started", "item": {"type": "command_execution", "command": "ls"}},
    "gemini": {"type": "tool_use", "tool_name": "read_file", "tool_id": "1"},
    "opencode": {"type": "tool_use", "part": {"tool": "bash", "state": {"status": "completed"}}},
}
RESET = 1_795_300_000
"""A date that all of them would believe."""


def limited(client: str) -> dict[str, Any]:
    """Return an event by which *client* says that a limit is reached until `RESET`."""
    text = f"usage limit reached|{RESET}"
    events: dict[str, dict[str, Any]] = {
        "claude": {"type": "result", "is_error": True, "result": text, "api_error_status": 429},
        "codex": {"type": "turn.failed", "error": {"message": text}},
        "gemini": {"type": "result", "status": "error", "error": {"message": text}},
        "opencode": {"type": "error", "error": {"data": {"message": text, "statusCode": 429}}},
    }
    return events[client]


# --- exit code 0 hides nothing, and a forged line keeps nobody waiting for long ---------------


@pytest.mark.parametrize("client", PARSERS)
def test_exit_code_0_does_not_turn_a_limit_into_an_answer(client: str) -> None:
    outcome = feed(PARSERS[client](RULES), encoded(limited(client))).outcome
    assert (outcome.status, outcome.not_before) == (OutcomeStatus.LIMITED, "2026-11-21T22:26:40Z")


@pytest.mark.parametrize("client", PARSERS)
def test_a_date_that_an_agent_may_have_written_is_not_waited_for(client: str) -> None:
    """It has called a tool, and then its client ended with 0: the default wait, not the date."""
    lines = encoded(CALLS[client], limited(client))
    outcome = feed(PARSERS[client](RULES), lines).outcome
    assert (outcome.status, outcome.not_before) == (OutcomeStatus.LIMITED, "2026-11-21T12:05:00Z")
    # Ended with a failure of its own, it is believed as before.
    outcome = feed(PARSERS[client](RULES), lines, end=ProcessEnd(exit_code=1)).outcome
    assert outcome.not_before == "2026-11-21T22:26:40Z"


@pytest.mark.parametrize("client", PARSERS)
@pytest.mark.parametrize("code", [1, -15, 143])
def test_a_forged_line_gets_no_attempt_accepted(client: str, code: int) -> None:
    lines = encoded(CALLS[client], limited(client))
    outcome = feed(PARSERS[client](RULES), lines, end=ProcessEnd(exit_code=code)).outcome
    assert not outcome.is_accepted
    assert (outcome.status is OutcomeStatus.LIMITED) is (code == 1)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("client", PARSERS)
def test_an_error_of_megabytes_costs_little_time(client: str) -> None:
    for text in ("a" * 5_000_000, "thread/read " * 400_000, "2026-11-26 " * 400_000):
        event = limited(client)
        if client == "claude":
            event |= {"result": text, "api_error_status": None}
        elif client == "opencode":
            event["error"]["data"] = {"message": text}
        else:
            event["error"]["message"] = text
        started = time.process_time()
        feed(PARSERS[client](RULES), encoded(event), end=ProcessEnd(exit_code=1))
        assert time.process_time() - started < 5


def test_a_limit_notice_with_a_failing_exit_code_is_the_clients() -> None:
    text = "You've hit your limit · resets 3pm (UTC)"
    event = {"type": "result", "subtype": "success", "is_error": False, "result": text}
    outcome = feed(ClaudeParser(RULES), encoded(event), end=ProcessEnd(exit_code=1)).outcome
    assert (outcome.status, outcome.not_before) == (OutcomeStatus.LIMITED, "2026-11-21T15:00:00Z")
    event["result"] = "I did it."
    outcome = feed(ClaudeParser(RULES), encoded(event), end=ProcessEnd(exit_code=1)).outcome
    assert outcome.status is OutcomeStatus.FAILED


# --- conversations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["claude-330-no-session", "claude-197-no-session", "codex-no-session", "opencode-no-session"],
)
def test_real_clients_messages_about_a_lost_conversation_are_recognized(name: str) -> None:
    outcome = replay(name, PARSERS[name.partition("-")[0]](RULES)).outcome
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.session_fault is SessionFault.LOST
    assert not outcome.is_unexplained


TOLD_ON_STDERR = [
    ("claude", "Error: Session ID 736bd807-d4ce-482f-b62f-06fa6a560b2d is already in use.", 1),
    ("codex", "Error: thread/resume: thread/resume failed: no rollout found for thread id 0199", 1),
    ("codex", "Error: thread/read: thread/read failed: thread not loaded: bc0d74c3", 1),
    ("gemini", 'Error resuming session: Invalid session identifier "99".', 42),
    ("gemini", 'Error resuming session: Invalid session identifier "99".', 1),
    ("opencode", 'NotFoundError: message: "Session not found: ses_doesnotexist"', 0),
]


@pytest.mark.parametrize(("client", "text", "code"), TOLD_ON_STDERR)
def test_a_lost_conversation_is_recognized_on_stderr_too(client: str, text: str, code: int) -> None:
    end = ProcessEnd(exit_code=code)
    outcome = feed(PARSERS[client](RULES), [], stderr=text, end=end).outcome
    assert outcome.session_fault is SessionFault.LOST
    # Once tools have run, it may be theirs.
    outcome = feed(PARSERS[client](RULES), encoded(CALLS[client]), stderr=text, end=end).outcome
    assert outcome.session_fault is None


def test_codex_warnings_about_existing_threads_do_not_mean_a_lost_one() -> None:
    noise = "ERROR codex_core::session: failed to record rollout items: thread 0199 not found"
    end = ProcessEnd(exit_code=1)
    outcome = feed(CodexParser(RULES), [], stderr=noise, end=end).outcome
    assert outcome.session_fault is not SessionFault.LOST


FULL = [
    "Prompt is too long",
    "prompt is too long: 202744 tokens > 200000 maximum",
    "API Error: 400 Input is too long for requested model.",
    "input length and `max_tokens` exceed context limit: 184915 + 20000 > 204648",
    "Codex ran out of room in the model's context window. Start a new thread",
    '{"code": "context_length_exceeded"}',
    "Your input exceeds the context window of this model.",
    "prompt token count of 146270 exceeds the limit of 128000",
    "This model's maximum context length is 65536 tokens",
    "ContextOverflowError: too many",
]


@pytest.mark.parametrize("text", FULL)
@pytest.mark.parametrize("client", PARSERS)
def test_a_full_conversation_is_lost(client: str, text: str) -> None:
    event = limited(client)
    if client == "claude":
        event |= {"result": text, "api_error_status": 400}
    elif client == "opencode":
        event["error"]["data"] = {"message": text}
    else:
        event["error"]["message"] = text
    for before in ([], [CALLS[client]]):
        end = ProcessEnd(exit_code=1)
        outcome = feed(PARSERS[client](RULES), encoded(*before, event), end=end).outcome
        assert outcome.status is OutcomeStatus.FAILED
        assert outcome.session_fault is SessionFault.LOST


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_a_bad_request_makes_its_conversation_suspect(status: int) -> None:
    event = {"type": "result", "is_error": True, "result": "no", "api_error_status": status}
    outcome = feed(ClaudeParser(RULES), encoded(event), end=ProcessEnd(exit_code=1)).outcome
    expected = SessionFault.SUSPECT if status in (400, 413) else None
    assert (outcome.session_fault, outcome.is_unexplained) == (expected, False)


@pytest.mark.parametrize("ended_by", ["idle", "timeout"])
def test_a_client_silent_to_the_end_makes_its_conversation_suspect(ended_by: str) -> None:
    end = ProcessEnd(exit_code=-15, ended_by=ended_by)
    assert feed(CodexParser(RULES), [], end=end).outcome.session_fault is SessionFault.SUSPECT
    lines = encoded(CALLS["codex"])
    assert feed(CodexParser(RULES), lines, end=end).outcome.session_fault is None


def called(key: str, sent: int, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": sent - 100, "cache_read_input_tokens": 100, "output_tokens": 9}
    message = {"id": key, "model": "m", "content": [], "usage": usage}
    return {"type": "assistant", "message": message, **more}


def test_the_size_of_a_conversation_is_what_its_last_call_sent() -> None:
    result = {"type": "result", "subtype": "success", "is_error": False, "result": "ok"}
    lines = encoded(called("1", 1000), called("2", 5000), result)
    assert feed(ClaudeParser(RULES), lines).outcome.context_tokens == 5000
    of_a_subagent = called("3", 90_000, parent_tool_use_id="t")
    lines = encoded(called("1", 1000), of_a_subagent, result)
    assert feed(ClaudeParser(RULES), lines).outcome.context_tokens == 1000
    steps = [
        {"type": "step_finish", "part": {"reason": "stop", "tokens": {"input": n}}}
        for n in (10, 40)
    ]
    assert feed(OpencodeParser(RULES), encoded(*steps)).outcome.context_tokens == 40


def test_the_size_of_a_conversation_is_the_sum_where_only_that_is_reported() -> None:
    lines = encoded({"type": "turn.completed", "usage": {"input_tokens": 70}})
    assert feed(CodexParser(RULES), lines).outcome.context_tokens == 70
    lines = encoded({"type": "result", "status": "success", "stats": {"input_tokens": 80}})
    assert feed(GeminiParser(RULES), lines).outcome.context_tokens == 80
    assert feed(CodexParser(RULES), []).outcome.context_tokens is None


# --- reasons that nobody knows --------------------------------------------------------------


@pytest.mark.parametrize("client", PARSERS)
@pytest.mark.parametrize(
    ("stderr", "code", "is_unexplained"),
    [
        ("", 1, True),
        ("", 0, True),
        ("panicked at core/src/lib.rs:12", 101, True),
        ("TypeError: undefined is not a function", 1, True),
        ("UnknownError: something went wrong", 1, True),
        # What a second try would not change.
        ("", 2, False),
        ("", 64, False),
        ("", 126, False),
        ("", 127, False),
        ("error: unknown option '--frobnicate'", 1, False),
        ("Not logged in · Please run /login", 1, False),
        ("API Error: 400 bad", 1, False),
        ("HTTP 401: no", 1, False),
        ("HTTP 403: no", 1, False),
        ("HTTP 404: no", 1, False),
        ("", -9, False),
        ("", 137, False),
    ],
)
def test_an_unexplained_failure_is_distinguished_from_others(
    client: str, stderr: str, code: int, *, is_unexplained: bool
) -> None:
    end = ProcessEnd(exit_code=code)
    outcome = feed(PARSERS[client](RULES), [], stderr=stderr, end=end).outcome
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.is_unexplained is is_unexplained
    # A client that has worked has failed.
    worked = encoded(CALLS[client])
    assert not feed(PARSERS[client](RULES), worked, stderr=stderr, end=end).outcome.is_unexplained


def test_agent_text_in_an_error_result_shows_the_agent_worked() -> None:
    event = {"type": "result", "subtype": "success", "is_error": True, "result": "Tests failed"}
    outcome = feed(ClaudeParser(RULES), encoded(event), end=ProcessEnd(exit_code=1)).outcome
    assert (outcome.status, outcome.is_unexplained) == (OutcomeStatus.FAILED, False)
    event = {"type": "result", "subtype": "error_during_execution", "is_error": True}
    outcome = feed(ClaudeParser(RULES), encoded(event), end=ProcessEnd(exit_code=1)).outcome
    assert (outcome.status, outcome.is_unexplained) == (OutcomeStatus.FAILED, True)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (144, OutcomeStatus.FAILED),
        (145, OutcomeStatus.FAILED),
        (173, OutcomeStatus.LIMITED),
        (244, OutcomeStatus.UNAVAILABLE),
        (247, OutcomeStatus.UNAVAILABLE),
    ],
)
def test_the_exit_code_of_gemini_is_the_status_if_it_reports_nothing_else(
    code: int, status: OutcomeStatus
) -> None:
    end = ProcessEnd(exit_code=code)
    outcome = feed(GeminiParser(RULES), [], stderr="it did not work", end=end).outcome
    assert (outcome.status, outcome.is_unexplained) == (status, False)
    outcome = feed(GeminiParser(RULES), encoded(CALLS["gemini"]), end=end).outcome
    assert outcome.status is OutcomeStatus.FAILED
