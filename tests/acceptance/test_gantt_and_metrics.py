"""The real command on the journal of a real run: what side by side gains, and what it cost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, launched, until
from tests.acceptance.flow_projects import write_flow

AGENT = """\
import json, os, sys, time
time.sleep(float(sys.stdin.read().split()[-1]))
step = os.environ["SEQUENCER_STEP"]
usage = {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.01}
with open(os.environ["SEQUENCER_RESULT"], "w") as file:
    json.dump({"status": "ok", "output": step, "usage": usage}, file)
"""
CONFIGURATION = """\
agent: {default: script}
limits: {max_cost_usd: 1}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py]}
"""
CHART = """\
  plan --> a & b & c
  a & b & c --> join
"""
STEPS = ("plan", "a", "b", "c", "join")


def make(folder: Path, **seconds: float) -> Path:
    (folder / "agent.py").write_text(AGENT)
    (folder / "orchestration.yaml").write_text(CONFIGURATION)
    (folder / "flows").mkdir()
    write_flow(folder, "f", CHART, **{step: str(s) for step, s in seconds.items()})
    return folder


def gantt(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli(folder, "report", "--run", "f", "--json").stdout)
    return found


@pytest.mark.slow
def test_metrics_report_the_cost_of_a_run(tmp_path: Path) -> None:
    folder = make(tmp_path, **dict.fromkeys(STEPS, 0.0))
    assert cli(folder, "run", "f", "--quiet").returncode == 0
    path = tmp_path / "out.prom"
    ended = cli(
        folder,
        "report",
        "--metrics",
        "--all-runs",
        "--format",
        "prometheus",
        "--output",
        str(path),
        "--quiet",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    lines = path.read_text().splitlines()
    cost = [line for line in lines if line.startswith("sequencer_cost_usd_total")]
    assert len(cost) == 5
    assert all(line.endswith(" 0.01") for line in cost)
    assert 'sequencer_run_cost_usd_total{run="f",workflow="f"} 0.05' in lines
    assert 'sequencer_run_input_tokens_total{run="f",workflow="f"} 500.0' in lines
    left = 'sequencer_budget_left_usd{name="",run="f",scope="run",workflow="f"} 0.95'
    assert left in lines
    assert 'sequencer_run_status{run="f",status="complete",workflow="f"} 1.0' in lines


@pytest.mark.slow
def test_a_run_that_was_killed_and_taken_over(tmp_path: Path) -> None:
    folder = make(tmp_path, **{**dict.fromkeys(STEPS, 0.0), "plan": 30.0})
    worker = launched(folder, "run", "f", "--quiet")
    try:
        state = folder / "sync" / "runs" / "f" / "state.json"
        until(lambda: state.exists() and json.loads(state.read_text())["claims"])
        (running,) = gantt(folder)["executions"]
        assert [span["kind"] for span in running["spans"]] == ["running"]
        metrics = cli(folder, "report", "--metrics", "--run", "f").stdout
        assert 'sequencer_run_claims{run="f",workflow="f"} 1.0' in metrics
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    quick = AGENT.replace("time.sleep(float(sys.stdin.read().split()[-1]))", "sys.stdin.read()")
    (folder / "agent.py").write_text(quick)
    time.sleep(0.1)
    assert cli(folder, "run", "f", "--quiet").returncode == 0
    plan = gantt(folder)["executions"][0]
    assert [span["kind"] for span in plan["spans"]] == ["cut", "done"]
    assert [span["attempt"] for span in plan["spans"]] == [1, 2]
    metrics = cli(folder, "report", "--metrics", "--run", "f").stdout
    (lost,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("sequencer_attempts_taken_over_total") and line.endswith(" 1.0")
    ]
    assert 'step="plan"' in lost
