"""Many processes after one claim, and many that take turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.concurrency.turns import FAIR, same_claim, take_turns
from tests.long.__main__ import in_own_process
from tests.long.report import Size


@pytest.mark.timeout(300)
def test_claimants_get_one_winner_per_token_and_all_take_turns(tmp_path: Path) -> None:
    # A fork of this process is slow: it holds all tests.
    report = in_own_process("A5-herd", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"] == {"rounds": 38, "claimants": 12}
    assert report["figures"]["most_turns_by_fewest"] <= FAIR


def test_a_race_without_losers_is_noticed(tmp_path: Path) -> None:
    """A check of the check: nobody races against one that is alone."""
    assert same_claim(tmp_path, 1, 3) == []
    assert len((tmp_path / "won").read_text().splitlines()) == 3


def test_a_few_processes_get_even_turns(tmp_path: Path) -> None:
    shares = take_turns(tmp_path, 4, 40)
    assert shares.wrong == ()
    assert sum(shares.turns.values()) == 40
    assert min(shares.turns.values()) >= 8
