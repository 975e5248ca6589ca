"""Who lets go of what the command writes to, and how the command ends then."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import done, environment, launched, scripted_project, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scripted_project(tmp_path / "project")


@pytest.mark.slow(sample=2)
@pytest.mark.parametrize("term", ["dumb", "xterm"])
@pytest.mark.parametrize("streams", [("stderr",), ("stdout",), ("stdout", "stderr")])
def test_a_closed_terminal_changes_neither_steps_nor_exit_code(
    folder: Path, streams: tuple[str, ...], term: str
) -> None:
    """With a real interpreter, which writes at its end what is left, and buffers unless told."""
    (folder / "hold").touch()
    master, slave = pty.openpty()
    how = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL) | dict.fromkeys(streams, slave)
    with subprocess.Popen(
        [sys.executable, "-m", "sequencer", "run", "--max-steps", "2"],
        cwd=folder,
        env=environment(TERM=term),
        stdin=subprocess.DEVNULL,
        stdout=how["stdout"],
        stderr=how["stderr"],
    ) as process:
        os.close(slave)
        until(lambda: done(folder))
        os.close(master)
        (folder / "hold").unlink()
        assert process.wait(60) == 0
    assert done(folder) == [0, 1]


@pytest.mark.parametrize(("stream", "code"), [("stdout", 75), ("stderr", 0)])
def test_a_full_stream_ends_with_a_documented_code(folder: Path, stream: str, code: int) -> None:
    """Of what a script reads it has to know that it is not all; messages are for nobody."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        with launched(folder, "run", "--max-steps", "1", text=True, **how) as process:
            _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert stream == "stderr" or "standard output: can't be written: No space left" in said
    assert done(folder) == [0]
