"""Every write point of every transition, failed and killed; nothing accepted is lost or doubled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sequencer import FileStore
from tests.boundary.traced import tracer
from tests.concurrency import crash_points as points
from tests.concurrency.command_points import COMMANDS, attempt
from tests.concurrency.crash_sweep import MIN_POINTS, kernel
from tests.long.__main__ import in_own_process
from tests.long.report import Size

pytestmark = pytest.mark.timeout(300)
"""Campaigns use up to 20 s of CPU each, which takes minutes on a busy machine."""


def test_a_run_survives_a_fault_at_every_call(tmp_path: Path) -> None:
    # A fork of this process is slow: it holds all tests.
    report = in_own_process("A1-crash-points", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"]["crash points"] >= MIN_POINTS[Size.SHORT]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commands_that_change_a_whole_run_survive_a_kill_at_their_calls(tmp_path: Path) -> None:
    report = in_own_process("A1-command-points", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"]["crash points"] >= len(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_calls_of_a_command_are_intercepted(name: str, tmp_path: Path) -> None:
    """A check of the check: a call that is bound to another name would never be killed."""
    command = COMMANDS[name]
    command.prepare(tmp_path)
    said = attempt(tmp_path / command.inside, command, points.Injector("kill", at=10_000))
    assert said["code"] == 0
    assert said["calls"] >= 20


@pytest.mark.skipif(tracer() is None, reason="strace can't be used here")
def test_a_run_survives_when_the_kernel_refuses_or_kills(tmp_path: Path) -> None:
    report = kernel(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["crash points"] >= 2


@pytest.mark.parametrize("scenario", points.SCENARIOS)
def test_the_lock_write_and_sync_calls_of_transitions_are_intercepted(
    scenario: str, tmp_path: Path
) -> None:
    """A check of the check: a call that is bound to another name would never fail."""
    points.SCENARIOS[scenario][0](tmp_path / "sync")
    said = points.run_child(scenario, points.Injector("kill", at=10_000), tmp_path / "sync")
    expected = {"open", "write", "replace"}
    if scenario != "heartbeat":
        expected |= {"flock", "fsync" if scenario == "init" else "fdatasync"}
    assert expected <= set(said["calls"])


def test_the_sweep_notices_a_store_that_loses_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of the check: the head is replaced before the journal has it."""
    real = FileStore._append

    def early(self: FileStore, line: bytes, offset: int, *, is_torn: bool) -> bool:
        self.state_path.write_text(json.dumps(json.loads(line)["head"]))
        return real(self, line, offset, is_torn=is_torn)

    monkeypatch.setattr(FileStore, "_append", early)
    _, found = points.sweep("commit", "kill", tmp_path)
    assert any("CorruptState" in text for text in found)
