from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.cli.views.facts import NewFacts
from sequencer.history.view import FlowView, NodeState
from sequencer.history.words import format_facts, format_time
from sequencer.model.transitions import Event
from tests.unit.cli.flow.facts import fact
from tests.unit.cli.flow.views import graph, of, with_node

CHART = "a --> b{{Sure?}}\nb -->|no| a\nb -->|yes| c"


def lines(*facts: dict[str, Any], view: FlowView | None = None) -> list[str]:
    return [line for _, line in format_facts(facts, view or of(graph(CHART), "running"))]


# --- words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("happened", "said"),
    [
        (fact(Event.CLAIMED, "a", attempt=1), "start a"),
        (fact(Event.CLAIMED, "a", attempt=2), "start a, attempt 2"),
        (fact(Event.CLAIMED, "a"), "start a"),
        (fact(Event.STARTED, "j", number=1), "start j"),
        (fact(Event.SUCCEEDED, "a"), "done a"),
        (
            fact(Event.SUCCEEDED, "a", usage={"seconds": 12.3, "cost_usd": 0.01}),
            "done a 12.3 s 0.01 USD",
        ),
        (fact(Event.SUCCEEDED, "a", usage={"cost_usd": 0.004}), "done a"),
        (fact(Event.SUCCEEDED, "a", usage={"cost_usd": 0.005}), "done a 0.01 USD"),
        (fact(Event.PASSED, "j", choice="yes"), "done j"),
        (fact(Event.ANSWERED, "b", by="ann", output="yes"), "done b (Sure?)"),
        (fact(Event.ASKED, "b"), "ask b: Sure?"),
        (fact(Event.ASKED, "gone"), "ask gone: gone"),
        (fact(Event.EXPIRED, "b", to="c"), "timeout b (Sure?) -> c"),
        (fact(Event.LOOPED, "b", to="a", number=3), "loop 3 of at most 50"),
        (
            fact(Event.FAILED, "b", type="NoMatchingBranch", error="x" * 300, hint="'yes', 'no'"),
            f"fail b (Sure?): {'x' * 200}; 'yes', 'no'",
        ),
        (fact(Event.RELEASED, "a", status="interrupted"), "release a"),
        (
            fact(Event.RELEASED, "a", attempt=2, status="limited", error="usage limit"),
            "retry a after attempt 2: usage limit",
        ),
        (fact(Event.TAKEN_OVER, "a", note="token 3"), "take over a: token 3"),
        (fact(Event.PAUSED, "a"), "paused"),
        (fact(Event.RESUMED, note="retry: a at once"), "resumed: retry: a at once"),
        (fact(Event.RESET, "a", note="run x ended"), "reset: run x ended"),
    ],
)  # fmt: skip
def test_words(happened: dict[str, Any], said: str) -> None:
    assert lines(happened) == [said]


def test_every_line_shows_the_node_title_next_to_its_id() -> None:
    view = of(graph("A[Compile and lint] --> B{{Which server?}}\nB --> end_it[End it]"), "running")
    assert lines(
        fact(Event.CLAIMED, "A", attempt=2),
        fact(Event.SUCCEEDED, "A", usage={"seconds": 12.3}),
        fact(Event.FAILED, "A", attempt=1, error="boom", **{"try": 1}),
        fact(Event.RELEASED, "A", status="interrupted"),
        fact(Event.ASKED, "B"),
        fact(Event.DIVERTED, "A", 2, to="B", cancelled=["end_it"]),
        view=view,
    ) == [
        "start A (Compile and lint), attempt 2",
        "done A (Compile and lint) 12.3 s",
        "retry A (Compile and lint) after attempt 1: boom",
        "release A (Compile and lint)",
        # What is asked is the title itself, and the other one says no more than its id.
        "ask B: Which server?",
        "onError -> B (Which server?)",
        "cancel end_it",
    ]


@pytest.mark.parametrize(
    "happened",
    [fact(Event.INITIALISED, "a"), fact(Event.COMPLETED, status="completed")],
)
def test_the_beginning_and_the_end_have_no_line_of_their_own(happened: dict[str, Any]) -> None:
    assert lines(happened) == []


@pytest.mark.parametrize(
    ("happened", "said"),
    [
        (fact(Event.DIVERTED, "a", to="c", cancelled=["b", "d"]), "onError -> c"),
        (
            fact(Event.EXHAUSTED, "b", to="a", limit=2, cancelled=["b", "d"]),
            "maxIterations 2 exceeded at b (Sure?) -> a",
        ),
        (fact(Event.TIMED_OUT, cancelled=["b", "d"]), "workflow timeout"),
        (fact(Event.CANCELLED, cancelled=["b", "d"], by="ann"), "stopped by hand"),
    ],
)
def test_each_canceled_node_is_named(happened: dict[str, Any], said: str) -> None:
    assert lines(happened) == [said, "cancel b (Sure?)", "cancel d"]


