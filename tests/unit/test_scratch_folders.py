"""Folders of tests that are killed are removed by the next ones, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.scratch_folders import PREFIX, scratch_folder, sweep

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, time
from pathlib import Path
from tests.scratch_folders import scratch_folder
with scratch_folder(Path(sys.argv[1])) as made:
    (made / "file").write_text("x")
    print(made, flush=True)
    time.sleep(600)
"""


def test_the_folder_exists_in_the_block_and_is_removed_after_it(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as made:
        assert made.parent == tmp_path
        assert made.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_only_the_folders_of_dead_processes_are_removed(
    tmp_path: Path,
) -> None:
    others = [tmp_path / name for name in (f"{PREFIX}x-1", f"{PREFIX}1", "tmpx")]
    for other in others:
        other.mkdir()
    argv = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with (
        scratch_folder(tmp_path) as mine,
        subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        sweep(tmp_path)
        assert theirs.is_dir()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert (theirs / "file").exists()
        sweep(tmp_path)
        assert not theirs.exists()
        assert mine.is_dir()
    assert sorted(tmp_path.iterdir()) == sorted(others)
