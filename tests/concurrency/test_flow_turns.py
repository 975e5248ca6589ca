"""Graph runs under fire: shared by processes, killed at any moment, stopped and paused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sequencer import commands
from tests.acceptance.cli_process import cli, launched, until
from tests.concurrency import children, flow_points, flow_runs
from tests.concurrency.flow_runs import Flow
from tests.long.__main__ import in_own_process
from tests.long.report import Size

pytestmark = pytest.mark.timeout(300)
"""Campaigns use up to 20 s of CPU each, which takes minutes on a busy machine."""


def started(flow: Flow, *arguments: str) -> subprocess.Popen[str]:
    return launched(
        flow.folder,
        "run",
        f"{flow_runs.NAME}.md",
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, told = process.communicate(timeout=60)
    return process.returncode, told


def head(flow: Flow) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((flow.sync / "state.json").read_text())
    return found


# --- the campaigns, as every push runs them --------------------------------------------


def test_killed_damaged_and_shared_runs_accept_each_node_once(tmp_path: Path) -> None:
    # A fork of this process is slow: it holds all tests.
    report = in_own_process("A-flow-kills", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"] == {"kills": 8, "runs": 3}


def test_a_graph_run_survives_a_fault_at_the_calls_of_its_transitions(tmp_path: Path) -> None:
    report = in_own_process("A-flow-points", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"]["crash points"] >= flow_points.MIN_POINTS


# --- the command line ------------------------------------------------------------------


def test_three_processes_share_a_fan_out(tmp_path: Path) -> None:
    """Nobody's agent ends before the first process has more to do than it has places for."""
    flow = flow_runs.fan(tmp_path / "p", 12, 0.0)
    flow.hold(*flow.nodes[1:-1])
    processes = [started(flow, "--max-parallel", "2", "--json") for _ in range(3)]
    until(lambda: len(flow.began()) > 1 + 2, 60.0)
    flow.let_go()
    shares = []
    for process in processes:
        printed, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
        shares.append(json.loads(printed)["steps"])
    assert sum(shares) == 14
    assert sum(map(bool, shares)) >= 2
    assert flow_runs.violations(flow, may_be_again=False) == []


def test_max_parallel_of_the_chart_holds_across_processes(tmp_path: Path) -> None:
    flow = flow_runs.fan(tmp_path / "p", 5, 0.2, config={"maxParallel": 2})
    flow.hold(*flow.nodes[1:-1])
    processes = [started(flow) for _ in range(2)]
    until(lambda: len(flow.began()) == 1 + 2, 60.0)
    view = flow.run().head
    most = len(view.claims) if view else 0
    flow.let_go()
    while any(process.poll() is None for process in processes):
        view = flow.run().head
        most = max(most, len(view.claims) if view else 0)
    assert [ended(process)[0] for process in processes] == [0, 0]
    assert most == 2
    assert flow_runs.violations(flow, may_be_again=False) == []


def test_a_sigterm_releases_every_claim_and_the_next_run_continues(tmp_path: Path) -> None:
    flow = flow_runs.fan(tmp_path / "p", 3, 20.0)
    (flow.folder / "flow.md").write_text(
        (flow.folder / "flow.md").read_text().replace("### s\nSleep 20.0", "### s\nSleep 0")
    )
    process = started(flow)
    until(lambda: len(flow.began()) == 4)
    os.kill(process.pid, signal.SIGTERM)
    code, told = ended(process)
    assert code == 130, told
    assert flow.agents() == []
    assert (head(flow)["claims"], head(flow)["status"]) == ([], "waiting-next")
    assert head(flow)["step_index"] == 1
    text = (flow.folder / "flow.md").read_text()
    (flow.folder / "flow.md").write_text(text.replace("Sleep 20.0", "Sleep 0"))
    # Prompts may change, the chart is the same.
    flow.work()
    assert flow_runs.violations(flow) == []


def test_a_sigkill_leaves_no_agent_running_and_the_next_run_takes_over(tmp_path: Path) -> None:
    flow = flow_runs.fan(tmp_path / "p", 3, 0.0)
    flow.hold(*flow.nodes[1:-1])
    process = started(flow)
    until(lambda: len(flow.began()) == 4)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not flow.agents(), 5.0)
    assert len(head(flow)["claims"]) == 3
    flow.let_go()
    flow.work()
    assert flow_runs.violations(flow) == []
    facts = list(flow.run().history())
    assert [fact["event"] for fact in facts].count("taken-over") == 3


def test_a_paused_run_waits_and_then_continues(tmp_path: Path) -> None:
    flow = flow_runs.fan(tmp_path / "p", 3, 0.0)
    flow.hold(*flow.nodes[1:-1])
    process = started(flow)
    until(lambda: len(flow.began()) >= 2)
    flow.run().do(commands.Pause())
    flow.let_go()
    assert ended(process)[0] == 0
    before = len(flow.began())
    assert before < 5
    assert head(flow)["status"] == "paused"
    again = cli(flow.folder, "run", "flow.md")
    assert (again.returncode, len(flow.began())) == (0, before)
    assert "paused" in again.stdout
    assert cli(flow.folder, "--run", "flow", "resume").returncode == 0
    flow.work()
    assert flow_runs.violations(flow, may_be_again=False) == []


# --- checks of the checks --------------------------------------------------------------


def test_the_sweep_detects_a_node_accepted_without_a_saved_output(tmp_path: Path) -> None:
    folder, (prepare, accept_b) = tmp_path / "run", flow_points.SCENARIOS["accept"]
    prepare(flow_points.control(folder))
    before = list(flow_points.control(folder).store.history())
    accept_b(flow_points.control(folder))
    outputs = [path for path in folder.rglob("output.txt") if path.read_text() == "output of b"]
    assert len(outputs) == 1
    assert flow_points.violations(shutil.copytree(folder, tmp_path / "whole"), before, {}) == []
    outputs[0].unlink()
    found = flow_points.violations(folder, before, {})
    assert "output.txt" in found[0]


def test_a_node_that_was_accepted_twice_is_noticed(tmp_path: Path) -> None:
    flow = flow_runs.fan(tmp_path / "p", 2, 0.0)
    flow.work()
    assert flow_runs.violations(flow, may_be_again=False) == []
    wrong = flow_runs.violations(replace(flow, nodes=("s", "n0", "n0", "j")))
    assert any("accepted" in text for text in wrong)
    children.append(flow.folder / "began", "n0 2")
    assert any("twice: [('n0', 2)]" in text for text in flow_runs.violations(flow))
    children.append(flow.folder / "began", "n0 99")
    assert "n0 ran with token 99" in flow_runs.violations(flow)
