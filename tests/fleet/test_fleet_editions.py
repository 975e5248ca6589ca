"""Releases that decide differently share a server: each run is decided over by one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.fleet.fleet_projects import AGENTS, CYCLE, FLOW, PROCEDURE, FleetProject, until
from tests.fleet.server import ask

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Make = Callable[[str], FleetProject]


@pytest.fixture
def releases(project: Make, tmp_path: Path) -> Callable[[str], tuple[FleetProject, FleetProject]]:
    """Return what makes two clones of a project, the second one with a newer release."""

    def make(configuration: str) -> tuple[FleetProject, FleetProject]:
        old = project(configuration)
        new = FleetProject(tmp_path / "new", "", (old.folder / "orchestration.yaml").read_text())
        new.is_newer = True
        return old, new

    return make


Releases = Callable[[str], tuple[FleetProject, FleetProject]]


def accepted(here: FleetProject) -> list[int]:
    """Return the indexes of the accepted steps, in order."""
    return [one["step_index"] for one in here.facts("history") if one["event"] == "succeeded"]


def test_a_run_moves_to_the_newer_release_while_the_old_one_works(releases: Releases) -> None:
    old, new = releases(CYCLE)
    hold = old.hold()
    with old.worker(), old.process("run", "--max-steps", "6") as run:
        until(lambda: old.done)
        with new.worker("--max-parallel", "2"):
            # It is asked for, and comes when no attempt is being made.
            until(lambda: new.cli("status").returncode == 0)
            hold.unlink()
            said = run.communicate(timeout=120)[0]
            assert run.returncode == 0, said
    assert accepted(old) == accepted(new) == list(range(6))
    assert old.done[0][1] == "0"
    assert new.done[-1][1] == "5"
    assert len(old.done) + len(new.done) == 6


def test_permitted_steps_continue_after_all_workers_are_replaced(releases: Releases) -> None:
    old, new = releases(CYCLE)
    assert old.cli("run", "--detach", "--max-steps", "6").returncode == 0
    with old.worker() as worker:
        until(lambda: len(old.done) >= 2)
        old.hold()
        until(lambda: old.facts("status")["busy"])
        worker.kill()
    made = len(accepted(old))
    with new.worker():
        until(lambda: "end" in new.facts("status")["detached"][0], 90)
    # Its counts have come along: six steps in all, and no more.
    assert accepted(new) == list(range(6))
    assert len(new.done) == 6 - made
    assert new.facts("status")["detached"][0]["end"] == "6 steps are done (--max-steps)"


def test_a_command_of_a_newer_release_decides_where_no_worker_runs(releases: Releases) -> None:
    old, new = releases(PROCEDURE)
    assert old.cli("run").returncode == 4
    ended = new.cli("answer", "do more")
    assert ended.returncode == 0, ended.stderr
    assert new.cli("run").returncode == 4
    assert new.cli("answer", "approve").returncode == 0
    assert new.cli("run").returncode == 0
    events = [one["event"] for one in new.facts("history")]
    assert events.count("feedback") == events.count("approved") == 1
    assert new.facts("status")["status"] == "complete"


def test_an_older_release_leaves_a_newer_releases_run_alone(releases: Releases) -> None:
    old, new = releases(PROCEDURE)
    assert new.cli("run").returncode == 4
    before = old.facts("history")
    with old.worker():
        for verb in (["stop", "--pause"], ["answer", "approve"]):
            ended = old.cli(*verb)
            assert ended.returncode == 3, ended.stdout
            assert "a newer release works on the run: edition" in ended.stderr
            assert "update sequencer on this machine" in ended.stderr
        assert old.cli("status").returncode == 0
    assert old.facts("history") == before
    # Where the newer one lives, a decision is the same for both.
    with new.worker():
        assert old.cli("answer", "approve").returncode == 0
    assert new.cli("run").returncode == 0
    # What is over is not begun again by one that does not know it.
    assert old.cli("rewind", "1").returncode == 3


def test_the_outputs_of_a_flow_move_to_the_newer_release(releases: Releases) -> None:
    old, new = releases(AGENTS)
    for here in (old, new):
        (here.folder / "flows").mkdir()
        (here.folder / "flows" / "review.md").write_text(FLOW)
    assert old.cli("run", "flows/review.md").returncode == 4
    until(lambda: old.facts("status", "--all"))
    assert new.cli("--run", "review", "answer", "fine", "approve").returncode == 0
    assert new.cli("run", "flows/review.md").returncode == 0
    facts = new.facts("--run", "review", "history")
    outputs = [one["outcome"].get("output") for one in facts if one["event"] == "succeeded"]
    assert outputs[-1] == "published: prose of a draft for nobody"


def test_a_run_ended_on_the_server_continues(project: Make, address: str) -> None:
    here = project(CYCLE)
    assert here.cli("run", "--max-steps", "2").returncode == 0
    _terminate(address, f"seq/{here.folder.name}/default")
    assert here.facts("status")["step_index"] == 2
    ended = here.cli("run", "--max-steps", "2")
    assert ended.returncode == 0, ended.stderr
    assert accepted(here) == [0, 1, 2, 3]


def _terminate(address: str, run: str) -> None:

    async def ended(client: Client) -> None:
        await client.get_workflow_handle(run).terminate()

    ask(address, ended)
