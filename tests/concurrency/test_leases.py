"""Holders that are stopped, killed or alive, seen from another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sequencer import Mode
from tests.unit.engine.projects import events, head_of, reopen, until_queued, write_project

ROOT = Path(__file__).parents[2]
# Works on a project as a program does.
WORKER = """
import sys
from sequencer import Mode
from sequencer import SequencerError
from tests.unit.engine.projects import reopen
from pathlib import Path
try:
    print(reopen(Path(sys.argv[1])).work(Mode(sys.argv[2])).reason, flush=True)
except SequencerError as error:
    print(error, flush=True)
    raise SystemExit(error.exit_code)
"""


UNTIL_HELD_NO_MORE = """
import os, sys, time
sys.stdin.read()
while os.path.exists("hold"):
    time.sleep(0.01)
"""


@contextmanager
def python(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until_begun(project: Path) -> None:
    """Wait until a step is being run, and the lock that its claim has needed is given back."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if any(project.glob("logs/**/*.log")):
            return
        time.sleep(0.01)
    raise AssertionError("nobody has begun a step")


def test_a_killed_worker_is_taken_over_by_one_in_sync_mode(tmp_path: Path) -> None:
    slow = {"status": "ok", "delay_s": 60, "attempt": 1}
    write_project(tmp_path, slow, {"status": "complete", "attempt": 2})
    with python(WORKER, str(tmp_path), "combined") as first:
        run = reopen(tmp_path)
        until_begun(tmp_path)
        with python(WORKER, str(tmp_path), "sync") as second:
            until_queued(tmp_path)
            os.kill(first.pid, signal.SIGKILL)
            killed = time.monotonic()
            assert "complete" in line(second)
            # The start of the second step's agent is inside.
            assert time.monotonic() - killed < 2.0
    assert events(run) == [
        "initialised",
        "claimed",
        "taken-over",
        "claimed",
        "succeeded",
        "completed",
    ]


def test_the_second_of_two_simultaneous_ticks_is_refused(tmp_path: Path) -> None:
    argv = [sys.executable, "-IS", "-c", UNTIL_HELD_NO_MORE]
    write_project(
        tmp_path, agents={"held": {"kind": "command", "argv": argv}}, agent={"default": "held"}
    )
    hold = tmp_path / "hold"
    hold.touch()
    with python(WORKER, str(tmp_path), "tick") as first:
        run, state = reopen(tmp_path), tmp_path / "sync/state.json"
        until_begun(tmp_path)
        before = state.read_bytes()
        with python(WORKER, str(tmp_path), "tick") as second:
            assert "is being run by process" in line(second)
            assert second.wait(10) == 75
        assert state.read_bytes() == before
        hold.unlink()
        assert first.wait(20) == 0
    assert head_of(run).step_index == 1


def test_output_after_an_expired_lease_is_saved_but_does_not_count(
    tmp_path: Path,
) -> None:
    slow = {"status": "ok", "output": "too late", "delay_s": 2.5, "attempt": 1}
    write_project(tmp_path, slow, {"status": "ok", "output": "in time"}, store={"ttl_s": 1})
    with python(WORKER, str(tmp_path), "tick") as first:
        run = reopen(tmp_path)
        until_begun(tmp_path)
        os.kill(first.pid, signal.SIGSTOP)
        time.sleep(1.2)
        run.work(Mode.TICK)
        os.kill(first.pid, signal.SIGCONT)
        said = line(first)
        assert first.wait(20) == 3
    assert "stale" in said
    facts = list(run.history())
    assert [f["event"] for f in facts] == [
        "initialised",
        "claimed",
        "taken-over",
        "claimed",
        "succeeded",
        "released",
    ]
    assert facts[-2]["outcome"]["output"] == "in time"
    # It worked for a while, and only that is counted.
    late = facts[-1]["outcome"]
    assert (late["reason"], set(late["usage"])) == ("claim-lost", {"seconds"})
    assert json.loads((tmp_path / "sync/state.json").read_text())["step_index"] == 1
