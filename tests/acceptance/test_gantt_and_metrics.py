"""The real command on the journal of a real run: what side by side gains, and what it cost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sequencer.cli.views.gantt import LEAST_BASE_S
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
SIDE_BY_SIDE = """\
import json, os, sys, time
began = time.monotonic()
sys.stdin.read()
step, folder = os.environ["SEQUENCER_STEP"], os.path.dirname(os.environ["SEQUENCER_STATE"])
def until(found):
    while not found() and time.monotonic() < began + 100:
        time.sleep(0.01)
def seconds():
    with open(os.path.join(folder, "journal.jsonl")) as file:
        records = [json.loads(line) for line in file if line.endswith("\\n")]
    # Two that end at the same time are one record.
    facts = [fact for one in records for fact in (one, *one.get("also", ()))]
    told = [one for one in facts if one["event"] == "succeeded" and one["step"] in "bc"]
    return [one["outcome"]["usage"]["seconds"] for one in told]
open(f"began-{step}", "w").close()
if step in "abc":
    until(lambda: all(os.path.exists(f"began-{one}") for one in "abc"))
time.sleep(0.2)
if step == "a":
    until(lambda: len(seconds()) == 2)
    time.sleep(max(0, began + max(seconds()) + 0.2 - time.monotonic()))
"""
"""Three are at work at once, and a takes longest, however busy the machine is."""
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
    found: dict[str, Any] = json.loads(cli(folder, "gantt", "--run", "f", "--json").stdout)
    return found


def test_side_by_side_is_as_fast_as_the_longest_chain(tmp_path: Path) -> None:
    folder = make(tmp_path, **dict.fromkeys(STEPS, 0.0))
    (folder / "agent.py").write_text(SIDE_BY_SIDE)
    assert cli(folder, "run", "f", "--quiet").returncode == 0
    told = gantt(folder)
    figures = told["figures"]
    assert told["critical_path"] == ["plan", "a", "join"]
    spans = {one["step"]: one["spans"] for one in told["executions"]}
    assert [len(found) for found in spans.values()] == [1] * len(STEPS)
    took = {step: span["end_s"] - span["begin_s"] for step, (span,) in spans.items()}
    assert all(seconds >= 0.2 for seconds in took.values())
    begin = min(spans[step][0]["begin_s"] for step in "abc")
    assert spans["a"][0]["end_s"] - begin < sum(took[step] for step in "abc")
    assert figures["peak"] == 3
    assert figures["work_s"] == pytest.approx(sum(took.values()), abs=0.01)
    critical_s = sum(took[step] for step in told["critical_path"])
    assert figures["critical_s"] == pytest.approx(critical_s, abs=0.01)
    assert figures["critical_s"] <= figures["wall_s"]
    assert figures["speed_up"] == pytest.approx(figures["work_s"] / figures["wall_s"], abs=1e-3)
    longer = figures["wall_s"] / figures["critical_s"] - 1
    assert figures["overhead"] == pytest.approx(longer, abs=1e-3)
    text = cli(folder, "gantt", "--run", "f", PYTHONIOENCODING="utf-8").stdout
    assert text.startswith("f · complete\n")
    assert [line[:6].strip() for line in text.splitlines()[3:8] if line.startswith("◆")] == [
        "◆ plan", "◆ a", "◆ join",
    ]  # fmt: skip
    # Of less time a ratio says nothing.
    is_told = f"speed-up {figures['speed_up']:.2f}" in text
    assert is_told is (figures["wall_s"] >= LEAST_BASE_S)


def test_what_it_cost(tmp_path: Path) -> None:
    folder = make(tmp_path, **dict.fromkeys(STEPS, 0.0))
    assert cli(folder, "run", "f", "--quiet").returncode == 0
    path = tmp_path / "out.prom"
    ended = cli(
        folder, "metrics", "--all-runs", "--format", "prometheus", "--output", str(path), "--quiet"
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


def test_a_run_that_was_killed_and_taken_over(tmp_path: Path) -> None:
    folder = make(tmp_path, **{**dict.fromkeys(STEPS, 0.0), "plan": 30.0})
    worker = launched(folder, "run", "f", "--quiet")
    try:
        state = folder / "sync" / "runs" / "f" / "state.json"
        until(lambda: state.exists() and json.loads(state.read_text())["claims"])
        (running,) = gantt(folder)["executions"]
        assert [span["kind"] for span in running["spans"]] == ["running"]
        metrics = cli(folder, "metrics", "--run", "f").stdout
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
    metrics = cli(folder, "metrics", "--run", "f").stdout
    (lost,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("sequencer_attempts_taken_over_total") and line.endswith(" 1.0")
    ]
    assert 'step="plan"' in lost
