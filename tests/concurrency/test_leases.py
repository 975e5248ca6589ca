"""Holders that are stopped, killed or alive, seen from another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sequencer.engine.work import Mode
from sequencer.store.file import FileStore
from tests.contract import store_cases as cases
from tests.unit.engine.projects import events, head_of, reopen, write_project

ROOT = Path(__file__).parents[2]
# Claims, says so, and commits when it is told to; the lease is never renewed.
HOLDER = """
import sys
from pathlib import Path
from sequencer.errors import StaleClaim
from sequencer.store.file import FileStore
from tests.contract import store_cases as cases
store = FileStore(Path(sys.argv[1]), ttl_s=float(sys.argv[2]))
while True:
    token = cases.claim(store).token
    print(token, flush=True)
    input()
    try:
        cases.commit(store, token)
        print("accepted", flush=True)
    except StaleClaim:
        print("stale", flush=True)
    input()
"""
# Works on a project as a program does.
WORKER = """
import sys
from sequencer.engine.work import Mode
from sequencer.errors import SequencerError
from tests.unit.engine.projects import reopen
from pathlib import Path
try:
    print(reopen(Path(sys.argv[1])).work(Mode(sys.argv[2])).reason, flush=True)
except SequencerError as error:
    print(error, flush=True)
    raise SystemExit(error.exit_code)
"""


@contextmanager
def python(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
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


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def until_claimed(project: Path) -> None:
    """Wait until state.json itself, not only the journal, says that a step is being run."""
    state = project / "sync/state.json"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if state.exists() and json.loads(state.read_text())["claims"]:
            return
        time.sleep(0.01)
    raise AssertionError("nobody has claimed a step")


def test_a_holder_that_slept_past_its_lease_is_refused_every_time(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    with python(HOLDER, str(tmp_path / "state.json"), "0.06") as holder:
        for _ in range(25):
            token = int(line(holder))
            os.kill(holder.pid, signal.SIGSTOP)
            time.sleep(0.07)
            mine = cases.claim(store)
            assert mine.token == token + 1
            tell(holder)
            os.kill(holder.pid, signal.SIGCONT)
            assert line(holder) == "stale"
            cases.commit(store, mine.token)
            tell(holder)
    assert [f["event"] for f in store.history()].count("taken-over") == 25


def test_a_killed_holder_is_taken_over_by_who_waits_within_a_second(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    waits = []
    for _ in range(5):
        with python(HOLDER, str(tmp_path / "state.json"), "60") as holder:
            token = int(line(holder))
            head = store.view().head
            assert head is not None
            killed: list[float] = []

            def kill(pid: int = holder.pid, killed: list[float] = killed) -> None:
                killed.append(time.monotonic())
                os.kill(pid, signal.SIGKILL)

            threading.Timer(0.2, kill).start()
            while not store.liveness(head.claims[0]).allows_take_over:
                assert not store.wait(head.revision, 10.0, claim=head.claims[0])
            mine = cases.claim(store)
            waits.append(time.monotonic() - killed[0])
            assert (mine.token, mine.attempt) == (token + 1, head.attempt + 1)
            cases.commit(store, mine.token)
    assert max(waits) < 1.0, waits
    store.close()


def test_a_killed_worker_is_taken_over_by_one_in_sync_mode(tmp_path: Path) -> None:
    slow = {"status": "ok", "delay_s": 60, "attempt": 1}
    write_project(tmp_path, slow, {"status": "complete", "attempt": 2})
    with python(WORKER, str(tmp_path), "combined") as first:
        run = reopen(tmp_path)
        until_claimed(tmp_path)
        with python(WORKER, str(tmp_path), "sync") as second:
            time.sleep(1.0)
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


def test_two_ticks_at_once(tmp_path: Path) -> None:
    write_project(tmp_path, {"status": "ok", "delay_s": 4})
    with python(WORKER, str(tmp_path), "tick") as first:
        run, state = reopen(tmp_path), tmp_path / "sync/state.json"
        until_claimed(tmp_path)
        before = state.read_bytes()
        with python(WORKER, str(tmp_path), "tick") as second:
            assert "is run by process" in line(second)
            assert second.wait(10) == 75
        assert state.read_bytes() == before
        assert first.wait(20) == 0
    assert head_of(run).step_index == 1


def test_a_worker_that_is_stopped_past_its_lease_keeps_its_output_and_does_not_count(
    tmp_path: Path,
) -> None:
    slow = {"status": "ok", "output": "too late", "delay_s": 2.5, "attempt": 1}
    write_project(tmp_path, slow, {"status": "ok", "output": "in time"}, store={"ttl_s": 1})
    with python(WORKER, str(tmp_path), "tick") as first:
        run = reopen(tmp_path)
        until_claimed(tmp_path)
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
    ]
    assert facts[-1]["outcome"]["output"] == "in time"
    assert json.loads((tmp_path / "sync/state.json").read_text())["step_index"] == 1
