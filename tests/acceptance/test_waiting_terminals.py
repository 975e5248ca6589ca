"""A terminal that waits for another one says the truth about it, and who should type what."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.acceptance.cli_process import cli, head, launched, scripted_project, until
from tests.forked import Forked

GONE = "the process that ran 'supervisor' is gone; start it again in its terminal: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project whose steps last as long as a file ``hold`` is there."""
    made = scripted_project(tmp_path / "p")
    (made / "hold").touch()
    return made


@contextmanager
def pane(folder: Path, position: str, *options: str) -> Iterator[Forked]:
    """Start a process of mode sync at *position*, as in a terminal of its own."""
    words = ("run", "--mode", "sync", "--position", position, *options)
    process = launched(folder, *words, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def said(process: Forked, words: str, within_s: float = 60.0) -> str:
    """Return what *process* says until *words* have come; fail after *within_s* seconds."""
    assert process.stderr is not None
    fd, seen, deadline = process.stderr.fileno(), "", time.monotonic() + within_s
    while words not in seen:
        left = deadline - time.monotonic()
        assert left > 0, seen
        assert select.select([fd], [], [], left)[0], seen
        piece = os.read(fd, 65_536)
        assert piece, seen
        seen += piece.decode()
    return seen


def test_waiting_for_a_dead_process_names_the_command_to_type(folder: Path) -> None:
    with pane(folder, "supervisor") as first:
        until(lambda: (folder / "sync" / "state.json").exists() and head(folder)["claims"])
        with pane(folder, "main") as second:
            told = said(second, "another terminal runs")
            assert "waiting for 'supervisor', which another terminal runs" in told
            assert "step_index" not in told
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            # It is the first in its queue; whoever comes later knows at its next look.
            told = said(second, GONE, within_s=2.0)
            with pane(folder, "main", "--quiet") as third:
                # Asked to be quiet, it says this, and nothing of what ends by itself.
                assert said(third, GONE).startswith(f"waiting: {GONE}")
            command = "sequencer run --mode sync --position supervisor"
            assert told.count(GONE) == 1
            assert command in told
            # `status` knows that the other one still waits for its turn.
            shown = cli(folder, "status").stdout
            assert f"next: {command} (it takes the step over)" in shown
            assert "interrupted since" in shown
            assert "'supervisor'" in cli(folder, "inbox").stdout
            assert command in cli(folder, "inbox").stdout
            # With it the pair goes on.
            (folder / "hold").unlink()
            with pane(folder, "supervisor") as again:
                until(lambda: head(folder)["step_index"] >= 2)
                again.send_signal(signal.SIGINT)
                assert again.wait(30) == 130


def test_the_command_has_every_position_that_no_process_serves(folder: Path) -> None:
    path = folder / "orchestration.yaml"
    settings = yaml.safe_load(path.read_text())
    settings.update(steps=["supervisor", "main", "reviewer"], workflow={"name": "default"})
    path.write_text(yaml.safe_dump(settings))
    with pane(folder, "supervisor", "--position", "reviewer") as first:
        until(lambda: (folder / "sync" / "state.json").exists() and head(folder)["claims"])
        with pane(folder, "main") as second:
            said(second, "another terminal runs")
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            command = "sequencer run --mode sync --position supervisor --position reviewer"
            assert command in said(second, GONE)
            assert f"next: {command} (it takes the step over)" in cli(folder, "status").stdout


def test_waiting_for_a_process_never_started_names_its_command(folder: Path) -> None:
    with pane(folder, "main", "--run", "a b") as only:
        said(only, "waiting for 'supervisor', which another terminal runs")
        told = said(only, "no process runs")
        assert (
            "waiting for 'supervisor', which no process runs; start one: "
            "sequencer --run 'a b' run --mode sync --position supervisor"
        ) in told


def test_a_process_that_does_not_wait_names_the_command_of_the_other_one(folder: Path) -> None:
    ended = cli(folder, "run", "--position", "main")
    assert ended.returncode == 75
    assert "the next step is 'supervisor', which this terminal does not run" in ended.stderr
    assert "sequencer run --position supervisor" in ended.stderr
    assert "step_index" not in ended.stderr


def test_the_end_of_a_wait_stops_no_step(folder: Path) -> None:
    with pane(folder, "main") as only:
        said(only, "which another terminal runs")
        only.send_signal(signal.SIGINT)
        told = said(only, "interrupted")
        assert only.wait(30) == 130
        assert "stopping the running step" not in told
        assert "ending: no step is running" in told
