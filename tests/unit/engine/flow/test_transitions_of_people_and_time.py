from __future__ import annotations

import sys
from datetime import timedelta
from types import FrameType

import pytest

from sequencer.errors import TransitionRefused
from sequencer.model.head import Status
from sequencer.model.net.graph import Graph
from sequencer.model.net.marking import FlowStatus, Marking
from sequencer.model.net.transition import OpenTransition, busy_ms
from sequencer.model.outcome import Usage
from tests.flows import fan, graph
from tests.unit.engine.flow.stepping import START, Run, date

# --- people --------------------------------------------------------------------------------


def test_while_an_agent_may_go_on_the_run_does_not_wait_for_a_person() -> None:
    run = Run(graph("s((S)) --> h{{H}} & a"))
    run.begin()
    assert run.head.status == "running"
    run.update(lambda step: step.release(run.token("a"), None, Usage()), claims=False)
    assert run.head.status == "waiting-next"
    run.look()
    run.fail("a", due=9_000)
    assert run.head.status == "waiting-next"
    run.now = 9_000
    run.look()
    run.accept("a")
    assert (run.head.status, run.head.expected_step) == (Status.WAITING_APPROVAL, "h")


# --- time ----------------------------------------------------------------------------------


def test_only_time_in_which_agents_work_or_rest_counts() -> None:
    run = Run(graph("a --> h{{H}} --> b", timeout_ms=1000))
    run.begin()
    assert (run.marking.busy_ms, run.marking.busy_since) == (0, date(0))
    run.now = 300
    run.fail("a", due=500)
    assert (run.marking.busy_ms, run.marking.busy_since) == (300, date(300))
    run.now = 500
    run.look()
    run.now = 600
    run.accept("a")
    assert (run.marking.busy_ms, run.marking.busy_since) == (600, None)
    run.now = 90_600
    run.update(lambda step: step.answer("h", "", None, {}))
    assert (run.marking.busy_ms, run.marking.busy_since) == (600, date(90_600))
    assert busy_ms(run.head, run.marking, START + timedelta(milliseconds=90_950)) == 950


def test_who_was_taken_over_worked_no_longer_than_its_lease() -> None:
    run = Run(graph("a", timeout_ms=10**9))
    run.begin()
    run.now, run.gone = 3_600_000, frozenset({1})
    run.look()
    assert (run.marking.busy_ms, run.marking.busy_since) == (60_000, date(3_600_000))


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    run = Run(graph("a", timeout_ms=1000))
    run.begin()
    marking = Marking(graph("a"), busy_ms=7, busy_since=date(500))
    assert busy_ms(run.head, marking, START) == 7
    assert busy_ms(run.head, Marking(graph("a"), busy_ms=7), START) == 7


def test_a_wait_for_the_next_try_is_no_longer_than_it_was_to_be() -> None:
    """Nobody may look for hours, with cron or after a stop."""
    run = Run(graph("a", timeout_ms=10_000))
    run.begin()
    run.now = 300
    run.fail("a", due=800)
    assert busy_ms(run.head, run.marking, START + timedelta(milliseconds=700)) == 700
    assert busy_ms(run.head, run.marking, START + timedelta(hours=5)) == 800
    run.now = 3_600_000
    run.look()
    assert (run.marking.busy_ms, run.marking.busy_since) == (800, date(3_600_000))


# --- trying again --------------------------------------------------------------------------


def restore(run: Run) -> list[str]:
    return run.update(OpenTransition.restore)


def test_people_are_asked_anew_when_a_run_is_put_back() -> None:
    nodes = {"h": {"timeout_ms": 50}}
    run = Run(graph("s((S)) --> a & h{{H}} --> j", nodes=nodes))
    run.begin()
    before = run.token("h")
    run.fail("a")
    run.now = 1_000
    assert restore(run) == ["resumed", "again h", "start a"]
    asked = run.marking.active["h"]
    assert (asked.since, asked.due) == (date(1_000), date(1_050))
    assert asked.token not in (0, before)
    assert run.held == {"a": run.token("a")}
    assert run.update(lambda step: step.answer("h", "x", None, {})) == ["done h"]


def test_a_decision_that_failed_is_made_anew_when_a_run_is_put_back() -> None:
    run = Run(graph("a --> q{Q}; q -->|x| b; q -->|y| c"))
    run.begin()
    run.accept("a", "neither")
    assert run.head.status is Status.FAILED
    run.outputs["0-1"] = "y"
    assert restore(run) == ["resumed", "done q = y", "start c"]
    assert set(run.held) == {"c"}


@pytest.mark.parametrize("ended", [False, True])
def test_where_nothing_failed_there_is_nothing_to_try_again(*, ended: bool) -> None:
    run = Run(graph("a"))
    run.begin()
    if ended:
        run.accept("a")
    with pytest.raises(TransitionRefused, match="nothing failed"):
        restore(run)


# --- the head ------------------------------------------------------------------------------


def test_a_pause_takes_effect_when_the_last_claim_has_ended() -> None:
    run = Run(graph("s((S)) --> a & b --> c"), pause_requested=True)
    run.begin()
    run.slots = 0
    run.accept("a")
    assert (run.head.status, run.head.pause_requested) == (Status.RUNNING, True)
    run.accept("b")
    assert (run.head.status, run.head.pause_requested) == (Status.PAUSED, False)
    run.look()
    assert run.head.status is Status.PAUSED


# --- cost ----------------------------------------------------------------------------------


def calls_of(made: Graph) -> int:
    """Return how many calls of Python functions a run of *made* with 8 places takes."""
    run = Run(made, slots=8)
    count = 0

    def counting(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "/sequencer/" in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        run.begin()
        while run.head.claims:
            run.slots = 8 - len(run.head.claims) + 1
            run.accept(run.head.claims[0].step)
    finally:
        sys.setprofile(before)
    assert run.marking.status is FlowStatus.COMPLETED
    return count


def test_a_node_costs_the_same_in_a_larger_graph() -> None:
    small, large = calls_of(fan(300)), calls_of(fan(600))
    assert large / 602 == pytest.approx(small / 302, rel=0.05)
