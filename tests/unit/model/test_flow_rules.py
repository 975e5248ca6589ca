from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.net import record as flow_record
from sequencer.model.net import rules as flow_trace
from sequencer.model.net.marking import FlowStatus, Marking
from sequencer.model.net.rules import Course
from tests.flows import graph


def course(text: str, **settings: Any) -> Course:
    return Course(Marking(graph(text, **settings)))


def begun(text: str, *names: str, **settings: Any) -> Course:
    """Return a course whose entries have begun, in order, and nothing more."""
    made = course(text, **settings)
    made.begin()
    for name in names or made.graph.entries:
        made.start(name)
    made.facts.clear()
    return made


def waits(made: Course) -> dict[str, list[str]]:
    return {name: list(sources) for name, sources in made.marking.waiting.items()}


def lines(made: Course) -> list[str | None]:
    return [flow_trace.line(fact.event, fact.node, fact.details) for fact in made.facts]


def test_the_operations_replayed_give_the_same_marking() -> None:
    made = course("a --> b; b -->|again| a; b -->|on| c", max_iterations=3)
    made.begin()
    for name, output in (("a", ""), ("b", "again"), ("a", ""), ("b", "on")):
        made.start(name)
        made.succeed(name, output, f"0-{len(made.operations)}")
    copy = Marking(made.graph)
    for operation in made.operations:
        copy.apply(operation)
    assert flow_record.snapshot(copy) == flow_record.snapshot(made.marking)


# --- the state -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "state", "keys", "blocked"),
    [
        ("m.x", {}, {}, None),
        ("m.x", {"m": {}}, {}, None),
        ("m.x", {"m": None}, {}, None),
        ("m.x", {"m": {"x": "old"}}, {}, None),
        ("m.x", {"m": "text"}, {}, "m"),
        ("m.x", {"m": 0}, {}, "m"),
        ("m.x", {"m": []}, {}, "m"),
        ("m.x.y", {"m": {"x": False}}, {}, "m.x"),
        ("m.x", {}, {"m": "b"}, "m"),
        ("m.x.y", {}, {"m.x": "b"}, "m.x"),
        ("m.x", {}, {"m.y": "b", "m.x.z": "b", "mm": "b"}, None),
        ("m", {"m": {"x": 1}}, {"m.x": "b"}, None),
    ],
)
def test_a_key_below_what_is_no_map_is_a_failure(
    key: str, state: dict[str, Any], keys: dict[str, str], blocked: str | None
) -> None:
    made = begun("a --> b", nodes={"a": {"output_key": key}}, state=state)
    made.marking.keys.update(keys)
    made.succeed("a", "text", "0-1")
    if blocked is None:
        assert (lines(made), made.marking.keys[key]) == (["done a"], "a")
        return
    assert lines(made) == [f"fail a: output.key {key!r}: {blocked!r} in the state is no map"]
    assert made.facts[0].details["type"] == "OutputKey"
    assert (made.marking.status, made.marking.outputs) == (FlowStatus.FAILED, {})


# --- loops ---------------------------------------------------------------------------------


def test_an_edge_that_leads_back_is_counted_before_its_token_moves() -> None:
    made = begun("a --> a; a --> b", max_iterations=1)
    made.succeed("a", "")
    assert (lines(made), made.marking.iterations) == (["done a", "loop a -> a #1"], 1)
    assert made.operations[-2:] == [["loop", 1], ["follow", "a", ["a", "b"]]]
    assert waits(made) == {"a": ["a"], "b": ["a"]}


def test_one_loop_too_many_ends_the_run_and_a_retry_goes_on_behind_it() -> None:
    made = begun("s --> x; a --> b; b --> a", "s", "a", entries=["s", "a"], max_iterations=0)
    made.succeed("a", "")
    made.start("b")
    made.facts.clear()
    made.succeed("b", "")
    assert lines(made) == ["done b", "maxIterations 0 exceeded at b -> a; cancelled s"]
    assert made.marking.status is FlowStatus.MAX_ITERATIONS
    assert made.marking.ended_at == [["s", [], True], ["a", ["b"], False]]
    assert made.marking.iterations == 1
    made.do("restore")
    # What was accepted does not run again.
    assert (list(made.marking.active), made.marking.waiting) == (["s"], {"a": {"b": None}})


# --- failures ------------------------------------------------------------------------------


def test_with_an_error_node_the_run_goes_on_there_alone() -> None:
    made = begun("a --> j; b --> j; c --> j; h --> j", "a", "c", entries=list("abc"), on_error="h")
    made.fail_attempt("a", "boom", "2026")
    made.facts.clear()
    made.fail_attempt("a", "x" * 1000, None)
    assert lines(made)[1] == "onError -> h; cancelled c"
    error = made.marking.error
    assert error == {"node": "a", "type": "error", "message": f"{'x' * 200}…", "attempts": 2}
    assert (waits(made), made.marking.active) == ({"h": []}, {})
    made.start("h")
    made.succeed("h", "")
    made.start("j")
    made.succeed("j", "")
    assert made.marking.status is FlowStatus.COMPLETED_AFTER_ERROR


def test_the_error_node_is_used_once_and_not_for_itself() -> None:
    second = begun("a; h --> b", on_error="h")
    second.fail("a", "X", "one")
    second.start("h")
    second.succeed("h", "")
    second.start("b")
    second.fail("b", "X", "two")
    assert second.marking.status is FlowStatus.FAILED
    assert second.marking.error is not None
    assert second.marking.error["node"] == "a"
    itself = begun("h --> b", on_error="h")
    itself.fail("h", "X", "one")
    assert (itself.marking.status, itself.marking.error) == (FlowStatus.FAILED, None)


# --- people and time -----------------------------------------------------------------------


def test_a_jump_that_leads_back_is_a_loop() -> None:
    jump = {"h": {"timeout_ms": 5, "on_timeout": "a"}}
    made = begun("a --> h{{H}} --> b", "h", entries=["h"], nodes=jump, max_iterations=1)
    made.expire("h")
    assert lines(made) == ["timeout h -> a", "loop h -> a #1"]
    assert waits(made) == {"a": ["h"]}
    itself = {"h": {"timeout_ms": 5, "on_timeout": "h"}}
    over = begun("h{{H}}", nodes=itself, max_iterations=0)
    over.expire("h")
    assert lines(over) == ["timeout h -> h", "maxIterations 0 exceeded at h -> h"]
    assert over.marking.status is FlowStatus.MAX_ITERATIONS


def test_without_a_jump_the_edges_say_where_it_goes() -> None:
    labelled = begun("h{{H}} -->|yes| a; h -->|Timeout| b")
    labelled.expire("h")
    assert (lines(labelled), list(labelled.marking.waiting)) == (["done h = timeout"], ["b"])
    plain = begun("h{{H}} --> a & b")
    plain.expire("h")
    assert (lines(plain), list(plain.marking.waiting)) == (["timeout h"], ["a", "b"])
    last = begun("h{{H}}")
    last.expire("h")
    assert lines(last) == ["fail h: no matching branch for 'timeout'"]
    assert last.marking.status is FlowStatus.FAILED


@pytest.mark.parametrize(
    ("end", "status", "line"),
    [
        ("time_is_up", "timed_out", "workflow timeout; cancelled a, b"),
        ("cancel", "cancelled", "stopped by hand; cancelled a, b"),
    ],
)
def test_the_run_can_be_ended_from_outside(end: str, status: str, line: str) -> None:
    made = begun("a; b --> c", "b", "a", entries=["b", "a"])
    getattr(made, end)()
    assert (lines(made), str(made.marking.status)) == ([line], status)
    assert made.marking.is_over
