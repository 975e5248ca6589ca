"""Real processes on one run: killed at random, sixteen at once, without their lock."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.concurrency.herd import Herd
from tests.contract import store_cases as cases

ROOT = Path(__file__).parents[2]


def let_work(herd: Herd) -> int:
    """Run *herd* in a process of its own, check everything, and return the number of kills."""
    argv = [sys.executable, "-m", "tests.concurrency.herd", json.dumps(asdict(herd))]
    ended = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=herd.limit_s + 30, check=False
    )
    assert ended.returncode == 0, ended.stderr
    errors = Path(herd.folder) / "errors"
    assert not errors.exists(), errors.read_text()
    check(herd)
    return int(ended.stdout)


def pairs(herd: Herd, name: str) -> list[list[str]]:
    return [line.split() for line in (Path(herd.folder) / name).read_text().splitlines()]


def check(herd: Herd) -> None:
    store = herd.store()
    head = store.view().head
    assert head is not None
    assert head.step_index >= herd.steps
    if head.claims:
        cases.release(store, head.claims[0].token)
    granted = cases.claim(store)
    cases.commit(store, granted.token)
    accepted = cases.check_files(herd.run)
    assert accepted == head.step_index + 1
    facts = list(store.history())
    recorded = {(f["step_index"], f["token"]) for f in facts if f["event"] == "succeeded"}
    acknowledged = [(int(step), int(token)) for step, token in pairs(herd, "accepted")]
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= recorded
    tokens = [token for token, _ in pairs(herd, "granted")]
    assert len(tokens) == len(set(tokens)), "a token was granted twice"


def test_workers_that_are_killed_at_random(tmp_path: Path) -> None:
    herd = Herd(str(tmp_path), kills=100, steps=250, seed=1)
    assert let_work(herd) == 100


def test_sixteen_claimants(tmp_path: Path) -> None:
    herd = Herd(str(tmp_path), workers=16, steps=150)
    let_work(herd)
    workers = {nonce for _, nonce in pairs(herd, "granted")}
    assert len(workers) >= 8, "a few took all the turns"


def test_a_lock_file_that_is_deleted_all_the_time(tmp_path: Path) -> None:
    let_work(Herd(str(tmp_path), steps=300, delete_lock_every_s=0.002))


def test_a_journal_that_is_rotated_all_the_time(tmp_path: Path) -> None:
    herd = Herd(str(tmp_path), steps=150, kills=20, rotate_bytes=4_000, readers=2, seed=2)
    let_work(herd)
    assert len(list(herd.run.glob("journal-*.jsonl"))) > 20


def test_rotation_without_a_lock(tmp_path: Path) -> None:
    let_work(Herd(str(tmp_path), steps=120, rotate_bytes=4_000, delete_lock_every_s=0.002))


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_kills(seed: int, tmp_path: Path) -> None:
    rotate_bytes = 6_000 if seed % 2 else 1_000_000
    herd = Herd(
        str(tmp_path), kills=1_000, steps=3_000, seed=seed, rotate_bytes=rotate_bytes, limit_s=150
    )
    assert let_work(herd) == 1_000


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_long_time_without_a_lock(tmp_path: Path) -> None:
    let_work(Herd(str(tmp_path), steps=5_000, delete_lock_every_s=0.001, kills=200, limit_s=600))
