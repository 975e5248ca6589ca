from __future__ import annotations

from collections.abc import Callable

import pytest

from sequencer.errors import StaleClaim
from sequencer.model.head import Status
from sequencer.model.net.marking import Active
from sequencer.model.net.transition import OpenTransition
from sequencer.model.outcome import Usage
from tests.flows import graph
from tests.unit.engine.flow.stepping import BAD, OK, Run

# --- claims --------------------------------------------------------------------------------


def test_as_many_agents_are_claimed_as_there_are_places_in_order() -> None:
    run = Run(graph("s((S)) --> c & a & b"), slots=2)
    assert run.begin() == ["start s", "done s", "start c", "start a"]
    assert (run.held, run.granted) == ({"c": 1, "a": 2}, [1, 2])
    assert (run.head.token, run.head.status) == (2, Status.RUNNING)
    assert run.marking.active["c"] == Active(("s",), token=1, attempt=1)
    assert list(run.marking.waiting) == ["b"]


# --- ends of attempts ----------------------------------------------------------------------


def test_the_record_goes_with_the_first_fact_alone() -> None:
    run = Run(graph("a -->|again| a; a -->|on| b"))
    run.begin()
    assert run.accept("a", "again") == ["done a = again", "loop a -> a #1", "start a"]
    outcomes = [fact.outcome for fact in run.facts]
    assert outcomes[0] == {"status": "ok", "choice": "again"}
    assert outcomes[1] == {"to": "a", "number": 1}
    assert [(fact.token, fact.attempt) for fact in run.facts] == [(1, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("verb", ["accept", "fail", "release"])
def test_a_claim_that_is_gone_changes_nothing(verb: str) -> None:
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


def test_a_claim_whose_process_is_gone_is_taken_over() -> None:
    run = Run(graph("s((S)) --> a & b"))
    run.begin()
    run.gone = frozenset({1})
    assert run.look() == ["taken-over", "again a"]
    assert run.held == {"b": 2, "a": 3}
    taken, again = run.facts
    assert (taken.token, taken.attempt, again.token, again.attempt) == (1, 1, 3, 2)
    assert taken.outcome == {"note": "token 1 of process 1 on far"}
    with pytest.raises(StaleClaim):
        run.update(lambda step: step.accept(1, OK, None, {}))


def test_a_dead_claim_does_not_take_its_own_place() -> None:
    run = Run(graph("a & b", entries=["a", "b"], max_parallel=1))
    run.begin()
    run.gone = frozenset({1})
    assert run.look() == ["taken-over", "again a"]
    assert run.held == {"a": 2}


def test_what_dies_again_and_again_fails_in_the_end() -> None:
    run = Run(graph("a; h", on_error="h"))
    run.max_attempts = 3
    run.begin()
    for token in (1, 2):
        run.gone = frozenset({token})
        assert run.look() == ["taken-over", "again a"]
    run.gone = frozenset({3})
    said = "fail a: begun 3 times without an end (limits.max_attempts)"
    assert run.look() == ["taken-over", said, "onError -> h", "start h"]


# --- what an error cancels -----------------------------------------------------------------


def test_after_an_error_the_claims_of_the_others_are_gone() -> None:
    run = Run(graph("s((S)) --> a & b --> j; h --> b", on_error="h", max_parallel=2))
    run.begin()
    assert run.fail("a") == ["fail a attempt 1: boom", "onError -> h; cancelled b", "start h"]
    assert run.held == {"h": 3}
    with pytest.raises(StaleClaim):
        run.update(lambda step: step.accept(2, OK, None, {}))
    assert run.accept("h") == ["done h", "start b"]
    with pytest.raises(StaleClaim):
        run.update(lambda step: step.accept(2, OK, None, {}))
    run.accept("b")
    assert run.accept("j")[-1] == "completed"
    assert (run.head.status, run.head.exit_reason) == (Status.COMPLETE, "completed_after_error")


@pytest.mark.parametrize("ends_by", ["failed", "max_iterations"])
def test_at_a_bad_end_nobody_holds_a_claim(ends_by: str) -> None:
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
