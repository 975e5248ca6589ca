from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError
from sequencer.plugins.teams.expansion import TeamExpander
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.team import Task
from sequencer.workflows.flowfile.settings import Overrides
from sequencer.workflows.simulate import NodeScript, Replay, apply_overrides, read_script, simulate
from tests.unit.engine.flow.labs import failed
from tests.unit.engine.flow.team_labs import AT_ONCE, JUDGE, YES, adds, no, task, team

NO = {"pass": False, "reason": "2 tests fail"}
CREW = [task("build"), task("check", "build", **JUDGE), task("ship", "check")]


def replay(tasks: list[Task], size: int | None = None, **nodes: Any) -> Replay:
    """Replay *tasks*; *nodes* are as in a script, ``-`` written as ``_``."""
    named = {name.replace("_", "-"): node for name, node in nodes.items()}
    script = read_script({"nodes": named}, "script.json")
    workflow = build_task_workflow("crew", tasks, {}, size=size)
    return simulate(workflow, script.parts, TeamExpander({}))


def judging(**more: Any) -> list[Task]:
    check = task("check", "build", validation={**JUDGE["validation"], **more})
    return [task("build"), check, task("ship", "check")]


def test_a_judge_passes_unless_the_script_rejects() -> None:
    assert "check-fix-1" not in "".join(replay(CREW).trace)
    done = replay(CREW, check={"out": [NO, {"pass": True}]}, check_fix_1={"ms": 500})
    assert list(done.trace)[2:] == [
        *("10 start check", "20 no check", "20 add check-fix-1 <- check"),
        *("20 start check-fix-1", "520 done check-fix-1", "520 start check", "530 done check"),
        *("530 start ship", "540 done ship"),
    ]
    assert done.graph is not None
    assert "check-fix-1" in done.graph.by_id


def test_a_judge_without_a_verdict_is_asked_again_and_nothing_is_fixed() -> None:
    done = replay(CREW, check={"out": ["looks good to me"]})
    assert done.status == "failed"
    assert list(done.trace)[2:] == [
        "10 start check",
        "20 fail check attempt 1: no verdict in the answer",
        "20 retry check attempt 2",
        "30 fail check attempt 2: no verdict in the answer",
    ]
    again = replay(CREW, check={"out": ["looks good to me", {"pass": True}]})
    assert again.status == "completed"


def test_a_task_continues_after_the_last_rejection_if_allowed() -> None:
    done = replay(judging(on_exhausted="continue", max_attempts=2), check={"out": [NO]})
    assert done.status == "completed"
    assert [line.split(" ", 1)[1] for line in done.trace][-3:] == [
        *("done check", "start ship", "done ship"),
    ]


@pytest.mark.parametrize("answer", ["no JSON", '{"tasks": [{"id": "end"}]}'])
def test_an_answer_that_can_not_be_added_fails_the_lead(answer: str) -> None:
    done = replay([task("lead", adds="tasks"), task("end", "lead")], lead={"out": [answer]})
    assert done.status == "failed"
    assert done.trace[1].startswith("10 fail lead attempt 1: no task is added")


# --- beside a real run -------------------------------------------------------------------

TEAMS: dict[str, tuple[list[Task], dict[str, Any], dict[str, NodeScript]]] = {
    "plain": (CREW, {"check": YES}, {}),
    "two fixes": (
        CREW,
        {"check": [no("a"), no("b"), YES]},
        {"check": NodeScript(out=({"pass": False, "reason": "a"}, NO, {"pass": True}))},
    ),
    "patience": (
        CREW,
        {"check": no("never")},
        {"check": NodeScript(out=({**NO, "reason": "never"},))},
    ),
    "anew": (
        judging(fixer=None),
        {"check": [no("a"), YES]},
        {"check": NodeScript(out=(NO, {"pass": True}))},
    ),
    "retry": (
        [task("a", **AT_ONCE), task("b", "a")],
        {"a": [failed("x"), "ok"]},
        {"a": NodeScript(out=({"error": "x"}, "ok"))},
    ),
    "fails": (
        [task("a"), task("b", "a")],
        {"a": failed("boom")},
        {"a": NodeScript(out=({"error": "boom"},))},
    ),
    "grows": (
        [task("lead", adds="tasks"), task("end", "lead")],
        {"lead": adds(("one",), ("two", "one"))},
        {"lead": NodeScript(out=(json.loads(adds(("one",), ("two", "one"))),))},
    ),
}


@pytest.mark.parametrize("name", TEAMS)
def test_a_run_goes_as_the_replay_predicts(tmp_path: Path, name: str) -> None:
    tasks, says, parts = TEAMS[name]
    made = team(tmp_path, tasks, says, size=1)
    made.ended()
    workflow = build_task_workflow("crew", tasks, {}, size=1)
    done = simulate(workflow, parts, TeamExpander({}))
    assert made.trace() == [line.partition(" ")[2] for line in done.trace]
    assert str(made.status) == done.status
    assert {node.id for node in made.graph.nodes} == set(done.graph.by_id if done.graph else ())


# --- what the script lays over the list --------------------------------------------------


def test_times_and_retries_override_those_of_the_tasks() -> None:
    said = read_script(
        {
            "nodes": {"a": {"timeout": 1500}},
            "retry": {"maxAttempts": 2, "initialDelay": 70, "maxDelay": 500, "backoff": "fixed"},
            "timeout": 9000,
        },
        "s.json",
    ).overrides
    workflow = build_task_workflow("crew", [task("a"), task("b", **AT_ONCE)], {})
    found = apply_overrides(workflow, said, "s.json", 3)
    a, b = found.steps
    assert a.timeout_s == 1.5
    assert a.retry is not None
    assert (a.retry.max_attempts, a.retry.initial_delay_s, a.retry.max_delay_s) == (2, 0.07, 0.5)
    assert b.retry is not None
    assert b.retry.max_attempts == 3
    assert found.graph is not None
    assert (found.graph.timeout_ms, found.graph.max_parallel) == (9000, 3)
    sized = build_task_workflow("crew", [task("a")], {}, size=2)
    assert apply_overrides(sized, said, "s.json", 3).graph.max_parallel == 2  # type: ignore[union-attr]


def test_overrides_for_charts_only_are_refused_all_at_once() -> None:
    workflow = build_task_workflow("crew", [task("a")], {})
    with pytest.raises(ConfigurationError) as refused:
        apply_overrides(
            workflow, Overrides(entry="a", on_error="a", max_iterations=3), "s.json", None
        )
    for key in ("entry", "onError", "maxIterations"):
        assert f"s.json: {key}: is for the file of a flowchart" in str(refused.value)
