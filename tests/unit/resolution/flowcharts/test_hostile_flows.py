from __future__ import annotations

import json
import time
from collections.abc import Callable

from hypothesis import event, given
from hypothesis import strategies as st

from sequencer.workflows.flowfile.problems import FlowErrors
from sequencer.workflows.flowfile.reader import FlowFile, read_flow
from tests.unit.resolution.flowcharts.flows import (
    FILE,
    flow_text,
    read,
    refusal,
    sections,
    settings,
    told,
)


def test_a_chart_of_a_mebibyte_is_refused_in_words() -> None:
    text = flow_text("\n".join(f"node_{place:06} --> b" for place in range(58_000)))
    begin = time.process_time()
    problems = refusal(text).problems
    assert time.process_time() - begin < 10
    assert [problem.code for problem in problems] == ["E-CHART"]


def test_deep_nesting_is_refused_in_words() -> None:
    chart = "\n".join(f"subgraph g{depth}" for depth in range(90)) + "\na\n" + "end\n" * 90
    found = told(flow_text(chart, sections("a")))
    assert [line.split(":")[2] for line in found] == [" groups are nested deeper than 32 levels"]
    deeper = "\n".join(f"subgraph g{depth}" for depth in range(5_000)) + "\na\n" + "end\n" * 5_000
    assert [problem.code for problem in refusal(flow_text(deeper, sections("a"))).problems] == [
        "E-CHART"
    ]
    state = "state: " + "{a: " * 100 + "1" + "}" * 100 + "\n"
    assert told(flow_text("a", sections("a"), state)) == [
        "2:132 E-FRONT flow.md: nested deeper than 32 levels"
    ]


def test_a_file_of_thirty_nodes_loads_in_milliseconds() -> None:
    chart = "\n".join(f"n{place}[Node] --> n{place + 1}" for place in range(29))
    rest = "".join(
        settings(f"n{place}", f"model: a/b\ntools: {{read: true}}\noutput.key: k{place}")
        for place in range(30)
    )
    text = flow_text(chart, rest)
    best = 1.0
    for _ in range(10):
        begin = time.process_time()
        read(text)
        best = min(best, time.process_time() - begin)
    assert best < 0.05


_LINES = st.sampled_from(
    [
        "---", "```mermaid", "```", "flowchart TD", "a --> b", "b -->|x| a", "a --- c", "### a",
        "### b", "### g", "subgraph g", "end", "g --> a", "h{{Q}} -->|no| a", "q{x} --> h",
        "timeout: 5", "options: [no]", "output.key: a.b", "state: {a: 1}", "entrypoint: g",
        "onError: h", "{{state.a.b}} {{nodes.a.output}}", "tools: {read: true}", "x: [", "",
        "config: {timeout: 1, retry: {maxAttempts: 2}}", "onTimeout: q", "a[(x)]", "## t", "text",
    ]
)  # fmt: skip


def _problem_of(reading: Callable[..., FlowFile], text: str) -> FlowErrors | None:
    try:
        reading(text, file=FILE)
    except FlowErrors as error:
        return error
    return None


@given(st.lists(_LINES, max_size=40).map("\n".join) | st.text(max_size=200))
def test_any_text_is_a_workflow_or_refused_in_words(text: str) -> None:
    for reading in (read_flow, read_flow):
        problem = _problem_of(reading, text)
        assert problem is None or problem.problems


@given(st.lists(_LINES, max_size=25), st.lists(_LINES, max_size=25))
def test_any_chart_with_any_sections_is_too(chart: list[str], rest: list[str]) -> None:
    text = "```mermaid\nflowchart TD\n" + "\n".join(chart) + "\n```\n" + "\n".join(rest)
    try:
        flow = read_flow(text, file=FILE)
    except FlowErrors:
        event("refused")
    else:
        event("loaded")
        assert json.loads(flow.workflow.model_dump_json())["kind"] == "graph"
