"""Every write point of every transition, failed and killed; nothing accepted is lost or doubled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.concurrency.crash_points import FAULTS, SCENARIOS, new_store, violations

ROOT = Path(__file__).parents[2]
QUICK = ("kill", "EIO-after")


def sweep(scenario: str, faults: tuple[str, ...], folder: Path) -> int:
    """Try every point and return how many there were; two faults at a time, one a processor."""
    points = 0
    running = []
    for fault in faults:
        argv = [sys.executable, "-m", "tests.concurrency.crash_points", scenario, fault]
        running.append(
            subprocess.Popen(
                [*argv, str(folder / fault)], cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
        )
        if len(running) == 2 or fault == faults[-1]:
            for process in running:
                told, _ = process.communicate(timeout=100)
                assert process.returncode == 0, told
                found = re.search(r"^points (\d+)$", told, re.MULTILINE)
                assert found, told
                points += int(found[1])
            running = []
    return points


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_survives_a_fault_at_every_call(scenario: str, tmp_path: Path) -> None:
    points = sweep(scenario, QUICK, tmp_path)
    assert points >= 5 * len(QUICK)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_survives_every_kind_of_fault(scenario: str, tmp_path: Path) -> None:
    faults = tuple(fault for fault in FAULTS if fault not in QUICK)
    assert sweep(scenario, faults, tmp_path) >= 5 * len(faults)


FAULTED = """
import sys
from pathlib import Path
from tests.concurrency import crash_points
store = crash_points.new_store(Path(sys.argv[1]))
crash_points.cases.commit_and_claim(store, crash_points.held_token(store))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("fault", ["error=EIO", "error=ENOSPC", "signal=KILL"])
@pytest.mark.parametrize("call", ["openat", "write", "fdatasync", "rename", "flock"])
def test_the_kernel_itself_refuses_or_kills(call: str, fault: str, tmp_path: Path) -> None:
    """The same without our wrapper: strace makes call k on the run's files fail."""
    names = ("journal.jsonl", "state.json", "state.json.lock")
    for at in range(1, 50):
        folder = tmp_path / f"{at}" / "sync"
        SCENARIOS["commit"][0](folder)
        trace = tmp_path / f"{at}.trace"
        argv = ["strace", "-f", "-o", str(trace), "-e", f"inject={call}:{fault}:when={at}"]
        if call != "rename":  # its temporary files have names of their own
            argv += [word for name in names for word in ("-P", str(folder / name))]
        argv += [sys.executable, "-c", FAULTED, str(folder)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False
        )
        before = list(new_store(folder).history())[:2]
        assert violations(folder, before, {}) == []
        told = trace.read_text()
        if "(INJECTED)" not in told and "killed by SIGKILL" not in told:
            assert at > 1
            return


def test_the_sweep_notices_a_store_that_loses_a_step(tmp_path: Path) -> None:
    """A check of the check: the head is replaced before the journal has it."""
    script = """
import sys
from sequencer.store.file import FileStore
from tests.concurrency import crash_points
real = FileStore._append
def early(self, line, offset, *, is_torn):
    import json
    from sequencer.model.head import Head
    from sequencer.store.headfile import write_head
    write_head(self.state_path, Head.model_validate(json.loads(line)["head"]))
    return real(self, line, offset, is_torn=is_torn)
FileStore._append = early
raise SystemExit(crash_points.main("commit", "kill", __import__("pathlib").Path(sys.argv[1])))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode > 0
    assert "CorruptState" in ended.stdout