# --- questions ---------------------------------------------------------------------------


# --- failures ----------------------------------------------------------------------------


def failed(revision: int = 1, name: str = "a", tries: int = 0, **more: Any) -> dict[str, Any]:
    more |= {"try": tries} if tries else {}
    return fact(Event.FAILED, name, revision, attempt=1, error="it broke", **more)


def test_a_failure_that_is_tried_again() -> None:
    view = of(graph(CHART), "running")
    waits = with_node(view, "a", state=NodeState.RETRYING, attempt=1, due="2026-11-22T12:04:00Z")
    assert lines(failed(tries=1), view=view) == ["retry a after attempt 1: it broke"]
    assert lines(failed(tries=1), view=waits) == [
        f"retry a after attempt 1: it broke (next at {format_time(str(waits.nodes[0].due))})"
    ]
    # The time is that of a later attempt by now.
    later = with_node(waits, "a", attempt=2)
    assert lines(failed(tries=1), view=later) == ["retry a after attempt 1: it broke"]


def test_a_final_failure_is_followed_by_its_consequence() -> None:
    ended = fact(Event.COMPLETED, status="failed")
    assert lines(failed(tries=2), ended) == ["fail a: it broke"]
    assert lines(failed(tries=2), fact(Event.DIVERTED, "a", to="c")) == [
        "fail a: it broke",
        "onError -> c",
    ]
    assert lines(failed(type="Template")) == ["fail a: it broke"]
    # The end belongs to the later failure, the error node to its own one, and neither
    # to a failure of an earlier record.
    assert lines(failed(tries=2), failed(name="b", tries=2), ended) == [
        "retry a after attempt 1: it broke",
        "fail b (Sure?): it broke",
    ]
    assert lines(failed(tries=2), fact(Event.DIVERTED, "b", to="c"))[0].startswith("retry a")
    assert lines(failed(0, tries=2), ended) == ["retry a after attempt 1: it broke"]
    assert lines(failed(tries=2), fact(Event.COMPLETED, status="timed_out"))[0].startswith("retry")


def test_a_final_failure_of_a_task_is_not_shown_as_a_retry() -> None:
    """Its team goes on, so that no record tells of an end."""
    view = with_node(of(graph(CHART), "running"), "a", state=NodeState.FAILED, attempt=2)
    second = failed(2, tries=2) | {"attempt": 2}
    assert lines(failed(tries=1), second, view=view) == [
        "retry a after attempt 1: it broke",
        "fail a: it broke",
    ]
    # Another one's failure says nothing about it.
    others = with_node(of(graph(CHART), "running"), "b", state=NodeState.FAILED, attempt=1)
    assert lines(failed(tries=1), view=others) == ["retry a after attempt 1: it broke"]


# --- all of it, in order -----------------------------------------------------------------

EVENTS = {Event.CLAIMED: "start", Event.STARTED: "start", Event.SUCCEEDED: "done",
          Event.PASSED: "done", Event.ANSWERED: "done"}  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*EVENTS, Event.INITIALISED, Event.RESET, Event.PAUSED]),
            st.sampled_from("abc"),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.data(),
)
@settings(max_examples=60)
def test_every_fact_has_its_line_in_the_journals_order(
    happened: list[tuple[Event, str, bool]], data: st.DataObject
) -> None:
    facts, revision = [], 0
    for event, name, is_new_record in happened:
        revision += is_new_record
        facts.append(fact(event, name, revision))
    # It is looked at now and then, behind whole records; seldom enough that much happens between.
    ends = [n for n, (_, _, is_new) in enumerate(happened) if is_new and n]
    looks = sorted(data.draw(st.sets(st.sampled_from(ends)))) if ends else []
    news, said = NewFacts(), list[str]()
    view = replace(of(graph(CHART), "running"), status="running")
    for end in (*looks, len(facts)):
        said += lines(*news.select_new(facts[:end]), view=view)
        assert news.select_new(facts[:end]) == []
    titled = {"a": "a", "b": "b (Sure?)", "c": "c"}
    expected = [f"{EVENTS[event]} {titled[name]}" for event, name, _ in happened if event in EVENTS]
    assert [line for line in said if line.startswith(("start", "done"))] == expected
