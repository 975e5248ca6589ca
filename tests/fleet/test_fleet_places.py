"""The steps of a run are made where its files are: a queue for each machine without git."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import Client

from sequencer import open_run
from tests.fleet.fleet_projects import CYCLE, FleetProject, until
from tests.fleet.server import ask, executions

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Make = Callable[[str], FleetProject]


@pytest.fixture
def machines(project: Make, tmp_path: Path) -> tuple[FleetProject, FleetProject]:
    """Return the same project on two machines, as far as the server can tell."""
    here = project(CYCLE)
    config = here.folder / "orchestration.yaml"
    text = config.read_text()
    config.write_text(text.replace("kind: temporal", "kind: temporal, queue: gpu1"))
    text = text.replace("kind: temporal", "kind: temporal, queue: gpu2")
    return here, FleetProject(tmp_path / "there", "", text)


def test_the_steps_of_a_run_execute_where_it_was_started(
    machines: tuple[FleetProject, FleetProject],
) -> None:
    here, there = machines
    assert here.cli("run", "--detach", "--max-steps", "2").returncode == 0
    with there.worker():
        until(lambda: "no worker on gpu1 has taken it yet" in there.cli("status").stdout)
        assert "'sequencer worker' there starts one" in there.cli("status").stdout
        assert "no worker has taken it yet; 'sequencer worker' starts" in here.cli("status").stdout
        with here.worker():
            until(lambda: "end" in here.facts("status")["detached"][0])
        # Who permits more may be anywhere; a decision, too.
        assert there.cli("stop", "--pause").returncode == 0
        assert there.cli("resume").returncode == 0
        with there.process("run", "--max-steps", "2") as run:
            until(lambda: there.facts("status")["claims"])
            with here.worker():
                said = run.communicate(timeout=60)[0]
        assert run.returncode == 0, said
        assert "the run's steps run on gpu1" in said
    assert (len(here.done), there.done) == (4, [])
    assert [one[1] for one in here.done] == ["0", "1", "2", "3"]


def test_another_machine_can_take_over_the_runs_of_a_machine(
    machines: tuple[FleetProject, FleetProject],
) -> None:
    here, there = machines
    assert here.cli("run", "--detach", "--max-steps", "2").returncode == 0
    with there.worker("--queue", "gpu1"):
        until(lambda: "end" in there.facts("status")["detached"][0])
    assert (here.done, len(there.done)) == ([], 2)
    # A run that is over begins again at its place.
    assert there.cli("reset", "--yes").returncode == 0
    assert open_run(there.folder, trust=True).find_worker_location() == "gpu1"


def test_steps_of_another_machine_are_reported_also_by_the_next_execution(
    machines: tuple[FleetProject, FleetProject], address: str
) -> None:
    here, there = machines
    assert here.cli("run", "--max-steps", "1").returncode == 0
    with here.worker() as worker:
        ended = there.cli("run", "--max-steps", "22", timeout_s=120)
        assert ended.returncode == 0, ended.stderr
        by = f"{worker.pid}@{socket.gethostname()}"
    reported = re.findall(r"\[(\d+)\] \w+: (made by|accepted after)", ended.stderr)
    expected = [(str(n), what) for n in range(2, 24) for what in ("made by", "accepted after")]
    assert reported == expected, ended.stderr
    assert ended.stderr.count(by) == len(reported), ended.stderr
    run = f"seq/{here.folder.name}/default"
    until(lambda: len(ask(address, lambda client: executions(client, run))) > 1)


def test_a_project_without_git_belongs_to_one_machine(tmp_path: Path, address: str) -> None:
    store = f'store: {{kind: temporal, address: "{address}", project: "a shop/x\'s"}}'
    here = FleetProject(tmp_path / "p", CYCLE, store)

    async def queues(client: Client) -> dict[str, str]:
        # No other project's runs begin so, and no query ends there.
        found = client.list_workflows("WorkflowId STARTS_WITH 'seq/a-shop-x-s--'")
        return {one.id.rpartition("/")[2]: one.task_queue async for one in found}

    def place(run: str) -> str:
        assert here.cli("run", "--run", run, "--detach").returncode == 0
        until(lambda: run in ask(address, queues))
        return ask(address, queues)[run].partition("@")[2].partition("/")[2]

    assert place("one") == socket.gethostname()
    subprocess.run(["git", "init", "-q"], cwd=here.folder, check=True)
    assert place("two") == ""


def test_machines_that_share_a_log_folder_show_each_others_logs(
    project: Make, tmp_path: Path
) -> None:
    here = project(CYCLE)
    config = here.folder / "orchestration.yaml"
    text = config.read_text().replace("kind: temporal", "kind: temporal, queue: shared")
    there = FleetProject(tmp_path / "there", "", text)
    here.host, there.host = "one", "other"
    config.write_text(text)
    assert here.cli("run", "--max-steps", "1").returncode == 0
    # A log of the same name that is another attempt's does not count.
    written = next((here.folder / "logs").rglob("iter-00001_supervisor.log"))
    fake = there.folder / written.relative_to(here.folder)
    fake.parent.mkdir(parents=True)
    fake.write_text(written.read_text().replace("token 1\n", "token 7\n"))
    assert "is on one: " in there.cli("log").stderr
    shared = tmp_path / "shared"
    for machine in (here, there):
        machine.variables = {"SEQUENCER_LOGS_DIR": str(shared)}
        assert machine.cli("run", "--max-steps", "1").returncode == 0
    assert "is on" not in here.cli("log", "3").stderr
    assert "did reviewer 2" in here.cli("log", "3").stdout
    assert "did main 1" in there.cli("log", "2").stdout
    # A link in its place is neither followed nor written through.
    shared.rename(tmp_path / "moved")
    shared.symlink_to(tmp_path / "moved")
    ended = there.cli("log", "2")
    assert ended.returncode != 0
    assert "did main 1" not in ended.stdout
