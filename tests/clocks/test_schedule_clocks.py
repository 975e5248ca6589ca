"""A tick under a wrong clock keeps no later date of a schedule away, and doubles none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.plugins.schedules.schedules import DateNote
from tests.clocks import schedule_clocks
from tests.clocks.faketime import library
from tests.long.report import Size


@pytest.mark.timeout(240)
def test_each_date_after_a_wrong_clock_starts_its_run_once(tmp_path: Path) -> None:
    report = schedule_clocks.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["inputs"] == (9 if library() else 8)


def test_the_campaign_detects_a_date_note_trusted_blindly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself notices a fault."""
    monkeypatch.setattr(DateNote, "drop_future_times", lambda self, now: self)  # noqa: ARG005
    monkeypatch.setattr(schedule_clocks, "library", lambda: None)
    report = schedule_clocks.campaign(tmp_path, Size.SHORT)
    assert any("nights were lost" in text for text in report.violations)
