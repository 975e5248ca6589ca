"""A process that is provably gone from this machine holds up no run on a server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fleet.fleet_projects import CYCLE, FleetProject, until
from tests.fleet.recorded import TTL_S, Arena, RecordedProject
from tests.fleet.wires import Wire

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Make = Callable[[str], FleetProject]
LEASE_S = 600


@pytest.mark.parametrize("options", [(), ("--mode", "sync", "--position", "supervisor")])
def test_a_killed_run_is_reported_gone_and_its_step_is_released_at_once(
    project: Make, options: tuple[str, ...]
) -> None:
    here = project(CYCLE)
    config = here.folder / "orchestration.yaml"
    # Long enough for the lease to prove nothing here.
    config.write_text(config.read_text().replace("ttl_s: 3", f"ttl_s: {LEASE_S}"))
    hold = here.hold()
    with here.process("run", "--max-steps", "1", *options) as process:
        until(lambda: here.done)
        until(lambda: f"process {process.pid} on" in here.cli("status").stdout)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed = time.monotonic()
        (held,) = here.facts("status")["held_by"]
        assert held["state"] == "dead"
        said = here.cli("status").stdout
        assert "gone; the next run or tick takes over" in said
        assert ": alive" not in said
        assert said.rstrip().endswith("next: sequencer run (it takes the step over)")
        hold.unlink()
        ended = here.cli("run", "--max-steps", "1", *options)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert time.monotonic() - killed < LEASE_S
    assert here.facts("status")["step_index"] == 1
    # The step was made again under a claim of its own, and accepted once.
    assert [(step, index) for step, index, *_ in here.done] == [("supervisor", "0")] * 2
    assert len({token for _, _, token, _ in here.done}) == 2


def test_a_run_silent_for_a_while_is_not_reported_gone(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena, Wire(arena.address) as wire:
        here = arena.project("p")
        there = arena.project("p", address=wire.address, folder="there")
        here.clones = (there,)
        hold = there.hold()
        with there.process("run", "--max-steps", "2") as run:
            there.started(1)
            with here.worker():
                # The worker sees that the heartbeats stop, and decides what becomes of the run.
                wire.cut(2.0 * TTL_S)
                until(lambda: run.poll() is not None or _starts(here) == 2)
                hold.unlink()
                said = run.communicate(timeout=90)[0]
        assert run.returncode == 0, said
        assert "is gone" not in said
        assert here.facts("status")["step_index"] == 2


def _starts(here: RecordedProject) -> int:
    return sum(noted.what == "start" for noted in here.record)
