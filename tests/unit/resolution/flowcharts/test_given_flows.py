"""Thirty flows with what has to come of them; here as far as reading them goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequencer.workflows.flowfile.problems import FlowErrors
from sequencer.workflows.flowfile.reader import FlowFile, read_flow
from sequencer.workflows.flowfile.settings import Overrides
from tests.project.documents import ROOT
from tests.unit.resolution.flowcharts.flows import sections

FLOWS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "data" / "flowcharts" / "flows.json").read_text()
)
VALID = [flow for flow in FLOWS if flow["expect"]["status"] != "invalid"]
INVALID = [flow for flow in FLOWS if flow["expect"]["status"] == "invalid"]


def overrides_of(flow: dict[str, Any]) -> Overrides:
    nodes = flow.get("nodes", {})
    return Overrides(
        entry=flow.get("entry"),
        on_error=flow.get("onError"),
        retry=flow.get("retry"),
        max_iterations=flow.get("maxIterations"),
        timeout=flow.get("timeout"),
        timeouts={name: node["timeout"] for name, node in nodes.items() if "timeout" in node},
    )


def back(flow: FlowFile) -> list[str]:
    edges = [flow.graph.edges[place] for place in flow.graph.back_edges]
    return sorted(f"{e.source}->{e.target}" + (f"[{e.label}]" if e.label else "") for e in edges)


@pytest.mark.parametrize("given", VALID, ids=lambda flow: flow["name"])
def test_each_valid_flow_is_read_with_its_loops(given: dict[str, Any]) -> None:
    flow = read_flow(given["mermaid"], file=Path("f.mmd"), overrides=overrides_of(given))
    assert back(flow) == sorted(given["expect"]["back"])
    assert flow.graph.on_error == given.get("onError")
    assert flow.graph.timeout_ms == given.get("timeout")


@pytest.mark.parametrize("given", VALID, ids=lambda flow: flow["name"])
def test_the_same_chart_in_a_file_with_sections_is_the_same_graph(given: dict[str, Any]) -> None:
    overrides = overrides_of(given)
    chart = read_flow(given["mermaid"], file=Path("f.mmd"), overrides=overrides)
    agents = [step.name for step in chart.workflow.steps]
    text = f"```mermaid\n{given['mermaid']}\n```\n{sections(*agents)}"
    document = read_flow(text, file=Path("f.md"), overrides=overrides)
    assert document.graph == chart.graph
    assert [step.name for step in document.workflow.steps] == agents
    assert [problem.code for problem in document.warnings] == [
        problem.code for problem in chart.warnings
    ]


@pytest.mark.parametrize("given", INVALID, ids=lambda flow: flow["name"])
def test_each_invalid_flow_is_refused_in_the_given_words(given: dict[str, Any]) -> None:
    with pytest.raises(FlowErrors) as refused:
        read_flow(given["mermaid"], file=Path("f.mmd"), overrides=overrides_of(given))
    told = [f"load error: {problem.message}" for problem in refused.value.problems]
    assert told == given["expect"]["trace"]
