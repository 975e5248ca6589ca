from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.net import record as flow_record
from sequencer.model.net import rules as flow_trace
from sequencer.model.net.marking import FlowStatus, Marking
from sequencer.model.net.rules import Course, FlowFact
from sequencer.model.transitions import Event
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


def test_a_run_begins_with_a_token_on_each_entry() -> None:
    made = course("a --> b; c", entries=["a", "c"])
    made.begin()
    assert waits(made) == {"a": [], "c": []}
    assert made.operations == [["token", "a"], ["token", "c"]]


@pytest.mark.parametrize(
    ("text", "event", "done"),
    [
        ("n", Event.CLAIMED, Event.SUCCEEDED),
        ("n{{N}}", Event.ASKED, Event.ANSWERED),
        ("n((N))", Event.STARTED, Event.PASSED),
        ("n{N}", Event.STARTED, Event.PASSED),
    ],
)
def test_each_kind_of_node_has_its_events(text: str, event: Event, done: Event) -> None:
    made = course(text)
    made.begin()
    assert made.start("n") == made.graph.nodes[0]
    made.succeed("n", "")
    assert made.facts == [FlowFact(event, "n", {"from": []}), FlowFact(done, "n", {})]
    assert made.marking.status is FlowStatus.COMPLETED


def test_a_start_tells_which_tokens_it_merged() -> None:
    made = course("a & b --> j", entries=["a", "b"])
    made.begin()
    for name in ("b", "a"):
        made.start(name)
        made.succeed(name, "")
    made.facts.clear()
    made.start("j")
    assert lines(made) == ["start j <- b+a"]


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


def test_success_puts_a_token_on_each_edge_and_keeps_the_output() -> None:
    made = begun("a --> b; a --> c", nodes={"a": {"output_key": "k"}})
    made.succeed("a", "text", "0-1")
    assert waits(made) == {"b": ["a"], "c": ["a"]}
    assert (made.marking.outputs, made.marking.keys) == ({"a": "0-1"}, {"k": "a"})
    assert lines(made) == ["done a"]
    assert made.marking.status is FlowStatus.RUNNING


def test_a_choice_follows_one_group_and_says_what_was_said() -> None:
    made = begun("a -->|yes| b; a -->|no| c; a -->|yes| d")
    made.succeed("a", "Yes.")
    assert list(made.marking.waiting) == ["b", "d"]
    assert lines(made) == ["done a = Yes."]


def test_an_output_that_fits_no_branch_fails_for_good() -> None:
    made = begun("a -->|yes| b; a -->|no| c")
    made.succeed("a", "perhaps")
    assert lines(made) == ["done a = perhaps", "fail a: no matching branch for 'perhaps'"]
    assert made.facts[1].details["type"] == "NoMatchingBranch"
    assert made.marking.status is FlowStatus.FAILED
    assert made.marking.ended_at == [["a", [], True]]


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


def test_a_group_that_needs_one_loop_too_many_ends_the_run_as_well() -> None:
    made = begun("a -->|x| a; a -->|x| b; a -->|y| c; b -->|z| a; a -->|x| a", max_iterations=1)
    made.succeed("a", "x")
    assert lines(made)[1:] == ["loop a -> a #1", "maxIterations 1 exceeded at a -> a"]
    assert made.marking.ended_at == [["a", ["a"], False], ["b", ["a"], False]]
    assert made.marking.status is FlowStatus.MAX_ITERATIONS


# --- failures ------------------------------------------------------------------------------


def test_an_attempt_with_another_to_come_keeps_the_execution() -> None:
    made = begun("a --> b")
    made.fail_attempt("a", "boom", "2026")
    made.fail_attempt("a", "bang", "2027")
    assert lines(made) == ["fail a attempt 1: boom", "fail a attempt 2: bang"]
    assert (made.marking.active["a"].failures, made.marking.active["a"].due) == (2, "2027")
    assert made.marking.status is FlowStatus.RUNNING


def test_the_last_attempt_ends_the_run() -> None:
    made = begun("a --> b; c", "a", "c", entries=["a", "c"])
    made.fail_attempt("a", "boom", None)
    assert lines(made) == ["fail a attempt 1: boom; cancelled c"]
    assert made.marking.status is FlowStatus.FAILED
    assert made.marking.ended_at == [["a", [], True], ["c", [], True]]


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


def test_a_failure_that_no_attempt_could_mend_is_named_by_its_kind() -> None:
    made = begun("a; h", on_error="h")
    made.fail("a", "Template", "no such value")
    assert lines(made) == ["fail a: no such value", "onError -> h"]
    expected = {"node": "a", "type": "Template", "message": "no such value", "attempts": 1}
    assert made.marking.error == expected


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


def test_of_two_jumps_that_name_each_other_the_second_is_a_loop() -> None:
    jumps = {
        "g": {"timeout_ms": 5, "on_timeout": "h"},
        "h": {"timeout_ms": 5, "on_timeout": "g"},
    }
    made = begun("g{{G}}; h{{H}}", "g", entries=["g"], nodes=jumps, max_iterations=1)
    for name, following in (("g", "h"), ("h", "g"), ("g", "h")):
        made.expire(name)
        made.start(following)
    made.expire("h")
    told = [line for line in lines(made) if line and line.startswith(("loop", "max"))]
    assert told == ["loop h -> g #1", "maxIterations 1 exceeded at h -> g"]
    assert made.marking.status is FlowStatus.MAX_ITERATIONS


def test_a_jump_ahead_is_no_loop() -> None:
    jump = {"h": {"timeout_ms": 5, "on_timeout": "x"}}
    made = begun("h{{H}} --> b --> h; x --> y", nodes=jump, max_iterations=0)
    made.expire("h")
    assert (lines(made), waits(made)) == (["timeout h -> x"], {"x": ["h"]})
    # From b it is an edge that leads back to h, and that one counts.
    behind = {"h": {"timeout_ms": 5, "on_timeout": "b"}}
    made = begun("h{{H}} --> b --> h", nodes=behind, max_iterations=0)
    made.expire("h")
    assert lines(made) == ["timeout h -> b"]


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


def test_the_end_is_looked_for_only_while_the_run_goes_on() -> None:
    made = begun("a")
    made.cancel()
    made.look_for_the_end()
    assert made.marking.status is FlowStatus.CANCELLED
    before = begun("a --> b")
    before.look_for_the_end()
    assert before.marking.status is FlowStatus.RUNNING
