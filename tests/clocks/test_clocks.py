"""Wall clocks that are wrong, that jump, and processes that stand still."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clocks.clocks import campaign
from tests.clocks.faketime import library
from tests.long.report import Size


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_clock_steals_a_step_or_stalls_a_run(tmp_path: Path) -> None:
    report = campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["inputs"] >= (7 if library() else 1)
