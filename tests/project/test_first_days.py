"""The first days can be played; ``python -m tests.first_days`` installs the package for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_days import DAYS, MAX_COMMANDS, Day, play


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.name)
def test_a_first_day_ends_as_its_person_expects(day: Day, tmp_path: Path) -> None:
    assert len(day.commands) <= MAX_COMMANDS
    play(day, tmp_path, Path(sys.executable).parent)


def test_a_day_with_another_ending_is_detected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="'7 steps'"):
        play(Day("x", ("echo 6 steps",), ("7 steps",)), tmp_path / "a", Path("/usr/bin"))
    with pytest.raises(AssertionError, match="x: false"):
        play(Day("x", ("false",), ()), tmp_path / "b", Path("/usr/bin"))
