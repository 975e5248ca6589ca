"""A person is told by cron what has changed, once, whatever hour it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clocks import wall_clock
from tests.clocks.cron_day import AUTUMN, SHORT, day


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cron_mails_each_change_once_and_nothing_else(tmp_path: Path) -> None:
    clock = wall_clock.library(tmp_path)
    if clock is None:
        pytest.skip("no C compiler makes the wall clock of another day here")
    lived, wrong = day(tmp_path, clock, AUTUMN, SHORT)
    assert wrong == []
    assert len(lived.mails) == sum(hour.mail is not None for hour in SHORT)
