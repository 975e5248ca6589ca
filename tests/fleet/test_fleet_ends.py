"""A run that is told to end does so in time, whatever the server does; and what strangers ask."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from tests.fleet.fleet_projects import CYCLE, PROCEDURE, FleetProject, until
from tests.fleet.server import TemporalServer, ask, update

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Make = Callable[[str], FleetProject]
GRACE_S = 5.0
AT_MOST_S = GRACE_S + 10.0


class Served:
    """A project and its own server, which may be stopped and killed."""

    def __init__(self, folder: Path, configuration: str, server: TemporalServer) -> None:
        self.server = server
        store = f'store: {{kind: temporal, address: "{server.address}", ttl_s: 3, project: p}}'
        self.project = FleetProject(folder, configuration, store)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[str], Served]]:
    with TemporalServer(tmp_path / "server") as server:
        yield lambda configuration: Served(tmp_path / "p", configuration, server)
        if server.is_running:
            os.kill(server.pid, signal.SIGCONT)


def freeze(served: Served) -> None:
    os.kill(served.server.pid, signal.SIGSTOP)


def kill(served: Served) -> None:
    served.server.kill()


def ended(run: subprocess.Popen[str]) -> tuple[float, str]:
    """Send TERM to *run*; return how long it took to end, and what it has said."""
    run.send_signal(signal.SIGTERM)
    began = time.monotonic()
    said = run.communicate(timeout=AT_MOST_S + 30)[0]
    return time.monotonic() - began, said


@pytest.mark.parametrize("trouble", [freeze, kill])
@pytest.mark.parametrize("work", ["an agent works", "it waits for others"])
def test_a_run_ends_in_time_whatever_its_server_does(
    served: Callable[[str], Served], trouble: Callable[[Served], None], work: str
) -> None:
    made = served(CYCLE)
    here = made.project
    here.hold()
    first = ("run", "--max-steps", "3")
    if work == "an agent works":
        with here.process(*first) as run:
            until(lambda: here.done)
            trouble(made)
            seconds, said = ended(run)
    else:
        with here.process(*first) as other:
            until(lambda: here.done)
            with here.process("run", "--max-steps", "3", "--max-wait", "600") as run:
                until(lambda: _is_connected(run))
                trouble(made)
                seconds, said = ended(run)
            other.kill()
    assert run.returncode == 130, said
    assert seconds < AT_MOST_S, said
    assert "the run's state is unknown: " in said
    assert "Traceback" not in said
    agents = [int(one[3]) for one in here.done]
    if work == "an agent works":
        assert not any(psutil.pid_exists(one) for one in agents)


def _is_connected(run: subprocess.Popen[str]) -> bool:
    """Return whether *run* talks to the server and takes TERM itself.

    Wherever it is in its work from then on, it has to end. Before that, nothing is claimed, and
    TERM ends it as any program.
    """
    status = Path(f"/proc/{run.pid}/status").read_text(encoding="ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1]
    takes_term = int(caught, 16) >> (signal.SIGTERM - 1) & 1
    return bool(takes_term and psutil.Process(run.pid).net_connections())


def test_a_foreign_queue_is_refused_and_the_run_continues(project: Make, address: str) -> None:
    here = project(PROCEDURE)
    assert here.cli("run").returncode == 4
    run = f"seq/{here.folder.name}/default"
    own = ask(address, lambda client: _queue(client, run))
    strange = ["x", "", f"seq/other@{own.rpartition('@')[2]}", f"{own}/elsewhere", f"{own}\n"]
    with here.worker():
        for queue in strange:
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                update(address, run, "change_queue", queue)
            reason = str(refused.value.cause)
            assert "no workers of this project serve such a queue" in reason, queue
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            update(address, run, "leave", "not an id")
        assert "this is not the id of a work order" in str(refused.value.cause)
        update(address, run, "change_queue", own)
    assert here.cli("answer", "approve").returncode == 0
    assert here.cli("run").returncode == 0
    assert here.facts("status")["status"] == "complete"


async def _queue(client: Client, run: str) -> str:
    return (await client.get_workflow_handle(run).describe()).task_queue
