from __future__ import annotations

from datetime import timedelta

import pytest

from sequencer.errors import TransitionRefused
from sequencer.model.head import Status
from sequencer.model.net.transition import OpenTransition, busy_ms
from tests.flows import graph
from tests.unit.engine.flow.stepping import START, Run, date

# --- people --------------------------------------------------------------------------------


# --- time ----------------------------------------------------------------------------------


def test_who_was_taken_over_worked_no_longer_than_its_lease() -> None:
    run = Run(graph("a", timeout_ms=10**9))
    run.begin()
    run.now, run.gone = 3_600_000, frozenset({1})
    run.look()
    assert (run.marking.busy_ms, run.marking.busy_since) == (60_000, date(3_600_000))


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
