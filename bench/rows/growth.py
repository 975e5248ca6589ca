"""A step of a long run against a step of a young one: time, memory, head, journal.

The long run has really made all its steps: the engine ran each of them, and its journal
and its log folder have grown with them. That happens in a child process, whose memory is
compared with itself, and in files that are in memory: a disk's file system has a growth of
its own, which depends on what else was made and removed there in the last minutes.
"""

from __future__ import annotations

from typing import Any

from bench.child import Absent, Child
from bench.disk import in_memory
from bench.measuring import compare
from bench.result import Row, absent, capped, compared
from bench.rows import Setting

BAR = 1.05
HEAD_CAP = 4096
BYTES_A_STEP = 5_000
"""What the log of a step takes in memory; the journal is bounded."""


def measure(setting: Setting) -> list[Row]:
    """Return the rows of a run of `Effort.growth_steps` steps."""
    effort = setting.effort
    log = setting.folder / "child.log"
    try:
        with in_memory(setting.folder, effort.growth_steps * BYTES_A_STEP) as (folder, is_memory):
            arguments = [str(folder), str(effort.growth_steps)]
            with Child("bench.rows.growth_child", arguments, log) as child:
                grown = child.ask({"do": "grow"})
                times = child.ask({"do": "compare", "seconds": effort.seconds})
    except Absent as reason:
        return [absent("growth", "step 10", str(reason))]
    where = "in memory" if is_memory else "on disk"
    return _rows(f"step {effort.growth_steps:,}, {where}", grown, times)


def _rows(note: str, grown: dict[str, Any], times: dict[str, Any]) -> list[Row]:
    against = "step 10 of a young run"
    memory = (grown["memory_last"], grown["memory_first"])
    return [
        compared(
            "growth CPU",
            compare(times["old_cpu"], times["young_cpu"]),
            against=against,
            unit="ms",
            scale=1e3,
            bar=BAR,
            note=note,
        ),
        compared(
            "growth wall",
            compare(times["old_wall"], times["young_wall"]),
            against=against,
            unit="ms",
            scale=1e3,
            bar=None,
            note=note,
        ),
        Row(
            name="growth memory",
            value=memory[0] / 2**20,
            unit="MiB",
            against="the same process at step 10",
            against_value=memory[1] / 2**20,
            ratio=memory[0] / memory[1],
            bar=BAR,
            note=note,
        ),
        capped("growth head", grown["head_bytes"], HEAD_CAP, "bytes", f"the largest, to {note}"),
        capped(
            "growth journal",
            grown["journal_bytes"] / 2**20,
            grown["journal_cap"] / 2**20,
            "MiB",
            f"all files, {grown['written_bytes'] / 2**20:.1f} MiB were written, {note}",
        ),
    ]
