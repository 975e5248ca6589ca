"""The flow family of the bench: what it measures is what it says; how fast it is, nobody asks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import disk
from bench.flows import PLACES, chart, fan, flow_run
from bench.measuring import Effort
from bench.peers import installing
from bench.project import make_project
from bench.rows import Setting, flow, measure
from bench.rows.flow_child import schedule
from bench.rows.step import started
from sequencer import InvocationLimits, Mode
from sequencer.testing import ScratchProject

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench is Linux's")

JUDGED = {"flow parse", "flow scheduling", "flow linear", "flow head", "flow head growth"}
SHOWN = {"flow file", "flow tokens", "flow node", "flow node beyond a step", "flow node wall"}


def test_the_chart_has_the_size_in_the_row_and_a_mix_of_features(tmp_path: Path) -> None:
    (tmp_path / "chart.mmd").write_text(chart())
    found = ScratchProject(tmp_path).run_command("plan", "--chart", "chart.mmd", "--json").json
    assert len(found["nodes"]) == 30
    assert 35 <= len(found["edges"]) <= 40
    assert len(found["subgraphs"]) == 1
    labels = {edge["label"] for edge in found["edges"]}
    assert labels >= {"approve", "reject", "needs tests", "passed"}
    assert "class " in chart()


@pytest.mark.parametrize("width", [1, 7, 8, 9, 300])
def test_the_measured_scheduling_runs_to_the_end(width: int) -> None:
    # It raises where a node is left over.
    assert schedule(fan(width)) > 0
    assert schedule(fan(width), is_written=False) > 0


def test_the_run_that_is_measured_is_a_real_one(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    seen: list[int] = []
    run = flow_run(project, fan(20), "fan", seen.append)
    run.work(Mode.COMBINED, InvocationLimits(max_steps=None), places=PLACES)
    accepted = [fact["step"] for fact in run.history() if fact["event"] == "succeeded"]
    assert len(accepted) == len(set(accepted)) == len(seen) == 22
    assert (accepted[0], accepted[-1]) == ("first", "last")
    logs = (tmp_path / "project" / "logs").rglob("iter-*.log")
    assert len(list(logs)) == 22, "the logs are written as well"


@pytest.mark.slow
def test_the_family_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "ENVIRONMENTS", tmp_path / "nowhere")
    monkeypatch.setattr(disk, "MEMORY", tmp_path / "nowhere")
    monkeypatch.setattr(flow, "QUICK_MANY", 120)
    monkeypatch.setattr(flow, "QUICK_FEW", 40)
    monkeypatch.setattr(flow, "BESIDE", 40)
    place = tmp_path / "work"
    place.mkdir()
    setting = Setting(place, Effort(0.0, 200, 0.5), with_peers=True)
    found = {row.name: row for row in measure("flow", setting)}
    assert found.keys() == JUDGED | SHOWN | {"flow vs langgraph"}, found
    for name in JUDGED:
        assert found[name].ok is not None, found[name]
    for name in SHOWN:
        assert found[name].ratio is not None
        assert found[name].bar is None
    assert found["flow head"].ok is True, found["flow head"]
    assert "--install-peers" in found["flow vs langgraph"].note


@pytest.mark.slow
def test_the_peer_runs_the_same_graph(tmp_path: Path) -> None:
    if installing.why_absent("langgraph") is not None:
        pytest.skip("LangGraph is not installed for the bench")
    setting = Setting(disk.spread(tmp_path), Effort(0.0, 200, 0.5), with_peers=True)
    with started(setting, "langgraph", "flow") as child:
        told = child.ask({"count": 12, "places": 3})
    assert told["cpu"] > 0
    assert told["wall"] > 0
