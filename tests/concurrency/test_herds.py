"""Real processes on one run: killed at random, sixteen at once, without their lock."""

from __future__ import annotations

from pathlib import Path

from tests.concurrency.herd import Herd
from tests.concurrency.herding import let_work, lock_deleted, notes, random_kills
from tests.long.report import Size


def test_a_run_survives_workers_killed_at_random(tmp_path: Path) -> None:
    report = random_kills(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["kills"] == 24
    assert report.counts["reads"] > 10


def test_a_run_survives_constant_deletion_of_its_lock_file(tmp_path: Path) -> None:
    report = lock_deleted(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["claims"] >= 100


def test_sixteen_claimants_share_a_run(tmp_path: Path) -> None:
    herd = Herd(str(tmp_path), workers=16, steps=48)
    assert let_work(herd) == []
    workers = {nonce for _, nonce in notes(herd, "granted")}
    assert len(workers) >= 8, "a few took all the turns"


def test_a_run_survives_constant_rotation_of_its_journal(tmp_path: Path) -> None:
    herd = Herd(str(tmp_path), steps=50, kills=6, rotate_bytes=4_000, readers=2, seed=2)
    assert let_work(herd) == []
    assert len(list(herd.run.glob("journal-*.jsonl"))) > 6


def test_a_herd_that_does_not_finish_is_reported(tmp_path: Path) -> None:
    """The check itself notices a fault."""
    found = let_work(Herd(str(tmp_path), steps=1_000_000, kills=10_000, limit_s=1.0))
    assert any("kills in 1 s" in text for text in found)
    assert any("steps in 1 s" in text for text in found)
