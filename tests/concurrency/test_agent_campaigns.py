"""Agents at their worst, in the amounts of every push; `tests.long` has the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.concurrency import floods, odd_bytes, odd_ends, overlaps, shortages, stubborn_agents
from tests.long.report import Size


@pytest.mark.slow
def test_stubborn_agents_are_dead_eight_seconds_after_they_start(tmp_path: Path) -> None:
    report = stubborn_agents.stubborn(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["rounds"] == len(stubborn_agents.AGENTS)
    # The time limit and the grace: it had been asked, and was not simply killed.
    assert report.figures["gone_s_max"] > stubborn_agents.TIMEOUT_S + stubborn_agents.GRACE_S - 0.5


def test_agents_of_a_killed_sequencer_are_dead_within_two_seconds(tmp_path: Path) -> None:
    report = stubborn_agents.orphans(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["kills"] >= 6
    assert report.figures["gone_s_max"] <= stubborn_agents.ORPHAN_S


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_attempts_at_a_step_never_run_at_once(tmp_path: Path) -> None:
    report = overlaps.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["rounds"] == len(overlaps.ON_EVERY_PUSH)
    assert report.figures["overlap_s_max"] == 0


def test_the_overlap_check_finds_an_overlap() -> None:
    apart = [["1", "7", "1.0"], ["1", "8", "1.5"], ["3", "9", "1.6"]]
    assert overlaps.overlap_s(apart) == 0
    assert overlaps.overlap_s(apart[:2]) is None
    assert overlaps.overlap_s([*apart, ["1", "8", "2.1"]]) == pytest.approx(0.5)


@pytest.mark.slow
def test_running_out_of_a_resource_fails_no_step(tmp_path: Path) -> None:
    report = shortages.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["rounds"] >= 4
    # Some were refused and some had enough.
    assert 0 < report.figures["refused"] < report.counts["rounds"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_floods_fill_neither_memory_nor_log(tmp_path: Path) -> None:
    report = floods.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["bytes"] > 128 * 1024**2
    assert 10 < report.figures["rss_mib_max"] < floods.MAX_RSS_MIB


def test_odd_bytes_reach_the_log_but_no_terminal(tmp_path: Path) -> None:
    report = odd_bytes.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["payloads"] == odd_bytes.FEW


def test_every_way_an_agent_ends_is_classified_correctly(tmp_path: Path) -> None:
    report = odd_ends.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["ends"] >= 8


def test_the_check_for_dirty_output_finds_it() -> None:
    assert odd_bytes.dirt_of(b"\x1b[31mred\x1b[0m\r\n\x1b[2K\x1b[?25l") == []
    for bad in (b"\x1b]0;owned\x07", b"\x1b[5;45mx", b"\x07", b"\xff", b"a\x1b[6n", b"\xc2\x9b"):
        assert odd_bytes.dirt_of(b"fine " + bad + b" fine")
