from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sequencer.errors import StaleClaim, TransitionRefused
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.transition import OpenTransition, busy_ms
from sequencer.model.head import Head, Status
from sequencer.model.outcome import Usage
from tests.flows import graph
from tests.unit.engine.flow.stepping import BAD, OK, START, Run, date

# --- people --------------------------------------------------------------------------------


# --- time ----------------------------------------------------------------------------------


def test_a_process_taken_over_is_busy_no_longer_than_its_lease() -> None:
    run = Run(graph("a", timeout_ms=10**9))
    run.begin()
    run.now, run.gone = 3_600_000, frozenset({1})
    run.look()
    assert (run.marking.busy_ms, run.marking.busy_since) == (60_000, date(3_600_000))


def test_a_wait_for_the_next_try_counts_only_until_it_is_due() -> None:
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


@pytest.mark.parametrize(("days", "is_tried"), [(32, False), (34, True)])
def test_a_next_try_dated_beyond_any_pause_starts_at_once(days: int, *, is_tried: bool) -> None:
    run = Run(graph("a"))
    run.begin()
    run.now = 300
    run.fail("a", due=300 + days * 86_400_000)
    run.look()
    assert bool(run.held) == is_tried


# --- trying again --------------------------------------------------------------------------


def restore(run: Run) -> list[str]:
    return run.update(OpenTransition.restore)


def test_people_are_asked_again_when_a_run_is_restored() -> None:
    nodes = {"h": {"timeout_ms": 50}}
    run = Run(graph("s((S)) --> a & h{{H}} --> j", nodes=nodes))
    run.begin()
    before = run.token("h")
    run.fail("a")
    run.now = 1_000
    assert restore(run) == ["resumed", "again h", "start a"]
    asked = run.marking.active["h"]
    assert (asked.since, asked.due) == ("2026-01-01T00:00:01Z", date(1_050))
    assert asked.token not in (0, before)
    assert run.held == {"a": run.token("a")}
    assert run.update(lambda step: step.answer("h", "x", None, {})) == ["done h"]


def test_a_failed_decision_is_made_again_when_a_run_is_restored() -> None:
    run = Run(graph("a --> q{Q}; q -->|x| b; q -->|y| c"))
    run.begin()
    run.accept("a", "neither")
    assert run.head.status is Status.FAILED
    run.outputs["0-1"] = "y"
    assert restore(run) == ["resumed", "done q = y", "start c"]
    assert set(run.held) == {"c"}


@pytest.mark.parametrize("ended", [False, True])
def test_restoring_a_run_is_refused_if_nothing_failed(*, ended: bool) -> None:
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


# --- claims --------------------------------------------------------------------------------


# --- ends of attempts ----------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["accept", "fail", "release"])
def test_a_stale_claim_changes_nothing(verb: str) -> None:
    run = Run(graph("a --> b"))
    run.begin()
    acts: dict[str, Callable[[OpenTransition], None]] = {
        "accept": lambda step: step.accept(7, OK, "0-7", {}),
        "fail": lambda step: step.fail(7, BAD, {}, due=None, kind="error"),
        "release": lambda step: step.release(7, None, Usage()),
    }
    with pytest.raises(StaleClaim, match="token 7 is stale"):
        run.update(acts[verb])
    assert (run.held, run.marking.active["a"].token) == ({"a": 1}, 1)


# --- taking over ---------------------------------------------------------------------------


def test_a_node_that_keeps_dying_fails_in_the_end() -> None:
    run = Run(graph("a; h", on_error="h"))
    run.max_attempts = 3
    run.begin()
    for token in (1, 2):
        run.gone = frozenset({token})
        assert run.look() == ["taken-over", "again a"]
    run.gone = frozenset({3})
    said = "fail a: started 3 times without an end (limits.attempts)"
    assert run.look() == ["taken-over", said, "onError -> h", "start h"]


# --- what an error cancels -----------------------------------------------------------------


@pytest.mark.parametrize("ends_by", ["failed", "max_iterations"])
def test_no_claim_is_held_after_a_bad_end(ends_by: str) -> None:
    run = Run(graph("s((S)) --> a & b; a -->|x| a; a -->|y| c", max_iterations=0))
    run.begin()
    if ends_by == "failed":
        run.fail("a")
    else:
        run.accept("a", "x")
    assert (run.held, run.head.status, run.head.exit_reason) == ({}, Status.FAILED, ends_by)
    # What a person who hears of the end alone has to know.
    why = {"error": "node 'a' failed: boom"} if ends_by == "failed" else {}
    assert (run.facts[-1].event, run.facts[-1].outcome) == ("completed", {"status": ends_by, **why})
    assert run.look() == []
    assert run.head.exit_reason == ends_by


# --- what a claim closes -------------------------------------------------------------------


def _close_b_once_a_runs(head: Head, marking: Marking) -> set[str]:
    del marking
    return {"b"} if any(claim.step == "a" for claim in head.claims) else set()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, {"a", "b", "c"}),
        ({"closed": _close_b_once_a_runs}, {"a", "b", "c"}),
        ({"closed": _close_b_once_a_runs, "share": lambda *_: {"usd": 0.5}}, {"a", "c"}),
        ({"excluded": _close_b_once_a_runs}, {"a", "c"}),
    ],
    ids=["nothing", "a limit of which no share is reserved", "a reserved share", "an exclusion"],
)
def test_a_claim_may_close_another_node_in_the_same_transition(
    rules: dict[str, Any], expected: set[str]
) -> None:
    run = Run(graph("s((S)) --> a & b & c"))
    run.rules = rules
    run.begin()
    assert run.held.keys() == expected
    assert run.look() == [], "also not at the next look"
