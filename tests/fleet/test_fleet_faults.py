"""What goes wrong between a run, its workers and the server loses and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.fleet.fleet_projects import AGENTS, CYCLE, PROCEDURE, FleetProject, started_by, until
from tests.fleet.recorded import Arena, violations
from tests.fleet.server import TemporalServer
from tests.fleet.wires import Wire
from tests.loopback import free_ports

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Make = Callable[[str], FleetProject]
RUN_3 = ("run", "--max-steps", "3")


def accepted(here: FleetProject) -> list[int]:
    """Return the indexes of the accepted steps, in order."""
    return [one["step_index"] for one in here.facts("history") if one["event"] == "succeeded"]


def test_a_frozen_workers_late_report_is_refused_and_its_agent_ends(project: Make) -> None:
    here = project(CYCLE)
    hold = here.hold()
    with here.worker() as one, here.process("run", "--max-steps", "2") as run:
        until(lambda: here.done)
        agent = int(here.done[0][3])
        holder = {one.pid: one, run.pid: run}[started_by(agent)]
        os.kill(holder.pid, signal.SIGSTOP)
        until(lambda: len(here.done) == 2, 70)
        os.kill(holder.pid, signal.SIGCONT)
        # It hears that its attempt is another's by now.
        until(lambda: not psutil.pid_exists(agent), 30)
        hold.unlink()
        run.wait(60)
    if holder is run:
        here.cli("run", "--max-steps", "2")
    indexes = accepted(here)
    assert indexes == list(range(len(indexes)))
    assert len(indexes) >= 1


def test_a_run_continues_after_its_server_is_killed_and_restarted(tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "server")
    name = tmp_path.name
    store = f'store: {{kind: temporal, address: "{server.address}", ttl_s: 3, project: {name}}}'
    here = FleetProject(tmp_path / name, CYCLE, store)
    hold = here.hold()
    with server, here.process(*RUN_3) as run:
        until(lambda: here.done)
        server.kill()
        time.sleep(1)
        hold.unlink()
        server.start()
        said = run.communicate(timeout=90)[0]
        assert run.returncode == 0, said
        assert accepted(here) == [0, 1, 2]
        assert here.facts("status")["status"] == "waiting-next"


def test_an_interrupted_run_gives_its_step_back(project: Make) -> None:
    here = project(CYCLE)
    here.hold()
    with here.process("run", "--max-steps", "3") as run:
        until(lambda: here.done)
        run.send_signal(signal.SIGTERM)
        said = run.communicate(timeout=30)[0]
        assert run.returncode == 130
    assert "interrupted in step 'supervisor'; the claim was released" in said
    status = here.facts("status")
    assert (status["status"], status["claims"], status["busy"]) == ("idle", [], False)
    assert [one["event"] for one in here.facts("history")][-1] == "released"
    assert not psutil.pid_exists(int(here.done[0][3]))


def test_a_stopping_worker_finishes_its_attempt(project: Make) -> None:
    here = project(CYCLE)
    hold = here.hold()
    with here.worker() as worker, here.process("run", "--max-steps", "1") as run:
        until(lambda: here.done)
        worker.send_signal(signal.SIGTERM)
        hold.unlink()
        assert worker.wait(30) == 0
        assert run.wait(30) == 0
    assert len(here.done) == 1


def test_a_step_that_cannot_start_ends_the_invocation_as_in_files(project: Make) -> None:
    here = project(CYCLE)
    assert here.cli("run", "--max-steps", "1").returncode == 0
    (here.folder / "prompts" / "main.md").unlink()
    ended = here.cli("run", "--max-steps", "2")
    assert ended.returncode == 2
    assert "main" in ended.stderr
    status = here.facts("status")
    assert (status["step_index"], status["claims"]) == (1, [])


def test_a_refusal_leaves_no_event(project: Make) -> None:
    here = project(PROCEDURE)
    here.cli("run")
    before = here.facts("history")
    with here.worker():
        for _ in range(3):
            assert here.cli("skip", "--as-done", "--note", "x").returncode == 3
    assert here.facts("history") == before


def test_looking_needs_no_worker_and_names_the_address_of_a_dead_server(tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "server")
    store = f'store: {{kind: temporal, address: "{server.address}", project: p}}'
    here = FleetProject(tmp_path / "p", CYCLE, store)
    with server:
        assert here.cli("run", "--max-steps", "1").returncode == 0
        for verb in (["status"], ["history"], ["status", "--all"], ["plan"], ["log"]):
            assert here.cli(*verb).returncode == 0
    ended = here.cli("status")
    assert ended.returncode == 3
    assert server.address in ended.stderr
    assert "does not answer: connection refused" in ended.stderr
    assert "sequencer worker --trial" in ended.stderr
    assert "Error" not in ended.stderr


def test_a_missing_namespace_is_not_a_run_that_never_started(project: Make) -> None:
    here = project(CYCLE)
    config = here.folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("kind: temporal", "kind: temporal, namespace: x"))
    ended = here.cli("status")
    assert ended.returncode == 3
    assert "has no namespace 'x'" in ended.stderr


def test_forty_commands_in_a_row_end_with_their_exit_code(project: Make) -> None:
    here = project(CYCLE)
    here.cli("run", "--max-steps", "1")
    codes = [here.cli("plan", "--json").returncode for _ in range(20)]
    codes += [here.cli("answer", "approve").returncode for _ in range(20)]
    assert codes == [0] * 20 + [3] * 20


def test_no_secret_is_on_the_server(tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "server")
    store = f'store: {{kind: temporal, address: "{server.address}", project: p}}'
    here = FleetProject(tmp_path / "p", CYCLE, store)
    text = (here.folder / "orchestration.yaml").read_text()
    text = text.replace("agent.py]}", "agent.py], pass_env: [CANARY_TOKEN]}")
    (here.folder / "orchestration.yaml").write_text(text)
    agent = here.folder / "agent.py"
    agent.write_text(agent.read_text() + 'print("it is", os.environ["CANARY_TOKEN"])\n')
    secret = "canary-3f9b1c7d55aa"  # noqa: S105 - it is to be found
    os.environ["CANARY_TOKEN"] = secret
    try:
        with server:
            assert here.cli("run", "--max-steps", "2").returncode == 0
            assert "[secret]" in json.dumps(here.facts("history"))
    finally:
        del os.environ["CANARY_TOKEN"]
    for path in server.folder.iterdir():
        assert secret.encode() not in path.read_bytes()


def test_a_worker_without_the_prompt_leaves_the_step_to_others(
    project: Make, tmp_path: Path
) -> None:
    here = project(CYCLE)
    text = (here.folder / "orchestration.yaml").read_text()
    there = FleetProject(tmp_path / "clone", "", text)
    for path in (there.folder / "prompts").iterdir():
        path.unlink()
    with there.worker("--max-parallel", "1"):
        ended = here.cli("run", "--max-steps", "3", timeout_s=150)
        assert ended.returncode == 0, ended.stderr
    assert len(here.done) == 3
    assert there.done == []


def test_a_worker_learns_of_a_definition_that_was_adopted(project: Make) -> None:
    here = project(AGENTS + "workflow: {name: standard}\n")
    with here.worker():
        assert here.cli("run", "--max-steps", "4").returncode == 0
        config = here.folder / "orchestration.yaml"
        config.write_text(config.read_text().replace("standard", "standard2"))
        for name in ("supervisor2", "main2"):
            (here.folder / "prompts" / f"{name}.md").write_text("Do it.\n")
        assert here.cli("run").returncode == 3
        assert here.cli("reset", "--yes").returncode == 0
        assert here.cli("run", "--max-steps", "4").returncode == 0
    facts = here.facts("history")
    assert facts[-1]["outcome"]["prompt"] == "main2.md"
    assert [one["event"] for one in facts].count("reset") == 1
    assert here.facts("status")["step_index"] == 4


def test_a_step_taken_over_by_force_ends_and_starts_again(project: Make) -> None:
    here = project(CYCLE)
    hold = here.hold()
    with here.process("run", "--max-steps", "1") as run:
        until(lambda: here.done)
        agent = int(here.done[0][3])
        assert here.cli("takeover", "--force").returncode == 0
        until(lambda: not psutil.pid_exists(agent), 30)
        until(lambda: len(here.done) == 2)
        hold.unlink()
        assert run.wait(60) == 0
    facts = [(one["event"], one["token"]) for one in here.facts("history")]
    assert facts[1:] == [
        ("claimed", 1),
        ("taken-over", 1),
        ("claimed", 2),
        ("succeeded", 2),
    ]


def test_simultaneous_decisions_are_each_accepted_once(project: Make) -> None:
    here = project(CYCLE)
    here.cli("run", "--max-steps", "1")
    with here.worker():
        all_at_once = [here.launched("tell", f"message {number}") for number in range(5)]
        for one in all_at_once:
            one.communicate(timeout=60)
            assert one.returncode == 0
    told = [one for one in here.facts("history") if one["event"] == "told"]
    assert sorted(one["outcome"]["note"] for one in told) == [f"message {n}" for n in range(5)]
    assert len({one["revision"] for one in told}) == 5


def test_a_trial_server_starts_prints_its_address_and_ends(tmp_path: Path) -> None:
    port, _ = free_ports(2)
    store = f'store: {{kind: temporal, address: "127.0.0.1:{port}", project: p}}'
    here = FleetProject(tmp_path / "p", CYCLE, store)
    with here.process("worker", "--trial") as up:
        assert up.stdout is not None
        assert f"http://127.0.0.1:{port + 1000}/" in up.stdout.readline()
        assert here.cli("run", "--max-steps", "1").returncode == 0
        children = psutil.Process(up.pid).children(recursive=True)
        up.send_signal(signal.SIGTERM)
        assert up.wait(30) == 0
    assert not any(child.is_running() for child in children)
    assert here.cli("status").returncode == 3
    assert (here.folder / "sync" / "fleet" / "fleet.db").exists()


def test_features_for_one_machine_are_refused(project: Make) -> None:
    tasks = "workflows:\n  cut:\n    tasks: [{id: a, subject: Do it.}]\n"
    here = project(AGENTS + "workflow: {name: cut}\n" + tasks)
    ended = here.cli("run")
    assert (ended.returncode, here.done) == (2, []), ended.stderr
    assert "a team's tasks" in ended.stderr
    assert here.facts("status")["run_id"] is None


def test_temporal_commands_are_refused_for_other_stores(tmp_path: Path) -> None:
    here = FleetProject(tmp_path / "p", CYCLE, "")
    for arguments in (["worker"], ["worker", "--trial"]):
        ended = here.cli(*arguments)
        assert ended.returncode == 2
        assert "store.kind" in ended.stderr


def test_a_server_away_for_long_is_waited_for_and_reported(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        here = arena.project("p")
        hold = here.hold()
        with here.process("run", "--max-steps", "2") as run:
            here.started(1)
            arena.server.kill()
            # The client library gives up after ten seconds.
            time.sleep(12)
            arena.server.start()
            hold.unlink()
            said = run.communicate(timeout=90)[0]
        assert run.returncode == 0, said
        assert said.count("the Temporal server does not answer") == 1
        # The client library's own words would go to standard output.
        assert "temporalio" not in said
        assert violations(here, least=2) == []


def test_a_work_order_whose_end_was_lost_is_not_issued_twice(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena, Wire(arena.address) as wire:
        here = arena.project("p")
        there = arena.project("p", address=wire.address, folder="there")
        holds = here.hold(), there.hold()
        with here.worker(), there.process("run", "--max-steps", "3") as run:
            until(lambda: here.record or there.record)
            # Whoever waits for the end is gone from the server until after it.
            wire.cut(14)
            for hold in holds:
                hold.unlink()
            said = run.communicate(timeout=90)[0]
            assert run.returncode == 0, said
            assert "3 steps are done" in said
            assert here.facts("status")["step_index"] == 3


@pytest.mark.parametrize("command", ["status", "run", "worker", "status --all", "run --detach"])
def test_a_missing_namespace_is_reported(project: Make, command: str) -> None:
    here = project(CYCLE)
    configuration = here.folder / "orchestration.yaml"
    text = configuration.read_text().replace("kind: temporal,", "kind: temporal, namespace: not,")
    configuration.write_text(text)
    ended = here.cli(*command.split())
    assert ended.returncode == 3, ended.stderr
    assert "the Temporal server has no namespace 'not'" in ended.stderr
    assert "serving" not in ended.stderr


def test_a_worker_of_an_untrusted_project_runs_nothing(project: Make, tmp_path: Path) -> None:
    here = project(CYCLE)
    text = (here.folder / "orchestration.yaml").read_text()
    there = FleetProject(tmp_path / "clone", "", text)
    there.variables = {"SEQUENCER_TRUST": "", "XDG_STATE_HOME": str(tmp_path / "state")}
    ended = there.cli("worker")
    assert ended.returncode == 2
    assert "not trusted on this machine" in ended.stderr
    assert there.cli("trust", "--yes").returncode == 0
    with there.worker("--max-parallel", "1"):
        # Somebody changes what the worker would run; it has not met the run by then.
        (there.folder / "agent.py").write_text("print('evil')\n")
        ended = here.cli("run", "--max-steps", "3", timeout_s=150)
        assert ended.returncode == 0, ended.stderr
    outputs = [
        one["outcome"]["output"] for one in here.facts("history") if one["event"] == "succeeded"
    ]
    assert len(here.done) == len(outputs) == 3
    assert "evil" not in outputs


def test_a_worker_reports_that_the_server_is_away_and_back(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        here = arena.project("p")
        with here.worker() as worker:
            assert worker.stdout is not None
            arena.server.kill()
            assert "all runs notice: the Temporal server does not" in worker.stdout.readline()
            arena.server.start()
            assert "the Temporal server answers again" in worker.stdout.readline()
            assert here.cli("run", "--max-steps", "1").returncode == 0
