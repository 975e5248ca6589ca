"""The output of a step survives a power loss, whatever the disk has kept of the rest."""

from __future__ import annotations

import random
from pathlib import Path

from sequencer.store import results
from tests.power.disk import Disk, Effort, Tree
from tests.power.recorder import Recorder


def test_a_long_output_is_durable_before_the_step_is_accepted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.read()
    with recorder.recording():
        results.write_output(tmp_path / "results" / "0-1", b"answer")
    disk = Disk(Tree())
    for op in recorder.ops:
        disk.do(op)
    everything, chance = Effort(10, 0, 1_000, 0), random.Random(1)  # noqa: S311 (to be repeated)
    left = {tree.key() for tree in disk.left(everything, chance)}
    assert left == {disk.present.key()}
