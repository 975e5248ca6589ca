"""A permit ends with its process, also where others make the steps."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from tests.fleet.fleet_projects import until
from tests.fleet.recorded import Arena, RecordedProject, violations

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
SOON = """\
import sys
import sequencer.fleet.workflow as workflow
from sequencer.cli import main
workflow.ASK_S, workflow.LATE_S = 1.0, 2.0
sys.exit(main())
"""


@contextlib.contextmanager
def asked_soon(here: RecordedProject, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command that asks for permits again and again."""
    process = subprocess.Popen(
        [sys.executable, "-c", SOON, *arguments],
        cwd=here.folder, env={**os.environ, "SEQUENCER_TRUST": "all"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_steps_of_a_run_that_was_killed_are_not_made_for_ever(arena: Arena) -> None:
    here = arena.project("killed")
    (here.folder / "busy_s").write_text("0.2")
    with asked_soon(here, "worker"):
        with asked_soon(here, "run", "--max-steps", "1000"):
            here.started(2)
        until(lambda: not here.facts("status")["busy"] and _rests(here), 60)
        assert here.cli("run", "--max-steps", "1").returncode == 0
    assert violations(here, least=2) == []


def _rests(here: RecordedProject) -> bool:
    known = len(here.record)
    time.sleep(1.5)
    return len(here.record) == known


def test_a_permit_that_is_asked_for_again_counts_on(arena: Arena) -> None:
    here = arena.project("living")
    (here.folder / "busy_s").write_text("0.3")
    with asked_soon(here, "worker"), asked_soon(here, "run", "--max-steps", "14") as run:
        said = run.communicate(timeout=90)[0]
        assert run.returncode == 0, said
    assert "14 steps are done" in said
    assert here.facts("status")["step_index"] == 14
    assert violations(here, least=14) == []


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    with Arena(tmp_path) as arena:
        yield arena
