"""A work order ends with its process, also where others make the steps."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from temporalio.client import Client, WorkflowUpdateFailedError

from tests.fleet.fleet_projects import CYCLE, FleetProject, until
from tests.fleet.recorded import Arena, RecordedProject, violations
from tests.fleet.server import ask, executions, update, updates

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Make = Callable[[str], FleetProject]
SOON = """\
import sys
import sequencer.plugins.temporal.workflow as workflow
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


def test_steps_of_a_killed_run_stop(arena: Arena) -> None:
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


def test_a_renewed_work_order_continues_its_count(arena: Arena) -> None:
    here = arena.project("living")
    (here.folder / "busy_s").write_text("0.3")
    with asked_soon(here, "worker"), asked_soon(here, "run", "--max-steps", "14") as run:
        said = run.communicate(timeout=90)[0]
        assert run.returncode == 0, said
    assert "14 steps are done" in said
    assert here.facts("status")["step_index"] == 14
    assert violations(here, least=14) == []


ODD = """\
import sys
import sequencer.plugins.temporal.worker as worker
from sequencer.cli import main
worker.pack_report = lambda *_: {"record": {"status": "odd"}}
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("work", {"id": "x"}),
        ("work", {"id": "x", "by": "", "ttl_s": 1, "workflow": {"name": "w"}, "mode": "new"}),
        ("accept", {}),
        ("accept", {"run": {}, "head": {"revision": 4}, "facts": []}),
    ],
)
def test_an_unreadable_request_is_refused_and_the_run_continues(
    project: Make, address: str, name: str, argument: dict[str, Any]
) -> None:
    here = project(CYCLE)
    assert here.cli("run", "--max-steps", "1").returncode == 0
    with here.worker(), pytest.raises(WorkflowUpdateFailedError) as refused:
        update(address, f"seq/{here.folder.name}/default", name, argument)
    assert "can't be read by this release" in str(refused.value.cause)
    assert here.cli("run", "--max-steps", "1").returncode == 0
    assert here.facts("status")["step_index"] == 2


def test_an_unreadable_report_ends_the_work_order_and_is_not_paid_again(project: Make) -> None:
    here = project(CYCLE)
    ended = subprocess.run(
        [sys.executable, "-c", ODD, "run", "--max-steps", "2"], cwd=here.folder, timeout=60,
        env={**os.environ, "SEQUENCER_TRUST": "all"}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert "what an attempt has reported can't be read by this release" in ended.stderr
    assert len(here.done) == 1
    assert here.cli("run", "--max-steps", "2").returncode == 0
    assert here.facts("status")["step_index"] == 2


def test_an_ended_work_order_is_not_issued_again_by_the_next_execution(
    project: Make, address: str
) -> None:
    here = project(CYCLE)
    assert here.cli("run", "--max-steps", "2").returncode == 0
    run = f"seq/{here.folder.name}/default"

    async def permits(client: Client) -> list[Any]:
        return await updates(client.get_workflow_handle(run), "work")

    (permit,) = ask(address, permits)
    assert here.cli("run", "--max-steps", "30", timeout_s=120).returncode == 0
    until(lambda: len(ask(address, lambda client: executions(client, run))) > 1)
    with here.worker():
        # As a process does that has not heard the answer.
        end = update(address, run, "work", permit)
    assert end["reason"] == "2 steps are done (--max-steps)"
    assert here.facts("status")["step_index"] == 32


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    with Arena(tmp_path) as arena:
        yield arena
