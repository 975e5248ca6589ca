from __future__ import annotations

from collections.abc import Callable

import pytest

from sequencer.errors import StaleClaim
from sequencer.model.head import Status
from sequencer.model.net.transition import OpenTransition
from sequencer.model.outcome import Usage
from tests.flows import graph
from tests.unit.engine.flow.stepping import BAD, OK, Run

# --- claims --------------------------------------------------------------------------------


# --- ends of attempts ----------------------------------------------------------------------


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
