from __future__ import annotations

import cProfile
import json
from pathlib import Path
from typing import Any

import pytest

from sequencer.model.step import Retry, Step
from sequencer.model.workflow import Workflow
from sequencer.workflows import simulate as module
from sequencer.workflows.flowfile.problems import FlowErrors
from sequencer.workflows.flowfile.reader import read_flow
from sequencer.workflows.simulate import EndlessReplay, NodeScript, Replay, read_script, simulate
from tests.flows import workflow

FLOWS = json.loads((Path(__file__).parents[2] / "data/flowcharts/flows.json").read_text())
VALID = [flow for flow in FLOWS if flow["expect"]["status"] != "invalid"]
INVALID = [flow for flow in FLOWS if flow["expect"]["status"] == "invalid"]


def recorded(flow: dict[str, Any]) -> Replay:
    """Replay a recorded flow all the way from the text of its chart."""
    script = read_script(flow, "script.json")
    chart = read_flow(flow["mermaid"], file=Path("flow.mmd"), overrides=script.overrides)
    script.check(chart.graph)
    return simulate(chart.workflow, script.parts)


def ran(text: str, parts: dict[str, NodeScript] | None = None, **settings: Any) -> list[str]:
    return list(simulate(workflow(text, **settings), parts).trace)


@pytest.mark.parametrize("flow", VALID, ids=lambda flow: flow["name"])
def test_a_recorded_flow_runs_as_it_was_recorded(flow: dict[str, Any]) -> None:
    found, expect = recorded(flow), flow["expect"]
    assert list(found.trace) == expect["trace"]
    assert found.status == expect["status"]
    assert found.state == expect["state"]
    assert list(found.back) == expect["back"]
    assert found.iterations == expect["iterations"]


@pytest.mark.parametrize("flow", INVALID, ids=lambda flow: flow["name"])
def test_the_reason_a_flow_cannot_be_loaded_is_reported(flow: dict[str, Any]) -> None:
    with pytest.raises(FlowErrors) as refused:
        recorded(flow)
    (problem,) = refused.value.problems
    assert [f"load error: {problem.message}"] == flow["expect"]["trace"]


def test_only_a_graph_is_simulated() -> None:
    with pytest.raises(ValueError, match="is not a graph"):
        simulate(Workflow("w", (Step(name="a"),)))


def test_a_choice_without_a_script_takes_the_first_path_forward() -> None:
    trace = ran("a --> q{{Q}}; q -->|again| a; q -->|timeout| t; q -->|yes| b; q -->|no| c")
    assert trace[3] == "20 done q = yes"


def test_the_default_is_taken_if_no_labeled_path_leads_forward() -> None:
    assert ran("a --> b; b -->|again| a; b --> c")[3:5] == ["20 done b = ", "20 start c"]


def calls(made: Workflow, parts: dict[str, NodeScript] | None = None) -> int:
    """Return how many functions a replay of *made* calls."""
    profile = cProfile.Profile()
    profile.runcall(simulate, made, parts)
    return sum(entry.callcount for entry in profile.getstats())


def side_by_side(width: int, **settings: Any) -> Workflow:
    text = "; ".join(f"s --> n{place}; n{place} --> e" for place in range(width))
    return workflow(text, **settings)


FAILING = {"out": ({"error": "no"}, "yes")}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, {}),
        ({"max_parallel": 3}, {}),
        ({"max_parallel": 3, "retry": Retry(max_attempts=2)}, FAILING),
        ({"retry": Retry(max_attempts=2, initial_delay_s=0.0)}, FAILING),
    ],
)
def test_the_cost_of_a_replay_grows_only_with_its_events(
    settings: dict[str, Any], parts: dict[str, Any]
) -> None:
    wide, wider = (
        calls(side_by_side(width, **settings), {f"n{n}": NodeScript(**parts) for n in range(width)})
        for width in (200, 800)
    )
    assert wider < 4.6 * wide


def test_an_endless_flow_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 10_000)
    made = workflow("a --> b; b --> a", max_iterations=1_000_000)
    with pytest.raises(EndlessReplay) as endless:
        simulate(made)
    assert endless.value.exit_code == 2
    assert "not ended after 10,000 events" in endless.value.message
    assert "1,000,000 loops" in endless.value.message
    assert "maxIterations" in (endless.value.hint or "")
