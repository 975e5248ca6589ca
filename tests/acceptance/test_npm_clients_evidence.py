"""How the real codex, gemini and opencode end their turns, and what the program makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer import OutcomeStatus
from tests.acceptance.test_npm_clients import Desk, desk

__all__ = ["desk"]

pytestmark = [pytest.mark.clients, pytest.mark.timeout(240)]

DAILY = [
    {
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
    },
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7200s"},
]
"""By this gemini knows a limit of the day, and does not try it again itself for minutes."""
LENGTH = {"codex": "max_output_tokens", "gemini": "MAX_TOKENS", "opencode": "length"}
FILTER = {"codex": "content_filter", "gemini": "SAFETY", "opencode": "content_filter"}
UNKNOWN_SESSION = {
    "codex": "01990000-0000-7000-8000-000000000000",
    "gemini": "7d0b6f0e-0000-4000-8000-000000000000",
    "opencode": "ses_00000000000000000000000000",
}


def test_a_turn_with_tools_and_text_ends_cleanly(desk: Desk) -> None:
    command = desk.command("echo hi")
    outcome = desk.run({"text": "I look.", **command}, command, {"text": "It is done."})
    shown = outcome["evidence"]
    assert {"turn_end", "open_calls"}.isdisjoint(shown), "it ended cleanly"
    assert (shown["has_text"], shown["tool_calls"], shown["repeated_calls"]) == (True, 2, 2)
    assert (outcome["status"], outcome["output"]) == ("ok", "It is done.")


def test_without_text_only_its_tools_are_evidence(desk: Desk) -> None:
    silent: dict[str, Any] = {"text": ""}
    outcome = desk.ask(desk.command("echo hi"), silent, silent, silent)
    assert outcome.evidence is not None
    assert outcome.evidence.tool_calls == 1
    assert not outcome.evidence.has_text


@pytest.mark.parametrize("reasons", [LENGTH, FILTER], ids=["length", "filter"])
def test_half_an_answer_is_not_accepted(desk: Desk, reasons: dict[str, str]) -> None:
    half = [{"text": "half an ans", "stop_reason": reasons[desk.client]}] * 5
    reported, recorded = desk.ask(*half), desk.run(*half)
    assert reported.evidence is not None
    if desk.client == "gemini":
        # Its stream has no reason, so its word that the turn succeeded is all there is.
        assert (reported.exit_code, reported.evidence.reason) == (0, None)
        assert recorded["status"] == "ok"
        return
    assert recorded["status"] == "failed"
    assert reported.evidence.turn_end == "cut-off"
    assert not reported.is_unexplained


def test_a_broken_stream_is_not_an_answer(desk: Desk) -> None:
    outcome = desk.ask(*[{"text": "half an ans", "drop": True}] * 5)
    assert not outcome.is_accepted


# gemini tries ten times, at up to 30 s and 30 % by chance from each other: up to 280 s.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("status", [500, 503])
def test_an_outage_postpones_the_step(desk: Desk, status: int) -> None:
    outcome = desk.ask({"error": status, "times": 50, "message": "overloaded"})
    assert outcome.status is OutcomeStatus.UNAVAILABLE


def test_a_limit_postpones_the_step_whatever_the_exit_code(desk: Desk) -> None:
    message = "You exceeded your current quota, try again in 2 hours."
    outcome = desk.ask({"error": 429, "times": 50, "message": message, "details": DAILY})
    assert outcome.status is OutcomeStatus.LIMITED


def test_a_lost_conversation_is_reported_as_lost(desk: Desk) -> None:
    outcome = desk.ask({"text": "x"}, resume_session=UNKNOWN_SESSION[desk.client])
    assert not outcome.is_accepted
    assert outcome.session_fault == "lost"
