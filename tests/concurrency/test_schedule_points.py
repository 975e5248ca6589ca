"""A tick that dies anywhere between a date and the start of its run loses and doubles nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.concurrency import schedule_points
from tests.long.report import Size


@pytest.mark.timeout(240)
def test_a_tick_that_dies_at_any_call_of_a_start_loses_no_date(tmp_path: Path) -> None:
    report = schedule_points.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()


def note_too_early(state: Path) -> None:
    """Record each start that is due as if it had happened."""
    for path in (state / "sequencer" / "schedules").glob("*.json"):
        note = json.loads(path.read_text())
        if note["starting"] is not None:
            since = max(note["since"], note["starting"])
            path.write_text(json.dumps({**note, "since": since, "starting": None, "ended": None}))


@pytest.mark.slow
def test_the_sweep_notices_a_date_that_is_noted_too_early(tmp_path: Path) -> None:
    """The check itself notices a fault."""
    report = schedule_points.swept(tmp_path, {"kill": (1, 4)}, note_too_early)
    assert any("the date is lost" in text for text in report.violations)
