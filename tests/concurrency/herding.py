"""Herds as campaigns: killed at random, and with a lock file that somebody keeps deleting."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from sequencer import SequencerError
from tests.concurrency import children
from tests.concurrency.herd import Herd
from tests.contract import store_cases as cases
from tests.long.report import Report, Size

ROOT = Path(__file__).parents[2]


def let_work(herd: Herd) -> list[str]:
    """Run *herd* in a process of its own, and return what does not hold afterwards."""
    argv = [sys.executable, "-m", "tests.concurrency.herd", json.dumps(asdict(herd))]
    ended = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=herd.limit_s + 60, check=False
    )
    if ended.returncode != 0:
        return [f"the herd broke: {ended.stderr.strip().splitlines()[-1:]}"]
    wrong = list(children.wrong(Path(herd.folder) / "errors"))
    if int(ended.stdout) != herd.kills:
        wrong.append(f"{ended.stdout.strip()} of {herd.kills} kills in {herd.limit_s:g} s")
    try:
        return wrong + violations(herd)
    except (AssertionError, SequencerError):
        return [*wrong, " | ".join(traceback.format_exc().strip().splitlines()[-4:])]


def violations(herd: Herd) -> list[str]:
    """Return what does not hold of a run in which nobody works any more."""
    store, wrong = herd.store(), list[str]()
    head = store.view().head
    assert head is not None
    if head.step_index < herd.steps:
        wrong.append(f"only {head.step_index} of {herd.steps} steps in {herd.limit_s:g} s")
    if head.claims:
        cases.release(store, head.claims[0].token)
    granted = cases.claim(store)
    cases.commit(store, granted.token)
    accepted = cases.check_files(herd.run)
    if accepted != head.step_index + 1:
        wrong.append(f"{accepted} steps accepted, step_index {head.step_index + 1}")
    recorded = {(f["step_index"], f["token"]) for f in store.history() if f["event"] == "succeeded"}
    acknowledged = [(int(step), int(token)) for step, token in notes(herd, "accepted")]
    if len(acknowledged) != len(set(acknowledged)):
        wrong.append("a step was acknowledged twice")
    if lost := set(acknowledged) - recorded:
        wrong.append(f"acknowledged and lost: {sorted(lost)[:5]}")
    tokens = [token for token, _ in notes(herd, "granted")]
    if len(tokens) != len(set(tokens)):
        wrong.append("a token was granted twice")
    return wrong


def notes(herd: Herd, name: str) -> list[list[str]]:
    """Return what the herd has written down under *name*."""
    return children.pairs(Path(herd.folder) / name)


def random_kills(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; SIGKILL at any moment, half with small journals."""
    number, kills, steps = (2, 12, 40) if size is Size.SHORT else (20, 1_000, 200)
    return _reported(
        Herd(
            str(folder / str(seed)),
            steps=steps,
            kills=kills,
            kill_every_s=0.01,
            seed=seed,
            rotate_bytes=6_000 if seed % 2 else 1_000_000,
            limit_s=150.0,
        )
        for seed in range(number)
    )


SMALLEST_JOURNAL = 64 * 1024


def lock_deleted(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; a process deletes the lock file every 2 ms."""
    steps, limit_s = (40, 60.0) if size is Size.SHORT else (4_000, 300.0)
    plain = Herd(
        str(folder / "plain"), steps=steps, readers=0, delete_lock_every_s=0.002, limit_s=limit_s
    )
    # The smallest journal that can be configured: a rotation flushes folders, which takes longer
    # than a lock file lives here, and somebody has to get to it.
    small = replace(plain, steps=steps // 2, rotate_bytes=SMALLEST_JOURNAL)
    rotated = replace(small, folder=str(folder / "rotated"))
    killed = replace(plain, folder=str(folder / "killed"), kills=steps // 10)
    return _reported([plain, rotated, killed])


def _reported(herds: Iterable[Herd]) -> Report:
    counts = dict.fromkeys(("kills", "claims", "steps", "reads"), 0)
    wrong: list[str] = []
    for herd in herds:
        Path(herd.folder).mkdir()
        wrong += [f"{text}; repeat: {herd}" for text in let_work(herd)]
        counts["kills"] += herd.kills
        for key, name in (("claims", "granted"), ("steps", "accepted"), ("reads", "reads")):
            counts[key] += len(notes(herd, name))
        shutil.rmtree(herd.folder)
    return Report(counts, tuple(wrong))
