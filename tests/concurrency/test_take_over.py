"""How soon a step is taken over, and that who lost it can't have it accepted."""

from __future__ import annotations

from pathlib import Path

from tests.concurrency.take_over import AT_ONCE, P99_S, asleep, killed_holders, out_of_reach
from tests.long.report import Size


def test_a_waiting_process_takes_over_from_a_killed_holder_within_a_second(tmp_path: Path) -> None:
    report = killed_holders(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["kills"] == 15
    assert 0 < report.figures["take_over_p99_s"] <= P99_S


def test_an_unreachable_holder_is_trusted_for_little_longer_than_its_lease(
    tmp_path: Path,
) -> None:
    report = out_of_reach(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert all(1 <= leases <= 1.5 for leases in report.figures.values())


def test_a_holder_asleep_past_its_lease_is_refused_and_its_output_saved(
    tmp_path: Path,
) -> None:
    report = asleep(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["rounds"] == AT_ONCE
