"""The moment that a limit's text means, and that each such text is a limit."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from sequencer.executors.client_limits import ErrorKind, classify, find_retry_time

CASES = Path(__file__).parents[2] / "acceptance" / "cases"
CASE = json.loads((CASES / "reset-date-with-a-space" / "limits.json").read_text())
NOW = datetime.fromisoformat(CASE["now"]).astimezone(ZoneInfo(CASE["zone"]))
DEFAULT = "2026-11-26T03:05:00Z"


@pytest.mark.parametrize(("text", "status", "expected"), CASE["texts"])
def test_a_reset_date_with_a_space(text: str, status: int | None, expected: str | None) -> None:
    assert classify(text, status) is ErrorKind.LIMIT
    assert find_retry_time(text, NOW) == (expected or DEFAULT)
