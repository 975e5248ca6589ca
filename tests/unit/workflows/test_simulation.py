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
from sequencer.workflows.simulate import (
    EndlessReplay,
    NodeScript,
    Replay,
    read_script,
    simulate,
)
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
def test_a_recorded_flow_goes_as_it_was_recorded(flow: dict[str, Any]) -> None:
    found, expect = recorded(flow), flow["expect"]
    assert list(found.trace) == expect["trace"]
    assert found.status == expect["status"]
    assert found.state == expect["state"]
    assert list(found.back) == expect["back"]
    assert found.iterations == expect["iterations"]


@pytest.mark.parametrize("flow", INVALID, ids=lambda flow: flow["name"])
def test_a_flow_that_can_not_be_loaded_says_why(flow: dict[str, Any]) -> None:
    with pytest.raises(FlowErrors) as refused:
        recorded(flow)
    (problem,) = refused.value.problems
    assert [f"load error: {problem.message}"] == flow["expect"]["trace"]


def test_only_a_graph_is_simulated() -> None:
    with pytest.raises(ValueError, match="is no graph"):
        simulate(Workflow("w", (Step(name="a"),)))


def test_without_a_script_a_choice_goes_the_first_way_forward() -> None:
    trace = ran("a --> q{{Q}}; q -->|again| a; q -->|timeout| t; q -->|yes| b; q -->|no| c")
    assert trace[3] == "20 done q = yes"


def test_without_a_way_forward_that_is_labelled_the_default_is_taken() -> None:
    assert ran("a --> b; b -->|again| a; b --> c")[3:5] == ["20 done b = ", "20 start c"]


def test_a_try_that_is_due_waits_for_a_place_and_comes_before_new_nodes() -> None:
    retry = Retry(max_attempts=2, initial_delay_s=0.005)
    parts = {"a": NodeScript(({"error": "boom"}, "ok"))}
    trace = ran("s((S)) --> a & b & c", parts, retry=retry, max_parallel=1)
    assert trace[2:] == [
        "0 start a",
        "10 fail a attempt 1: boom",
        "10 start b",
        "20 done b",
        "20 retry a attempt 2",
        "30 done a",
        "30 start c",
        "40 done c",
    ]


def test_a_person_who_is_late_takes_the_way_for_that() -> None:
    late = {"h": NodeScript(("yes",), (50,))}
    limits = {"h": {"timeout_ms": 20}}
    labelled = ran("h{{H}} -->|yes| a; h -->|timeout| b", late, nodes=limits)
    assert labelled[1:3] == ["20 done h = timeout", "20 start b"]
    default = ran("h{{H}} -->|yes| a; h -->|default| b", late, nodes=limits)
    assert default[1:3] == ["20 done h = timeout", "20 start b"]
    plain = ran("h{{H}} --> a", late, nodes=limits)
    assert plain[1:3] == ["20 timeout h", "20 start a"]
    jump = {"h": {"timeout_ms": 20, "on_timeout": "z"}}
    assert ran("h{{H}} -->|yes| a; z", late, nodes=jump)[1:3] == ["20 timeout h -> z", "20 start z"]
    nowhere = ran("h{{H}} -->|yes| a", late, nodes=limits)
    assert nowhere[1:] == ["20 done h = timeout", "20 fail h: no matching branch for 'timeout'"]


def test_time_in_which_a_try_is_awaited_counts_and_what_ends_in_time_is_good() -> None:
    retry = Retry(max_attempts=2, initial_delay_s=0.08)
    parts = {"a": NodeScript(({"error": "boom"}, "ok"))}
    assert ran("a", parts, retry=retry, timeout_ms=100)[-1] == "100 done a"
    assert ran("a", parts, retry=retry, timeout_ms=99)[-1] == "99 workflow timeout; cancelled a"
    assert ran("a", parts, retry=retry, timeout_ms=50)[-1] == "50 workflow timeout; cancelled a"


def calls(made: Workflow, parts: dict[str, NodeScript] | None = None) -> int:
    """Return how many functions a replay of *made* calls."""
    profile = cProfile.Profile()
    profile.runcall(simulate, made, parts)
    return sum(entry.callcount for entry in profile.getstats())


def side_by_side(width: int, **settings: Any) -> Workflow:
    text = "; ".join(f"s --> n{place}; n{place} --> e" for place in range(width))
    return workflow(text, **settings)


FAILING = {"out": ({"error": "no"}, "yes")}


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, {}),
        ({"max_parallel": 3}, {}),
        ({"max_parallel": 3, "retry": Retry(max_attempts=2)}, FAILING),
        ({"retry": Retry(max_attempts=2, initial_delay_s=0.0)}, FAILING),
    ],
)
def test_a_replay_costs_what_happens_however_many_run_at_once(
    settings: dict[str, Any], parts: dict[str, Any]
) -> None:
    wide, wider = (
        calls(side_by_side(width, **settings), {f"n{n}": NodeScript(**parts) for n in range(width)})
        for width in (200, 800)
    )
    assert wider < 4.6 * wide


def test_a_flow_without_an_end_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 10_000)
    made = workflow("a --> b; b --> a", max_iterations=1_000_000)
    with pytest.raises(EndlessReplay) as endless:
        simulate(made)
    assert endless.value.exit_code == 2
    assert "no end after 10,000 events" in endless.value.message
    assert "1,000,000 loops" in endless.value.message
    assert "maxIterations" in (endless.value.hint or "")


def test_joined_markers_one_after_the_other_do_not_multiply_what_they_hand_on() -> None:
    levels = 40
    lines = ["a & b --> m0((M))"]
    lines += [
        f"m{n} --> l{n}((L)) & r{n}((R)); l{n} & r{n} --> m{n + 1}((M))" for n in range(levels)
    ]
    lines += [f"m{levels} --> q{{Q}}; q -->|yes| x; q --> y"]
    found = simulate(
        workflow("\n".join(lines), entries=("a", "b")),
        {"a": NodeScript(("1",)), "b": NodeScript(("2",))},
    )
    chosen = next(line for line in found.trace if "done q" in line)
    assert json.loads(chosen.partition(" = ")[2]) == {"a": "1", "b": "2"}
