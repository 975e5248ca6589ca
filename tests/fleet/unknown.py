"""A command asks for a change, and the answer is lost: it finds out what became of it.

The server may have taken the request or not; a worker may live, be frozen, or not be there.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.fleet.recorded import Arena, RecordedProject, end
from tests.fleet.wires import Wire
from tests.long.report import Report, Size

ASKED = b"accept"
"""Stands in what asks for a change, and in nothing that was asked before."""
DOWN_S = (0.2, 2.0, 20.0)
"""So long nobody gets through. The client library gives up after ten seconds."""


def campaign(folder: Path, size: Size) -> Report:
    """Changes by hand whose answers are lost, with workers that live, are frozen or are not."""
    count = 60 if size is Size.LONG else 6
    dice = random.Random(31)  # noqa: S311 - to be repeated
    wrong, codes = list[str](), Counter[int]()
    with Arena(folder) as arena, Wire(arena.address) as wire:
        here = arena.project("unknown")
        there = arena.project("unknown", address=wire.address, folder="there")
        assert here.cli("run", "--max-steps", "1").returncode == 0
        said: dict[str, subprocess.CompletedProcess[str]] = {}
        for number in range(count):
            state = ("none", "alive", "frozen")[number % 3]
            is_passed, down_s = dice.random() < 0.7, DOWN_S[number // 3 % 3]
            name = f"message {number}: {state}, passed {is_passed}, down {down_s:g} s"
            said[name] = _told((here, there), wire, name, state, (is_passed, down_s))
            codes[said[name].returncode] += 1
        facts = here.facts("history")
        heard = Counter(one["outcome"]["note"] for one in facts if one["event"] == "told")
        for name, ended in said.items():
            wrong += _wrong(name, ended, heard[name])
        revisions = [one["revision"] for one in facts]
        if sorted(set(revisions)) != list(range(1, revisions[-1] + 1)):
            wrong.append(f"revisions {revisions}")
    counts = {"commands": count, "lost answers": wire.cuts}
    return Report(counts, tuple(wrong), {f"ended_with_{code}": codes[code] for code in codes})


def _told(
    projects: tuple[RecordedProject, RecordedProject],
    wire: Wire,
    name: str,
    state: str,
    trap: tuple[bool, float],
) -> subprocess.CompletedProcess[str]:
    """Tell the run something from behind the *wire*, and lose the answer."""
    here, there = projects
    worker = None if state == "none" else here.launched("worker")
    try:
        if worker is not None:
            time.sleep(1.5)
            end(worker.pid, signal.SIGSTOP if state == "frozen" else signal.SIGCONT)
        wire.trap(ASKED, passes=trap[0], down_s=trap[1])
        return there.cli("tell", name, timeout_s=150)
    finally:
        if worker is not None:
            worker.kill()
            worker.communicate()
        # What a command has left in doubt is not to be mistaken for the next one's.
        time.sleep(trap[1] if trap[1] > 10 else 0)


def _wrong(name: str, ended: subprocess.CompletedProcess[str], times: int) -> list[str]:
    """Return what was wrong with a command that was accepted so many *times*."""
    if ended.returncode == 0 and times == 1:
        return []
    is_in_doubt = ended.returncode == 3 and times <= 1 and "does not answer" in ended.stderr
    if is_in_doubt or (ended.returncode == 3 and times <= 1 and "connection" in ended.stderr):
        return []
    return [f"{name}: accepted {times} times, ended with {ended.returncode}: {ended.stderr[-500:]}"]
