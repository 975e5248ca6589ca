"""A tick that dies anywhere between a date and the start of its run loses and doubles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.plugins.schedules import schedules
from sequencer.plugins.schedules.schedules import DateNote
from tests.concurrency import schedule_points
from tests.long.report import Size


@pytest.mark.timeout(240)
def test_a_tick_that_dies_at_any_call_of_a_start_loses_no_date(tmp_path: Path) -> None:
    report = schedule_points.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()


@pytest.mark.slow
def test_the_sweep_notices_a_date_that_is_noted_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of the check: a start that is still to be made is noted as one that was made."""
    write = schedules._write

    def early(project: object, run: object, note: DateNote) -> None:
        write(project, run, note if note.starting is None else note.with_start_done())  # type: ignore[arg-type]

    monkeypatch.setattr(schedules, "_write", early)
    report = schedule_points.swept(tmp_path, {"kill": (1, 4)})
    assert any("the date is lost" in text for text in report.violations)
