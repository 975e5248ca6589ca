"""The process that makes the long run and compares it with young ones.

While the run grows nothing is flushed, because 100,000 flushes take minutes and leave
nothing behind; everything else of every step is done. Flushing is on again for comparing.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import Any

REAL_FLUSH = os.fdatasync


class Flush:
    """Stands in for os.fdatasync from before the store is imported."""

    is_on = True

    def __call__(self, fd: int) -> None:
        """Flush *fd*, or not."""
        if self.is_on:
            REAL_FLUSH(fd)


FLUSH = Flush()
SYSTEM: Any = os
SYSTEM.fdatasync = FLUSH

from bench.measuring import rounds  # noqa: E402 (after the stand-in)
from bench.project import Marks, make_project, no_op_run  # noqa: E402
from bench.serving import Answer, serve  # noqa: E402
from sequencer.engine.invocation_budget import Mode  # noqa: E402
from sequencer.model.limits import InvocationLimits  # noqa: E402

FIRST = 10
BLOCK = 12
"""Steps of a young run that are compared: those around step 10."""
SKIP = 4
WARM_UP = 3_000
"""Steps; enough for a rotation and for the heartbeat's thread to wake up."""
LEASE = "ttl_s: 3"
"""Seconds; the heartbeat's thread wakes up three times in it."""
QUICK_BELOW = 10_000
QUICK_ROTATION = "journal: {rotate_bytes: 131072, keep: 4}"
"""A short run's journal has to rotate several times as well, or nothing is shown."""


class LongRun:
    """Runs that grow, in one folder."""

    def __init__(self, folder: Path, steps: int) -> None:
        """Prepare a run of *steps* steps in *folder*."""
        store = [LEASE, QUICK_ROTATION] if steps < QUICK_BELOW else [LEASE]
        extra = f"store: {{{', '.join(store)}}}\n"
        self._steps = steps
        self._project = make_project(folder / "project", extra)
        self._folder = self._project.settings.state_file.parent / "runs" / "old"
        self._marks = Marks()
        self._old = no_op_run(self._project, self._marks, "old", self._on_step)
        self._memory: dict[int, int] = {}
        self._head_bytes = 0
        self._young = 0
        self._is_growing = False

    def _on_step(self, index: int) -> None:
        if index in (FIRST, self._steps - 1):
            self._memory[index] = resident_bytes()
        if self._is_growing and index % 100 == 0:
            self._marks.clear()
            self._head_bytes = max(self._head_bytes, (self._folder / "state.json").stat().st_size)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer ``grow`` and ``compare``."""
        return self._grow() if request["do"] == "grow" else self._compare(request["seconds"])

    def _grow(self) -> dict[str, Any]:
        FLUSH.is_on = False
        # What a process loads and caches once is no growth.
        warm = no_op_run(self._project, Marks(), "warm")
        warm.work(Mode.COMBINED, InvocationLimits(max_steps=WARM_UP))
        self._is_growing = True
        self._old.work(Mode.COMBINED, InvocationLimits(max_steps=self._steps))
        self._is_growing = False
        FLUSH.is_on = True
        # What was left unflushed is no part of the steps that are compared.
        os.sync()
        head = self._old.head
        lines = (self._folder / "journal.jsonl").read_bytes().splitlines()
        longest = max(len(line) for line in lines)
        mean = sum(len(line) for line in lines) / len(lines)
        journal = self._project.settings.store.journal
        return {
            "memory_first": self._memory[FIRST],
            "memory_last": self._memory[self._steps - 1],
            "head_bytes": self._head_bytes,
            "journal_bytes": sum(p.stat().st_size for p in self._folder.glob("journal*")),
            # Each is put aside once it has reached its size, so by one record it may be longer.
            "journal_cap": (journal.rotate_bytes + longest) * (journal.keep + 1),
            "written_bytes": round((head.revision if head else 0) * mean),
        }

    def _compare(self, seconds: float) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {
            key: [] for key in ("old_wall", "old_cpu", "young_wall", "young_cpu")
        }
        for number in rounds(seconds):
            self._young += 1
            young = no_op_run(self._project, self._marks, f"young-{self._young}")
            # Who comes second pays for the flush of what the first one left behind.
            pairs = [("old", self._old), ("young", young)]
            for side, run in pairs if number % 2 else reversed(pairs):
                self._marks.clear()
                run.work(Mode.COMBINED, InvocationLimits(max_steps=SKIP + BLOCK))
                wall, cpu = self._marks.between_steps(SKIP)
                found[f"{side}_wall"].append(statistics.median(wall))
                found[f"{side}_cpu"].append(statistics.median(cpu))
        return found


def resident_bytes() -> int:
    """Return how much memory of this process is in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def begin() -> tuple[dict[str, Any], Answer]:
    """Prepare the run that the arguments ask for."""
    return {"pid": os.getpid()}, LongRun(Path(sys.argv[1]), int(sys.argv[2])).answer


if __name__ == "__main__":
    serve(begin)
