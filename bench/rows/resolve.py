"""Which step comes at an index: arithmetic, whatever the index."""

from __future__ import annotations

import timeit

from bench.measuring import compare, rounds
from bench.result import Row, capped, compared
from bench.rows import Setting
from sequencer import Review, Step, Workflow, resolve

FAR = 10**15
NEAR = 10
CALLS = 2_000
LONGEST_S = 2.0
CAP_US = 2.0
RATIO_BAR = 1.5
"""Far indexes are two-digit integers inside Python, so the division is a little slower."""


def measure(setting: Setting) -> list[Row]:
    """Return the time at a far index, absolute and against a near one."""
    steps = (Step(name="supervisor"), Step(name="main"))
    workflow = Workflow("bench", steps, Review(every=3, step=Step(name="reviewer")))

    def seconds(index: int) -> float:
        return timeit.timeit(lambda: resolve(workflow, index), number=CALLS) / CALLS

    far, near = [], []
    for _ in rounds(min(setting.effort.seconds, LONGEST_S)):
        far.append(seconds(FAR))
        near.append(seconds(NEAR))
    comparison = compare(far, near)
    return [
        capped("resolve", comparison.ours * 1e6, CAP_US, "µs", "at step_index 10**15"),
        compared(
            "resolve far",
            comparison,
            against=f"the same at step_index {NEAR}",
            unit="µs",
            scale=1e6,
            bar=RATIO_BAR,
        ),
    ]
