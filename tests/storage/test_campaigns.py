"""Damaged files, full disks, refused writes and lost folders, in the amount of every push."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long.report import Campaign, Size
from tests.storage import (
    damage,
    damage_seen,
    full_disk,
    lost_folder,
    pairs,
    refused_calls,
    refused_writes,
    taken_back,
)

LEAST: list[tuple[Campaign, int]] = [
    (damage.heads, 500),
    (damage.journals, 500),
    (damage_seen.campaign, 7),
    (full_disk.campaign, 25),
    (refused_writes.campaign, 25),
    (refused_calls.campaign, 4),
    (lost_folder.campaign, 7),
    (pairs.campaign, 4),
    (taken_back.campaign, 7),
]


def named(value: Campaign | int) -> str:
    module = getattr(value, "__module__", "").rpartition(".")[2]
    return f"{module}.{getattr(value, '__name__', value)}"


@pytest.mark.slow(sample=2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("campaign", "least"), LEAST, ids=named)
def test_nothing_is_lost_doubled_or_invented(
    campaign: Campaign, least: int, tmp_path: Path
) -> None:
    report = campaign(tmp_path, Size.SHORT)
    if not report.counts["inputs"]:
        pytest.skip(" ".join(report.figures))
    assert report.violations == ()
    assert report.counts["inputs"] >= least
