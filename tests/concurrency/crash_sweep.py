"""Crash points as campaigns: our own wrapper around every call, and the kernel by strace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from tests.boundary.traced import tracer
from tests.concurrency.crash_points import FAULTS, SCENARIOS, new_store, sweep, violations
from tests.long.report import Report, Size
from tests.property.amounts import in_memory

ROOT = Path(__file__).parents[2]
MIN_POINTS = {Size.SHORT: 50, Size.LONG: 300}
QUICK = (("kill", 12), ("mixed", 10))
"""What every push tries: each twelfth call is killed, each tenth one fails."""
CALLS = ("openat", "write", "fsync", "fdatasync", "rename", "link", "unlink", "mkdir", "flock")
INJECTED = ("error=EIO", "error=ENOSPC", "error=EINTR", "signal=KILL")
NAMES = ("journal.jsonl", "state.json", "state.json.lock")
WITHOUT_A_PATH = ("rename", "link", "unlink", "fsync", "mkdir")
"""Calls on temporary files and folders, which strace can't be told by name."""
MAX_POINT = 60
ACTION = """
import sys
from pathlib import Path
from tests.concurrency import crash_points
store = crash_points.new_store(Path(sys.argv[2]))
crash_points.SCENARIOS[sys.argv[1]][1](store)
print(store.view().head.revision)
"""


def crash_points(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; every call of every transition."""
    if size is Size.SHORT:
        # A kill leaves the page cache as it is, wherever the pages go later.
        with in_memory() as made:
            return _swept(made, QUICK, MIN_POINTS[size])
    return _swept(folder, [(fault, 1) for fault in FAULTS], MIN_POINTS[size])


def _swept(folder: Path, faults: Iterable[tuple[str, int]], least: int) -> Report:
    points, wrong = 0, list[str]()
    for (number, scenario), (fault, step) in product(enumerate(SCENARIOS), faults):
        # Not the first call for each, so that each place is met in some scenario.
        first = number % step + 1
        tried, found = sweep(scenario, fault, folder / scenario / fault, first, step)
        points, wrong = points + tried, wrong + found
    if points < least:
        wrong.append(f"only {points} points: the calls are not seen any more")
    return Report({"crash points": points}, tuple(wrong))


def kernel(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; the same without our wrapper."""
    if tracer() is None:
        return Report({"crash points": 0, "campaigns left out: strace is missing": 1})
    tried = [
        ("commit+claim", "fdatasync", "signal=KILL"),
        ("commit", "write", "error=EIO"),
        ("commit", "rename", "error=EIO"),
    ]
    if size is Size.LONG:
        tried = list(product(("init", "commit+claim", "rotation"), CALLS, INJECTED))
    points, wrong = 0, list[str]()
    for scenario, call, fault in tried:
        count, found = _refused_by_the_kernel(folder, scenario, call, fault)
        points, wrong = points + count, wrong + found
    return Report({"crash points": points}, tuple(wrong))


def _refused_by_the_kernel(
    base: Path, scenario: str, call: str, fault: str
) -> tuple[int, list[str]]:
    """Make the kernel fail *call* number 1, 2, … on the run's files until no call is left."""
    wrong: list[str] = []
    for at in range(1, MAX_POINT):
        folder = base / f"{scenario}-{call}-{fault}-{at}" / "sync"
        SCENARIOS[scenario][0](folder)
        before = list(new_store(folder).history())
        trace = folder.parent / "trace"
        argv = ["strace", "-f", "-o", str(trace), "-e", f"inject={call}:{fault}:when={at}"]
        if call not in WITHOUT_A_PATH:
            argv += [word for name in NAMES for word in ("-P", str(folder / name))]
        argv += [sys.executable, "-c", ACTION, scenario, str(folder)]
        folder.parent.mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False
        )
        # What was acknowledged has to be there.
        said = {"acknowledged": int(ended.stdout)} if ended.stdout else {}
        told = trace.read_text(errors="replace")
        wrong += [
            f"{scenario}, {fault} at {call} {at} by strace: {text.strip().splitlines()[-1]}"
            for text in violations(folder, before, said)
        ]
        shutil.rmtree(folder.parent)
        if "(INJECTED)" not in told and "killed by SIGKILL" not in told:
            return at - 1, wrong
    return MAX_POINT, wrong
