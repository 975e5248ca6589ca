"""Texts of limits, as clients print them, and the moment that each one means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sequencer.executors.client_limits import is_limit, is_temporary, not_before

BERLIN_WINTER = timezone(timedelta(hours=1))
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=BERLIN_WINTER)
FALLBACK = "2026-11-21T11:05:00Z"


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("Claude AI usage limit reached|1795300000", None, True),
        ("You've hit your limit · resets 3pm (Europe/Berlin)", None, True),
        ("You've hit your weekly limit", None, True),
        ("5-hour limit reached ∙ resets 3am", None, True),
        ("You've hit your usage limit. Upgrade to Pro or try again in 3 days", None, True),
        ("You exceeded your current quota, please check your plan", None, True),
        ('{"code":429,"status":"RESOURCE_EXHAUSTED"}', None, True),
        ("exceeded retry limit, last status: 429 Too Many Requests", None, True),
        ("rate_limit_error", None, True),
        ("anything at all", 429, True),
        ("usage limit reached", 403, True),
        ("Overloaded", 529, False),
        # A busy server may speak of rates; nothing of the account is used up.
        ("rate limit service unavailable", 503, False),
        ("usage limit reached", 500, False),
        ("rate limit of the gateway", 400, False),
        ("No conversation found", None, False),
        ("Reached maximum number of turns (1)", None, False),
        ("Reached maximum budget ($0.05)", None, False),
        ("line 4290 of the file", None, False),
    ],
)
def test_what_counts_as_a_limit(text: str, status: int | None, expected: bool) -> None:
    assert is_limit(text, status) is expected


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("Overloaded", 529, True),
        ("API Error: 500", 500, True),
        ("", 503, True),
        ("", 408, True),
        ("API Error: Connection error.", None, True),
        ("API Error: Request timed out.", None, True),
        ("API Error: Unable to connect to API (ECONNRESET)", None, True),
        ("getaddrinfo EAI_AGAIN api.anthropic.com", None, True),
        ("stream disconnected before completion: error sending request for url", None, True),
        ("[API Error: exception TypeError: fetch failed sending request]", None, True),
        ("UnknownError: Unable to connect. Is the computer able to access the url?", None, True),
        ("We're currently experiencing high demand", None, True),
        # A wrong request stays wrong, whatever its text says.
        ("overloaded", 400, False),
        ("Connection error.", 401, False),
        ("not found", 404, False),
        ("Reached maximum number of turns (1)", None, False),
        ("No conversation found", None, False),
        ("the tests of the connection pool fail", None, False),
    ],
)
def test_what_counts_as_temporary(text: str, status: int | None, expected: bool) -> None:
    assert is_temporary(text, status) is expected


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
    ],
)
def test_the_reset_is_read_from_the_text(text: str, expected: str) -> None:
    assert not_before(text, NOON) == expected


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
        # Said late, or by a clock that is behind: it is over, and not a day or a week away.
        "session limit · resets 12pm (Europe/Berlin)",
        "session limit · resets 11:01am",
        "weekly limit · resets Sat 11:30am",
    ],
)
def test_what_cannot_be_believed_leaves_the_configured_wait(text: str) -> None:
    assert not_before(text, NOON) == FALLBACK
    assert not_before(text, NOON, default_wait_s=60) == "2026-11-21T11:01:00Z"


def test_an_unknown_zone_is_read_as_local_time() -> None:
    assert not_before("resets 3pm (Mars/Olympus)", NOON) == "2026-11-21T14:00:00Z"


def test_next_year_is_meant_where_the_date_has_passed() -> None:
    december = datetime(2026, 12, 30, 12, 0, tzinfo=UTC)
    assert not_before("resets Jan 2, 9am", december) == "2027-01-02T09:00:00Z"


def test_a_reset_just_before_midnight_is_over_just_after_it() -> None:
    after = datetime(2026, 11, 22, 0, 10, tzinfo=UTC)
    assert not_before("resets 11:50pm", after) == "2026-11-22T00:15:00Z"
    assert not_before("resets 11:05pm", after) == "2026-11-22T23:05:00Z"
    assert not_before("resets Sat 11:50pm", after) == "2026-11-22T00:15:00Z"
